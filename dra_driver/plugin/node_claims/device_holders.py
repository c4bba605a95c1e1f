"""Device holders: the claims and processes that have a device now, according to the ledger and the vendor's library.

In: a ledger, the hardware, a device. Out: part of a sentence for a message, empty if the device is free.
"""

from __future__ import annotations

from collections.abc import Collection

from dra_driver.hardware.facts import GpuFacts, PartitionFacts
from dra_driver.hardware.port import Hardware, ProcessLister
from dra_driver.model.errors import DriverError
from dra_driver.plugin.ledger.ledger import Ledger
from dra_driver.validation.validation_lock import overlap


def holding_claims(ledger: Ledger, device: str) -> str:
    """Return a text about a claim that holds a device or a part of it, "" if none does.

    A ledger that can't be read counts as a claim.
    """
    try:
        return held_among(ledger.held(), device)
    except DriverError as error:
        return f"the claims that hold devices can't be read: {error}"


def held_among(held: Collection[str], device: str) -> str:
    """Return a text that a claim holds a device, if the device or a part of it is among the names `held`, else ""."""
    found = sorted(name for name in held if overlap(name, device))
    return f"a claim has {found[0]}" if found else ""


def processes_on(hardware: Hardware, gpu: GpuFacts, partition: PartitionFacts | None) -> str:
    """Return a text about processes that use a device, "" if none does. Processes that can't be listed count as one."""
    if not isinstance(hardware, ProcessLister):
        return ""
    try:
        found = hardware.processes(gpu, partition)
    except DriverError as error:
        return f"the processes that use it can't be read: {error}"
    return f"process {', '.join(map(str, found[:5]))} uses it" if found else ""
