"""Geometry rules: which geometry a node gets, by its name or its labels."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass

from dra_driver.base.errors import UsageError
from dra_driver.node.devices.geometry import ALL, listed

# Geometry rules: which geometry a node gets, by its name or its labels.

FROM_LABEL = "label"
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.+]*[A-Za-z0-9])?")
_PATTERN = re.compile(r"[-a-z0-9.*?\[\]]+")
_LABEL = re.compile(r"([a-z0-9][-a-z0-9.]*/)?[A-Za-z0-9][-A-Za-z0-9_.]*=[-A-Za-z0-9_.]*")


@dataclass(frozen=True, slots=True)
class GeometryRule:
    """One rule. `selector` is a pattern of node names, a label as `key=value`, or "" for every node."""

    selector: str
    geometry: str

    def fits(self, node: str, labels: Mapping[str, str]) -> bool:
        """Return whether the rule applies to this node."""
        key, is_label, value = self.selector.partition("=")
        if is_label:
            return labels.get(key) == value
        return not self.selector or fnmatch.fnmatchcase(node, self.selector)


def read_rules(text: str, *, has_file: bool) -> tuple[GeometryRule, ...]:
    """Read the flag's value. Without a file of configurations every name must be a built-in one.

    Raises: UsageError("usage.mig-geometry") with every fault.
    """
    rules, faults = [], []
    for part in filter(None, (part.strip() for part in text.split(";"))):
        selector, colon, geometry = (word.strip() for word in part.rpartition(":"))
        rules.append(GeometryRule(selector, geometry))
        if colon and not (_PATTERN.fullmatch(selector) or _LABEL.fullmatch(selector)):
            faults.append(f"{selector!r} is neither a pattern of node names nor a label KEY=VALUE")
        is_built_in = geometry == FROM_LABEL or geometry.startswith(ALL) or listed(geometry) is not None
        if not is_built_in and not (has_file and _NAME.fullmatch(geometry)):
            faults.append(f"{geometry!r} is neither label, all-disabled, all-balanced, all-PROFILE nor a list")
    if faults:
        raise UsageError(
            "mig-geometry",
            f"--mig-geometry: {'; '.join(faults)}",
            hint="use for example all-1g.10gb, or gpu-a-*:1g.10gb=4,3g.40gb=1; label. Other names need --mig-config",
        )
    return tuple(rules)


def geometry_of(rules: tuple[GeometryRule, ...], node: str, labels: Mapping[str, str]) -> str:
    """Return a node's geometry, or "" for none."""
    return next((rule.geometry for rule in rules if rule.fits(node, labels)), "")
