#!/usr/bin/env python3
"""What surrounds a process must not break it, nor cost its user anything: closed descriptors, full disks, readers that
leave, limits on memory and on files, devices where a file is expected, numbers that do not fit, a run directory that is
removed. robust_process_test.py PROGRAM [TEST ...]"""

import json
import os
import pathlib
import re
import resource
import shutil
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECIPE = """
[model]
hidden_size = 16
num_hidden_layers = 2
num_attention_heads = 2
key_dim = 4
value_dim = 8

[data.sources.digits]
kind = "abc_digits"

[train]
steps = 4
length = 48
batch_size = 2
threads = 1
lr = 0.01
warmup_steps = 2
save_every = 2
log_every = 1
validate_tokens = 96
sample_prompt = "A=12\\nA="
sample_tokens = 4
"""
STACK = 'model.model_type="transformer"'
TASKS = ("abc_digits", "copy", "mqar", "mqrar", "needle", "niah_multikey_2", "niah_single_1", "passkey", "variable_tracking")
BIGGEST = 2**63 - 1

program = ""
work = pathlib.Path()
run_directory = pathlib.Path()  # trained once, for the commands that read a run


def limited(kind, value):
    return lambda: resource.setrlimit(kind, (value, value))


def run(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more):
    """(exit code, standard output, standard error); a signal is a negative code."""
    more = {"stdin": subprocess.DEVNULL, "timeout": 300, **more}
    done = subprocess.run([program, *map(str, arguments)], stdout=stdout, stderr=stderr, **more)
    return done.returncode, (done.stdout or b"").decode(errors="replace"), (done.stderr or b"").decode(errors="replace")


def train_arguments(directory, *settings):
    sets = [word for setting in settings for word in ("--set", setting)]
    return ["train", work / "recipe.toml", "--set", f"run.dir={directory}", *sets]


def check(condition, text):
    if not condition:
        raise AssertionError(text)


def expect(outcome, code, *texts):
    """The exit code and, of a failure, one line of error that holds `texts`."""
    check(outcome[0] == code, f"expected exit code {code}, got {outcome}")
    if code == 0:
        return
    errors = [line for line in outcome[2].splitlines() if line.startswith("tamis: ")]
    check(len(errors) == 1, f"expected one line of error: {outcome}")
    for text in texts:
        check(text in errors[0], f"expected {text!r} in: {errors[0]}")


def expect_one_line(outcome, code, *texts):
    expect(outcome, code, *texts)
    check(outcome[2].count("\n") == 1, f"expected nothing but one line: {outcome[2]}")


def saved(directory):
    return sorted(path.name for path in (directory / "checkpoints").iterdir() if path.name.startswith("step-"))


def wait_until(condition, process, text):
    deadline = time.monotonic() + 60
    while not condition():
        check(process.poll() is None, f"ended too early: {text}: {process.returncode}")
        check(time.monotonic() < deadline, f"timed out: {text}")
        time.sleep(0.01)


# Descriptors and streams.


def test_a_standard_error_on_a_full_disk_does_not_end_a_run(directory):
    with open("/dev/full", "wb") as full:
        expect(run(*train_arguments(directory), stderr=full), 0)
    check(saved(directory) == ["step-2", "step-4"], saved(directory))


def test_messages_do_not_land_in_a_file_of_the_run_when_descriptors_are_closed(directory):
    for closed in ("2>&-", "<&- >&- 2>&-"):
        path = directory.with_name(f"{directory.name}{len(closed)}")
        words = " ".join(map(str, train_arguments(path)))
        code = subprocess.run(["sh", "-c", f"exec {program} {words} {closed}"], timeout=300).returncode
        check(code == 0, f"{closed}: exit code {code}")
        check(saved(path) == ["step-2", "step-4"], f"{closed}: {saved(path)}")
        lock = (path / ".lock").read_text()
        check(re.fullmatch(r"process \d+", lock), f"{closed}: .lock holds {lock!r}")
        check(all(json.loads(line) for line in (path / "log.jsonl").read_text().splitlines()), "log.jsonl is not whole")


def test_a_reader_of_messages_that_leaves_does_not_end_a_run(directory):
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as nobody:
        expect(run(*train_arguments(directory), stderr=nobody), 0)
    check(saved(directory) == ["step-2", "step-4"], saved(directory))


