"""The commands that read files, on forged and damaged files and on pipes."""

import hashlib
import json
import os
import shutil
import struct

import pytest
from program import Program

STEPS = 4
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
steps = {steps}
length = 48
batch_size = 4
threads = 1
lr = 0.01
save_every = 2
log_every = 1
validate_tokens = 48
sample_prompt = "A="
sample_tokens = 2
"""
DEEP = "[" * 100_000 + "]" * 100_000


class QuickProgram(Program):
    """A command that reads forged files for two minutes is taken to hang."""

    def __call__(self, *arguments, **options):
        return super().__call__(*arguments, **{"timeout": 120, **options})


@pytest.fixture(scope="module")
def tamis(program, tmp_path_factory):
    """The program in a directory with a recipe and a trained run."""
    tamis = QuickProgram(program, tmp_path_factory.mktemp("tamis"))
    (tamis.directory / "recipe.toml").write_text(RECIPE.format(steps=STEPS))
    expect(train(tamis, tamis.directory / "trained"), 0)
    return tamis


def expect(done, code, *texts):
    """The exit code and texts in the messages, which are short UTF-8 without a library's own words or escapes."""
    messages = done.stderr
    assert done.returncode == code, f"exit {done.returncode} instead of {code}: {messages[:2000]}"
    for text in texts:
        assert text in messages, f"'{text}' is missing in: {messages[:2000]}"
    for alien in ("json.exception", "terminate called", "\x1b", "std::"):
        assert alien not in messages, f"{alien!r} in: {messages[:2000]}"
    assert "\x1b" not in done.stdout, f"an escape in: {done.stdout[:2000]}"
    (done.stdout + messages).encode()  # fails on bytes that were not UTF-8
    assert len(messages) < 6000, f"{len(messages)} bytes of messages: {messages[:2000]}"


def expect_one_line(done, code, *texts):
    expect(done, code, *texts)
    assert done.stderr.count("\n") == 1, f"expected one line: {done.stderr}"


def train(tamis, run, *settings, steps=STEPS):
    """Trains to the end, resuming what there is."""
    words = [word for setting in settings for word in ("--set", setting)]
    return tamis(
        "train", tamis.directory / "recipe.toml", "--set", f"run.dir={run}", "--set", f"train.steps={steps}", *words
    )


def newest(run):
    return max((run / "checkpoints").iterdir(), key=lambda path: int(path.name.split("-")[1]))


def copied(tamis, run, model_alone=False):
    """Copies the trained run, or its model without the files of training; returns the newest checkpoint."""
    shutil.copytree(tamis.directory / "trained", run)
    if model_alone:
        (newest(run) / "trainer.json").unlink()
    return newest(run)


def canonical(content):
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def fnv(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{value:016x}"


def with_digest(content):
    """trainer.json's text with a digest that holds, as whoever forges it makes it."""
    content = {key: value for key, value in content.items() if key != "sha256"}
    return json.dumps({**content, "sha256": hashlib.sha256(canonical(content)).hexdigest()})


def safetensors(header, data=b""):
    return struct.pack("<Q", len(header)) + header + data


def readers(tamis, directory):
    """Every command that reads a run, with little work."""
    (tamis.directory / "text.txt").write_text("A=12\nA=")
    return [
        ("score", directory, tamis.directory / "text.txt"),
        ("generate", directory, "--prompt", "A=", "--max-new-tokens", "2"),
        ("inspect", directory),
        ("eval", "loss", directory, tamis.directory / "text.txt"),
        ("eval", "abc_digits", directory, "--lengths", "256", "--instances", "1", "--depths", "0.5"),
    ]


def test_nested_json_does_not_overflow_the_stack(tamis, run):
    checkpoint = copied(tamis, run)
    for name in ("config.json", "tokenizer.json"):
        other = copied(tamis, tamis.directory / f"{run.name}-{name}", model_alone=True)
        (other / name).write_text('{"model": ' + DEEP + "}")
        expect_one_line(tamis("score", other, tamis.directory / "recipe.toml"), 3, name, "levels of nesting")
    ids = tamis.directory / "deep_ids.json"
    ids.write_text(DEEP)
    expect_one_line(tamis("score", run, "--ids", ids), 3, "deep_ids.json", "levels of nesting")
    for name in ("run.json", "log.jsonl"):
        kept = (run / name).read_text()
        (run / name).write_text('{"x": ' + DEEP + "}\n")
        expect_one_line(tamis("report", run), 3, name)
        (run / name).write_text(kept)
    text = (checkpoint / "trainer.json").read_text()
    for other in (run / "checkpoints").iterdir():
        (other / "trainer.json").write_text(text.replace('"recipe": {', '"recipe": {"x": ' + DEEP + ",", 1))
    expect(train(tamis, run, steps=STEPS + 2), 3, "trainer.json: expected at most 64 levels of nesting", "--fresh")


def test_headers_of_too_many_tensors_are_refused(tamis, run):
    checkpoint = copied(tamis, run, model_alone=True)
    entries = []
    size = 0
    while size < 32 * 2**20 - 200:
        entries.append(f'"t{len(entries)}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}')
        size += len(entries[-1]) + 1
    (checkpoint / "model.safetensors").write_bytes(safetensors(("{" + ",".join(entries) + "}").encode()))
    expect_one_line(tamis("inspect", checkpoint), 3, "expected at most 100000 tensors")


def test_long_names_are_not_compared_by_edit_distance(tamis, run):
    checkpoint = copied(tamis, run, model_alone=True)
    expect_one_line(tamis("inspect", run, "--set-model", "k" * 100_000 + "=1"), 2, 'unknown model key "kkk', "Known: ")
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps({**config, "k" * 4_000_000: 1}))
    expect_one_line(tamis("inspect", checkpoint, timeout=20), 3, 'unknown model key "kkk', "Known: ")


