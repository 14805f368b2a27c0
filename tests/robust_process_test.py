"""The program in a hostile environment: closed descriptors, full disks, readers that leave, limits on memory and on
files, devices where a file is expected, numbers that do not fit, a run directory that is removed.
"""

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
import threading
import tomllib

import pytest
from program import Program, address_space_is_limitable, finished, limited, limited_memory, wait_until

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
TASKS = (
    "abc_digits",
    "copy",
    "mqar",
    "mqrar",
    "needle",
    "niah_multikey_2",
    "niah_single_1",
    "passkey",
    "variable_tracking",
)
BIGGEST = 2**63 - 1


class ProgramWithRun(Program):
    @property
    def trained(self):
        """A run for the commands that read one."""
        return self.directory / "trained"


@pytest.fixture(scope="module")
def tamis(program, tmp_path_factory):
    tamis = ProgramWithRun(program, tmp_path_factory.mktemp("tamis"))
    (tamis.directory / "recipe.toml").write_text(RECIPE)
    expect(tamis(*train_arguments(tamis, tamis.trained)), 0)
    return tamis


def train_arguments(tamis, run, *settings):
    sets = [word for setting in settings for word in ("--set", setting)]
    return ["train", tamis.directory / "recipe.toml", "--set", f"run.dir={run}", *sets]


def expect(outcome, code, *texts):
    """The exit code; a failure has one line of error with these texts."""
    assert outcome.returncode == code, f"expected exit code {code}, got {outcome}"
    if code == 0:
        return
    errors = [line for line in outcome.stderr.splitlines() if line.startswith("tamis: ")]
    assert len(errors) == 1, f"expected one line of error: {outcome}"
    for text in texts:
        assert text in errors[0], f"expected {text!r} in: {errors[0]}"


def expect_one_line(outcome, code, *texts):
    expect(outcome, code, *texts)
    assert outcome.stderr.count("\n") == 1, f"expected nothing but one line: {outcome.stderr}"


def saved(run):
    return sorted(path.name for path in (run / "checkpoints").iterdir() if path.name.startswith("step-"))


# Descriptors and streams.


def test_a_standard_error_on_a_full_disk_does_not_end_a_run(tamis, run):
    with open("/dev/full", "wb") as full:
        expect(tamis(*train_arguments(tamis, run), stderr=full), 0)
    assert saved(run) == ["step-2", "step-4"], saved(run)


def test_messages_do_not_land_in_a_file_of_the_run_when_descriptors_are_closed(tamis, run):
    for closed in ("2>&-", "<&- >&- 2>&-"):
        path = run.with_name(f"{run.name}{len(closed)}")
        words = " ".join(map(str, train_arguments(tamis, path)))
        code = subprocess.run(["sh", "-c", f"exec {tamis.path} {words} {closed}"], timeout=300).returncode
        assert code == 0, f"{closed}: exit code {code}"
        assert saved(path) == ["step-2", "step-4"], f"{closed}: {saved(path)}"
        lock = (path / ".lock").read_text()
        assert re.fullmatch(r"process \d+", lock), f"{closed}: .lock holds {lock!r}"
        assert all(json.loads(line) for line in (path / "log.jsonl").read_text().splitlines()), "log.jsonl is not whole"


def test_a_reader_of_messages_that_leaves_does_not_end_a_run(tamis, run):
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as nobody:
        expect(tamis(*train_arguments(tamis, run), stderr=nobody), 0)
    assert saved(run) == ["step-2", "step-4"], saved(run)


def test_a_working_directory_that_was_removed(tamis, tmp_path):
    """MKL ended the process with "Cannot load libtorch_cpu.so"."""
    removed = tmp_path / "removed"
    removed.mkdir()
    command = ["sh", "-c", f"rmdir '{removed}' && exec '{tamis.path}' --version"]
    done = subprocess.run(command, cwd=removed, capture_output=True, text=True)
    expect_one_line(done, 1, "the working directory has been removed; change to another one")