def commands_that_print():
    text = work / "recipe.toml"
    return (
        ["--help"], ["--version"], ["eval", "--help"], ["inspect", "--psi", 2], ["inspect", "--psi", 2, "--json"],
        ["inspect", run_directory], ["generate", run_directory, "--prompt", "A=1", "--max-new-tokens", 3],
        ["generate", run_directory, "--prompt", "A=1", "--max-new-tokens", 3, "--json"],
        ["score", run_directory, text], ["score", run_directory, text, "--json"],
        ["eval", "loss", run_directory, text], ["eval", "loss", run_directory, text, "--json"],
        ["eval", "abc_digits", run_directory, "--lengths", 256, "--instances", 1],
        ["data", "generate", "passkey", "--count", 1], ["train", run_directory / "config.toml", "--json"],
    )  # fmt: skip


def test_results_that_cannot_be_written_are_no_success(directory):
    for arguments in commands_that_print():
        with open("/dev/full", "wb") as full:
            expect(run(*arguments, stdout=full), 1, "standard output", "No space left on device")
    words = " ".join(map(str, [program, "inspect", "--psi", 2]))
    closed = subprocess.run(["sh", "-c", f"exec {words} >&-"], capture_output=True, timeout=300)
    expect_one_line((closed.returncode, "", closed.stderr.decode()), 1, "standard output")
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as nobody:
        expect_one_line(run("data", "generate", "passkey", "--count", 100000, stdout=nobody), 1, "Broken pipe")


# Files.


def outputs():
    """Commands that write a file whose name comes behind."""
    return (
        ["data", "generate", "passkey", "--count", 2, "--out"],
        ["inspect", run_directory, "--text", work / "recipe.toml", "--tokens", 32, "--html"],
        ["report", run_directory, "--tokens", 32, "--output"],
    )


def read_fifo(path, arguments):
    received = []
    reader = threading.Thread(target=lambda: received.append(path.read_bytes()), daemon=True)
    reader.start()
    outcome = run(*arguments, path)
    reader.join(timeout=60)
    check(received and received[0], f"{arguments}: the FIFO received nothing: {outcome}")
    return outcome


def test_output_does_not_replace_what_is_no_file(directory):
    directory.mkdir()
    fifo, device, folder, listening = (directory / name for name in ("fifo", "full", "folder", "socket"))
    os.mkfifo(fifo)
    folder.mkdir()
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(listening))
    devices = []
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 7))  # a /dev/full of our own
        device.open("wb").close()
        devices = [device]
    except OSError:
        print("  no device can be made here: not tried")
        device.unlink(missing_ok=True)
    for arguments in outputs():
        expect(read_fifo(fifo, arguments), 0)
        for path in devices:
            expect_one_line(run(*arguments, path), 30, str(path), "No space left on device")
        expect_one_line(run(*arguments, folder), 30, f"{folder}: ", "a directory")
        expect_one_line(run(*arguments, listening), 30, f"{listening}: ", "a socket")
    check(stat.S_ISFIFO(fifo.stat().st_mode), "the FIFO was replaced")
    check(not devices or stat.S_ISCHR(device.stat().st_mode), "the device was replaced")
    check(sorted(os.listdir(directory)) == sorted(p.name for p in [fifo, folder, listening, *devices]), "left behind")
    server.close()


def test_output_to_dev_stdout_and_through_links_keeps_what_is_there(directory):
    directory.mkdir()
    link, target, appended = (directory / name for name in ("link", "target", "appended"))
    expected = run("data", "generate", "passkey", "--count", 2)[1]
    arguments = ["data", "generate", "passkey", "--count", 2, "--out"]
    check(run(*arguments, "/dev/stdout")[1].startswith(expected), "a pipe at /dev/stdout")
    appended.write_text("before\n")
    with open(appended, "ab") as file:
        expect(run(*arguments, "/dev/stdout", stdout=file), 0)
    check(appended.read_text().startswith("before\n" + expected), f"a file at /dev/stdout: {appended.read_text()[:80]}")
    link.symlink_to(target)
    for before in (None, "old"):
        if before:
            target.write_text(before)
        expect(run(*arguments, link), 0)
        check(link.is_symlink() and target.read_text() == expected, "the link was replaced")
    check(sorted(os.listdir(directory)) == ["appended", "link", "target"], os.listdir(directory))


