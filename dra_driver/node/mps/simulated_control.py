"""A simulated nvidia-cuda-mps-control that understands the real program's commands but shares no GPU.

It runs as a separate program with only the standard library. With `-f` it serves in the foreground and with `-d` in the
background; otherwise it reads one command per line from standard input. Its clients are simulated too (they send
"CLIENT" to the control socket): a CUDA program gets no answer from it.

The program is started once for each command, so sending one imports next to nothing: the module `socket` alone would
take longer than all the rest.

Source: NVIDIA Multi-Process Service, architecture and nvidia-cuda-mps-control(1).
"""

from __future__ import annotations

import _socket
import os
import sys

if __name__ == "__main__":
    sys.path.append(os.path.abspath(__file__).rpartition("/dra_driver/")[0])  # noqa: PTH100

from dra_driver.node.mps.simulated_folders import Folders

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from dra_driver.node.mps.simulated_daemon import Daemon


def main(load_daemon: Callable[[], type[Daemon]]) -> int:
    """Run the program; return its exit status. Only a process that becomes a daemon loads the daemon's class."""
    words, folders = sys.argv[1:], Folders()
    if not {"-d", "-f"} & set(words):
        return _send_commands(folders)
    return load_daemon().run(folders, words)


def _simulated() -> type[Daemon]:
    from dra_driver.node.mps.simulated_daemon import Daemon  # noqa: PLC0415

    return Daemon


def _send_commands(folders: Folders) -> int:
    """Send standard input to the daemon, line by line, and print its answers."""
    status = 0
    for line in sys.stdin:
        if not line.strip():
            continue
        talking = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            talking.connect(folders.path("control"))
        except OSError:
            os.write(1, b"Cannot find MPS control daemon process\n")
            return 1
        talking.sendall(line.strip().encode() + b"\n")
        answer = b""
        while part := talking.recv(4096):
            answer += part
        code, _, text = answer.decode().partition(" ")
        status = status or int(code or 1)
        if text:
            os.write(1, text.encode() + b"\n")
    return status


if __name__ == "__main__":
    sys.exit(main(_simulated))