# Files.


# Options that write a file, and what else their commands need. All of them accept names that end in .svg.
OUTPUTS = {
    "data generate passkey --out": "--count 2",
    "data train-tokenizer --out": "recipe.toml --vocab 260",
    "inspect --html": "trained --text recipe.toml --tokens 32",
    "inspect --map": "trained --text recipe.toml --tokens 32",
    "report --output": "trained --tokens 32",
    "train --trace": "recipe.toml --set run.dir=traced --fresh",
}
READ = {"--haystack", "--ids", "--text"}  # options with a FILE that is read


@pytest.fixture(params=OUTPUTS)
def output(request, tamis):
    """The words of a command; the name of the file that it writes comes behind."""
    *command, option = request.param.split()
    words = [*command, *OUTPUTS[request.param].split(), option]
    if "train-tokenizer" in command and tamis(*words, "probe.json").returncode == 1:
        expect_one_line(tamis(*words, "probe.json"), 1, "apt-get install cargo-web")
        pytest.skip("this build has no cargo")
    return words


def test_every_option_that_writes_a_file_is_tried(tamis):
    options = re.findall(r"__tamis_at tamis (.+?)' -l (\S+) -r -F", tamis("completion", "fish").stdout)
    written = {f"{command} --{name}" for command, name in options if f"--{name}" not in READ}
    assert {re.sub(r"^data generate \w+", "data generate passkey", each) for each in written} == OUTPUTS.keys()


def read_fifo(tamis, path, arguments):
    received = []
    reader = threading.Thread(target=lambda: received.append(path.read_bytes()), daemon=True)
    reader.start()
    outcome = tamis(*arguments, path)
    reader.join(timeout=60)
    assert received and received[0], f"{arguments}: the FIFO received nothing: {outcome}"
    return outcome


def test_output_does_not_replace_what_is_no_file(tamis, tmp_path, output):
    places, elsewhere = tmp_path / "places", tmp_path / "elsewhere"
    places.mkdir()
    elsewhere.mkdir()
    fifo, folder, listening = (places / name for name in ("fifo.svg", "folder.svg", "socket.svg"))
    os.mkfifo(fifo)
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(listening))
        expect(read_fifo(tamis, fifo, output), 0)
        for path, kind in ((folder, "a directory"), (listening, "a socket")):  # the missing inputs are not read
            expect_one_line(tamis(*output, path, cwd=elsewhere), 30, f"{path}: ", kind)
    assert stat.S_ISFIFO(fifo.stat().st_mode), "the FIFO was replaced"
    assert sorted(os.listdir(places)) == ["fifo.svg", "folder.svg", "socket.svg"], "left behind"
    assert not os.listdir(elsewhere), "written before the refusal"


def test_output_does_not_replace_a_device(tamis, tmp_path, output):
    device = tmp_path / "full.svg"
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 7))  # another /dev/full
        device.open("wb").close()
    except OSError:
        pytest.skip("making a device needs root")
    expect(tamis(*output, device), 30, str(device), "No space left on device")
    assert stat.S_ISCHR(device.stat().st_mode), "the device was replaced"
    assert os.listdir(tmp_path) == ["full.svg"], "left behind"


def test_output_to_dev_stdout_and_through_links_keeps_what_is_there(tamis, run):
    run.mkdir()
    link, target, appended = (run / name for name in ("link", "target", "appended"))
    expected = tamis("data", "generate", "passkey", "--count", 2).stdout
    arguments = ["data", "generate", "passkey", "--count", 2, "--out"]
    assert tamis(*arguments, "/dev/stdout").stdout.startswith(expected), "a pipe at /dev/stdout"
    appended.write_text("before\n")
    with open(appended, "ab") as file:
        expect(tamis(*arguments, "/dev/stdout", stdout=file), 0)
    assert appended.read_text().startswith("before\n" + expected), f"a file at /dev/stdout: {appended.read_text()[:80]}"
    link.symlink_to(target)
    for before in (None, "old"):
        if before:
            target.write_text(before)
        expect(tamis(*arguments, link), 0)
        assert link.is_symlink() and target.read_text() == expected, "the link was replaced"
    assert sorted(os.listdir(run)) == ["appended", "link", "target"], os.listdir(run)