def test_a_limit_on_file_sizes_ends_training_with_storage(directory):
    outcome = run(*train_arguments(directory), preexec_fn=limited(resource.RLIMIT_FSIZE, 20_000))
    expect(outcome, 30, "File too large", "ulimit -f")
    check(not any(name.startswith(".unfinished") for name in os.listdir(directory / "checkpoints")), "left behind")
    log_limit = run(*train_arguments(directory, "train.log_every=1", "train.steps=2000", "train.save_every=2000"),
                    preexec_fn=limited(resource.RLIMIT_FSIZE, 100_000))
    expect(log_limit, 30, "log.jsonl", "File too large")
    expect(run(*train_arguments(directory)), 0)


def test_a_run_directory_that_is_removed_is_not_made_again(directory):
    removals = {
        "removed": shutil.rmtree,
        "renamed": lambda path: path.rename(f"{path}.moved"),
        "replaced": lambda path: (path.rename(f"{path}.old"), (path / "checkpoints").mkdir(parents=True)),
    }
    for name, remove in removals.items():
        path = directory.with_name(f"{directory.name}_{name}")
        long = ("train.steps=1000000", "train.save_every=5", "train.sample_every=1000000")
        process = subprocess.Popen([program, *map(str, train_arguments(path, *long))], stderr=subprocess.PIPE, text=True)
        wait_until(lambda: (path / "checkpoints" / "step-5").exists(), process, "no checkpoint")
        while path.exists():
            try:
                remove(path)
                break
            except OSError:  # the run added a file meanwhile
                continue
        _, messages = process.communicate(timeout=60)
        expect((process.returncode, "", messages), 30, str(path), "removed, renamed or replaced")
        left = [str(entry.relative_to(path)) for entry in path.rglob("*")] if path.exists() else []
        check(left == (["checkpoints"] if name == "replaced" else []), f"{name}: written again: {left}")


# Memory.


def address_space_is_limitable():
    """False under AddressSanitizer and ThreadSanitizer, which reserve terabytes."""
    return run("--help", preexec_fn=limited(resource.RLIMIT_AS, 1 << 30))[0] == 0


def test_sizes_that_memory_does_not_hold_are_refused_before_work(directory):
    held = {"preexec_fn": limited(resource.RLIMIT_AS, 20 << 30) if address_space_is_limitable() else None, "timeout": 60}
    for task in TASKS:
        evaluation = ["eval", task, run_directory] + (["--vocab", 256] if task in ("mqar", "mqrar", "copy") else [])
        for size in (10**12, BIGGEST):
            expect_one_line(run(*evaluation, "--lengths", size, "--instances", 1, **held), 1, "needs", f"{size} tokens")
            expect_one_line(run("data", "generate", task, "--length", size, "--count", 1, **held), 1, f"{size} tokens")
            expect_one_line(run(*evaluation, "--instances", size, **held), 1, "instances", "of memory")


def test_a_memory_limit_is_one_line_of_error(directory):
    if not address_space_is_limitable():
        print("  skipped: this build reserves more address space than can be limited")
        return
    ends = set()
    for number, megabytes in enumerate(range(60, 1300, 40)):
        limit = limited(resource.RLIMIT_AS, megabytes << 20)
        commands = (["generate", run_directory, "--prompt", "A=1", "--max-new-tokens", 2],
                    [*train_arguments(directory.with_name(f"{directory.name}{number}")), "--threads", 4])
        for arguments in commands:
            outcome = run(*arguments, preexec_fn=limit)
            ends.add(outcome[0])
            if outcome[0] == 127 or outcome[0] == 0:  # 127: the system could not even start the program
                continue
            check(outcome[0] == 1, f"{megabytes} MB: {outcome}")
            errors = outcome[2].splitlines()
            check(errors[-1].startswith(("tamis: ", "libgomp: ")), f"{megabytes} MB: {outcome}")
            check(sum(line.startswith("tamis: ") for line in errors) <= 1, f"{megabytes} MB: {outcome}")
            check("terminate" not in outcome[2], f"{megabytes} MB: {outcome}")
    check({0, 1} <= ends, f"expected limits that do and that do not suffice: {ends}")


