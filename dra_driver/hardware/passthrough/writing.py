"""Writing to sysfs: one write in a child process with a deadline.

Unbinding waits in the kernel until every user has let go of the device, and nothing can interrupt it. The child waits
in this process's place; a child that misses the deadline is left behind, and ends when the kernel lets it.
"""

from __future__ import annotations

import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from dra_driver.hardware.passthrough import write_child
from dra_driver.hardware.port import Roots

if TYPE_CHECKING:
    from subprocess import Popen


class KernelWriter(Protocol):
    """Writes files of sysfs."""

    def write(self, path: Path, text: str, deadline_s: float) -> None:
        """Write a text in one call. Raises: OSError as the kernel reports it, TimeoutError after the deadline."""


@dataclass(frozen=True, slots=True)
class BusAccess:
    """Where the PCI bus of a node is seen, and what writes to it."""

    roots: Roots
    writer: KernelWriter


@runtime_checkable
class OwnBus(Protocol):
    """Optional ability: hardware that has a PCI bus of its own, instead of this machine's."""

    def bus_access(self) -> BusAccess:
        """Return the bus."""


class ChildWriter:
    """Makes each write in a child process of its own, which can be killed if the kernel hangs."""

    def write(self, path: Path, text: str, deadline_s: float) -> None:
        """Write a text in one call. Raises: OSError as the kernel reports it, TimeoutError after the deadline."""
        from subprocess import DEVNULL, Popen, TimeoutExpired  # noqa: PLC0415 - only where a GPU is passed through

        command = [sys.executable, "-I", "-S", str(Path(write_child.__file__)), str(path), text]
        child = Popen(command, env={}, stdin=DEVNULL, stdout=DEVNULL, start_new_session=True, cwd="/")
        try:
            status = child.wait(max(0.0, deadline_s))
        except TimeoutExpired:
            with suppress(ProcessLookupError):
                child.send_signal(signal.SIGKILL)
            _reap_when_over(child)
            raise TimeoutError(f"writing {path} takes longer than {deadline_s:.0f} s") from None
        if status:
            raise OSError(status, f"writing {text!r} to {path} failed")


def _reap_when_over(child: Popen[bytes]) -> None:
    """Reap the child if it has ended; a child that is still blocked in the kernel is reaped by a later Popen."""
    from subprocess import TimeoutExpired  # noqa: PLC0415 - as above

    with suppress(TimeoutExpired):
        child.wait(0.2)