def test_a_limit_on_file_sizes_ends_training_with_storage(tamis, run):
    outcome = tamis(*train_arguments(tamis, run), preexec_fn=limited(resource.RLIMIT_FSIZE, 20_000))
    expect(outcome, 30, "File too large", "ulimit -f")
    assert not any(name.startswith(".unfinished") for name in os.listdir(run / "checkpoints")), "left behind"
    log_limit = tamis(
        *train_arguments(tamis, run, "train.log_every=1", "train.steps=2000", "train.save_every=2000"),
        preexec_fn=limited(resource.RLIMIT_FSIZE, 100_000),
    )
    expect(log_limit, 30, "log.jsonl", "File too large")
    expect(tamis(*train_arguments(tamis, run)), 0)


def test_a_run_directory_that_is_removed_is_not_made_again(tamis, run):
    removals = {
        "removed": shutil.rmtree,
        "renamed": lambda path: path.rename(f"{path}.moved"),
        "replaced": lambda path: (path.rename(f"{path}.old"), (path / "checkpoints").mkdir(parents=True)),
    }
    for name, remove in removals.items():
        path = run.with_name(f"{run.name}_{name}")
        long = ("train.steps=1000000", "train.save_every=5", "train.sample_every=1000000")
        process = tamis.start(*train_arguments(tamis, path, *long))
        wait_until(lambda: (path / "checkpoints" / "step-5").exists(), process, "checkpoint")
        while path.exists():
            try:
                remove(path)
                break
            except OSError:  # the run added a file meanwhile
                continue
        expect(finished(process), 30, str(path), "removed, renamed or replaced")
        left = [str(entry.relative_to(path)) for entry in path.rglob("*")] if path.exists() else []
        assert left == (["checkpoints"] if name == "replaced" else []), f"{name}: written again: {left}"


# Memory.


def test_sizes_that_memory_does_not_hold_are_refused_before_work(tamis, run):
    held = {"preexec_fn": limited_memory(tamis, 20 << 30), "timeout": 60}
    for task in TASKS:
        evaluation = ["eval", task, tamis.trained] + (["--vocab", 256] if task in ("mqar", "mqrar", "copy") else [])
        for size in (10**12, BIGGEST):
            expect_one_line(
                tamis(*evaluation, "--lengths", size, "--instances", 1, **held), 1, "needs", f"{size} tokens"
            )
            expect_one_line(
                tamis("data", "generate", task, "--length", size, "--count", 1, **held), 1, f"{size} tokens"
            )
            expect_one_line(tamis(*evaluation, "--instances", size, **held), 1, "instances", "of memory")


def test_a_memory_limit_is_one_line_of_error(tamis, run):
    if not address_space_is_limitable(tamis):
        pytest.skip("this build reserves more address space than can be limited")
    ends = set()
    for number, megabytes in enumerate(range(60, 1300, 40)):
        limit = limited(resource.RLIMIT_AS, megabytes << 20)
        commands = (
            ["generate", tamis.trained, "--prompt", "A=1", "--max-new-tokens", 2],
            [*train_arguments(tamis, run.with_name(f"{run.name}{number}")), "--threads", 4],
        )
        for arguments in commands:
            outcome = tamis(*arguments, preexec_fn=limit)
            ends.add(outcome.returncode)
            if outcome.returncode in (0, 127):  # 127: the system could not even start the program
                continue
            assert outcome.returncode == 1, f"{megabytes} MB: {outcome}"
            errors = outcome.stderr.splitlines()
            assert errors[-1].startswith(("tamis: ", "libgomp: ")), f"{megabytes} MB: {outcome}"
            assert sum(line.startswith("tamis: ") for line in errors) <= 1, f"{megabytes} MB: {outcome}"
            assert "terminate" not in outcome.stderr, f"{megabytes} MB: {outcome}"
    assert {0, 1} <= ends, f"expected limits that do and that do not suffice: {ends}"


