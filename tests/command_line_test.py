"""Help, shell completion and manual pages of every command.

All of it comes from the definitions of the commands and needs no LibTorch. The completions run in real shells, the
pages go through man and mandoc; where one of these is not installed its test is skipped.
"""

import fcntl
import os
import pathlib
import pty
import re
import select
import shlex
import struct
import subprocess
import termios
import time

import pytest
from commands import all_commands, help_of, options_of, section
from program import environment, expect_refused, need

ROOT = pathlib.Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def terminal_settings_of_nobody(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)


def run_in_terminal(command, keys=(), columns=100, **variables):
    """What a command prints on a terminal of its own, with `keys` typed into it one after the other."""
    child, terminal = pty.fork()
    if child == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        # Not execvp, which passes on what the readline library set without Python: COLUMNS of pytest's own terminal.
        os.execvpe(command[0], command, environment(TERM="xterm", PS1="> ", **variables))
    shown = b""

    def read_for(seconds, stop=None):
        nonlocal shown
        end = time.monotonic() + seconds
        while time.monotonic() < end and not (stop and re.search(stop, shown)):
            if not select.select([terminal], [], [], 0.1)[0]:
                continue
            try:
                part = os.read(terminal, 1 << 16)
            except OSError:
                return
            if not part:
                return
            shown += part

    for text, answer in keys:
        os.write(terminal, text.encode())
        read_for(20, answer)
    if not keys:
        read_for(20)
    os.close(terminal)
    os.waitpid(child, 0)
    return shown.decode(errors="replace")


def test_the_bare_program_and_bare_groups_print_their_help(tamis):
    for words in ([], ["eval"], ["data"], ["data", "generate"], ["bench"]):
        bare, asked = tamis(*words), tamis(*words, "--help")
        assert bare.returncode == 0 and not bare.stderr, f"{words}: {bare}"
        assert bare.stdout == asked.stdout == tamis("help", *words).stdout, f"{words}: {bare.stdout}"
        assert "Commands:" in bare.stdout, bare.stdout


def test_help_of_nested_commands_and_its_refusals(tamis):
    assert tamis("help", "eval", "loss").stdout == tamis("eval", "loss", "--help").stdout, "help eval loss"
    for line, text in {
        "help evl": 'did you mean "eval"?',
        "help eval los": 'did you mean "loss"?',
        "help train now": "`tamis train` has no commands below it",
    }.items():
        refused = tamis(*line.split())
        assert refused.returncode == 2 and text in refused.stderr and not refused.stdout, f"{line}: {refused}"
        assert refused.stderr.count("\n") == 1, refused.stderr


def test_the_version_has_a_short_option(tamis):
    assert tamis("-V").stdout == tamis("--version").stdout, "-V"
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", tamis("-V").stdout), tamis("-V").stdout


def test_usage_has_no_empty_placeholders(tamis):
    assert "Usage: tamis COMMAND ...\n" in tamis().stdout, tamis().stdout
    assert "Usage: tamis eval TASK ...\n" in tamis("eval").stdout, tamis("eval").stdout
    assert "Usage: tamis data COMMAND ...\n" in tamis("data").stdout, tamis("data").stdout
    assert "Usage: tamis train RECIPE [OPTIONS]\n" in tamis("help", "train").stdout, "train"
    assert "Usage: tamis generate DIR --prompt TEXT [OPTIONS]\n" in tamis("help", "generate").stdout, "generate"
    assert "Usage: tamis completion SHELL\n" in tamis("help", "completion").stdout, "completion has no options"


def test_an_option_without_a_default_shows_none(tamis):
    for command, option in (("train", "--replay"), ("inspect", "--psi"), ("data generate passkey", "--depth")):
        described = tamis("help", *command.split()).stdout.split(f"{option} ")[1].split("\n  --")[0]
        assert "(default: 0)" not in described, described


def test_help_of_every_command_fits_60_80_and_120_columns(tamis):
    commands = all_commands(tamis)
    assert len(commands) > 40 and ("data", "generate", "passkey") in commands, commands
    for path in commands:
        seen = set()
        for columns in (60, 80, 120):
            text = help_of(tamis, path, columns)
            for line in text.splitlines():
                assert len(line) <= columns, f"{path} at {columns}: {len(line)} columns: {line}"
                assert line == line.rstrip(), f"{path} at {columns}: white space at the end of {line!r}"
            for heading in ("Options", "Arguments", "Commands"):
                starts = {match.end() for line in section(text, heading) if (match := re.match(r"  \S.*?\s{2,}", line))}
                starts |= {len(line) - len(line.lstrip()) for line in section(text, heading) if line.startswith("    ")}
                assert len(starts) <= 1, f"{path} at {columns}: descriptions begin at the columns {starts}:\n{text}"
            seen.add("".join(text.replace("\\\n", " ").split()))
        assert len(seen) == 1, f"{path}: the words depend on the width"
    assert tamis("help").stdout == help_of(tamis, (), 80), "80 columns unless told otherwise"


