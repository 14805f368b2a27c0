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

# Options of subprocess.run and Popen that a fork can serve.
OPTIONS = {"cwd", "env", "input", "stdin", "stdout", "stderr", "timeout", "encoding", "errors"}
MOST_CHARACTERS = 20_000  # of arguments and environment, so that a request is one message
# What the loader or a library reads before main().
READ_AT_START = ("LD_", "OMP_", "GOMP_", "MALLOC_", "GLIBC_", "MKL_", "ATEN_", "ONEDNN_", "TORCH_", "LANG", "LC_")
INSTRUCTION_SETS = "TAMIS_MAX_ISA"  # read at the start, too
LONGEST_START = 600  # seconds until a fork has begun


def read_at_start(environment) -> frozenset[tuple[str, str]]:
    return frozenset((name, value) for name, value in environment.items() if name.startswith(READ_AT_START))


class ForkServers:
    """A server for each environment (the variables that are read at the start) that more than one run has."""

    def __init__(self, program: pathlib.Path, library: pathlib.Path, instruction_sets):
        self.program, self.library, self.instruction_sets = program, library, instruction_sets
        start = read_at_start(os.environ)
        known = {os.environ.get(INSTRUCTION_SETS), *instruction_sets}
        # None: not started yet.
        self.servers = {(start, instruction_set): None for instruction_set in known}

    def server_for(self, program, arguments, options) -> "ForkServer | None":
        """None if such a run has to load the program itself."""
        environment = os.environ if options.get("env") is None else options["env"]
        words = [*arguments, *environment, *environment.values()]
        plain = sum(map(len, words)) < MOST_CHARACTERS and not any("\0" in word for word in words)
        if program != self.program or not plain or not options.keys() <= OPTIONS:
            return None
        instruction_set = environment.get(INSTRUCTION_SETS)
        if instruction_set not in (None, *self.instruction_sets):
            return None  # an unknown value ends the program before it can be forked
        start = (read_at_start(environment), instruction_set)
        if start not in self.servers:
            self.servers[start] = None
            return None
        server = self.servers[start]
        if server is None or server.process.poll() is not None:
            if threading.current_thread() is not threading.main_thread():
                return None  # a server ends with the thread that starts it
            server = self.servers[start] = ForkServer(self.program, self.library, environment)
        return server

    def close(self):
        for server in filter(None, self.servers.values()):
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
                    "LD_PRELOAD": ":".join(filter(None, (str(library), environment.get("LD_PRELOAD")))),
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

    def start(
        self, arguments, *, cwd, encoding, errors, env=None, stdin=None, stdout=None, stderr=None
    ) -> "ForkedProcess":
        """As subprocess.Popen."""
        words = [str(self.program), *arguments]
        strings = [str(len(words)), os.path.abspath(cwd), *words]
        strings += [f"{name}={value}" for name, value in (os.environ if env is None else env).items()]
        message = b"".join(os.fsencode(string) + b"\0" for string in strings)
        ours, theirs, opened = self._streams(stdin, stdout, stderr)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.settimeout(LONGEST_START)
        try:
            connection.connect(self.address)
            socket.send_fds(connection, [message], theirs)
            return ForkedProcess(words, connection, ours, encoding, errors)
        except BaseException:
            for descriptor in ours.values():
                os.close(descriptor)
            connection.close()
            raise
        finally:
            for descriptor in opened:
                os.close(descriptor)

    def run(self, arguments, *, timeout, input=None, stdin=None, **options) -> subprocess.CompletedProcess:
        """As subprocess.run."""
        process = self.start(arguments, stdin=subprocess.PIPE if input is not None else stdin, **options)
        try:
            out, messages = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
        return subprocess.CompletedProcess(process.args, process.returncode, out, messages)

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


class ForkedProcess:
    """What has become of a request, with the methods of subprocess.Popen that tests call. communicate() closes pipes.

    The process is a child of its server, so that after its end its number may, very rarely, be another's.
    """

    def __init__(self, words, connection, streams: dict[int, int], encoding, errors):
        self.args, self.returncode = words, None
        self._connection, self._encoding, self._errors = connection, encoding, errors
        self._streams = streams  # our ends of pipes that nobody reads or writes yet
        self._threads, self._read_bytes = [], {}
        self.pid = self._answer(timeout=LONGEST_START)

    def poll(self) -> int | None:
        if self.returncode is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._end(self._answer(timeout=0))
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._end(self._answer(timeout))
        return self.returncode

    def communicate(self, input=None, timeout: float | None = None):
        """What it wrote, also in further calls."""
        deadline = None if timeout is None else time.monotonic() + timeout
        data = input.encode(self._encoding, self._errors or "strict") if isinstance(input, str) else input
        for stream, descriptor in self._streams.items():
            work, last = (self._write, data or b"") if stream == 0 else (self._read, stream)
            self._threads.append(threading.Thread(target=work, args=(descriptor, last), daemon=True))
            self._threads[-1].start()
        self._streams = {}
        self.wait(timeout)
        for thread in self._threads:  # what the process has started may keep a pipe open
            thread.join(None if deadline is None else max(0, deadline - time.monotonic()))
            if thread.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout)
        return self._text(1), self._text(2)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _answer(self, timeout: float | None) -> int:
        self._connection.settimeout(timeout)
        try:
            answer = self._connection.recv(4)
        except (TimeoutError, BlockingIOError):
            raise subprocess.TimeoutExpired(self.args, timeout) from None
        if len(answer) != 4:
            raise RuntimeError("the program that is forked did not answer")
        return struct.unpack("i", answer)[0]

    def _end(self, status: int) -> None:
        self.returncode = os.waitstatus_to_exitcode(status)
        self._connection.close()

    def _text(self, stream: int):
        read = self._read_bytes.get(stream)
        if read is None or self._encoding is None:
            return read
        return read.decode(self._encoding, self._errors or "strict").replace("\r\n", "\n").replace("\r", "\n")

    def _read(self, descriptor, stream):
        with os.fdopen(descriptor, "rb") as file:
            self._read_bytes[stream] = file.read()

    @staticmethod
    def _write(descriptor, data):
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
        except BrokenPipeError:
            pass  # the program has read enough
