"""Programs: run one with fixed arguments and an empty environment, and the program that tests a device."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dra_driver.hardware import child_process

# Programs: run one with fixed arguments and an empty environment, in this root or in another, with a deadline.

MAX_OUTPUT = 600  # how many characters of the output are kept
LEFT_BEHIND_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class ProgramEnd:
    """How a program ended. `status` is None if it was killed for being late; `output` is the end of what it printed."""

    status: int | None
    output: str  # on one line


def run_program(argv: Sequence[str], timeout_s: float, *, root: str = "/") -> ProgramEnd:
    """Run a program, and wait for its end. Raises: OSError if it can't be started.

    Args:
        argv: the absolute path of the program below `root`, and its arguments.
        timeout_s: after this many seconds the program is killed.
        root: the folder that the program sees as `/`.
    """
    command = list(argv)
    if os.path.normpath(root) != "/":
        command = [sys.executable, "-I", "-S", str(Path(child_process.__file__)), "run", root, *argv]
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(
            command, env={}, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, cwd="/"
        )
        status = _wait(child, timeout_s)
        end = output.seek(0, os.SEEK_END)
        output.seek(max(0, end - 4 * MAX_OUTPUT))
        text = " ".join(output.read().decode("utf-8", "replace").split())
    printable = "".join(one if one.isprintable() else "?" for one in text)
    return ProgramEnd(status, printable[-MAX_OUTPUT:])


def _wait(child: subprocess.Popen[bytes], timeout_s: float) -> int | None:
    with suppress(subprocess.TimeoutExpired):
        return child.wait(timeout_s)
    kill(child)
    return None


def kill(child: subprocess.Popen[bytes]) -> None:
    """Kill a program that has a process group of its own; leave it behind if it does not end even then."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    if child.stdout is not None:
        child.stdout.close()
    with suppress(subprocess.TimeoutExpired):
        child.wait(LEFT_BEHIND_SECONDS)