# Numbers.


def test_numbers_that_do_not_fit_are_not_accepted(tamis, run):
    generate = ["generate", tamis.trained, "--prompt", "A"]
    for arguments in (
        [*generate, "--top-k", BIGGEST + 1], [*generate, "--seed", 2**64], [*generate, "--seed", "-1"],
        [*generate, "--max-new-tokens", "9" * 20], [*generate, "--temperature", ""], [*generate, "--threads", ""],
        [*generate, "--temperature", "nan"], [*generate, "--temperature", "1e999"], [*generate, "--top-p", "0.5x"],
        [*generate, "--top-k", " 1"], [*generate, "--top-k", "1.5"], [*generate, "--top-k", "0x10"],
        ["eval", "abc_digits", tamis.trained, "--depths", ""], ["eval", "abc_digits", tamis.trained, "--lengths", ""],
        ["eval", "abc_digits", tamis.trained, "--lengths", "256,"], ["eval", "abc_digits", tamis.trained, "--depths", "inf"],
        ["eval", "abc_digits", tamis.trained, "--instances", 2**64], ["eval", "loss", tamis.trained, "x", "--window", ""],
        ["data", "generate", "passkey", "--seed", "-1"], ["data", "generate", "passkey", "--depth", ""],
        ["data", "generate", "mqar", "--pairs", ""], ["inspect", tamis.trained, "--tokens", ""],
        ["report", tamis.trained, "--tokens", BIGGEST + 1], ["study", "x.toml", "--jobs", ""],
        ["train", tamis.directory / "recipe.toml", "--threads", ""], ["bench", "train", "--threads", ""],
    ):  # fmt: skip
        outcome = tamis(*arguments)
        item = str(arguments[-1]).split(",")[-1]  # of a list, the one that does not fit
        expect_one_line(outcome, 2, "expected", f'"{item}"')
        assert outcome.stdout == "", outcome.stdout


def test_recipe_values_without_a_meaning_are_not_accepted(tamis, run):
    for setting, text in (
        ("train.batch_size=0", "train.batch_size must be at least 1"),
        ("run.dir=", "run.dir is empty"),
        ("model.max_position_embeddings=64", "train.length = 48"),
    ):
        expect_one_line(
            tamis("train", tamis.directory / "recipe.toml", "--set", f"run.dir={run}", "--set", setting),
            2,
            text,
        )
        assert not run.exists(), f"{setting}: a directory was made"
    expect(tamis("train", tamis.trained / "config.toml"), 0)  # which has every key


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


def copied_checkpoint(tamis, run, name, scale):
    """The newest checkpoint of a run alone, with other weights and without checksums of the old ones."""
    checkpoint = run.with_name(f"{run.name}_{name}")
    shutil.copytree(tamis.trained / "checkpoints" / "step-4", checkpoint)
    (checkpoint / "trainer.json").unlink()
    scaled_weights(checkpoint, scale)
    return checkpoint


def test_numbers_that_overflow_are_divergence_and_no_other_error(tamis, run):
    for number, scale in enumerate((3e38, 1e30, 1e20)):
        start = copied_checkpoint(tamis, run, number, scale)
        for clip in (0, 1e-30, 1):
            path = run.with_name(f"{run.name}_{number}_{clip}")
            settings = [f"train.start_from={start}", f"train.clip={clip}"]
            outcome = tamis(*train_arguments(tamis, path, *settings))
            assert outcome.returncode in (0, 20) and (scale < 3e38 or outcome.returncode == 20), (
                f"{scale}, clip {clip}: {outcome}"
            )
            if outcome.returncode == 20:
                expect(outcome, 20, "diverged", str(path))
    swax = [STACK.replace("transformer", "swax"), "model.pattern=wm", "model.window=16", "model.hidden_size=32"]
    expect(tamis(*train_arguments(tamis, run, *swax, "train.lr=1e20")), 20, "diverged", str(run))


