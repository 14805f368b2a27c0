"""The commands of the program and their options, as its help lists them."""

import functools
import re

from program import environment


@functools.cache
def help_of(tamis, path, columns=120):
    return tamis("help", *path, env=environment(COLUMNS=str(columns))).stdout


def section(text, heading):
    """The lines below `heading:`, up to the next empty line."""
    match = re.search(rf"^{heading}:\n((?:.+\n)+)", text, re.MULTILINE)
    return match.group(1).splitlines() if match else []


def all_commands(tamis, path=()):
    """Every command line that has a help of its own, `()` for the program itself."""
    found = [path]
    for line in section(help_of(tamis, path), "Commands"):
        if re.match(r"  \S", line):
            found += all_commands(tamis, (*path, line.split()[0]))
    return found


def options_of(tamis, path):
    """The long options that the help of a command lists."""
    lines = section(help_of(tamis, path), "Options")
    return {
        name
        for line in lines
        if re.match(r"  -", line)
        for name in re.findall(r"--[a-z-]+", re.split(r"\s{2,}", line.strip())[0])
    }
