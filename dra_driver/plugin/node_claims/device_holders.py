"""Device holders: which claims and processes have a device now, according to the ledger and the vendor's library.

In: a ledger, the hardware, a device. Out: part of a sentence for people, empty if the device is free.
"""

from __future__ import annotations

from collections.abc import Collection

from dra_driver.hardware.facts import GpuFacts, PartitionFacts
from dra_driver.hardware.port import Hardware, ProcessLister
from dra_driver.model.errors import DriverError
from dra_driver.plugin.ledger.ledger import Ledger
from dra_driver.validation.turn import overlap


def holding_claims(ledger: Ledger, device: str) -> str:
    """Return which claims hold a device or a part of it; a ledger that can't be read counts as a claim."""
    try:
        return held_among(ledger.held(), device)
    except DriverError as error:
        return f"it can't be read which claims hold devices: {error}"


def held_among(held: Collection[str], device: str) -> str:
    """Return a text that a device is held, if it or a part of it is among these."""
    found = sorted(name for name in held if overlap(name, device))
    return f"a claim has {found[0]}" if found else ""


def processes_on(hardware: Hardware, gpu: GpuFacts, partition: PartitionFacts | None) -> str:
    """Return which processes are on a device; processes that can't be listed count as one."""
    if not isinstance(hardware, ProcessLister):
        return ""
    try:
        found = hardware.processes(gpu, partition)
    except DriverError as error:
        return f"it can't be read which processes use it: {error}"
    return f"process {', '.join(map(str, found[:5]))} uses it" if found else ""
