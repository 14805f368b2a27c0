"""How several processes meet: what waits, what is refused, and what one that cannot start means for the others."""

import contextlib
import json
import pathlib
import socket
import threading

import pytest
from processes import LOST, RECIPE, arguments, free_port, refused, start, together, wait_for_step
from program import Program, environment, expect_refused, saved_steps


@pytest.fixture(scope="module")
def tamis(program, tmp_path_factory):
    """The program in a directory with a recipe."""
    tamis = Program(program, tmp_path_factory.mktemp("tamis"))
    (tamis.directory / "recipe.toml").write_text(RECIPE)
    return tamis


def test_a_process_that_never_comes(tamis, run):
    for rank in (0, 1):
        env = environment(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
        done = tamis(*arguments(run, timeout=1), env=env)
        expect_refused(done, LOST, f"process {rank} of 2", "did not meet at tcp://127.0.0.1", "not within 1 s")


def test_a_process_that_waits_says_for_what(tamis, run):
    env = environment(RANK="1", WORLD_SIZE="2", MASTER_ADDR="no-such-host.invalid", MASTER_PORT="29500")
    done = tamis(*arguments(run, timeout=13), env=env)
    waiting, end = done.stderr.splitlines()
    assert waiting.startswith("tamis: process 1 of 2: waiting at tcp://no-such-host.invalid:29500 for the other")
    assert "13 s at most; the name of this host is not known here" in waiting
    assert "not within 13 s" in end and done.returncode == LOST


@pytest.mark.parametrize(
    ("rank", "text"),
    [
        (0, "another program uses this port; choose another, with MASTER_PORT or --rendezvous"),
        (1, "if another program uses this port, choose another, with MASTER_PORT or --rendezvous"),
    ],
)
def test_a_port_in_use(tamis, run, rank, text):
    with foreign_server() as port:
        env = environment(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        done = tamis(*arguments(run, timeout=2), env=env)
    expect_refused(done, LOST, text)


def test_a_directory_that_is_not_shared_is_refused(tamis, tmp_path):
    """Processes with other working directories, and a relative run.dir."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other/recipe.toml").write_text(RECIPE)
    options = {1: {"cwd": tmp_path / "other"}}
    text = f"run.dir: process 1 does not see the directory of process 0 at {tmp_path}/other/not-shared; all processes need"
    refused(tamis, "not-shared", 2, text, options=options, timeout=6)
    assert not (tmp_path / "other/not-shared").exists()
    assert not list((tamis.directory / "not-shared/checkpoints").iterdir())


def test_a_process_of_another_version_is_refused(tamis, run, tmp_path):
    """Process 1 is the program with another commit written into it."""
    together(tamis, 1, run, "train.steps=1")
    commit = json.loads((run / "run.json").read_text())["commit"]
    other = ("e" if commit[0] == "d" else "d") + commit[1:]
    program = tmp_path / "tamis"
    program.write_bytes(pathlib.Path(tamis.path).read_bytes().replace(commit.encode() + b"\0", other.encode() + b"\0"))
    program.chmod(0o755)
    version = tamis.out("--version").strip()
    text = f"process 1 has the version {version} ({other}), process 0 has {version} ({commit}); all must have the same"
    refused(tamis, tmp_path / "new", 2, text, options={1: {"executable": program}})


@contextlib.contextmanager
def foreign_server(silent=False):
    """The port of a program that accepts connections and closes them, or keeps them and says nothing."""
    kept = []

    def serve():
        with contextlib.suppress(OSError):
            while True:
                connection = listening.accept()[0]
                kept.append(connection) if silent else connection.close()

    with socket.socket() as listening:
        listening.bind(("0.0.0.0", 0))
        listening.listen()
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            listening.shutdown(socket.SHUT_RDWR)  # ends accept
            thread.join()


def test_a_program_that_does_not_answer(tamis, run):
    """c10d would wait for it without end."""
    with foreign_server(silent=True) as port:
        env = environment(RANK="1", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        done = tamis(*arguments(run, timeout=1), env=env)
    assert done.returncode == LOST and "did not meet at tcp://127.0.0.1" in done.stderr, done
    assert "not within 1 s" in done.stderr.splitlines()[-1], done


def test_another_number_of_processes_is_refused(tamis, run):
    port = free_port()
    env = environment(RANK="1", WORLD_SIZE="3", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    text = "process 1 was started as one of 3, process 0 as one of 2"
    refused(tamis, run, 2, text, options={1: {"env": env}}, port=port)


def test_a_directory_that_is_missing(tamis, run):
    meeting = ("--rendezvous", "file:///no/such/directory/meet")
    done = tamis(*arguments(run), *meeting, env=environment(RANK="0", WORLD_SIZE="2"))
    expect_refused(done, 2, "--rendezvous file:///no/such/directory/meet: /no/such/directory is no directory")


CANNOT_START = [("--device", "xpu"), ("--set", "train.lr=fast"), ("--trace", "/no/such/directory/trace.json")]


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("arguments", CANNOT_START)
def test_a_process_that_cannot_start_ends_the_others_at_once(tamis, run, victim, arguments):
    """On a device that it does not have, with a recipe that it cannot read, with a file that it cannot write."""
    with start(tamis, 3, run, also={victim: arguments}, timeout=3600) as processes:
        done = processes.wait(120)
    for rank, each in enumerate(done):
        if rank == victim:
            assert each.returncode not in (0, LOST) and len(each.stderr.splitlines()) == 1, each
        else:
            expect_refused(each, LOST, f"process {rank} of 3: another process was lost")
    assert not run.exists()


@pytest.mark.parametrize("arguments", CANNOT_START)
def test_processes_that_all_cannot_start_say_why(tamis, run, arguments):
    with start(tamis, 3, run, also=dict.fromkeys(range(3), arguments)) as processes:
        done = processes.wait()
    assert len({each.returncode for each in done}) == 1 and done[0].returncode not in (0, LOST), done
    assert len({each.stderr for each in done}) == 1 and "lost" not in done[0].stderr, done


def test_a_file_that_killed_processes_have_left(tamis, run, tmp_path):
    """Processes that end by themselves remove it."""
    meeting = dict.fromkeys(range(2), ("--rendezvous", f"file://{tmp_path}/meet"))
    with start(tamis, 2, run, "train.steps=100000", also=meeting) as processes:
        wait_for_step(processes, run, 4)
        for process in processes.all:
            process.kill()
        processes.wait()
    assert (tmp_path / "meet").exists()
    steps = f"train.steps={max(saved_steps(run)) + 4}"
    together(tamis, 2, run, steps, also=meeting)


def test_variables_that_are_no_numbers(tamis, run):
    done = tamis(*arguments(run), env=environment(RANK="first", WORLD_SIZE="2"))
    expect_refused(done, 2, 'RANK="first": expected a number from 0 to 1')
    done = tamis(*arguments(run), "--rendezvous", "tcp://127.0.0.1:1")
    expect_refused(done, 2, "the number of this process is unknown")
