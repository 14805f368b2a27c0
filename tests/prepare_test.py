"""`tamis data prepare` and training from what it writes: formats, resuming after kills, bad input, full disks."""

import contextlib
import gzip
import json
import os
import random
import shutil
import signal
import subprocess
import time

import pytest
from corpora import content, documents_done, prepare, prepared, texts_of, tokens_of, write_jsonl
from program import expect_refused, limited_memory, need, small_disk, wait_until

RECIPE = """
[model]
hidden_size = 16
num_hidden_layers = 1
num_attention_heads = 2
key_dim = 4
value_dim = 8

[data.sources.books]
kind = "corpus"
path = "{path}"

[train]
steps = 12
length = 32
batch_size = 2
threads = 1
warmup_steps = 2
save_every = 4
log_every = 1
validate_every = 12
validate_tokens = 128
precision = "float32"
"""
KILLS = int(os.environ.get("TAMIS_KILLS", "12"))


def test_every_kind_of_file_gives_its_documents(tamis, tmp_path):
    folder = tmp_path / "folder"
    (folder / "sub").mkdir(parents=True)
    (folder / "b.txt").write_text("second\n")
    (folder / "a.md").write_bytes(b"\xef\xbb\xbffirst")
    (folder / "sub" / "c.txt.gz").write_bytes(gzip.compress("thïrd".encode()) + gzip.compress(b" part"))
    (folder / "picture.png").write_bytes(b"\x89PNG")
    (folder / ".hidden.txt").write_text("no")
    lines = ['{"text": "one"}', "", '{"body": "x", "text": "tw\\u00f6 \\ud83d\\ude00"}', '{"text": ""}']
    (tmp_path / "d1.jsonl").write_text("\n".join(lines))
    (tmp_path / "d2.jsonl.gz").write_bytes(gzip.compress(b'{"text": "three"}\r\n'))
    out = tmp_path / "out"
    result = prepared(tamis, folder, tmp_path / "d*.jsonl*", "--out", out)
    assert texts_of(out) == ["first", "second\n", "thïrd part", "one", "twö 😀", "three"]
    assert result["training"] == {"documents": 6, "tokens": sum(map(len, tokens_of(out))), "shards": 1}
    assert result["records"] == {"empty": 1, "corrupt": 0, "examples": []} and result["files"] == 5
    assert sorted(content(out)) == ["manifest.json", "tokenizer.json", "training-00000.tokens"]
    again = prepared(tamis, folder, tmp_path / "d*.jsonl*", "--out", out)
    assert again["complete_before"] and again["training"] == result["training"]


