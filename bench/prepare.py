#!/usr/bin/env python3
"""How fast `tamis data prepare` is compared with the Python package `tokenizers`: bench/prepare.py PROGRAM TEXT...

Both read the same JSONL, tokenize it with the same tokenizer.json and the same number of threads, and write the ids:
whole processes, from call to end, interleaved. First all of their ids are compared. The peers are `encode_batch`, and
`encode_batch_fast`, which leaves out the position of every token in the text. Both take 1,000 documents at a time.

TEXT are text files and folders of them. They are divided into documents of a few kilobytes, and repeated until there
are --megabytes of JSONL. Prints a table and writes bench/results/DATE-CPU-prepare.json.
"""

import argparse
import datetime
import json
import os
import pathlib
import random
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import tokenizers
from peers.results import file_name, processor, write_whole

RESULTS = pathlib.Path(__file__).resolve().parent / "results"
PEERS = ("encode_batch", "encode_batch_fast")
END = "<|endoftext|>"
PEER = """
import json, sys
import numpy
from tokenizers import Tokenizer

method, tokenizer, source, target, end = sys.argv[1:]
tokenizer = Tokenizer.from_file(tokenizer)
encode, end = getattr(tokenizer, method), [int(end)]

def write(texts, out):
    for encoding in encode(texts, add_special_tokens=False):
        out.write(numpy.array(encoding.ids + end, dtype=numpy.uint16))

with open(source, encoding="utf-8") as lines, open(target, "wb") as out:
    texts = []
    for line in lines:
        texts.append(json.loads(line)["text"])
        if len(texts) == 1000:
            write(texts, out)
            texts = []
    write(texts, out)
"""


def files_of(paths):
    return [file for path in paths for file in ([path] if path.is_file() else sorted(path.rglob("*.txt")))]


def documents_of(files, chance):
    """Consecutive paragraphs of a file, 500 to 8,000 characters and more until the paragraph ends."""
    for file in files:
        least, held = 500, ""
        for paragraph in file.read_text(encoding="utf-8").split("\n\n"):
            held += paragraph + "\n\n"
            if len(held) > least:
                yield held
                least, held = chance.randrange(500, 8000), ""
        if held.strip():
            yield held


def write_documents(files, path, megabytes):
    """Returns the number of documents and of bytes of the file."""
    chance, lines = random.Random(1), 0
    with open(path, "wb") as out:
        while True:
            before = lines
            for text in documents_of(files, chance):
                out.write(json.dumps({"text": text}, ensure_ascii=False).encode() + b"\n")
                lines += 1
                if out.tell() >= megabytes * 1e6:
                    return lines, out.tell()
            if lines == before:
                sys.exit("prepare.py: the texts hold nothing but blanks")


def tokens_of(corpus):
    """The ids of a corpus of Tamis, as the bytes of uint16."""
    ids = b""
    for shard in json.loads((corpus / "manifest.json").read_text())["training"]["shards"]:
        data = (corpus / shard["file"]).read_bytes()
        token_bytes, tokens = struct.unpack_from("<IQ", data, 12)
        if token_bytes != 2:
            sys.exit("prepare.py: expected a tokenizer with at most 65,536 ids")
        ids += data[256 : 256 + 2 * tokens]
    return ids


