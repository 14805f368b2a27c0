"""Corpora of `tamis data prepare`: making them, and reading them by code of the tests' own."""

import contextlib
import json
import random
import struct

END = 256  # of the byte tokenizer


def prepare(tamis, *arguments, **options):
    """Runs to the end; the lines of progress of long work are left out of the messages."""
    done = tamis("data", "prepare", *arguments, **options)
    lines = done.stderr.splitlines(keepends=True)
    done.stderr = "".join(line for line in lines if not line.startswith("prepare ["))
    return done


def prepared(tamis, *arguments, **options):
    done = prepare(tamis, *arguments, "--json", **options)
    assert done.returncode == 0, done
    return json.loads(done.stdout)


def tokens_of(corpus, split="training"):
    """The documents of a corpus as lists of ids, read by this test's own code."""
    documents = []
    for shard in json.loads((corpus / "manifest.json").read_text())[split]["shards"]:
        data = (corpus / shard["file"]).read_bytes()
        magic, version, token_bytes, tokens, count = struct.unpack_from("<8sIIQQ", data)
        assert magic == b"TAMISTOK" and version == 1
        ids = struct.unpack_from(f"<{tokens}{'H' if token_bytes == 2 else 'I'}", data, 256)
        starts = struct.unpack_from(f"<{count}Q", data, 256 + (tokens * token_bytes + 7) // 8 * 8)
        documents += [list(ids[a:b]) for a, b in zip(starts, [*starts[1:], tokens], strict=True)]
    return documents


def texts_of(corpus, split="training"):
    documents = tokens_of(corpus, split)
    assert all(document[-1] == END for document in documents)
    return [bytes(document[:-1]).decode() for document in documents]


def content(corpus):
    return {path.name: path.read_bytes() for path in corpus.iterdir() if path.name != ".lock"}


def write_jsonl(path, count, seed=1):
    chance = random.Random(seed)
    with open(path, "w") as out:
        for i in range(count):
            text = " ".join(f"word{chance.randrange(500)}" for _ in range(chance.randrange(1, 160)))
            out.write(json.dumps({"id": i, "text": text}) + "\n")


def documents_done(corpus):
    """Documents in the last save of a corpus that is being prepared."""
    with contextlib.suppress(FileNotFoundError):
        return json.loads((corpus / "progress.json").read_text())["documents"]
    return 0