@pytest.mark.parametrize("rate", ["1e20", "1e30"])
@pytest.mark.parametrize("model", ["swax wm", "swax v", "transformer a"])
def test_weights_so_large_that_nothing_has_a_gradient_are_divergence(tamis, run, model, rate):
    """Without a sample, whose probabilities would not be numbers: the loss of a text is that of equal probabilities."""
    kind, pattern = model.split()
    settings = [STACK.replace("transformer", kind), f"model.pattern={pattern}", "model.window=16", "model.hidden_size=32"]
    if "w" not in pattern:
        settings.remove("model.window=16")
    outcome = tamis(*train_arguments(tamis, run, *settings, f"train.lr={rate}", "train.sample_every=0", 'train.sample_prompt=""'))
    expect(outcome, 20, "diverged", str(run))


# What training says.


def test_a_warm_up_longer_than_the_run_is_said(tamis, run):
    outcome = tamis(*train_arguments(tamis, run, "train.warmup_steps=5"))
    expect(outcome, 0)
    assert "train.warmup_steps = 5 is more than train.steps = 4" in outcome.stderr, outcome.stderr
    assert "warning" not in tamis(*train_arguments(tamis, run.with_name(run.name + "2"))).stderr, (
        "4 steps, 2 of warm-up"
    )


def test_training_ends_with_commands_that_work(tamis, run):
    run = run.with_name(run.name + " with 'quotes'")
    messages = tamis(*train_arguments(tamis, run), cwd=tamis.directory).stderr
    assert f"checkpoint: {run}/checkpoints/step-4\n" in messages, messages
    commands = [line.strip() for line in messages[messages.index("next:\n") :].splitlines()[1:]]
    assert [line.split()[1] for line in commands] == ["eval", "generate", "report"], commands
    for line in commands:
        more = " --lengths 256 --instances 1" if " eval " in line else ""
        done = subprocess.run(
            ["bash", "-c", line.replace("tamis", str(tamis.path), 1) + more], capture_output=True, timeout=300
        )
        assert done.returncode == 0, f"{line}: {done}"


def test_when_and_from_what_a_run_was_made_is_not_lost(tamis, run):
    records = [json.loads(line) for line in (tamis.trained / "log.jsonl").read_text().splitlines()]
    times = [record["time"] for record in records]
    assert all(re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", each) for each in times), times
    assert times == sorted(times), times
    described = json.loads((tamis.trained / "run.json").read_text())
    assert re.fullmatch(r"[0-9a-f]{12,40}(-dirty)?|unknown", described["commit"]), described
    git = subprocess.run(["git", "-C", ROOT, "ls-files", "--error-unmatch", "CMakeLists.txt"], capture_output=True)
    assert (described["commit"] == "unknown") == (git.returncode != 0), described["commit"]


def test_generated_text_is_not_the_same_whatever_the_seed(tamis, run):
    def text(*options):
        return tamis("generate", tamis.trained, "--prompt", "A=1", "--max-new-tokens", 40, *options).stdout

    assert text("--seed", 1) != text("--seed", 2), "the default takes the likeliest token"
    assert text("--seed", 1) == text("--seed", 1, "--temperature", 0.8), "the default temperature is 0.8"
    assert text("--temperature", 0, "--seed", 1) == text("--temperature", 0, "--seed", 2), "temperature 0 is greedy"


def test_the_demo_prints_as_many_digits_as_it_asks_for(run):
    for name in ("demo", "demo_transformer"):
        recipe = tomllib.loads((ROOT / "recipes" / f"{name}.toml").read_text())["train"]
        lines = recipe["sample_prompt"].split("\n")
        answer = next(line[2:] for line in lines if line.startswith(lines[-1]))
        assert recipe["sample_tokens"] == len(answer), f"{name}: {recipe['sample_tokens']} tokens for {answer}"
