"""The port: what every vendor must implement, and what it may.

`Hardware` is what every vendor has. Everything else is an ability of its own, a protocol that a vendor may implement;
a caller asks for it by type (`isinstance`), never by the vendor's name. All names are imported from here; the modules
each have one kind of abilities.

For every ability: any thread may call any method. Deadlines and patience are in seconds from the call, sizes in bytes,
addresses are PCI addresses as sysfs writes them ("0000:65:00.0"). A method that changes something reads the state back
and is idempotent, so that a caller that was killed can repeat it. Errors are HardwareError, each with a code below
"hardware." and with whether a later call can succeed (`retry`).
Source: Kubernetes DRA plugin contract (KEP-4381), by which Prepare and Unprepare may be repeated at any time.
"""

from __future__ import annotations

from dra_driver.hardware.port.containers import AdminNodes, ChannelOffering, ClaimWide
from dra_driver.hardware.port.hardware import Fingerprint, Hardware, Roots
from dra_driver.hardware.port.observation import ComputeTested, HealthReporter, Metered, ProcessLister
from dra_driver.hardware.port.partitions import Partitionable
from dra_driver.hardware.port.resets import Resettable
from dra_driver.hardware.port.sharing import ComputeUnitChoosing, MemoryLimiting, MemoryLimitShowing, Shareable

__all__ = [
    "AdminNodes",
    "ChannelOffering",
    "ClaimWide",
    "ComputeTested",
    "ComputeUnitChoosing",
    "Fingerprint",
    "Hardware",
    "HealthReporter",
    "MemoryLimitShowing",
    "MemoryLimiting",
    "Metered",
    "Partitionable",
    "ProcessLister",
    "Resettable",
    "Roots",
    "Shareable",
]
