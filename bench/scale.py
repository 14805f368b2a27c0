#!/usr/bin/env python3
"""What dividing a run among processes costs on this machine: bench/scale.py PROGRAM [--processes 2,4]

Measures the loopback with `tamis bench network`, trains a Multiscreen of psi 12 with every division, the divisions
interleaved, and prints for each the time of a step and the bytes that are sent, measured and as `tamis plan` expects
them with the measured bandwidth and latency. Run nothing else meanwhile.
"""

import argparse
import contextlib
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile

RECIPE = """
[model]
psi = 12
vocab_size = 257
[data.sources.digits]
kind = "abc_digits"
[train]
steps = {steps}
length = 1024
batch_size = 4
accumulation = 4
precision = "float32"
log_every = 1
save_every = {steps}
validate_every = 0
sample_every = 0
"""
TIMEOUT_S = 1200


def together(command, processes):
    """Runs a command in so many processes, as torchrun does; what the first one prints."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    started = []
    with contextlib.ExitStack() as ended:
        for rank in range(processes):
            place = {
                "RANK": rank,
                "WORLD_SIZE": processes,
                "LOCAL_RANK": rank,
                "LOCAL_WORLD_SIZE": processes,
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
            }
            env = {**os.environ, **{key: str(value) for key, value in place.items() if processes > 1}}
            process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            ended.callback(process.kill)
            started.append(process)
        done = [process.communicate(timeout=TIMEOUT_S) for process in started]
    for process, (_, messages) in zip(started, done, strict=True):
        if process.returncode:
            sys.exit(f"scale.py: {' '.join(map(str, command))}: {messages.strip()}")
    return done[0][0]


def divisions(counts, cores):
    """(processes, threads of each, settings) of everything that is compared."""
    found = [(1, cores, ()), (1, max(cores // 2, 1), ())]
    for count in counts:
        threads = max(cores // count, 1)
        found += [
            (count, threads, ()),
            (count, threads, ("train.shard=parameters",)),
            (count, threads, (f"train.context_parallel={count}",)),
        ]
    return list(dict.fromkeys(found))


def options(settings, threads):
    return [part for setting in (*settings, f"train.threads={threads}") for part in ("--set", setting)]


def train(program, recipe, division):
    """Seconds of a step, the median of those after the first third, and the bytes that all processes send in one."""
    processes, threads, settings = division
    with tempfile.TemporaryDirectory() as directory:
        run = pathlib.Path(directory, "run")
        together([program, "train", recipe, "--set", f"run.dir={run}", *options(settings, threads)], processes)
        records = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    steps = [record for record in records if record["type"] == "train"]
    tokens = steps[0]["tokens"]
    kept = steps[len(steps) // 3 :]
    return statistics.median(tokens / step["tokens_per_second"] for step in kept), kept[-1].get("sent_bytes", 0)


def plan(program, recipe, division, network):
    """The same as `tamis plan` expects it."""
    processes, threads, settings = division
    command = [program, "plan", recipe, "--json", *options(settings, threads), "--processes", processes]
    if processes > 1:
        command += ["--bandwidth", network["bytes_per_second"] * 8 / 1e9, "--latency", network["latency_seconds"] * 1e6]
    found = json.loads(together(list(map(str, command)), 1))
    if processes == 1:
        return found["seconds_in_steps"] / found["steps"], 0
    sent = found["communication"]
    # The plan gives every process cores of its own.
    sharing = max(1, processes * threads / len(os.sched_getaffinity(0)))
    return (sent["step_seconds"] - sent["seconds"]) * sharing + sent["seconds"], sent["sent_bytes"]


def counts(text):
    values = [int(part) for part in text.split(",")]
    if min(values) < 2:
        raise argparse.ArgumentTypeError("expected numbers of processes, from 2, separated by commas")
    return values


def main():
    cores = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=os.path.abspath, help="build/release/tamis")
    parser.add_argument("--processes", type=counts, default=[2, 4], help="numbers of processes (2,4)")
    parser.add_argument("--steps", type=int, default=12, help="of a run (12)")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each division (3)")
    chosen = parser.parse_args()
    networks = {}
    for count in chosen.processes:
        networks[count] = json.loads(together([chosen.program, "bench", "network", "--json"], count))
        print(
            f"{count} processes: {networks[count]['bytes_per_second'] * 8 / 1e9:.1f} Gbit/s of each, "
            f"{networks[count]['latency_seconds'] * 1e6:.0f} µs a message",
            flush=True,
        )
    all_divisions = divisions(chosen.processes, cores)
    with tempfile.TemporaryDirectory() as directory:
        recipe = pathlib.Path(directory, "recipe.toml")
        recipe.write_text(RECIPE.format(steps=chosen.steps))
        measured = {division: [] for division in all_divisions}
        expected = {division: [] for division in all_divisions}
        for _ in range(chosen.repeat):
            for division in all_divisions:
                expected[division].append(plan(chosen.program, recipe, division, networks.get(division[0])))
                measured[division].append(train(chosen.program, recipe, division))
    print("| processes | threads | settings | step measured | expected | relative to the first | MB sent measured | expected |")
    print("|---|---|---|---|---|---|---|---|")
    first = statistics.median(seconds for seconds, _ in measured[all_divisions[0]])
    for processes, threads, settings in all_divisions:
        runs = measured[processes, threads, settings]
        plans = expected[processes, threads, settings]
        times = [seconds for seconds, _ in runs]
        print(
            f"| {processes} | {threads} | {', '.join(settings)} | {statistics.median(times):.3f} s "
            f"({min(times):.3f} to {max(times):.3f}) | {statistics.median(seconds for seconds, _ in plans):.3f} s | "
            f"{first / statistics.median(times):.2f} | {runs[-1][1] / 1e6:.1f} | {plans[-1][1] / 1e6:.1f} |"
        )


if __name__ == "__main__":
    main()
