"""The command line that starts the simulated control program; its file is never imported."""

from __future__ import annotations

import sys
from pathlib import Path

from dra_driver.mps.launch import ControlProgram

_FILE = Path(__file__).resolve().with_name("control.py")


def simulated_program() -> ControlProgram:
    """Return the simulated control program, which shares no GPU and needs no privilege."""
    return ControlProgram((sys.executable, "-I", "-S", str(_FILE)))
