#!/usr/bin/env python3
"""Help of every command, and the refusal of wrong command lines in one line: start_test.py PROGRAM"""

import os
import shlex
import subprocess
import sys

COMMANDS = (
    "train", "eval", "eval abc_digits", "eval mqrar", "eval loss", "score", "generate", "inspect", "report",
    "data", "data generate", "data generate passkey", "data generate niah_single_2", "data generate mqar",
    "shootout", "help", "completion", "man", "bench", "bench train", "bench forward", "bench decode",
)  # fmt: skip
REFUSED = {
    "trian": 'did you mean "train"?',
    "eval abc_digit run": 'did you mean "abc_digits"?',
    "bench trian": 'did you mean "train"?',
    "generate": "required",
    "generate run --prompt a --promt a": 'did you mean "--prompt"?',
    "eval mqrar run --needle-score": 'eval mqrar: unknown option "--needle-score"',
    "eval mqrar run --lengths abc": "abc",
    "data generate passkey --length 4096x": "4096x",
    "generate run --prompt a --top-k many": "many",
    "generate run --prompt a --top-p 0": "top-p must be in (0, 1]",
    "generate run --prompt a --max-new-tokens 0": "at least 1",
    "generate run --prompt ''": "the prompt is empty",
    "generate run --prompt a --stop ''": "a stop string is empty",
    "generate run --prompt a --weights int9": 'did you mean "int8"?',
    "generate run --prompt a --threads -1": "--threads must be in 0..4096",
    "generate run --prompt a --device cudaa": 'did you mean "cuda"?',
    "score run": "a text file or --ids FILE",
    "eval abc_digits run --lengths 512,235": "the least is 236",
    "eval abc_digits run --depths 2": "depth must be in 0..1",
    "eval abc_digits run --instances 0": "instances must be at least 1",
    "eval loss run file --window -1": "at least 1 token",
    "inspect": "a checkpoint, a recipe or --psi",
    "inspect run --psi 3": "a checkpoint, a recipe or --psi",
    "inspect --psi 3 --set-model window=3": "--set-model needs a checkpoint",
    "inspect run --set train.steps=3": "--set changes a key of a recipe",
    "inspect recipe.toml --text file": "--text needs a checkpoint",
    "inspect run --tokens 0": "--tokens",
    "report run --tokens 0": "--tokens",
    "data generat": 'did you mean "generate"?',
    "data generate paskey": 'did you mean "passkey"?',
    "data generate passkey --length 246": "the least is 247",
    "data generate passkey --depth 1.5": "depth must be in 0..1",
    "data generate copy --depth 0.5": "--depth",
    "data generate copy --count 0": "at least 1 instance",
    "data generate mqar --vocab 8": "need a vocab of at least 20",
    "data generate niah_single_2": "give a text file with --haystack FILE",
    "train recipe.toml --set lr": "expected key=value",
    "bench train --dtypes float33": 'did you mean "float32"?',
    "bench forward --dtypes int8": "int8 is a format of weights in decoding",
    "bench decode --windows infinit": 'did you mean "infinite"?',
    "bench forward --lengths 0": "whole numbers from 1",
}

program = ""


def run(arguments, **environment):
    command = [program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=300)


def test_help_and_version():
    for arguments in ([], ["--help"], ["--version"], ["help", "eval", "loss"], ["completion", "bash"], *([*command.split(), "--help"] for command in COMMANDS)):
        outcome = run(arguments)
        assert outcome.returncode == 0 and outcome.stdout and not outcome.stderr, f"{arguments}: {outcome}"


def test_every_command_is_in_the_list():
    outcome = run(["--help"])
    listed = outcome.stdout.split("Commands:")[1].split("Options:")[0].splitlines()
    names = {line.split()[0] for line in listed if line.startswith("  ") and not line.startswith("   ")}
    assert names and names == {command.split()[0] for command in COMMANDS}, names


def test_a_wrong_command_line_is_refused():
    for line, text in REFUSED.items():
        outcome = run(shlex.split(line))
        assert outcome.returncode == 2 and not outcome.stdout and text in outcome.stderr, f"{line}: {outcome}"
        lines = outcome.stderr.splitlines()
        assert len(lines) == 1 and lines[0].startswith("tamis: "), f"{line}: one line was expected: {outcome.stderr}"


def test_a_wrong_instruction_set_is_refused_by_every_command():
    for arguments in (["--help"], ["inspect", "--psi", "2"]):
        outcome = run(arguments, TAMIS_MAX_ISA="avx9")
        assert outcome.returncode == 2 and not outcome.stdout, outcome
        assert outcome.stderr == 'tamis: TAMIS_MAX_ISA must be avx2 or avx512, or unset, but is "avx9"\n', outcome


def test_errors_of_commands_have_their_exit_codes():
    for line, code, text in (
        ("score /nowhere /nowhere", 3, "/nowhere"),
        ("train /nowhere.toml", 3, "/nowhere.toml"),
        ("inspect --psi 100000", 2, '"psi" must be a whole number'),
    ):
        outcome = run(shlex.split(line))
        assert outcome.returncode == code and text in outcome.stderr, f"{line}: {outcome}"
        assert outcome.stderr.startswith("tamis: ") and outcome.stderr.count("\n") == 1, f"{line}: {outcome.stderr}"


def main():
    global program
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    program = os.path.abspath(sys.argv[1])
    failed = 0
    for name, test in list(globals().items()):
        if not name.startswith("test_"):
            continue
        try:
            test()
            print(f"ok      {name}")
        except Exception as error:  # noqa: BLE001: a time-out must not end the other tests
            failed += 1
            print(f"FAILED  {name}: {type(error).__name__}: {error}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
