"""Gates: the features that an API server of a given minor version has switched on.

In: a version and overrides. Out: the set of gates that are on. A gate that no rule of this server asks about is
refused, because switching it would change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from dra_driver.model.errors import UsageError
from dra_driver.model.kubernetes import (
    COMPATIBILITY_GROUPS,
    DERIVED_ATTRIBUTES,
    FRACTIONAL_RANGE,
    OPTIONAL_NODE_OPERATIONS,
    VERSIONS,
    gate_defaults,
    minor_of,
)

_NOT_SERVED = (COMPATIBILITY_GROUPS, DERIVED_ATTRIBUTES, FRACTIONAL_RANGE, OPTIONAL_NODE_OPERATIONS)


def parse_minor(version: str) -> int:
    """Return the minor of "1.36". Raises: UsageError("usage.server-version")."""
    if version not in VERSIONS:
        raise UsageError(
            "server-version", f"there is no embedded API of version {version!r}, only of {', '.join(VERSIONS)}"
        )
    return minor_of(version)


def gates_on(minor: int, overrides: Mapping[str, bool]) -> frozenset[str]:
    """Return the gates that are on. Raises: UsageError("usage.gate") for one that this version does not know."""
    defaults = {name: is_on for name, is_on in gate_defaults(minor).items() if name not in _NOT_SERVED}
    if unknown := overrides.keys() - defaults.keys():
        raise UsageError("gate", f"1.{minor} has no feature gate {', '.join(sorted(unknown))}")
    return frozenset(name for name, is_on in {**defaults, **overrides}.items() if is_on)
