#!/usr/bin/env python3
"""Help, shell completion and manual pages of every command: command_line_test.py PROGRAM

All of it comes from the definitions of the commands and needs no LibTorch. The completions run in real shells, the
pages go through man and mandoc; a shell or a checker that is not installed is left out, with a line that says so.
"""

import os
import pathlib
import pty
import re
import select
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

program = ""
work = pathlib.Path()


def tamis(*arguments, columns=None, **options):
    environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "NO_COLOR")}
    if columns is not None:
        environment["COLUMNS"] = str(columns)
    return subprocess.run([program, *arguments], capture_output=True, text=True, env=environment, timeout=60,
                          stdin=subprocess.DEVNULL, **options)


def expect(condition, what):
    if not condition:
        raise AssertionError(what)


def installed(name):
    if shutil.which(name) is None:
        print(f"        {name} is not installed: left out")
        return False
    return True


def section(text, heading):
    """The lines below `heading:`, up to the next empty line."""
    match = re.search(rf"^{heading}:\n((?:.+\n)+)", text, re.MULTILINE)
    return match.group(1).splitlines() if match else []


def all_commands(path=()):
    """Every command line that has a help of its own, `()` for the program itself."""
    help_text = tamis("help", *path, columns=120).stdout
    found = [path]
    for line in section(help_text, "Commands"):
        if re.match(r"  \S", line):
            found += all_commands((*path, line.split()[0]))
    return found


def options_of(path):
    """The long options that the help of a command lists."""
    lines = section(tamis("help", *path, columns=120).stdout, "Options")
    return {name for line in lines if re.match(r"  -", line) for name in re.findall(r"--[a-z-]+", re.split(r"\s{2,}", line.strip())[0])}


def run_in_terminal(command, keys, columns=100, environment=None):
    """What a command prints on a terminal of its own, with `keys` typed into it one after the other."""
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update({"TERM": "xterm", "PS1": "> ", **(environment or {})})
        os.environ.pop("COLUMNS", None)
        os.execvp(command[0], command)
    import fcntl
    import struct
    import termios

    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
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


def test_the_bare_program_and_bare_groups_print_their_help():
    for words in ([], ["eval"], ["data"], ["data", "generate"], ["bench"]):
        bare, asked = tamis(*words), tamis(*words, "--help")
        expect(bare.returncode == 0 and not bare.stderr, f"{words}: {bare}")
        expect(bare.stdout == asked.stdout == tamis("help", *words).stdout, f"{words}: {bare.stdout}")
        expect("Commands:" in bare.stdout, bare.stdout)


def test_help_of_nested_commands_and_its_refusals():
    expect(tamis("help", "eval", "loss").stdout == tamis("eval", "loss", "--help").stdout, "help eval loss")
    for line, text in {
        "help evl": 'did you mean "eval"?',
        "help eval los": 'did you mean "loss"?',
        "help train now": "`tamis train` has no commands below it",
    }.items():
        refused = tamis(*line.split())
        expect(refused.returncode == 2 and text in refused.stderr and not refused.stdout, f"{line}: {refused}")
        expect(refused.stderr.count("\n") == 1, refused.stderr)


def test_the_version_has_a_short_option():
    expect(tamis("-V").stdout == tamis("--version").stdout, "-V")
    expect(re.fullmatch(r"\d+\.\d+\.\d+\n", tamis("-V").stdout), tamis("-V").stdout)


def test_usage_has_no_empty_placeholders():
    expect("Usage: tamis COMMAND ...\n" in tamis().stdout, tamis().stdout)
    expect("Usage: tamis eval TASK ...\n" in tamis("eval").stdout, tamis("eval").stdout)
    expect("Usage: tamis train RECIPE [OPTIONS]\n" in tamis("help", "train").stdout, "train")
    expect("Usage: tamis generate DIR --prompt TEXT [OPTIONS]\n" in tamis("help", "generate").stdout, "generate")
    expect("Usage: tamis completion SHELL\n" in tamis("help", "completion").stdout, "completion has no options")