def test_a_wrapped_example_is_still_a_command(tamis):
    for path in all_commands(tamis):
        wide, narrow = (section(help_of(tamis, path, columns), "Examples?") for columns in (120, 60))
        assert wide, f"{path} has no example"
        words = [shlex.split("\n".join(lines).replace("\\\n", "")) for lines in (wide, narrow)]
        assert words[0] == words[1], words


def test_help_follows_the_terminal_and_has_colour_only_there(tamis):
    wide = run_in_terminal([tamis.path, "help", "generate"], columns=110)
    narrow = run_in_terminal([tamis.path, "help", "generate"], columns=50)
    assert max(map(len, wide.splitlines())) > 80, wide
    assert max(len(re.sub(r"\x1b\[\d+m", "", line)) for line in narrow.splitlines()) <= 50, narrow
    assert "\x1b[1mUsage:\x1b[0m" in wide, wide
    assert "\x1b" not in run_in_terminal([tamis.path, "help"], NO_COLOR="1"), "NO_COLOR"
    assert "\x1b" not in tamis("help").stdout, "no colour in a pipe"
    assert "\x1b[1;31mtamis:\x1b[0m help: " in run_in_terminal([tamis.path, "help", "evl"]), "a refusal"
    assert "\x1b" not in run_in_terminal([tamis.path, "help", "evl"], NO_COLOR="1"), "NO_COLOR"


BASH = """
source {script}
complete_line() {{ COMP_WORDS=("$@"); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _tamis; printf '%s\\n' "${{COMPREPLY[@]}}"; }}
complete_line {words}
"""

# A command line, and what completes its last word, whatever the shell.
COMPLETIONS = {
    "tamis sc": {"score"},
    "tamis eval lo": {"loss"},
    "tamis help eval lo": {"loss"},
    "tamis data train-t": {"train-tokenizer"},
    "tamis data generate pass": {"passkey"},
    "tamis train --fr": {"--fresh"},
    "tamis train a.toml --device c": {"cpu", "cuda"},
    "tamis generate run --weights in": {"int8"},
    "tamis completion z": {"zsh"},
}


def completion_of(tamis, shell, path):
    path.parent.mkdir(exist_ok=True)
    path.write_text(tamis("completion", shell).stdout)
    return path


def test_completion_in_bash(tamis, tmp_path):
    bash, script = need("bash"), completion_of(tamis, "bash", tmp_path / "script/tamis.bash")
    place = tmp_path / "place"
    place.mkdir()

    def complete(*words):
        command = BASH.format(script=script, words=" ".join(map(shlex.quote, words)))
        outcome = subprocess.run([bash, "--norc", "-c", command], capture_output=True, text=True, cwd=place)
        assert outcome.returncode == 0 and not outcome.stderr, f"{words}: {outcome}"
        return set(outcome.stdout.split("\n")) - {""}

    for line, words in COMPLETIONS.items():
        assert complete(*line.split()) == words, f"{line}: {complete(*line.split())}"
    assert complete("tamis", "train", "--device", "=", "cu") == {"cuda"}, "--device=cu"
    assert complete("tamis", "train", "--device", "=") == {"cpu", "cuda", "xpu"}, "--device="
    for path in all_commands(tamis):
        options = options_of(tamis, path)
        assert options <= complete("tamis", *path, "--"), f"{path}: {options - complete('tamis', *path, '--')}"
    for name in ("a.toml", "b.txt", "two words.txt", "runs/demo"):
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).mkdir() if name == "runs/demo" else (place / name).touch()
    assert complete("tamis", "train", "") == {"a.toml", "runs"}, complete("tamis", "train", "")
    assert complete("tamis", "eval", "loss", "") == {"runs"}, "a directory first"
    assert complete("tamis", "eval", "loss", "--window", "8", "runs", "two") == {"two words.txt"}, "then a file"
    assert "b.txt" in complete("tamis", "inspect", "runs", "--html", ""), "the value of an option"


def type_in_shell(tamis, command, source):
    """`tamis comp<Tab>b<Tab>| head -1` in a shell with a terminal prints the first line of the script."""
    variables = {"PATH": f"{tamis.path.parent}:{os.environ['PATH']}", "HOME": str(tamis.directory)}
    keys = [
        (source + "; echo re''ady\n", rb"[\r\n]ready"),
        ("tamis comp\t", rb"letion"),
        ("b\t", rb"ash"),
        ("| head -1 | tr a-z A-Z\n", rb"MADE BY"),
        ("exit\n", None),
    ]
    shown = run_in_terminal(command, keys, **variables)
    assert "COMPLETION OF TAMIS FOR BASH" in shown, shown