def test_forged_trainer_json_is_refused_in_one_line(tamis, run):
    checkpoint = copied(tamis, run)
    for other in (run / "checkpoints").iterdir():
        if other != checkpoint:
            shutil.rmtree(other)
    content = json.loads((checkpoint / "trainer.json").read_text())
    recipe = content["recipe"]
    for changes in (
        {"step": -1},
        {"step": 2**64 - 1},
        {"step": 1e300},
        {"step": "4"},
        {"step": None},
        {"step": 3},
        {"tokens": -1},
        {"tokens": 1e300},
        {"seconds": -1},
        {"seconds": "x"},
        {"seconds": 1e300},
        {"recipe": []},
        {"recipe": {}},
        {"recipe": {**recipe, "model": {"model_type": "\x1b[2J\n"}}},
        {"data": []},
        {"data": {"digits": 3}},
        {"numerics": 3},
        {"numerics": {"matmul": ["x"]}},
    ):
        (checkpoint / "trainer.json").write_text(with_digest({**content, **changes}))
        expect_one_line(
            train(tamis, run, steps=STEPS + 2), 3, str(checkpoint / "trainer.json"), f'"{next(iter(changes))}"'
        )
    for changes in ({"files": []}, {"files": {}}, {"files": {**content["files"], "model.safetensors": 3}}):
        (checkpoint / "trainer.json").write_text(with_digest({**content, **changes}))
        expect(
            train(tamis, run, steps=STEPS + 2), 3, "trainer.json: does not list", "none of its 1 checkpoints is intact"
        )
    for text in ("[]", "3", "", "{", '{"sha256": 5}', '{"checksum": []}'):
        (checkpoint / "trainer.json").write_text(text)
        expect(train(tamis, run, steps=STEPS + 2), 3, "trainer.json: ", "none of its 1 checkpoints is intact")