def test_help_of_every_command_fits_60_80_and_120_columns():
    commands = all_commands()
    expect(len(commands) > 40 and ("data", "generate", "passkey") in commands, commands)
    for path in commands:
        seen = set()
        for columns in (60, 80, 120):
            text = tamis("help", *path, columns=columns).stdout
            for line in text.splitlines():
                expect(len(line) <= columns, f"{path} at {columns}: {len(line)} columns: {line}")
                expect(line == line.rstrip(), f"{path} at {columns}: white space at the end of {line!r}")
            for heading in ("Options", "Arguments", "Commands"):
                starts = {match.end() for line in section(text, heading) if (match := re.match(r"  \S.*?\s{2,}", line))}
                starts |= {len(line) - len(line.lstrip()) for line in section(text, heading) if line.startswith("    ")}
                expect(len(starts) <= 1, f"{path} at {columns}: descriptions begin at the columns {starts}:\n{text}")
            seen.add("".join(text.replace("\\\n", " ").split()))
        expect(len(seen) == 1, f"{path}: the words depend on the width")
    expect(tamis("help").stdout == tamis("help", columns=80).stdout, "80 columns where nobody says otherwise")


def test_a_wrapped_example_is_still_a_command():
    for path in all_commands():
        wide, narrow = (section(tamis("help", *path, columns=columns).stdout, "Examples?") for columns in (120, 60))
        expect(wide, f"{path} has no example")
        words = [shlex.split("\n".join(lines).replace("\\\n", "")) for lines in (wide, narrow)]
        expect(words[0] == words[1], words)


def test_help_follows_the_terminal_and_has_colour_only_there():
    wide = run_in_terminal([program, "help", "generate"], [], columns=110)
    narrow = run_in_terminal([program, "help", "generate"], [], columns=50)
    expect(max(map(len, wide.splitlines())) > 80, wide)
    expect(max(len(re.sub(r"\x1b\[\d+m", "", line)) for line in narrow.splitlines()) <= 50, narrow)
    expect("\x1b[1mUsage:\x1b[0m" in wide, wide)
    expect("\x1b" not in run_in_terminal([program, "help"], [], environment={"NO_COLOR": "1"}), "NO_COLOR")
    expect("\x1b" not in tamis("help").stdout, "no colour in a pipe")
    expect("\x1b[1;31mtamis:\x1b[0m help: " in run_in_terminal([program, "help", "evl"], []), "a refusal's first word")
    expect("\x1b" not in run_in_terminal([program, "help", "evl"], [], environment={"NO_COLOR": "1"}), "NO_COLOR")


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
    "tamis data generate pass": {"passkey"},
    "tamis train --fr": {"--fresh"},
    "tamis train a.toml --device c": {"cpu", "cuda"},
    "tamis generate run --weights in": {"int8"},
    "tamis completion z": {"zsh"},
}


def test_completion_in_bash():
    if not installed("bash"):
        return
    script = work / "tamis.bash"
    script.write_text(tamis("completion", "bash").stdout)

    def complete(*words):
        command = BASH.format(script=script, words=" ".join(map(shlex.quote, words)))
        outcome = subprocess.run(["bash", "--norc", "-c", command], capture_output=True, text=True, cwd=work)
        expect(outcome.returncode == 0 and not outcome.stderr, f"{words}: {outcome}")
        return set(outcome.stdout.split("\n")) - {""}

    for line, words in COMPLETIONS.items():
        expect(complete(*line.split()) == words, f"{line}: {complete(*line.split())}")
    expect(complete("tamis", "train", "--device", "=", "cu") == {"cuda"}, "--device=cu")
    expect(complete("tamis", "train", "--device", "=") == {"cpu", "cuda"}, "--device=")
    for path in all_commands():
        options = options_of(path)
        expect(options <= complete("tamis", *path, "--"), f"{path}: {options - complete('tamis', *path, '--')}")
    for name in ("a.toml", "b.txt", "two words.txt", "runs/demo"):
        (work / name).parent.mkdir(exist_ok=True)
        (work / name).mkdir() if name == "runs/demo" else (work / name).touch()
    expect(complete("tamis", "train", "") == {"a.toml", "runs"}, complete("tamis", "train", ""))
    expect(complete("tamis", "eval", "loss", "") == {"runs"}, "a directory first")
    expect(complete("tamis", "eval", "loss", "--window", "8", "runs", "two") == {"two words.txt"}, "then a file")
    expect("b.txt" in complete("tamis", "inspect", "runs", "--html", ""), "the value of an option")


