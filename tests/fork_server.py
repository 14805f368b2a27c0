"""Runs of the program under test as forks of one that has loaded its libraries (fork_server.cc)."""

import os
import pathlib
import signal
import socket
import struct
import subprocess
import tempfile
import threading

# Options of subprocess.run that a fork can serve.
OPTIONS = {"cwd", "env", "input", "stdin", "stdout", "stderr", "timeout", "encoding", "errors"}
MOST_CHARACTERS = 20_000  # of arguments, so that a request is one message
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
        plain = sum(map(len, arguments)) < MOST_CHARACTERS and not any("\0" in argument for argument in arguments)
        if program != self.program or not plain or not options.keys() <= OPTIONS:
            return None
        if read_at_start(environment) != self.start_environment or instruction_set not in self.instruction_sets:
            return None
        if instruction_set not in self.servers:
            self.servers[instruction_set] = ForkServer(self.program, self.library, environment)
        return self.servers[instruction_set]

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
                env={**environment, "LD_PRELOAD": str(library), "TAMIS_FORK_SERVER": str(listening.fileno())},
                pass_fds=[listening.fileno()],
                stdin=subprocess.DEVNULL,
            )

    def close(self):
        self.process.kill()
        self.process.wait()
        self.directory.cleanup()

    def run(self, arguments, *, cwd, encoding, errors, timeout, env=None, input=None, stdin=None, stdout, stderr):
        """As subprocess.run."""
        words = [str(self.program), *arguments]
        strings = [str(len(words)), os.path.abspath(cwd), *words]
        strings += [f"{name}={value}" for name, value in (os.environ if env is None else env).items()]
        ours, theirs, opened = self._streams(subprocess.PIPE if input is not None else stdin, stdout, stderr)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.connect(self.address)
            message = b"".join(os.fsencode(string) + b"\0" for string in strings)
            socket.send_fds(connection, [message], theirs)
            for descriptor in opened:
                os.close(descriptor)
            process = struct.unpack("i", connection.recv(4, socket.MSG_WAITALL))[0]
            found = {}
            threads = [threading.Thread(target=self._read, args=(found, i, ours[i])) for i in (1, 2) if i in ours]
            if 0 in ours:
                data = input.encode(encoding, errors or "strict") if isinstance(input, str) else input
                threads.append(threading.Thread(target=self._write, args=(ours[0], data)))
            for thread in threads:
                thread.start()
            connection.settimeout(timeout)
            try:
                status = struct.unpack("i", connection.recv(4, socket.MSG_WAITALL))[0]
            except TimeoutError:
                os.kill(process, signal.SIGKILL)
                raise subprocess.TimeoutExpired(words, timeout) from None
            finally:
                for thread in threads:
                    thread.join()
        if encoding is not None:
            for stream, read in found.items():
                text = read.decode(encoding, errors or "strict")
                found[stream] = text.replace("\r\n", "\n").replace("\r", "\n")
        return subprocess.CompletedProcess(words, os.waitstatus_to_exitcode(status), found.get(1), found.get(2))

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
    def _read(found, stream, descriptor):
        with os.fdopen(descriptor, "rb") as file:
            found[stream] = file.read()

    @staticmethod
    def _write(descriptor, data):
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
        except BrokenPipeError:
            pass  # the program has read enough
