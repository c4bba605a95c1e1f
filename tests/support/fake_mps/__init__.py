"""A fake nvidia-cuda-mps-control in a driver root of its own, and clients for it.

The program is the simulated one with faults added: it can crash, hang, refuse and be slow, at its start or at any
command.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from dra_driver.mps.simulated import control as mps_control

PROGRAM = Path(__file__).with_name("control.py")


class FakeMps:
    """A driver root in `folder` whose control program does what `faults` says."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        binaries = folder / "usr/bin"
        binaries.mkdir(parents=True, exist_ok=True)
        self.program = binaries / "nvidia-cuda-mps-control"
        real = Path(mps_control.__file__)
        text = PROGRAM.read_text().replace("SIMULATED", str(real)).replace("FAULTS", str(folder / "faults"))
        self.program.write_text(f"#!{os.path.realpath(sys.executable)} -IS\n{text}")
        self.program.chmod(0o755)

    def break_(self, *faults: str) -> None:
        """Have faults from now on: "start hang", "get_server_list refuse Some words", "quit slow 0.5", "ps crash".

        "ps answer 1 2" is no fault of the daemon's own: it answers so.
        """
        new = self.root / "faults.new"
        new.write_text("".join(f"{fault}\n" for fault in faults))
        new.replace(self.root / "faults")

    def heal(self) -> None:
        """Have no fault any more."""
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
            word, _, path = mps_control.read_line(asking).partition(" ")
        assert word == "SERVER", word
        self.server_pid = int(path.rpartition("-")[2])
        self._line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._line.settimeout(timeout_s)
        self._line.connect(f"{root}{path}")
        _, percentage, memory = mps_control.read_line(self._line).split()
        self.percentage, self.memory_mib = float(percentage), int(memory)

    def works(self) -> bool:
        """Return whether the server still does what this client asks of it."""
        try:
            self._line.sendall(b"PING\n")
            return mps_control.read_line(self._line) == "PONG PING"
        except OSError:
            return False

    def end(self) -> None:
        """Go away, as a process that ends does."""
        self._line.close()
