"""Scanner pause: the scanner releases the vendor's library for a moment, while a GPU is moved to another driver."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dra_driver.agent.inventory.scanner import Scanner
from dra_driver.hardware.port import Hardware, Resettable
from dra_driver.model.errors import HardwareError, Retry
from dra_driver.plugin.deadline import Deadline

RELEASE_SECONDS = 15.0  # how long a call of the library that has begun may take


class ScannerPause:
    """Makes the scanner of one node release the vendor's library."""

    def __init__(self, scanner: Scanner, hardware: Hardware) -> None:
        self._scanner, self._hardware = scanner, hardware

    @contextmanager
    def released(self, deadline: Deadline) -> Iterator[None]:
        """Keep this process from having a GPU open. Raises: HardwareError("hardware.library-busy", LATER)."""
        if not isinstance(self._hardware, Resettable):  # hardware without a library has nothing open
            yield
            return
        try:
            if not self._scanner.release(min(RELEASE_SECONDS, deadline.remaining())):
                text = "a call of the driver's library does not return, so this agent still has every GPU open"
                raise HardwareError("library-busy", text, retry=Retry.LATER)
            yield
        finally:
            self._scanner.reacquire()
