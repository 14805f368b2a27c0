#!/usr/bin/env python3
"""How fast Tamis is while other programs use the cores: bench/busy.py PROGRAM [--loads 0,1,2] [--work NAMES]

Every kind of work runs without and with programs that compute without a pause, under every setting of the threads, the
settings interleaved. Prints medians of tokens/s and their ratio to the best setting under the same load. The default
should reach 0.8 everywhere.
"""

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SETTINGS = {  # name: (number of threads, variables); OMP_DYNAMIC=false is libgomp's own default
    "default": (0, {}),
    "one thread": (1, {}),
    "libgomp": (0, {"OMP_DYNAMIC": "false"}),
    "libgomp, GOMP_SPINCOUNT=10000": (0, {"GOMP_SPINCOUNT": "10000"}),
    "libgomp, GOMP_SPINCOUNT=0": (0, {"GOMP_SPINCOUNT": "0"}),
    "libgomp, OMP_WAIT_POLICY=passive": (0, {"OMP_WAIT_POLICY": "passive"}),
}
TIMEOUT_S = 900
# Computes without a pause, until the process that started it has ended.
COMPUTE = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    for _ in range(1 << 20): pass"


def run(command, variables):
    unset = {key: value for key, value in os.environ.items() if not key.startswith(("OMP_", "GOMP_"))}
    done = subprocess.run(command, env={**unset, **variables}, capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode:
        sys.exit(f"busy.py: {' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout


def train(recipe, steps):
    """Tokens/s of the steps after the first third."""

    def measure(program, threads, variables):
        with tempfile.TemporaryDirectory() as directory:
            command = [program, "train", ROOT / "recipes" / recipe]
            for setting in (
                f"run.dir={directory}/run", f"train.steps={steps}", f"train.threads={threads}",
                f"train.log_every={steps // 3}", f"train.save_every={steps}", f"train.sample_every={steps}",
                f"train.validate_every={steps}", "train.validate_tokens=256",
            ):  # fmt: skip
                command += ["--set", setting]
            run(command, variables)
            lines = pathlib.Path(directory, "run", "log.jsonl").read_text().splitlines()
        rates = [row["tokens_per_second"] for row in map(json.loads, lines) if "tokens_per_second" in row]
        return statistics.harmonic_mean(rates[1:])

    return measure


def bench(*arguments):
    """Tokens/s on average: calls of decoding are shorter than the time slices of programs, and few are interrupted."""

    def measure(program, threads, variables):
        report = json.loads(run([program, "bench", *arguments, "--threads", str(threads), "--json"], variables))
        row = report["rows"][0]
        return row["tokens_per_second"] * row["seconds"]["median"] / row["seconds"]["mean"]

    return measure


WORK = {
    "transformer": train("demo_transformer.toml", 60),
    "multiscreen": train("demo.toml", 60),
    "psi16": bench("train", "--lengths", "512", "--batch-tokens", "512", "--dtypes", "float32", "--repeat", "2", "--seconds", "2"),
    "decode": bench("decode", "--psi", "8", "--depths", "0", "--dtypes", "float32", "--seconds", "1"),
}  # fmt: skip


@contextlib.contextmanager
def busy(programs):
    """`count` programs that compute without a pause, each in a session of its own, as a desktop's programs are."""
    loops = [
        subprocess.Popen([sys.executable, "-c", COMPUTE], start_new_session=True) for _ in range(programs)
    ]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def table(name, load, rates):
    """Lines of one kind of work under one load, from {setting: [tokens/s]}."""
    medians = {setting: statistics.median(values) for setting, values in rates.items()}
    best = max(medians.values())
    lines = [f"{name}, {load} busy programs"]
    for setting, median in medians.items():
        spread = f"{min(rates[setting]):,.0f} to {max(rates[setting]):,.0f}"
        lines.append(f"  {setting:34} {median:10,.0f} tokens/s  {median / best:5.2f} of the best  ({spread})")
    return lines


def names(known):
    def read(text):
        chosen = text.split(",")
        unknown = [name for name in chosen if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f'unknown "{unknown[0]}"; known: {", ".join(known)}')
        return chosen

    return read


def loads(text):
    values = [int(part) for part in text.split(",")]
    if min(values) < 0:
        raise argparse.ArgumentTypeError("a load is a number of programs")
    return values


def main():
    cores = os.cpu_count() or 1
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=os.path.abspath, help="build/release/tamis")
    parser.add_argument("--loads", type=loads, default=[0, 1, cores, 2 * cores + 1], help="busy programs (0, 1, cores, 2 cores + 1)")
    parser.add_argument("--work", type=names(WORK), default=list(WORK), help=", ".join(WORK))
    parser.add_argument("--settings", type=names(SETTINGS), default=list(SETTINGS), help="of the threads; default: all")
    parser.add_argument("--repeat", type=int, default=3, help="times")
    options = parser.parse_args()
    for name in options.work:
        for load in options.loads:
            rates = {setting: [] for setting in options.settings}
            with busy(load):
                for _ in range(options.repeat):
                    for setting in options.settings:
                        rates[setting].append(WORK[name](options.program, *SETTINGS[setting]))
            print("\n".join(table(name, load, rates)), flush=True)


if __name__ == "__main__":
    main()
