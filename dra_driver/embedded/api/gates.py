"""Gates: the features that an API server of a given minor version has switched on.

In: a version and overrides. Out: the set of gates that are on. A gate that no rule of this server asks about is
refused, because switching it would change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from dra_driver.model.errors import UsageError
from dra_driver.model.kubernetes import COMPATIBILITY_GROUPS, FRACTIONAL_RANGE, VERSIONS, gate_defaults, minor_of

# Gate -> (first minor version that knows it, first one with it on by default; None if none has so far).
_GATES: dict[str, tuple[int, int | None]] = {
    "DRAAdminAccess": (34, 34),
    "DRAPrioritizedList": (34, 34),
    "DRAResourceClaimDeviceStatus": (34, 34),
    "DRAConsumableCapacity": (34, 36),
    "DRAPartitionableDevices": (34, 36),
    "DRADeviceTaints": (34, 36),
    "DRADeviceBindingConditions": (34, 36),
    "DRAExtendedResource": (34, 36),
    "DRAListTypeAttributes": (36, None),
}
MINORS = (34, 35, 36, 37)


def parse_minor(version: str) -> int:
    """Return the minor version of a text such as "1.36". Raises: UsageError("usage.server-version")."""
    major, _, minor = version.partition(".")
    if major != "1" or not minor.isdigit() or int(minor) not in MINORS:
        served = ", ".join(f"1.{m}" for m in MINORS)
        raise UsageError("server-version", f"there is no embedded API of version {version!r}, only of {served}")
    return int(minor)


def gates_on(minor: int, overrides: Mapping[str, bool]) -> frozenset[str]:
    """Return the gates that are on. Raises: UsageError("usage.gate") for a gate that this version does not know."""
    known = {name: on for name, (since, on) in _GATES.items() if since <= minor}
    if unknown := overrides.keys() - known.keys():
        raise UsageError("gate", f"1.{minor} has no feature gate {', '.join(sorted(unknown))}")
    return frozenset(name for name, is_on in {**defaults, **overrides}.items() if is_on)
