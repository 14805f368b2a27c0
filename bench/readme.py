#!/usr/bin/env python3
"""Writes the speed table of a result file into the README: bench/readme.py bench/results/DATE-CPU.json.

A comment around the table names the file; tests/peers_test.py checks that the table is still that of the file.
"""

import pathlib
import re
import sys

from peers.results import Results, write_whole
from peers.table import figure, markdown, number, pairs, ratio

ROOT = pathlib.Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
REGION = re.compile(r"<!-- speed: (\S+) -->\n.*?<!-- /speed -->\n", re.DOTALL)
# Section, what, dtype, tokens of the rows that the README shows, if the file has them.
SHOWN = (
    ("train", "step, initial windows", "float32", 4096),
    ("train", "step, initial windows", "bfloat16", 4096),
    ("forward", "text, initial windows", "float32", 16384),
    ("decode", "token, initial windows", "bfloat16", 1024),
    ("decode", "token, initial windows", "bfloat16", 16384),
    ("ops", "forward and backward, initial windows, 2% accepted", "float32", 4096),
    ("attention", "forward and backward, softmax", "float32", 4096),
    ("attention", "forward and backward, mlstm", "float32", 4096),
)


def table(rows: list[dict]) -> str:
    """Rows of Tamis with the fastest peer that does the same work, and their ratio."""
    lines = []
    for tamis, peers in pairs(rows):
        if not peers or tuple(tamis[key] for key in ("section", "what", "dtype", "tokens")) not in SHOWN:
            continue
        what = f"{tamis['section']}: {tamis['what']}"
        best = peers[0]
        faster = f"{number(ratio(tamis, best).value)}x"
        lines.append([what, tamis["dtype"], f"{tamis['tokens']:,}", figure(tamis), best["peer"], figure(best), faster])
    columns = ["what", "dtype", "tokens", "Tamis", "fastest peer", "its figure", "Tamis / peer"]
    return "\n".join(markdown(columns, lines))


def region(path: pathlib.Path) -> str:
    name = path.resolve().relative_to(ROOT).as_posix()
    return f"<!-- speed: {name} -->\n{table(list(Results.read(path).rows.values()))}<!-- /speed -->\n"


def named_in(readme: str) -> str | None:
    found = REGION.search(readme)
    return found.group(1) if found else None


def replaced(readme: str, path: pathlib.Path) -> str:
    return REGION.sub(lambda _: region(path), readme)


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    path, readme = pathlib.Path(sys.argv[1]), README.read_text()
    if named_in(readme) is None:
        print("readme.py: README.md has no region <!-- speed: FILE --> ... <!-- /speed -->", file=sys.stderr)
        return 1
    try:
        write_whole(README, replaced(readme, path))
    except (OSError, ValueError) as error:
        print(f"readme.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
