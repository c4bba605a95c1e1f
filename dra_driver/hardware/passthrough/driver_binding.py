"""Driver binding: a PCI function moves from one kernel driver to another, and each write is read back.

    driver_override ← the new driver    from now on only this driver may bind the function
    unbind          ← the address       from the driver that has it
    bind            ← the address       to the new one
    driver_override ← nothing           whether or not the bind succeeded: no override stays set

`DriverBinding` calls its caller before each write, so that the caller can record the intent. Every call starts from
what sysfs shows and may be repeated after a crash at any line.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from dra_driver.hardware.passthrough.functions import answers, can_be_reset, read_function, read_override
from dra_driver.hardware.passthrough.writing import BusAccess
from dra_driver.hardware.pci import function_folder
from dra_driver.model.errors import HardwareError, Retry

BeforeWrite = Callable[[str, str], None]
Remaining = Callable[[], float]
_NOTHING = "\n"  # clears driver_override
# The least time for any write, because attempts that end before their first write is done never make progress.
WRITE_SECONDS = 2.0
OVERRIDE, UNBIND, BIND, CLEAR, RESET = "override", "unbind", "bind", "clear", "reset"


class DriverBinding:
    """Moves the functions of one bus.

    Args:
        access: the bus and its writer.
        before: called with a function's address and the name of the write before each write.
        remaining: returns how many seconds are left.
    """

    def __init__(self, access: BusAccess, *, before: BeforeWrite, remaining: Remaining) -> None:
        self._access, self._before, self._remaining = access, before, remaining

    def bind(self, address: str, driver: str) -> None:
        """Bind a function to a driver, or release it from its driver where that is "". Idempotent.

        Raises: HardwareError("hardware.not-answering"), ("hardware.bind-failed"), ("hardware.unbind-failed"),
        ("hardware.gpu-gone"), all LATER.
        """
        now = self._driver_of(address)
        if now != driver:
            if driver and read_override(self._access.roots, address) != driver:  # an earlier attempt may have set it
                self._write(address, OVERRIDE, self._folder(address) / "driver_override", driver)
            if now:
                self._unbind(address, now)
        try:
            if driver and self._driver_of(address) != driver:
                self._bind(address, driver)
        finally:
            self._clear(address)

    def reset(self, address: str) -> None:
        """Reset a function, and verify that it answers afterwards.

        Raises: HardwareError("hardware.function-not-reset", LATER): no other user may get it before the reset succeeds.
        """
        if not can_be_reset(self._access.roots, address):
            raise self._not_reset(address, "the kernel has no way to reset it")
        try:
            self._write(address, RESET, self._folder(address) / "reset", "1")
        except HardwareError as error:
            raise self._not_reset(address, error.message) from error
        if not answers(self._access.roots, address):
            raise self._not_reset(address, "it does not answer after the reset")

    def _unbind(self, address: str, driver: str) -> None:
        self._write(address, UNBIND, self._drivers / driver / "unbind", address)
        left = self._driver_of(address)
        if left:
            raise HardwareError("unbind-failed", f"{address} is still bound to {left}", retry=Retry.LATER)

    def _bind(self, address: str, driver: str) -> None:
        folder = self._drivers / driver
        if not folder.is_dir():
            text = f"{address} can't be bound to {driver}: that driver is not loaded"
            raise HardwareError("bind-failed", text, hint=f"load {driver} on the host", retry=Retry.LATER)
        self._write(address, BIND, folder / "bind", address)
        now = self._driver_of(address)
        if now != driver:
            text = f"{address} was written to {driver}'s bind, but is bound to {now or 'no driver'}"
            raise HardwareError("bind-failed", text, hint="the kernel's log has the reason", retry=Retry.LATER)

    def _clear(self, address: str) -> None:
        """Let any driver bind the function again, as before. Raises: HardwareError."""
        if read_override(self._access.roots, address):
            self._write(address, CLEAR, self._folder(address) / "driver_override", _NOTHING)
            if left := read_override(self._access.roots, address):
                text = f"driver_override of {address} is still {left!r:.80}"
                raise HardwareError("bind-failed", text, retry=Retry.LATER)

    def _write(self, address: str, what: str, path: Path, text: str) -> None:
        self._before(address, what)
        try:
            self._access.writer.write(path, text, max(self._remaining(), WRITE_SECONDS))
        except TimeoutError as error:
            raise HardwareError(
                "not-answering",
                f"{what} of {address} does not return: something still uses the device, or its driver hangs",
                hint="the kernel's log shows what it waits for",
                retry=Retry.LATER,
            ) from error
        except OSError as error:
            code = "unbind-failed" if what == UNBIND else "bind-failed"
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise HardwareError(code, f"{what} of {address}: {reason}", retry=Retry.LATER) from error

    def _driver_of(self, address: str) -> str:
        now = read_function(self._access.roots, address)
        if now is None:
            raise HardwareError("gpu-gone", f"{address} is not on the PCI bus any more", retry=Retry.LATER)
        return now.driver

    def _folder(self, address: str) -> Path:
        return function_folder(self._access.roots, address)

    @property
    def _drivers(self) -> Path:
        return Path(self._access.roots.sys, "bus/pci/drivers")

    @staticmethod
    def _not_reset(address: str, why: str) -> HardwareError:
        text = f"{address} was in a virtual machine and could not be reset: {why}"
        return HardwareError("function-not-reset", text, hint="reboot the node", retry=Retry.LATER)