def type_in_shell(command, source):
    """`tamis comp<Tab>b<Tab>| head -1` in a shell with a terminal: the first line of the script says that it ran."""
    environment = {"PATH": f"{pathlib.Path(program).parent}:{os.environ['PATH']}", "HOME": str(work)}
    keys = [(source + "; echo re''ady\n", rb"\nready"), ("tamis comp\t", rb"letion"), ("b\t", rb"ash"),
            ("| head -1 | tr a-z A-Z\n", rb"MADE BY"), ("exit\n", None)]
    shown = run_in_terminal(command, keys, environment=environment)
    expect("COMPLETION OF TAMIS FOR BASH" in shown, shown)


def test_completion_typed_into_bash():
    if installed("bash"):
        type_in_shell(["bash", "--norc", "--noprofile", "-i"], f"source {work}/tamis.bash")


def test_completion_typed_into_zsh():
    if not installed("zsh"):
        return
    (work / "zfunc").mkdir()
    (work / "zfunc/_tamis").write_text(tamis("completion", "zsh").stdout)
    type_in_shell(["zsh", "-f", "-i"], f"fpath=({work}/zfunc $fpath); autoload -U compinit; compinit -u -D")
    sourced = f"autoload -U compinit; compinit -u -D; source {work}/zfunc/_tamis"
    type_in_shell(["zsh", "-f", "-i"], sourced)


def test_completion_in_fish():
    if not installed("fish"):
        return
    script = work / "tamis.fish"
    script.write_text(tamis("completion", "fish").stdout)
    for line, words in COMPLETIONS.items():
        command = f"source {script}; complete -C {shlex.quote(line)}"
        environment = {**os.environ, "HOME": str(work)}
        outcome = subprocess.run(["fish", "-N", "-c", command], capture_output=True, text=True, env=environment, cwd=work)
        found = {each.split("\t")[0] for each in outcome.stdout.splitlines()}
        expect(outcome.returncode == 0 and not outcome.stderr and found == words, f"{line}: {outcome}")


def test_completion_of_an_unknown_shell_is_refused():
    refused = tamis("completion", "fsih")
    expect(refused.returncode == 2 and 'did you mean "fish"?' in refused.stderr and not refused.stdout, refused)


def test_manual_pages_are_clean_and_complete():
    pages = work / "share/man/man1"
    expect(tamis("man", str(pages)).returncode == 0, "tamis man")
    names = {"-".join(("tamis", *path)) + ".1" for path in all_commands()}
    expect({page.name for page in pages.iterdir()} == names, names ^ {page.name for page in pages.iterdir()})
    if installed("mandoc"):
        lint = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", *sorted(map(str, pages.iterdir()))],
                              capture_output=True, text=True)
        found = [line for line in lint.stdout.splitlines() if "missing date" not in line]  # of no particular day
        expect(not found, found)
    if installed("man") and installed("groff"):
        for path in ((), ("eval", "loss"), ("generate",), ("help",)):
            page = pages / ("-".join(("tamis", *path)) + ".1")
            environment = {**os.environ, "LC_ALL": "C.UTF-8", "MANWIDTH": "100", "MAN_KEEP_FORMATTING": ""}
            shown = subprocess.run(["man", "--warnings", "-l", str(page)], capture_output=True, text=True, env=environment)
            expect(shown.returncode == 0 and not shown.stderr, f"{page}: {shown.stderr}")
            for option in options_of(path):
                expect(option in shown.stdout, f"{page} lacks {option}")
    refused = tamis("man", "/proc/none/here")
    expect(refused.returncode == 30 and refused.stderr.count("\n") == 1, refused)


def main():
    global program, work
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    program = os.path.abspath(sys.argv[1])
    work = pathlib.Path(tempfile.mkdtemp(prefix="tamis-command-line-"))
    failed = 0
    try:
        for name, test in list(globals().items()):
            if not name.startswith("test_"):
                continue
            try:
                test()
                print(f"ok      {name}", flush=True)
            except Exception as error:  # noqa: BLE001: one failure must not end the other tests
                failed += 1
                print(f"FAILED  {name}: {type(error).__name__}: {error}", flush=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