def test_checkpoints_before_sha256_resume_exactly(tamis, run):
    checkpoint = copied(tamis, run)
    for other in (run / "checkpoints").iterdir():
        content = json.loads((other / "trainer.json").read_text())
        for name, entry in content["files"].items():
            assert set(entry) == {"bytes", "sha256"}, f"{entry}: expected a SHA-256 digest"
            data = (other / name).read_bytes()
            assert entry["sha256"] == hashlib.sha256(data).hexdigest(), f"{name}: another digest"
            content["files"][name] = {"bytes": len(data), "checksum": fnv(data)}
        del content["sha256"]
        content["checksum"] = fnv(canonical(content))
        (other / "trainer.json").write_text(json.dumps(content))
    expect(tamis("inspect", run), 0)
    expect(train(tamis, run, steps=STEPS + 2), 0, f"resuming after step {STEPS}")
    whole = tamis.directory / "whole"
    expect(train(tamis, whole, steps=STEPS + 2), 0)
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert (newest(run) / name).read_bytes() == (newest(whole) / name).read_bytes(), f"{name} differs"
    data = bytearray((checkpoint / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (checkpoint / "model.safetensors").write_bytes(data)
    expect_one_line(tamis("inspect", checkpoint), 3, "model.safetensors: checksum differs")


def test_pipes_are_refused_instead_of_waited_for(tamis, run):
    checkpoint = copied(tamis, run)
    pipe = tamis.directory / "pipe"
    os.mkfifo(pipe)
    refused = "expected a file, but it is a pipe"
    expect_one_line(tamis("score", run, pipe), 3, refused)
    expect_one_line(tamis("score", run, "--ids", pipe), 3, refused)
    expect_one_line(tamis("eval", "loss", run, pipe), 3, refused)
    expect_one_line(tamis("train", pipe), 3, refused)
    text = ["data.sources.digits.kind=text", f"data.sources.digits.files={pipe}"]
    expect_one_line(train(tamis, tamis.directory / "unused", *text), 3, refused)
    for file in (run / "run.json", run / "log.jsonl", run / "config.toml"):
        kept = file.read_bytes()
        file.unlink()
        os.mkfifo(file)
        expect_one_line(tamis("report", run), 3, f"{file}: {refused}")
        file.unlink()
        file.write_bytes(kept)
    for name in ("tokenizer.json", "trainer.json", "model.safetensors", "config.json"):
        kept = (checkpoint / name).read_bytes()
        (checkpoint / name).unlink()
        os.mkfifo(checkpoint / name)
        expect_one_line(tamis("score", checkpoint, tamis.directory / "recipe.toml"), 3, str(checkpoint))
        (checkpoint / name).unlink()
        (checkpoint / name).write_bytes(kept)
    expect(tamis("score", checkpoint, tamis.directory / "recipe.toml"), 0)


def test_pipes_in_the_place_of_files_of_a_run_are_not_waited_for(tamis, run):
    """Opening a pipe to write waits for a reader, and training's handlers of signals let it go on waiting."""
    shutil.copytree(tamis.directory / "trained", run)
    refused = "cannot write to a pipe that nothing reads; start its reader first, or remove it"
    for file, command in (
        (run / "report.html", ("report", run)),
        (run / "eval/loss.json", ("eval", "loss", run, tamis.directory / "recipe.toml")),
    ):
        file.parent.mkdir(exist_ok=True)
        file.unlink(missing_ok=True)
        os.mkfifo(file)
        expect(tamis(*command), 30, f"{file}: {refused}")
        file.unlink()
    (run / "config.toml").unlink()
    os.mkfifo(run / "config.toml")
    expect(train(tamis, run, steps=6), 30, f"{run / 'config.toml'}: {refused}")


def test_names_from_files_are_escaped_and_cut(tamis, run):
    checkpoint = copied(tamis, run, model_alone=True)
    config = json.loads((checkpoint / "config.json").read_text())
    whole = (checkpoint / "config.json").read_bytes()
    hostile = "\x1b[2J\n\u202e\x9b" + "x" * 1_000_000
    for changes in (
        {hostile: 1},
        {"model_type": hostile},
        {"position": hostile},
        {"gate": hostile},
        {"hidden_size": [hostile]},
        {"model_type": "transformer", "pattern": "\x1b"},
    ):
        (checkpoint / "config.json").write_text(json.dumps({**config, **changes}))
        expect_one_line(tamis("inspect", checkpoint), 3, str(checkpoint))
    (checkpoint / "config.json").write_bytes(whole)
    header = json.dumps({hostile: {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}).encode()
    (checkpoint / "model.safetensors").write_bytes(safetensors(header))
    expect_one_line(tamis("inspect", checkpoint), 3, "model.safetensors")
    recipe = tamis.directory / "hostile.toml"
    for text in (
        f"{json.dumps(hostile[:4000])} = 1",
        f'[data.sources.{json.dumps(hostile[:4000])}]\nkind = "x"',
        '[train]\nschedule = "\\u001b[2J\\n"',
        '[train]\n"\\u001b[2J\\n" = 1',
    ):
        recipe.write_text(text)
        expect_one_line(tamis("train", recipe), 2, "hostile.toml")
    for setting in (b"train.sample_prompt=\xff\x1b\n", b"train.\xff=1", b"train.lr=\x1b[2J"):
        expect_one_line(tamis("train", tamis.directory / "recipe.toml", "--set", os.fsdecode(setting)), 2, "--set")
    shutil.copy(tamis.directory / "recipe.toml", os.fsencode(tamis.directory) + b"/\xff.toml")
    expect_one_line(tamis("train", tamis.directory / os.fsdecode(b"\xff.toml")), 2, "run.dir must be UTF-8")
    expect_one_line(tamis("inspect", tamis.directory / "no\nsuch\x1b[2Jrun"), 3, "does not exist")
    (run / "log.jsonl").write_text(
        '{"type": 3, "step": 1}\n{"type": "validation", "source": [], "step": 1, "loss": 1}\n'
        '{"type": "sample", "step": 1, "prompt": {}, "text": 7}\n'
    )
    shutil.rmtree(run / "checkpoints")
    expect(tamis("report", run), 0)
    expect_names_of_recipes_are_escaped(tamis)
    expect_names_of_files_are_escaped(tamis)
    expect_names_that_are_not_utf8_are_no_errors(tamis)


def expect_names_of_recipes_are_escaped(tamis):
    """Names of sources, runs and texts, which training and reports print."""
    recipe, run = tamis.directory / "hostile.toml", tamis.directory / "hostile"
    content = RECIPE.format(steps=STEPS)
    recipe.write_text(content.replace("[data.sources.digits]", '[data.sources."\\u001b[2J"]'))
    done = tamis("train", recipe, "--set", f"run.dir={run}")
    expect_one_line(done, 2, "hostile.toml:", "the name of a source must be", '"\\u001b[2J"')
    recipe.write_text(content + '\n[run]\ndir = "\\u001b[2J"\n')
    expect(tamis("train", recipe), 0, "\\u001b[2J: ", "checkpoint: \\u001b[2J/checkpoints")
    copied(tamis, run)
    (run / "config.toml").write_text(
        content.replace('kind = "abc_digits"', 'kind = "text"\nfiles = ["\\u001b[2J.txt"]')
    )
    expect_one_line(tamis("report", run), 0, "report without relevance maps (\\u001b[2J.txt: ")


def expect_names_of_files_are_escaped(tamis):
    """Names that the command line gives, in the lines that say what was done."""
    hostile, text = tamis.directory / "\x1b[3J", tamis.directory / "text.txt"
    text.write_text("A=12\nA=")
    hostile.mkdir()
    copied(tamis, hostile / "run")
    for command in (
        ("data", "train-tokenizer", text, "--vocab", "260", "--out", hostile / "tokenizer.json"),
        ("data", "generate", "abc_digits", "--count", "1", "--out", hostile / "copy.jsonl"),
        ("data", "prepare", text, "--out", hostile / "corpus"),
        ("convert", hostile / "run", hostile / "converted"),
        ("inspect", hostile / "run"),
    ):
        done = tamis(*command)
        expect(done, 0)
        assert "\\u001b[3J" in done.stdout, done


def expect_names_that_are_not_utf8_are_no_errors(tamis):
    """Bytes that are not UTF-8 become U+FFFD in results."""
    text, run, corpus = (tamis.directory / os.fsdecode(b"\xff" + name) for name in (b".txt", b"-run", b"-corpus"))
    text.write_text("A=12\nA=")
    copied(tamis, run)
    done = tamis("eval", "loss", run, text, "--json")
    expect(done, 0)
    assert json.loads(done.stdout)["file"] == f"{tamis.directory}/\ufffd.txt", done
    assert json.loads((run / "eval" / "loss.json").read_text())["checkpoint"].endswith("\ufffd-run/checkpoints/step-4")
    expect(tamis("data", "prepare", text, "--out", corpus, "--json"), 0)
    assert json.loads((corpus / "manifest.json").read_text())["inputs"] == [f"{tamis.directory}/\ufffd.txt"]


def test_other_tokenizers_are_not_taken_for_the_byte_tokenizer(tamis, run):
    checkpoint = copied(tamis, run, model_alone=True)
    file = checkpoint / "tokenizer.json"
    whole = file.read_text()
    content = json.loads(whole)
    for key, value in (
        ("post_processor", {"type": "TemplateProcessing"}),
        ("truncation", {"max_length": 8}),
        ("padding", {"pad_id": 0}),
    ):
        file.write_text(json.dumps({**content, key: value}))
        done = tamis("score", checkpoint, tamis.directory / "recipe.toml")
        expect_one_line(done, done.returncode, str(file))
        assert done.returncode in (1, 3)  # 1: a build without cargo reads no other tokenizers
    file.write_text(whole.replace('"A": 65', '"A": 66,\n      "A": 65', 1))
    expect_one_line(
        tamis("score", checkpoint, tamis.directory / "recipe.toml"), 3, str(file), 'the key "A" comes twice'
    )
    file.write_text(whole)
    expect(tamis("score", checkpoint, tamis.directory / "recipe.toml"), 0)


def test_byte_order_marks_and_nuls_are_refused(tamis, run):
    checkpoint = copied(tamis, run, model_alone=True)
    ids = tamis.directory / "ids.json"
    ids.write_text("[65, 66]")
    expect(tamis("score", checkpoint, "--ids", ids), 0)
    for file in (checkpoint / "config.json", checkpoint / "tokenizer.json", ids):
        whole = file.read_bytes()
        command = ["score", checkpoint] + (["--ids", ids] if file == ids else [tamis.directory / "recipe.toml"])
        file.write_bytes(b"\xef\xbb\xbf" + whole)
        expect_one_line(tamis(*command), 3, f"{file}: is not JSON: begins with a byte order mark")
        file.write_bytes(whole + b"\0{}")
        expect_one_line(tamis(*command), 3, f"{file}: is not JSON: byte {len(whole)} is a NUL")
        file.write_bytes(whole)


def test_a_flipped_bit_does_not_score_with_another_result(tamis, run):
    checkpoint = copied(tamis, run)
    for name, at in (("model.safetensors", -5), ("tokenizer.json", -1), ("trainer.json", -3)):
        whole = (checkpoint / name).read_bytes()
        data = bytearray(whole)
        data[at] ^= 4
        (checkpoint / name).write_bytes(data)
        for command in readers(tamis, run):
            expect_one_line(tamis(*command), 3, str(checkpoint), name)
        expect_one_line(tamis("report", run), 3, str(checkpoint), name)
        (checkpoint / name).write_bytes(whole)
    data = bytearray((checkpoint / "model.safetensors").read_bytes())
    data[-5] ^= 4
    (checkpoint / "model.safetensors").write_bytes(data)
    expect_one_line(
        train(tamis, tamis.directory / "started", f"train.start_from={checkpoint}"),
        3,
        "model.safetensors: checksum differs",
    )
    (checkpoint / "optimizer.safetensors").unlink()  # only training reads it
    expect_one_line(tamis("inspect", run), 3, "model.safetensors: checksum differs", "remove trainer.json")
    (checkpoint / "trainer.json").unlink()
    expect(tamis("inspect", run), 0)


def test_a_missing_file_does_not_score_with_an_older_model(tamis, run):
    checkpoint = copied(tamis, run)
    assert len(list((run / "checkpoints").iterdir())) > 1, "there is no older model"
    for name in ("config.json", "model.safetensors"):
        aside = (checkpoint / name).rename(tamis.directory / "aside")
        for command in (*readers(tamis, run), ("report", run)):
            expect_one_line(tamis(*command), 3, f"{checkpoint}: damaged: it has no file {name}")
        os.mkfifo(checkpoint / name)
        expect_one_line(tamis("inspect", run), 3, f"{checkpoint}: damaged: it has no file {name}")
        aside.rename(checkpoint / name)
    shutil.rmtree(checkpoint)
    expect(tamis("inspect", run), 0)


def test_a_run_without_config_toml_goes_on(tamis, run):
    copied(tamis, run)
    config = (run / "config.toml").read_text()
    (run / "config.toml").unlink()
    for command in readers(tamis, run):
        expect(tamis(*command), 0)
    expect(tamis("report", run), 0)
    assert "num_attention_heads" in (run / "report.html").read_text(), "the report has no recipe"
    expect(train(tamis, run), 0, f"finished: {STEPS} of {STEPS} steps")
    expect(train(tamis, run, steps=STEPS + 2), 0, f"resuming after step {STEPS}")
    written = (run / "config.toml").read_text()
    assert written.replace(f"steps = {STEPS + 2}", f"steps = {STEPS}").splitlines()[:5] == config.splitlines()[:5], (
        f"another recipe was written: {written}"
    )
    (run / "config.toml").unlink()
    shutil.rmtree(run / "checkpoints")
    expect_one_line(tamis("report", run), 3, "holds no checkpoint")
    expect_one_line(train(tamis, run), 2, "contains files, but no run")


@pytest.mark.parametrize(
    "words",
    [
        ("train", ""),
        ("train", "recipe.toml", "--trace", ""),
        ("score", "", "recipe.toml"),
        ("convert", "trained", ""),
        ("data", "generate", "mqrar", "--out", ""),
        ("eval", "needle", "trained", "--haystack", ""),
        ("inspect", "trained", "--html", ""),
        ("report", "trained", "--output", ""),
        ("repro", "--book", ""),
    ],
)
def test_empty_names_are_refused(tamis, words):
    done = tamis(*words, cwd=tamis.directory)
    expect(done, 2, "expected a name, but it is empty")
    assert not done.stdout