def test_zstd(tamis, tmp_path):
    zstd = need("zstd")
    write_jsonl(tmp_path / "a.jsonl", 3000)
    for level in ("-1", "-19"):
        subprocess.run([zstd, "-q", level, tmp_path / "a.jsonl", "-o", tmp_path / f"a{level}.jsonl.zst"], check=True)
    prepared(tamis, tmp_path / "a.jsonl", "--out", tmp_path / "plain")
    data = b"".join((tmp_path / f"a{level}.jsonl.zst").read_bytes() for level in ("-1", "-19"))
    (tmp_path / "both.jsonl.zst").write_bytes(data)  # two frames
    prepared(tamis, tmp_path / "both.jsonl.zst", "--out", tmp_path / "both")
    assert texts_of(tmp_path / "both") == 2 * texts_of(tmp_path / "plain")
    (tmp_path / "cut.jsonl.zst").write_bytes(data[: len(data) // 3])
    cut = prepared(tamis, tmp_path / "cut.jsonl.zst", "--out", tmp_path / "cut")
    assert cut["records"]["corrupt"] == 1 and "the zstd data is cut off" in cut["records"]["examples"][0]
    kept = texts_of(tmp_path / "cut")
    assert 0 < len(kept) < 6000 and kept == texts_of(tmp_path / "both")[: len(kept)]


def test_held_out_documents(tamis, tmp_path):
    write_jsonl(tmp_path / "a.jsonl", 50)
    write_jsonl(tmp_path / "b.jsonl", 7, seed=2)
    everything = [json.loads(line)["text"] for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    prepared(tamis, tmp_path / "a.jsonl", "--out", tmp_path / "x", "--validation-fraction", 0.1)
    assert texts_of(tmp_path / "x", "validation") == everything[9::10]
    assert texts_of(tmp_path / "x") == [text for i, text in enumerate(everything) if i % 10 != 9]
    prepared(tamis, tmp_path / "a.jsonl", "--out", tmp_path / "y", "--validation", tmp_path / "b.jsonl")
    assert texts_of(tmp_path / "y") == everything and len(texts_of(tmp_path / "y", "validation")) == 7


def test_files_for_validation_are_not_trained_on(tamis, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in "abc":
        (folder / f"{name}.txt").write_text(name)
    (tmp_path / "link.txt").symlink_to(folder / "b.txt")
    for number, validation in enumerate((folder / "b.txt", tmp_path / "link.txt", folder / "." / "[b]*.txt")):
        out = tmp_path / str(number)
        result = prepared(tamis, folder, "--out", out, "--validation", validation)
        assert texts_of(out) == ["a", "c"] and texts_of(out, "validation") == ["b"]
        assert result["also_held_out"] == 1 and result["files"] == 3
    again = prepare(tamis, folder, "--out", tmp_path / "0", "--validation", folder / "b.txt")
    assert "held out only: 1 file, named for training too" in again.stdout, again
    refused = prepare(tamis, folder / "a.txt", "--out", tmp_path / "no", "--validation", folder)
    expect_refused(refused, 2, "a.txt: is named for validation too, so that nothing is left to train on")
    assert not (tmp_path / "no").exists()


def test_names_that_say_something_else(tamis, tmp_path):
    for name in ("A.JSONL", "b.json"):
        (tmp_path / name).write_text('{"text": "one"}\n{"text": "two"}\n')
        prepared(tamis, tmp_path / name, "--out", tmp_path / f"{name}.out")
        assert texts_of(tmp_path / f"{name}.out") == ["one", "two"]
    (tmp_path / "list.json").write_text('[{"text": "one"}, {"text": "two"}]')
    for name in ("x.bin", "a.npy"):
        (tmp_path / name).write_bytes(b"\xff\x00" * 1000)
    out = tmp_path / "out"
    for arguments, code, message in (
        ([tmp_path / "list.json", "--out", out], 3, "list.json: expected JSON Lines, an object on each line"),
        ([tmp_path / "x.bin", "--out", out], 3, "x.bin: holds tokens, which need no preparation"),
        ([tmp_path / "a.npy", "--out", out], 3, 'a data source of the kind "corpus"'),
        ([tmp_path / "b.json", "--out", ""], 2, "--out: expected a name, but it is empty"),
        ([tmp_path / "b.json", "--out", out, "--field", ""], 2, "--field: expected a name, but it is empty"),
        (["", "--out", out], 2, "expected the name of a file or folder, or a pattern, but it is empty"),
        ([tmp_path / "b.json", "--out", out, "--validation", ""], 2, "expected the name of a file or folder"),
    ):
        expect_refused(prepare(tamis, *arguments), code, message)
    assert not out.exists()


def test_a_long_text_is_cut_into_pieces_but_stays_one_document(tamis, tmp_path):
    for name, text in (
        ("lines.txt", "".join(f"line {i} of text\n" for i in range(200_000))),
        ("one_line.txt", "é" * 3_000_000),
    ):
        (tmp_path / name).write_text(text)
        prepared(tamis, tmp_path / name, "--out", tmp_path / f"{name}.out")
        assert texts_of(tmp_path / f"{name}.out") == [text]


def test_kills_do_not_change_a_byte(tamis, tmp_path):
    """KILLS times (TAMIS_KILLS). Every KILLS / 12th time it has saved something new before. A corpus that is complete
    before is followed by another."""
    write_jsonl(tmp_path / "a.jsonl", 60_000 + 1500 * (KILLS - 12))
    shutil.copyfile(tmp_path / "a.jsonl", tmp_path / "b.txt")
    with gzip.open(tmp_path / "c.jsonl.gz", "wb", compresslevel=1) as out:
        out.write((tmp_path / "a.jsonl").read_bytes())
    arguments = [tmp_path / name for name in ("a.jsonl", "b.txt", "c.jsonl.gz")]
    arguments += ["--shard-tokens", 5_000_000, "--validation-fraction", 0.05]
    begun = time.monotonic()
    prepared(tamis, *arguments, "--out", tmp_path / "whole", "--threads", 2)
    seconds = time.monotonic() - begun
    chance, kills, most, corpora = random.Random(3), 0, 0, 1
    out, went_on = tmp_path / "killed-1", 0
    while kills < KILLS:
        process = tamis.start("data", "prepare", *arguments, "--out", out, "--threads", 1, "--save-seconds", 0.02)
        before, done = went_on, 0
        saves = kills % max(KILLS // 12, 1) == 0
        while process.poll() is None and done <= before and saves:
            done = max(done, documents_done(out))
            time.sleep(0.01)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(chance.uniform(0.0, seconds / (20 if saves else 12)))
        process.kill()
        messages = process.communicate()[1]
        if process.returncode == -signal.SIGKILL:
            kills += 1
            went_on = max(went_on, done)
            most = max(most, went_on)
            continue
        assert process.returncode == 0, messages
        assert content(out) == content(tmp_path / "whole")
        shutil.rmtree(out)
        corpora += 1
        assert corpora <= KILLS, f"{kills} kills in {corpora} corpora"
        out, went_on = tmp_path / f"killed-{corpora}", 0
    prepared(tamis, *arguments, "--out", out)
    print(f"  {kills} kills, {corpora} corpora")
    assert most >= 1
    assert content(out) == content(tmp_path / "whole")


def test_an_unfinished_corpus_is_not_used_and_belongs_to_its_options(tamis, tmp_path):
    write_jsonl(tmp_path / "a.jsonl", 30_000)
    out = tmp_path / "out"
    process = tamis.start("data", "prepare", tmp_path / "a.jsonl", "--out", out, "--save-seconds", 0)
    wait_until(lambda: documents_done(out) > 0, process, "progress")
    process.send_signal(signal.SIGSTOP)  # so that it does not finish meanwhile
    refused = prepare(tamis, tmp_path / "a.jsonl", "--out", out)
    process.kill()
    process.communicate()
    expect_refused(refused, 1, "in use by another process", f"process {process.pid}")
    expect_refused(train(tamis, out, tmp_path / "run"), 3, f"{out}: its preparation is unfinished")
    other = prepare(tamis, tmp_path / "a.jsonl", "--out", out, "--shard-tokens", 1000)
    expect_refused(other, 2, "holds an unfinished corpus made with shard_tokens = 100000000, not 1000")
    with open(tmp_path / "a.jsonl", "a") as more:
        more.write('{"text": "more"}\n')
    expect_refused(prepare(tamis, tmp_path / "a.jsonl", "--out", out), 2, "other input files, or they have changed")


@pytest.mark.parametrize("lines", [50, 30_000])
def test_a_change_that_keeps_the_size_is_seen(tamis, tmp_path, lines):
    path, out = tmp_path / "a.jsonl", tmp_path / "out"
    write_jsonl(path, lines)
    prepared(tamis, path, "--out", out)
    assert prepared(tamis, path, "--out", out)["complete_before"]
    path.touch()
    assert prepared(tamis, path, "--out", out)["complete_before"], "the content is the same"
    data = path.read_bytes()
    for place in (20, len(data) - 20):
        changed = bytearray(data)
        changed[place] ^= 1
        path.write_bytes(changed)
        refused = prepare(tamis, path, "--out", out)
        expect_refused(refused, 2, "holds a corpus made with other input files, or they have changed since")
    path.write_bytes(data)
    manifest = json.loads((out / "manifest.json").read_text())
    del manifest["request"]["input_content"]  # as an earlier version wrote it
    (out / "manifest.json").write_text(json.dumps(manifest))
    assert prepared(tamis, path, "--out", out)["complete_before"]


def test_corrupt_records_are_counted_or_fatal(tamis, tmp_path):
    bad = [b'{"text": 5}', b'{"no": "text"}', b'{"text": "a', b"[1]", b'{"text": "\xff"}', b'{"text": "\\ud800"}',
           b'{"text": "a", "text": "b"}', b'{"text": "' + b"x" * 2000 + b'"}', b"\0", b"[" * 1500]  # fmt: skip
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join([b'{"text": "first"}', *bad, b'{"text": "last"}']))
    result = prepared(tamis, path, "--out", tmp_path / "out", "--max-document", 1800)
    assert texts_of(tmp_path / "out") == ["first", "last"]
    examples = result["records"]["examples"]
    assert result["records"]["corrupt"] == len(bad) == len(examples)
    for line, (example, text) in enumerate(
        zip(examples, ("must be a text, but is 5", 'has no field "text"', "is not JSON", "expected a JSON object", "is not JSON",
                       "is not JSON", "comes twice", "has more than 1800 bytes", "is not JSON", "levels of nesting"),
            strict=True), start=2,
    ):  # fmt: skip
        assert example.startswith(f"{path}:{line}: ") and text in example, example
    failed = prepare(tamis, path, "--out", tmp_path / "fatal", "--on-error", "fail")
    expect_refused(failed, 3, f'{path}:2: "text" must be a text', "--on-error skip")
    assert not (tmp_path / "fatal" / "manifest.json").exists()
    assert "left out: 10 corrupt records" in prepare(tamis, path, "--out", tmp_path / "out", "--max-document", 1800).stdout


def test_damaged_files(tamis, tmp_path):
    good = tmp_path / "good.txt"
    good.write_text("good")
    whole = gzip.compress(b"".join(b'{"text": "%d"}\n' % i for i in range(100_000)))
    (tmp_path / "cut.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "cut.txt.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "no.txt.gz").write_bytes(b"no gzip data at all")
    (tmp_path / "latin1.txt").write_bytes("naïve".encode("latin1"))
    (tmp_path / "empty.txt").write_bytes(b"")
    for name, text in (
        ("cut.txt.gz", "the gzip data is cut off"),
        ("no.txt.gz", "the gzip data is damaged"),
        ("latin1.txt", "is not UTF-8"),
    ):
        result = prepared(tamis, tmp_path / name, good, "--out", tmp_path / f"{name}.out")
        assert result["records"]["corrupt"] == 1 and texts_of(tmp_path / f"{name}.out") == ["good"]
        assert text in result["records"]["examples"][0]
        expect_refused(prepare(tamis, tmp_path / name, "--out", tmp_path / f"{name}.none"), 3, "no text to train on", text)
    result = prepared(tamis, tmp_path / "cut.jsonl.gz", "--out", tmp_path / "cut")
    texts = texts_of(tmp_path / "cut")
    assert result["records"]["corrupt"] == 1 and texts == [str(i) for i in range(len(texts))] and len(texts) > 20_000
    expect_refused(prepare(tamis, tmp_path / "empty.txt", "--out", tmp_path / "e"), 3, "documents without text: 1, corrupt records: 0")
    prepared(tamis, good, "--out", tmp_path / "e")  # nothing was begun, so other options may follow


def test_standard_input_is_a_text(tamis, tmp_path):
    out = tmp_path / "out"
    result = prepared(tamis, "-", "--out", out, input="one\ntwo")
    assert texts_of(out) == ["one\ntwo"] and (result["files"], result["bytes"]) == (1, 7)
    assert prepared(tamis, "-", "--out", out, input="one\ntwo")["complete_before"]
    other = prepare(tamis, "-", "--out", out, input="one\nsix")
    expect_refused(other, 2, "holds a corpus made with other input files, or they have changed since")
    (tmp_path / "a.txt").write_text("a file")
    prepared(tamis, tmp_path / "a.txt", "--validation", "-", "--out", tmp_path / "held", input="held out")
    assert texts_of(tmp_path / "held") == ["a file"] and texts_of(tmp_path / "held", "validation") == ["held out"]
    for arguments, text, code, message in (
        (("-", "-"), "text", 2, "standard input, -, is named twice"),
        (("-", "--format", "parquet"), "text", 2, "standard input cannot be Parquet"),
        (("-",), "", 3, "documents without text: 1"),
        (("-",), "\udcff", 3, "corrupt records: 1, the first: standard input: is not UTF-8"),
    ):
        expect_refused(prepare(tamis, *arguments, "--out", tmp_path / "no", input=text), code, message)


def test_jsonl_from_standard_input_goes_on_after_a_kill(tamis, tmp_path):
    path = tmp_path / "a.jsonl"
    write_jsonl(path, 100_000)
    arguments = ("-", "--format", "jsonl", "--threads", 1)
    prepared(tamis, *arguments, "--out", tmp_path / "whole", input=path.read_text())
    assert texts_of(tmp_path / "whole") == [json.loads(line)["text"] for line in path.read_text().splitlines()]
    out = tmp_path / "out"
    with open(path) as text:
        process = tamis.start("data", "prepare", *arguments, "--out", out, "--save-seconds", 0, stdin=text)
    wait_until(lambda: documents_done(out) > 0, process, "progress")
    process.kill()
    process.communicate()
    assert not (out / "manifest.json").exists()
    prepared(tamis, *arguments, "--out", out, input=path.read_text())
    assert content(out) == content(tmp_path / "whole")


def test_requests_that_make_no_sense(tamis, tmp_path):
    text = tmp_path / "a.txt"
    text.write_text("text")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "picture.png").write_text("x")
    os.mkfifo(tmp_path / "fifo")
    out = tmp_path / "out"
    for arguments, code, message in (
        ([tmp_path / "none.txt", "--out", out], 3, "none.txt: does not exist"),
        ([tmp_path / "*.csv", "--out", out], 3, "no file has a name like this"),
        ([tmp_path / "folder", "--out", out], 3, "holds no file whose name ends in .txt"),
        ([tmp_path / "fifo", "--out", out], 3, "expected a file, a folder or a pattern"),
        ([text, "--out", tmp_path / "folder"], 2, "holds files, but no corpus"),
        ([text, "--out", text], 2, "--out names a directory"),
        ([text, "--out", out, "--format", "jsnl"], 2, 'did you mean "jsonl"'),
        ([text, "--out", out, "--on-error", "stop"], 2, "unknown --on-error"),
        ([text, "--out", out, "--shard-tokens", 0], 2, "--shard-tokens"),
        ([text, "--out", out, "--tokenizer", tmp_path / "none.json"], 3, "none.json"),
    ):
        expect_refused(prepare(tamis, *arguments), code, message)
    assert not out.exists()


def test_a_line_of_one_gigabyte_takes_little_memory(tamis, tmp_path):
    path = tmp_path / "a.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=1) as out:
        out.write(b'{"text": "before"}\n{"text": "')
        for _ in range(1024):
            out.write(b"x" * (1 << 20))
        out.write(b'"}\n{"text": "after"}\n')
    limit = limited_memory(tamis, 6_000_000 << 10)
    done = tamis("data", "prepare", path, "--out", tmp_path / "out", "--json", preexec_fn=limit)
    assert done.returncode == 0, done
    assert texts_of(tmp_path / "out") == ["before", "after"]
    assert f"{path}:2: has more than 16777216 bytes" in json.loads(done.stdout)["records"]["examples"]


def test_a_full_disk(tamis, tmp_path):
    write_jsonl(tmp_path / "a.jsonl", 10_000)
    prepared(tamis, tmp_path / "a.jsonl", "--out", tmp_path / "whole")
    with small_disk(tmp_path / "disk", "4m") as remount:
        out = tmp_path / "disk" / "out"
        done = prepare(tamis, tmp_path / "a.jsonl", "--out", out)
        expect_refused(done, 30, "No space left on device", "free some space and run again")
        assert not (out / "manifest.json").exists()
        remount("size=200m")
        prepared(tamis, tmp_path / "a.jsonl", "--out", out)
        assert content(out) == content(tmp_path / "whole")


# Training.


def train(tamis, path, run, *settings, **options):
    recipe = run.parent / "recipe.toml"
    recipe.write_text(RECIPE.format(path=path))
    sets = [word for setting in settings for word in ("--set", setting)]
    return tamis("train", recipe, "--set", f"run.dir={run}", *sets, **options)


@pytest.fixture(scope="module")
def corpus(tamis):
    write_jsonl(tamis.directory / "books.jsonl", 60)
    out = tamis.directory / "corpus"
    prepared(tamis, tamis.directory / "books.jsonl", "--out", out, "--validation-fraction", 0.1, "--shard-tokens", 9000)
    return out


def state(run, step):
    return [(run / f"checkpoints/step-{step}" / name).read_bytes() for name in ("model.safetensors", "optimizer.safetensors")]


def test_training_from_a_corpus_resumes_exactly(tamis, corpus, tmp_path):
    settings = ("data.sources.books.documents=true",)
    whole = tmp_path / "whole"
    assert train(tamis, corpus, whole, *settings).returncode == 0
    run = tmp_path / "run"
    for steps in (4, 8, 12):
        assert train(tamis, corpus, run, *settings, f"train.steps={steps}").returncode == 0
    assert state(run, 12) == state(whole, 12)
    refused = train(tamis, corpus, run, *settings, "data.sources.books.sampling=random")
    assert refused.returncode == 2 and 'sampling was "sequential", is "random"' in refused.stderr, refused


def test_token_files_of_other_programs(tamis, tmp_path):
    numpy = pytest.importorskip("numpy")
    ids = numpy.random.default_rng(1).integers(0, 257, 3000)
    header = numpy.zeros(256, dtype="<i4")
    header[:3] = (20240520, 1, len(ids))
    (tmp_path / "a.bin").write_bytes(header.tobytes() + ids.astype("<u2").tobytes())
    header[0] = 20240801
    (tmp_path / "b.bin").write_bytes(header.tobytes() + ids.astype("<u4").tobytes())
    for number, kind in enumerate(("<u2", "<u4", "<i4", "<i8")):
        numpy.save(tmp_path / f"{number}.npy", ids.astype(kind))
    weights = []
    for name in ("a.bin", "b.bin", "0.npy", "1.npy", "2.npy", "3.npy"):
        run = tmp_path / f"run-{name}"
        done = train(tamis, tmp_path / name, run, "train.steps=2")
        assert done.returncode == 0, done
        weights.append((run / "checkpoints/step-2/model.safetensors").read_bytes())
    assert all(weight == weights[0] for weight in weights)
    for name, array, text in (
        ("floats.npy", ids.astype("<f4"), "but the array has \\\"'<f4'\\\""),
        ("big.npy", ids.astype(">i4"), "'>i4'"),
        ("square.npy", ids.astype("<i4").reshape(30, 100), "expected an array of one dimension"),
        ("large.npy", ids.astype("<i4") + 300, "but the tokenizer has the ids 0..256"),
    ):
        numpy.save(tmp_path / name, array)
        done = train(tamis, tmp_path / name, tmp_path / "no")
        assert done.returncode == 3 and text.replace("\\", "") in done.stderr.replace("\\", ""), done
    (tmp_path / "cut.bin").write_bytes((tmp_path / "a.bin").read_bytes()[:-10])
    expect_refused(train(tamis, tmp_path / "cut.bin", tmp_path / "no"), 3, "it was cut off or written to")
    (tmp_path / "text.bin").write_bytes(b"x" * 2000)
    expect_refused(train(tamis, tmp_path / "text.bin", tmp_path / "no"), 3, "is not a shard of llm.c")


def test_damaged_corpora_are_refused(tamis, corpus, tmp_path):
    shard = "training-00001.tokens"

    def copy(name):
        target = tmp_path / name
        shutil.copytree(corpus, target)
        return target

    flipped = copy("flipped")
    data = bytearray((flipped / shard).read_bytes())
    data[5000] ^= 1
    (flipped / shard).write_bytes(data)
    done = train(tamis, flipped, tmp_path / "run1", "train.steps=200")
    assert done.returncode == 3 and f"{flipped / shard}: is damaged: the checksum of bytes" in done.stderr, done
    missing = copy("missing")
    (missing / shard).unlink()
    expect_refused(train(tamis, missing, tmp_path / "run2"), 3, f"{missing / shard}: cannot open")
    swapped = copy("swapped")
    shutil.copyfile(corpus / "training-00000.tokens", swapped / shard)
    expect_refused(train(tamis, swapped, tmp_path / "run3"), 3, "is not the shard that manifest.json names")
    for name, key, value in (("other", "digest", "0" * 64), ("unreadable", "vocab_size", "many")):
        changed = copy(name)
        manifest = json.loads((changed / "manifest.json").read_text())
        manifest["tokenizer"][key] = value
        (changed / "manifest.json").write_text(json.dumps(manifest))
        text = "was prepared with another tokenizer" if key == "digest" else "vocab_size must be a whole number"
        expect_refused(train(tamis, changed, tmp_path / "run4"), 3, text)
    expect_refused(train(tamis, tmp_path / "nowhere", tmp_path / "run5"), 3, "nowhere: does not exist")
    expect_refused(train(tamis, tmp_path, tmp_path / "run6"), 3, "has no manifest.json")
