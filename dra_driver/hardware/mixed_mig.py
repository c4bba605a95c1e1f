"""Field knowledge: drivers on which workloads hang when MIG and whole GPUs are used side by side.

Pure. In: facts. Out: a problem with the remedy. Source: reports from the field; 580.65.06 fixes it.
"""

from __future__ import annotations

from collections.abc import Iterable

from dra_driver.hardware.facts import GpuFacts, Problem

MIXED = "hardware.mixed-mig-driver"
_FIRST_BAD, _FIRST_GOOD = (570,), (580, 65, 6)


def hangs_with_mixed_mig(driver_version: str | None) -> bool:
    """Return whether workloads hang on this driver while some of a node's GPUs are in MIG mode and others are not.

    >>> hangs_with_mixed_mig("570.133.20"), hangs_with_mixed_mig("580.65.6")
    (True, False)
    """
    numbers = (driver_version or "").partition("-")[0].split(".")
    if not all(number.isdigit() for number in numbers):
        return False
    return _FIRST_BAD <= tuple(map(int, numbers)) < _FIRST_GOOD


def mixed_mig_problems(gpus: Iterable[GpuFacts], driver_version: str | None) -> tuple[Problem, ...]:
    """Return a warning if a node's GPUs are mixed on such a driver."""
    if len({gpu.mig_enabled for gpu in gpus}) < 2 or not hangs_with_mixed_mig(driver_version):
        return ()
    text = (
        f"some GPUs are in MIG mode and others are not, and workloads hang then on driver {driver_version}; "
        "install 580.65.06 or newer, or use MIG on all GPUs of this node or on none"
    )
    return (Problem(MIXED, "node", text),)