# Numbers.


def test_numbers_that_do_not_fit_are_not_accepted(directory):
    generate = ["generate", run_directory, "--prompt", "A"]
    for arguments in (
        [*generate, "--top-k", BIGGEST + 1], [*generate, "--seed", 2**64], [*generate, "--seed", "-1"],
        [*generate, "--max-new-tokens", "9" * 20], [*generate, "--temperature", ""], [*generate, "--threads", ""],
        [*generate, "--temperature", "nan"], [*generate, "--temperature", "1e999"], [*generate, "--top-p", "0.5x"],
        [*generate, "--top-k", " 1"], [*generate, "--top-k", "1.5"], [*generate, "--top-k", "0x10"],
        ["eval", "abc_digits", run_directory, "--depths", ""], ["eval", "abc_digits", run_directory, "--lengths", ""],
        ["eval", "abc_digits", run_directory, "--lengths", "256,"], ["eval", "abc_digits", run_directory, "--depths", "inf"],
        ["eval", "abc_digits", run_directory, "--instances", 2**64], ["eval", "loss", run_directory, "x", "--window", ""],
        ["data", "generate", "passkey", "--seed", "-1"], ["data", "generate", "passkey", "--depth", ""],
        ["data", "generate", "mqar", "--pairs", ""], ["inspect", run_directory, "--tokens", ""],
        ["report", run_directory, "--tokens", BIGGEST + 1], ["shootout", "x.toml", "--jobs", ""],
        ["train", work / "recipe.toml", "--threads", ""], ["bench", "train", "--threads", ""],
    ):  # fmt: skip
        outcome = run(*arguments)
        item = str(arguments[-1]).split(",")[-1]  # of a list, the one that does not fit
        expect_one_line(outcome, 2, "expected", f'"{item}"')
        check(outcome[1] == "", outcome[1])


def test_recipe_values_without_a_meaning_are_not_accepted(directory):
    for setting, text in (
        ("train.batch_size=0", "train.batch_size must be at least 1"),
        ("run.dir=", "run.dir is empty"),
        ("model.max_position_embeddings=64", "train.length = 48"),
    ):
        expect_one_line(run("train", work / "recipe.toml", "--set", f"run.dir={directory}", "--set", setting), 2, text)
        check(not directory.exists(), f"{setting}: a directory was made")
    expect(run("train", run_directory / "config.toml"), 0)  # which has every key


# Divergence.


def scaled_weights(checkpoint, scale):
    """Makes every weight of a checkpoint's matrices +-scale."""
    path = checkpoint / "model.safetensors"
    data = bytearray(path.read_bytes())
    (header,) = struct.unpack("<Q", data[:8])
    for name, tensor in json.loads(data[8 : 8 + header]).items():
        if name == "__metadata__" or len(tensor["shape"]) < 2:
            continue
        begin, end = (8 + header + offset for offset in tensor["data_offsets"])
        values = struct.unpack(f"<{(end - begin) // 4}f", data[begin:end])
        data[begin:end] = struct.pack(f"<{len(values)}f", *(scale if value > 0 else -scale for value in values))
    path.write_bytes(data)


def copied_checkpoint(directory, name, scale):
    """The newest checkpoint of a run alone, with other weights and without checksums of the old ones."""
    checkpoint = directory.with_name(f"{directory.name}_{name}")
    shutil.copytree(run_directory / "checkpoints" / "step-4", checkpoint)
    (checkpoint / "trainer.json").unlink()
    scaled_weights(checkpoint, scale)
    return checkpoint


def test_numbers_that_overflow_are_divergence_and_no_other_error(directory):
    for number, scale in enumerate((3e38, 1e30, 1e20)):
        start = copied_checkpoint(directory, number, scale)
        for clip in (0, 1e-30, 1):
            path = directory.with_name(f"{directory.name}_{number}_{clip}")
            settings = [f"train.start_from={start}", f"train.clip={clip}"]
            outcome = run(*train_arguments(path, *settings))
            check(outcome[0] in (0, 20) and (scale < 3e38 or outcome[0] == 20), f"{scale}, clip {clip}: {outcome}")
            if outcome[0] == 20:
                expect(outcome, 20, "diverged", str(path))
    swax = [STACK.replace("transformer", "swax"), "model.pattern=wm", "model.window=16", "model.hidden_size=32"]
    expect(run(*train_arguments(directory, *swax, "train.lr=1e20")), 20, "diverged", str(directory))