class Comparison:
    def __init__(self, options, directory):
        self.options, self.directory = options, directory
        threads = {"RAYON_NUM_THREADS": str(options.threads), "TOKENIZERS_PARALLELISM": "true"}
        self.environment = {**os.environ, **threads}
        self.jsonl, self.tokenizer = directory / "texts.jsonl", options.tokenizer or directory / "tokenizer.json"
        files = files_of(options.texts)
        if not files:
            sys.exit("prepare.py: no text files there")
        self.documents, self.bytes = write_documents(files, self.jsonl, options.megabytes)
        if not options.tokenizer:
            train = ("data", "train-tokenizer", *files, "--vocab", options.vocab, "--out", self.tokenizer)
            self.seconds_of(options.program, *train)
        self.end = tokenizers.Tokenizer.from_file(str(self.tokenizer)).token_to_id(END)
        if self.end is None:
            sys.exit(f"prepare.py: expected a tokenizer with the token {END}")

    def seconds_of(self, *command):
        begun = time.monotonic()
        done = subprocess.run(list(map(str, command)), env=self.environment, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"prepare.py: {command[0]}: {done.stderr.strip()}")
        return time.monotonic() - begun

    def tamis(self, out):
        arguments = (self.jsonl, "--tokenizer", self.tokenizer, "--threads", self.options.threads, "--out", out)
        return self.seconds_of(self.options.program, "data", "prepare", *arguments)

    def peer(self, method, out):
        return self.seconds_of(sys.executable, "-c", PEER, method, self.tokenizer, self.jsonl, out, self.end)

    def check(self):
        """Fails unless all ids are equal. Returns their number."""
        self.tamis(self.directory / "checked")
        ids = tokens_of(self.directory / "checked")
        for method in PEERS:
            self.peer(method, self.directory / "ids")
            if (self.directory / "ids").read_bytes() != ids:
                sys.exit(f"prepare.py: {method} gives other ids than tamis")
        return len(ids) // 2

    def measure(self):
        """{name: [seconds]}"""
        seconds = {"tamis": [], **{method: [] for method in PEERS}}
        for turn in range(self.options.turns):
            seconds["tamis"].append(self.tamis(self.directory / f"corpus-{turn}"))
            for method in PEERS:
                seconds[method].append(self.peer(method, self.directory / "ids"))
        return seconds


def row_of(name, times, of_tamis, megabytes):
    low, median, high = statistics.quantiles(times, n=4)
    ratio = statistics.median(theirs / own for own, theirs in zip(of_tamis, times, strict=True))
    return {"program": name, "seconds": {"median": median, "quartiles": [low, high], "all": times},
            "megabytes_per_second": megabytes / median, "tamis_over_it": ratio}  # fmt: skip


def report(comparison, tokens, seconds):
    rows = [row_of(name, times, seconds["tamis"], comparison.bytes / 1e6) for name, times in seconds.items()]
    return {
        "date": datetime.date.today().isoformat(), "processor": processor(), "cores": os.cpu_count(),
        "threads": comparison.options.threads, "documents": comparison.documents, "bytes": comparison.bytes,
        "tokens": tokens, "tokenizers": tokenizers.__version__, "rows": rows,
    }  # fmt: skip


def table(result):
    lines = ["| program | seconds | quartiles | MB/s | speed of Tamis / its speed |", "|---|---|---|---|---|"]
    for row in result["rows"]:
        low, high = row["seconds"]["quartiles"]
        lines.append(
            f"| {row['program']} | {row['seconds']['median']:.2f} | {low:.2f} to {high:.2f} "
            f"| {row['megabytes_per_second']:.1f} | {row['tamis_over_it']:.2f}x |"
        )
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=os.path.abspath, help="build/release/tamis")
    parser.add_argument("texts", type=pathlib.Path, nargs="+", help="text files, or folders of them")
    parser.add_argument("--tokenizer", type=pathlib.Path, help="a tokenizer.json; default: trained on the texts")
    parser.add_argument("--vocab", type=int, default=4096, help="of the tokenizer that is trained")
    parser.add_argument("--megabytes", type=float, default=100, help="of JSONL")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of each")
    parser.add_argument("--turns", type=int, default=7, help="times that each is measured")
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS, help="folder of the result")
    options = parser.parse_args()
    if options.turns < 2:
        parser.error("--turns: at least 2")
    with tempfile.TemporaryDirectory() as directory:
        comparison = Comparison(options, pathlib.Path(directory))
        result = report(comparison, comparison.check(), comparison.measure())
    print(table(result))
    name = file_name(result["date"], result["processor"]) + "-prepare.json"
    write_whole(options.out / name, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
