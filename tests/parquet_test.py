"""`tamis data prepare` of Parquet: every encoding, rows that are no texts, files that cannot be read, memory, resuming."""

import gzip
import json
import shutil
import subprocess
import sys

import pytest
from corpora import content, documents_done, prepare, prepared, texts_of, write_jsonl
from program import expect_refused, wait_until


def write_parquet(path, texts, **options):
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed (scripts/setup.sh parquet)")
    from pyarrow import parquet

    columns = {"id": list(range(len(texts))), "text": texts, "words": [text.split() if text else [] for text in texts]}
    table = pyarrow.table({**columns, "page": [{"body": text} for text in texts]})
    parquet.write_table(table, path, **options)


@pytest.fixture
def needs_arrow(tamis):
    if not (tamis.path.parent / "libtamis_parquet.so").exists():
        pytest.skip("this build reads no Parquet (scripts/setup.sh parquet)")


def test_parquet(tamis, tmp_path, needs_arrow):
    write_jsonl(tmp_path / "a.jsonl", 3000)
    texts = [json.loads(line)["text"] for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    texts += ["", "twö 😀\nlines\n", "x" * 300_000]
    for number, options in enumerate(
        ({}, {"compression": "zstd", "row_group_size": 700}, {"compression": "gzip", "use_dictionary": False},
         {"data_page_size": 1000, "version": "1.0", "data_page_version": "2.0"}, {"store_schema": False})
    ):  # fmt: skip
        path, out = tmp_path / f"{number}.parquet", tmp_path / f"out{number}"
        write_parquet(path, texts, **options)
        result = prepared(tamis, path, "--out", out)
        assert texts_of(out) == [text for text in texts if text]
        assert result["records"] == {"empty": 1, "corrupt": 0, "examples": []}
    prepared(tamis, path, "--out", tmp_path / "nested", "--field", "page.body")
    assert texts_of(tmp_path / "nested") == texts_of(out)
    (tmp_path / "folder").mkdir()
    shutil.copyfile(path, tmp_path / "folder" / "0.parquet")
    shutil.copyfile(path, tmp_path / "folder" / "other")
    prepared(tamis, tmp_path / "folder", "--out", tmp_path / "folder.out")
    assert texts_of(tmp_path / "folder.out") == texts_of(out)
    prepared(tamis, tmp_path / "folder" / "other", "--format", "parquet", "--out", tmp_path / "named")
    assert texts_of(tmp_path / "named") == texts_of(out)


def test_parquet_with_rows_that_are_no_texts(tamis, tmp_path, needs_arrow):
    path = tmp_path / "a.parquet"
    write_parquet(path, ["first", None, "y" * 2000, "last", None])
    result = prepared(tamis, path, "--out", tmp_path / "out", "--max-document", 1800)
    assert texts_of(tmp_path / "out") == ["first", "last"] and result["records"]["corrupt"] == 3
    assert result["records"]["examples"] == [
        f'{path}:2: "text" must be a text, but is null',
        f"{path}:3: has more than 1800 bytes",
        f'{path}:5: "text" must be a text, but is null',
    ]
    failed = prepare(tamis, path, "--out", tmp_path / "fatal", "--on-error", "fail")
    expect_refused(failed, 3, f'{path}:2: "text" must be a text, but is null')
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"text": pyarrow.array([b"good", b"\xff"], pyarrow.binary())}), path)
    result = prepared(tamis, path, "--out", tmp_path / "bytes")
    assert texts_of(tmp_path / "bytes") == ["good"] and result["records"]["examples"] == [f"{path}:2: is not UTF-8"]


def test_parquet_that_cannot_be_read(tamis, tmp_path, needs_arrow):
    path, out = tmp_path / "a.parquet", tmp_path / "out"
    write_parquet(path, [f"text {i} of many" * 50 for i in range(4000)], compression="none", write_page_checksum=True)
    data = path.read_bytes()
    for field, text in (
        ("body", 'has no column "body"; its columns are id, text, words.list.element, page.body'),
        ("id", 'the column "id" must hold one text per row, but is INT64'),
        ("words.list.element", "must hold one text per row, but is a list"),
    ):
        expect_refused(prepare(tamis, path, "--out", out, "--field", field), 3, f"{path}: ", text)
    (tmp_path / "cut.parquet").write_bytes(data[: len(data) // 2])
    expect_refused(prepare(tamis, tmp_path / "cut.parquet", "--out", out), 3, f"{tmp_path}/cut.parquet: ", "Parquet")
    (tmp_path / "empty.parquet").write_bytes(b"")
    expect_refused(prepare(tamis, tmp_path / "empty.parquet", "--out", out), 3, f"{tmp_path}/empty.parquet: ")
    at = data.index(b"text 2000 of many")
    (tmp_path / "flipped.parquet").write_bytes(data[:at] + b"X" + data[at + 1 :])
    expect_refused(prepare(tamis, tmp_path / "flipped.parquet", "--out", out), 3, "flipped.parquet: ", "CRC")
    (tmp_path / "b.parquet.gz").write_bytes(gzip.compress(data))
    expect_refused(prepare(tamis, tmp_path / "b.parquet.gz", "--out", out), 3, "decompress it first")


def test_parquet_takes_little_memory_and_resumes(tamis, tmp_path, needs_arrow):
    """One row group of 400 MB; the preparation is killed once and completed."""
    path = tmp_path / "a.parquet"
    write_parquet(path, [f"{i} " + f"word{i % 97} " * 2000 for i in range(32_000)], row_group_size=1 << 30)
    command = [tamis.path, "data", "prepare", path, "--out", tmp_path / "whole", "--threads", 1]
    measured = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, capture_output=True); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)"
    )
    used = subprocess.run([sys.executable, "-c", measured, *map(str, command)], capture_output=True, text=True, check=True)
    assert int(used.stdout) < 700, f"{used.stdout} MB"
    out = tmp_path / "killed"
    process = tamis.start("data", "prepare", path, "--out", out, "--threads", 1, "--save-seconds", 0.02)

    wait_until(lambda: documents_done(out) > 500, process, "progress")
    process.kill()
    process.communicate()
    assert not (out / "manifest.json").exists()
    prepared(tamis, path, "--out", out, "--threads", 2)
    assert content(out) == content(tmp_path / "whole")


def test_a_build_without_arrow_says_what_to_install(tamis, tmp_path):
    if (tamis.path.parent / "libtamis_parquet.so").exists():
        pytest.skip("this build reads Parquet")
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    done = prepare(tamis, tmp_path / "a.parquet", "--out", tmp_path / "out")
    expect_refused(done, 1, "a.parquet: this build reads no Parquet", "run `scripts/setup.sh parquet` and then `make build`")
