"""A fake nvidia-cuda-mps-control in a driver root of its own, and clients for it.

The program is the simulated one with faults added: it can crash, hang, refuse and be slow, at its start or at any
command.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from dra_driver.node.mps.simulated_daemon import read_line

# The program is started often: its modules are compiled once, and a process that only sends a command loads no daemon.
_PROGRAM = """#!{python} -IS
import sys
sys.path.append({repository!r})
from dra_driver.node.mps import simulated_control

def faulty():
    from tests.support.mps.faulty_daemon import FaultyDaemon
    FaultyDaemon.FAULTS = {faults!r}
    return FaultyDaemon

sys.exit(simulated_control.main(faulty))
"""


class FakeMps:
    """A driver root in `folder` whose control program does what `faults` says."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        binaries = folder / "usr/bin"
        binaries.mkdir(parents=True, exist_ok=True)
        self.program = binaries / "nvidia-cuda-mps-control"
        text = _PROGRAM.format(
            python=os.path.realpath(sys.executable),
            repository=str(Path(__file__).resolve().parents[3]),
            faults=str(folder / "faults"),
        )
        self.program.write_text(text)
        self.program.chmod(0o755)

    def break_(self, *faults: str) -> None:
        """Set the faults from now on: "start hang", "get_server_list refuse Some words", "quit slow 0.5", "ps crash".

        "ps answer 1 2" replaces the daemon's answer to `ps`.
        """
        new = self.root / "faults.new"
        new.write_text("".join(f"{fault}\n" for fault in faults))
        new.replace(self.root / "faults")

    def heal(self) -> None:
        """Remove all faults."""
        (self.root / "faults").unlink(missing_ok=True)


class FakeClient:
    """A client of an MPS server: found through the control socket, then connected to the server alone.

    `root` is where the daemon's file system begins for us, when it has one of its own.
    """

    def __init__(self, pipe: Path | str, timeout_s: float = 10.0, *, root: str = "") -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
            asking.settimeout(timeout_s)
            asking.connect(f"{root}{pipe}/control")
            asking.sendall(b"CLIENT\n")
            word, _, path = read_line(asking).partition(" ")
        assert word == "SERVER", word
        self.server_pid = int(path.rpartition("-")[2])
        self._line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._line.settimeout(timeout_s)
        self._line.connect(f"{root}{path}")
        _, percentage, memory = read_line(self._line).split()
        self.percentage, self.memory_mib = float(percentage), int(memory)

    def works(self) -> bool:
        """Return whether the server still answers this client."""
        try:
            self._line.sendall(b"PING\n")
            return read_line(self._line) == "PONG PING"
        except OSError:
            return False

    def end(self) -> None:
        """Close the connection, as a process that ends does."""
        self._line.close()
