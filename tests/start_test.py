"""Help of every command, and the refusal of wrong command lines in one line."""

import json
import shlex

from program import INSTRUCTION_SETS, environment, expect_refused

COMMANDS = (
    "train", "eval", "eval abc_digits", "eval mqrar", "eval loss", "score", "generate", "inspect", "plan", "report",
    "convert", "tokenize", "detokenize", "data prepare", "data train-tokenizer",
    "data", "data generate", "data generate passkey", "data generate niah_single_2", "data generate mqar",
    "study", "repro", "help", "completion", "man", "bench", "bench train", "bench forward", "bench decode",
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
    "plan recipe.toml --set lr": "expected key=value",
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


def test_help_and_version(tamis):
    for line in (
        "",
        "--help",
        "--version",
        "help eval loss",
        "completion bash",
        *(f"{each} --help" for each in COMMANDS),
    ):
        outcome = tamis(*line.split())
        assert outcome.returncode == 0 and outcome.stdout and not outcome.stderr, f"{line}: {outcome}"


def test_every_command_is_in_the_list(tamis):
    listed = tamis("--help").stdout.split("Commands:")[1].split("Options:")[0].splitlines()
    names = {line.split()[0] for line in listed if line.startswith("  ") and not line.startswith("   ")}
    assert names and names == {command.split()[0] for command in COMMANDS}, names


def test_a_wrong_command_line_is_refused(tamis):
    for line, text in REFUSED.items():
        expect_refused(tamis(*shlex.split(line)), 2, text)


def test_a_device_that_is_not_there_is_refused(tamis):
    """Before anything is written, by training and by decoding."""
    (tamis.directory / "recipe.toml").write_text('[model]\npsi = 2\n[data.sources.digits]\nkind = "abc_digits"\n[run]\ndir = "run"\n')
    for line in ("train recipe.toml", "train recipe.toml --replay 1", "generate run --prompt a"):
        # No GPU is visible, whatever the machine has.
        done = tamis(*shlex.split(line), "--device", "cuda", env=environment(CUDA_VISIBLE_DEVICES=""))
        expect_refused(done, 2, "--device cuda: this build of LibTorch has no such device or sees none; use --device cpu")
    assert not (tamis.directory / "run").exists()


def test_a_wrong_instruction_set_is_refused_by_every_command(tamis):
    for arguments in (["--help"], ["inspect", "--psi", "2"]):
        outcome = tamis(*arguments, env=environment(TAMIS_MAX_ISA="avx9"))
        assert outcome.returncode == 2 and not outcome.stdout, outcome
        known = " or ".join(INSTRUCTION_SETS)
        assert outcome.stderr == f'tamis: TAMIS_MAX_ISA must be {known}, or unset, but is "avx9"\n', outcome


def test_errors_of_commands_have_their_exit_codes(tamis):
    for line, code, text in (
        ("score /nowhere /nowhere", 3, "/nowhere"),
        ("train /nowhere.toml", 3, "/nowhere.toml"),
        ("inspect --psi 100000", 2, '"psi" must be a whole number'),
    ):
        expect_refused(tamis(*shlex.split(line)), code, text)


def test_a_run_names_the_command_that_made_it(tamis, tmp_path):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        "model = {hidden_size = 16, num_hidden_layers = 1, num_attention_heads = 2}\n"
        'data.sources.copy = {kind = "copy"}\n'
        "train = {steps = 1, length = 32, batch_tokens = 64}\n"
    )
    words = ("train", recipe, "--set", f"run.dir={tmp_path / 'run'}")
    tamis.out(*words, anew=True)  # a fork has another command line
    command = json.loads((tmp_path / "run/run.json").read_text())["command"]
    assert command == [str(tamis.path), *map(str, words)], command
