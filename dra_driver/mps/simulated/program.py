"""Simulated: where the stand-in for NVIDIA's control program lies, which is started by the file and never imported."""

from __future__ import annotations

import sys
from pathlib import Path

from dra_driver.mps.launch import Program

_FILE = Path(__file__).resolve().with_name("control.py")


def simulated_program() -> Program:
    """Give the simulated control program: it shares no GPU, and needs no privilege."""
    return Program((sys.executable, "-I", "-S", str(_FILE)))
