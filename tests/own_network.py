"""own_network.py PROGRAM SIZE ARGUMENT...: runs a command in several processes in the network of this process, which
`unshare --net` has made for it alone, and prints the bytes that its loopback has carried."""

import fcntl
import os
import pathlib
import socket
import struct
import sys

from processes import Processes
from program import Program

UNSHARE = ["unshare", "--net", *([] if os.geteuid() == 0 else ["--map-root-user"])]
SET_FLAGS, UP = 0x8914, 1  # SIOCSIFFLAGS and IFF_UP of Linux


def carried() -> int:
    [line] = [line for line in pathlib.Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:")]
    return int(line.split(":")[1].split()[0])


def main(program: str, size: str, *arguments: str) -> None:
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SET_FLAGS, struct.pack("16sH14x", b"lo", UP))
    with Processes(Program(pathlib.Path(program), pathlib.Path.cwd()), int(size), *arguments) as processes:
        for done in processes.wait():
            assert done.returncode == 0, done
    print(carried())


if __name__ == "__main__":
    main(*sys.argv[1:])
