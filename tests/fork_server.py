"""Runs of the program under test as forks of one that has loaded its libraries (fork_server.cc)."""

import contextlib
import os
import pathlib
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time

# Options of subprocess.run that a fork can serve.
OPTIONS = {"cwd", "env", "input", "stdin", "stdout", "stderr", "timeout", "encoding", "errors"}
MOST_CHARACTERS = 20_000  # of arguments and environment, so that a request is one message
# What the loader or a library reads before main().
READ_AT_START = ("LD_", "OMP_", "GOMP_", "MALLOC_", "GLIBC_", "MKL_", "ATEN_", "ONEDNN_", "TORCH_", "LANG", "LC_")
INSTRUCTION_SETS = "TAMIS_MAX_ISA"  # so are its values, each of which has a server


def read_at_start(environment) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(READ_AT_START)}


class ForkServers:
    """A program to fork for each of the instruction sets that runs are limited to."""

    def __init__(self, program: pathlib.Path, library: pathlib.Path, instruction_sets):
        self.program, self.library = program, library
        self.instruction_sets = {os.environ.get(INSTRUCTION_SETS), *instruction_sets}
        self.start_environment = read_at_start(os.environ)
        self.servers = {}

    def server_for(self, program, arguments, options) -> "ForkServer | None":
        """None if such a run has to load the program itself."""
        environment = os.environ if options.get("env") is None else options["env"]
        instruction_set = environment.get(INSTRUCTION_SETS)
        words = [*arguments, *environment, *environment.values()]
        plain = sum(map(len, words)) < MOST_CHARACTERS and not any("\0" in word for word in words)
        if program != self.program or not plain or not options.keys() <= OPTIONS:
            return None
        if read_at_start(environment) != self.start_environment or instruction_set not in self.instruction_sets:
            return None
        server = self.servers.get(instruction_set)
        if server is None or server.process.poll() is not None:
            if threading.current_thread() is not threading.main_thread():
                return None  # a server ends with the thread that starts it
            server = self.servers[instruction_set] = ForkServer(self.program, self.library, environment)
        return server

    def close(self):
        for server in self.servers.values():
            server.close()


class ForkServer:
    """The program, waiting to be forked; ends with this process."""

    def __init__(self, program: pathlib.Path, library: pathlib.Path, environment):
        self.program = program
        self.directory = tempfile.TemporaryDirectory()  # pytest's paths may be too long for a socket
        self.address = os.path.join(self.directory.name, "socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            listening.bind(self.address)
            listening.listen(64)
            self.process = subprocess.Popen(
                [program],
                env={
                    **environment,
                    "LD_PRELOAD": str(library),
                    "TAMIS_FORK_SERVER": str(listening.fileno()),
                    "TAMIS_FORK_SERVER_PARENT": str(os.getpid()),
                },
                pass_fds=[listening.fileno()],
                stdin=subprocess.DEVNULL,
            )

    def close(self):
        self.process.kill()
        self.process.wait()
        self.directory.cleanup()

    def run(self, arguments, *, cwd, encoding, errors, timeout, env=None, input=None, stdin=None, stdout, stderr):
        """As subprocess.run."""
        deadline = time.monotonic() + timeout
        words = [str(self.program), *arguments]
        strings = [str(len(words)), os.path.abspath(cwd), *words]
        strings += [f"{name}={value}" for name, value in (os.environ if env is None else env).items()]
        message = b"".join(os.fsencode(string) + b"\0" for string in strings)
        data = input.encode(encoding, errors or "strict") if isinstance(input, str) else input
        ours, theirs, opened = self._streams(subprocess.PIPE if input is not None else stdin, stdout, stderr)
        found, threads, process = {}, [], 0
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.settimeout(timeout)
            try:
                connection.connect(self.address)
                socket.send_fds(connection, [message], theirs)
                for descriptor in opened:
                    os.close(descriptor)
                opened = []
                process = self._answer(connection)
                for stream, descriptor in ours.items():
                    work, last = (self._write, data) if stream == 0 else (self._read, found)
                    threads.append(threading.Thread(target=work, args=(stream, descriptor, last), daemon=True))
                    threads[-1].start()
                ours = {}
                status = self._answer(connection)
                for thread in threads:  # what the process has started may keep a pipe open
                    thread.join(max(0, deadline - time.monotonic()))
                    if thread.is_alive():
                        raise TimeoutError
            except BaseException as error:
                if process > 0:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)
                if isinstance(error, TimeoutError):
                    raise subprocess.TimeoutExpired(words, timeout) from None
                raise
            finally:
                for descriptor in (*opened, *ours.values()):
                    os.close(descriptor)
        if encoding is not None:
            for stream, read in found.items():
                text = read.decode(encoding, errors or "strict")
                found[stream] = text.replace("\r\n", "\n").replace("\r", "\n")
        return subprocess.CompletedProcess(words, os.waitstatus_to_exitcode(status), found.get(1), found.get(2))

    def _answer(self, connection) -> int:
        answer = connection.recv(4)
        if len(answer) != 4:
            raise RuntimeError(f"the program that is forked did not answer; its status is {self.process.poll()}")
        return struct.unpack("i", answer)[0]

    @staticmethod
    def _streams(*kinds) -> tuple[dict[int, int], list[int], list[int]]:
        """Our ends of pipes by stream, the descriptors of the process, and those of them that were opened here."""
        ours, theirs, opened = {}, [], []
        for stream, kind in enumerate(kinds):
            if kind == subprocess.PIPE:
                reader, writer = os.pipe()
                ours[stream] = writer if stream == 0 else reader
                opened.append(reader if stream == 0 else writer)
                theirs.append(opened[-1])
            elif kind == subprocess.DEVNULL:
                opened.append(os.open(os.devnull, os.O_RDWR))
                theirs.append(opened[-1])
            elif kind == subprocess.STDOUT:
                theirs.append(theirs[1])
            elif kind is None:
                theirs.append(stream)
            else:
                theirs.append(kind if isinstance(kind, int) else kind.fileno())
        return ours, theirs, opened

    @staticmethod
    def _read(stream, descriptor, found):
        with os.fdopen(descriptor, "rb") as file:
            found[stream] = file.read()

    @staticmethod
    def _write(stream, descriptor, data):
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
        except BrokenPipeError:
            pass  # the program has read enough