def test_completion_typed_into_bash(tamis, tmp_path):
    script = completion_of(tamis, "bash", tmp_path / "tamis.bash")
    type_in_shell(tamis, [need("bash"), "--norc", "--noprofile", "-i"], f"source {script}")


def test_completion_typed_into_zsh(tamis, tmp_path):
    zsh, script = need("zsh"), completion_of(tamis, "zsh", tmp_path / "zfunc/_tamis")
    start = "autoload -U compinit; compinit -u -D"
    type_in_shell(tamis, [zsh, "-f", "-i"], f"fpath=({script.parent} $fpath); {start}")
    type_in_shell(tamis, [zsh, "-f", "-i"], f"{start}; source {script}")


def test_completion_in_fish(tamis, tmp_path):
    fish, script = need("fish"), completion_of(tamis, "fish", tmp_path / "tamis.fish")
    for line, words in COMPLETIONS.items():
        command = [fish, "-N", "-c", f"source {script}; complete -C {shlex.quote(line)}"]
        variables = environment(HOME=str(tmp_path))
        outcome = subprocess.run(command, capture_output=True, text=True, env=variables, cwd=tmp_path)
        found = {each.split("\t")[0] for each in outcome.stdout.splitlines()}
        assert outcome.returncode == 0 and not outcome.stderr and found == words, f"{line}: {outcome}"


def test_completion_of_an_unknown_shell_is_refused(tamis):
    expect_refused(tamis("completion", "fsih"), 2, 'did you mean "fish"?')


# Manual pages.


@pytest.fixture(scope="module")
def pages(tamis):
    directory = tamis.directory / "share/man/man1"
    assert tamis("man", directory).returncode == 0, "tamis man"
    return directory


def test_every_command_has_a_manual_page(tamis, pages):
    names = {"-".join(("tamis", *path)) + ".1" for path in all_commands(tamis)}
    assert {page.name for page in pages.iterdir()} == names, names ^ {page.name for page in pages.iterdir()}


def test_manual_pages_have_no_warnings_of_mandoc(pages):
    command = [need("mandoc"), "-T", "lint", "-W", "warning", *sorted(map(str, pages.iterdir()))]
    lint = subprocess.run(command, capture_output=True, text=True)
    found = [line for line in lint.stdout.splitlines() if "missing date" not in line]  # of no particular day
    assert not found, found


def test_man_shows_every_option(tamis, pages):
    need("groff")
    variables = environment(LC_ALL="C.UTF-8", MANWIDTH="100", MAN_KEEP_FORMATTING="")
    for path in ((), ("eval", "loss"), ("generate",), ("help",)):
        page = pages / ("-".join(("tamis", *path)) + ".1")
        command = [need("man"), "--warnings", "-l", str(page)]
        shown = subprocess.run(command, capture_output=True, text=True, env=variables)
        assert shown.returncode == 0 and not shown.stderr, f"{page}: {shown.stderr}"
        for option in options_of(tamis, path):
            assert option in shown.stdout, f"{page} lacks {option}"


def test_environment_variables_are_listed(tamis, pages):
    """Those that the sources read by name: in the help, in the manual page of the program and in the documentation."""
    sources = (path for path in (ROOT / "tamis").rglob("*.cc") if not re.search("_(test|bench)$", path.stem))
    read = {name for path in sources for name in re.findall(r'getenv\("(\w+)"\)', path.read_text())}
    assert {"TAMIS_MAX_ISA", "TAMIS_PYTHON", "TAMIS_STUDIES", "NO_COLOR", "COLUMNS"} <= read, read
    listed = "\n".join(section(help_of(tamis, ()), "Environment"))
    manual = (pages / "tamis.1").read_text().split(".SH ENVIRONMENT\n")[1].split(".SH ")[0]
    document = (ROOT / "docs/command_line.md").read_text().split("## Environment\n")[1].split("\n## ")[0]
    for name in read:
        assert re.search(rf"^  {name}  ", listed, re.MULTILINE), f"{name} is not in the help:\n{listed}"
        assert rf"\fB{name}\fR" in manual, f"{name} is not in the manual page:\n{manual}"
        assert f"| `{name}` |" in document, f"{name} is not in docs/command_line.md"
    assert "Environment:" not in help_of(tamis, ("train",)), "once is enough"


def test_manual_pages_that_cannot_be_written_are_refused(tamis):
    expect_refused(tamis("man", "/proc/none/here"), 30)