# What training says.


def test_a_warm_up_longer_than_the_run_is_said(directory):
    outcome = run(*train_arguments(directory, "train.warmup_steps=5"))
    expect(outcome, 0)
    check("train.warmup_steps = 5 is more than train.steps = 4" in outcome[2], outcome[2])
    check("warning" not in run(*train_arguments(directory.with_name(directory.name + "2")))[2], "4 steps, 2 of warm-up")


def test_training_ends_with_commands_that_work(directory):
    directory = directory.with_name(directory.name + " with 'quotes'")
    messages = run(*train_arguments(directory), cwd=work)[2]
    check(f"checkpoint: {directory}/checkpoints/step-4\n" in messages, messages)
    commands = [line.strip() for line in messages[messages.index("next:\n") :].splitlines()[1:]]
    check([line.split()[1] for line in commands] == ["eval", "generate", "report"], commands)
    for line in commands:
        more = " --lengths 256 --instances 1" if " eval " in line else ""
        done = subprocess.run(["bash", "-c", line.replace("tamis", program, 1) + more], capture_output=True, timeout=300)
        check(done.returncode == 0, f"{line}: {done}")


def test_when_and_from_what_a_run_was_made_is_not_lost(directory):
    records = [json.loads(line) for line in (run_directory / "log.jsonl").read_text().splitlines()]
    times = [record["time"] for record in records]
    check(all(re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", each) for each in times), times)
    check(times == sorted(times), times)
    described = json.loads((run_directory / "run.json").read_text())
    check(re.fullmatch(r"[0-9a-f]{12,40}(-dirty)?|unknown", described["commit"]), described)
    git = subprocess.run(["git", "-C", ROOT, "ls-files", "--error-unmatch", "CMakeLists.txt"], capture_output=True)
    check((described["commit"] == "unknown") == (git.returncode != 0), described["commit"])


def test_generated_text_is_not_the_same_whatever_the_seed(directory):
    def text(*options):
        return run("generate", run_directory, "--prompt", "A=1", "--max-new-tokens", 40, *options)[1]

    check(text("--seed", 1) != text("--seed", 2), "the default takes the likeliest token")
    check(text("--seed", 1) == text("--seed", 1, "--temperature", 0.8), "the default temperature is 0.8")
    check(text("--temperature", 0, "--seed", 1) == text("--temperature", 0, "--seed", 2), "temperature 0 is greedy")


def test_the_demo_prints_as_many_digits_as_it_asks_for(directory):
    for name in ("demo", "demo_transformer"):
        recipe = tomllib.loads((ROOT / "recipes" / f"{name}.toml").read_text())["train"]
        lines = recipe["sample_prompt"].split("\n")
        answer = next(line[2:] for line in lines if line.startswith(lines[-1]))
        check(recipe["sample_tokens"] == len(answer), f"{name}: {recipe['sample_tokens']} tokens for {answer}")


def main():
    global program, work, run_directory
    if len(sys.argv) < 2:
        print(__doc__)
        return 2
    program = os.path.abspath(sys.argv[1])
    failed = 0
    with tempfile.TemporaryDirectory(prefix="tamis-process-") as directory:
        work = pathlib.Path(directory)
        (work / "recipe.toml").write_text(RECIPE)
        run_directory = work / "trained"
        expect(run(*train_arguments(run_directory)), 0)
        for name, test in list(globals().items()):
            if not name.startswith("test_") or (sys.argv[2:] and name not in sys.argv[2:]):
                continue
            began = time.monotonic()
            try:
                test(work / name)
                print(f"ok      {name} ({time.monotonic() - began:.1f} s)", flush=True)
            except Exception as error:  # noqa: BLE001: a time-out must not end the other tests
                failed += 1
                print(f"FAILED  {name}: {type(error).__name__}: {error}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
