"""The names that devices have, and their values, for comparison with those in an expression.

In: converted devices. If there are none, the names that this driver publishes are used, without values. Out: places of
names, exact or similar, and kinds of values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from dra_driver.model.semver import Semver
from dra_driver.model.vendors import VENDORS
from dra_driver.selectors.evaluation.device_view import DeviceView
from dra_driver.selectors.values.values import CelQuantity

ATTRIBUTES, CAPACITY = "attributes", "capacity"
NOUNS = {ATTRIBUTES: "attribute", CAPACITY: "capacity"}
_MAX_VALUES = 256
_CLOSE = 0.75


@dataclass(frozen=True, slots=True)
class NamePlace:
    """The place of a name: in the attributes or in the capacities of a domain."""

    field: str
    domain: str
    name: str

    @property
    def text(self) -> str:
        """The expression that reads it."""
        return f'device.{self.field}["{self.domain}"].{self.name}'


@dataclass(slots=True)
class _SeenNames:
    kinds: set[str]
    values: set[Any]


class KnownNames:
    """The names of a fleet by place, with their kinds (string, int, bool, version, quantity, list) and some values.

    Unless `is_of_devices`, they are those that this driver publishes: others may exist.
    """

    def __init__(self) -> None:
        self._held: dict[NamePlace, _SeenNames] = {}
        self.is_of_devices = True

    @classmethod
    def of(cls, views: Iterable[DeviceView]) -> KnownNames:
        """Return the names of some devices; without devices, those that this driver publishes."""
        made = cls()
        for view in views:
            for field, domains in ((ATTRIBUTES, view.attributes), (CAPACITY, view.capacity)):
                for domain, names in domains.items():
                    for name, value in names.items():
                        made._add(NamePlace(field, domain, name), kind_of_value(value), value)
        if not made._held:
            made.is_of_devices = False
            made._add_published()
        return made

    def kind(self, place: NamePlace) -> str:
        """Return the kind of a name's values, or "" where they differ or are unknown."""
        held = self._held.get(place)
        return next(iter(held.kinds)) if held and len(held.kinds) == 1 else ""

    def values(self, place: NamePlace) -> set[Any]:
        """Return values of a name; at most 256, and none for names that occur only in this driver's table."""
        held = self._held.get(place)
        return held.values if held else set()

    def __contains__(self, place: NamePlace) -> bool:
        return place in self._held

    @property
    def domains(self) -> set[str]:
        """All domains."""
        return {place.domain for place in self._held}

    def find(self, name: str, *, domain: str = "", field: str = "", is_close: bool = True) -> list[NamePlace]:
        """List the places of a name; without any, those of the name in another case, else of close names."""
        places = list(self._matching(domain, field))
        if exact := [place for place in places if place.name == name]:
            return exact
        if same := [place for place in places if place.name.lower() == name.lower()]:
            return same
        if not is_close:
            return []
        by_lower: dict[str, list[NamePlace]] = {}
        for place in places:
            by_lower.setdefault(place.name.lower(), []).append(place)
        near = get_close_matches(name.lower(), list(by_lower), n=1, cutoff=_CLOSE)
        return [place for one in near for place in by_lower[one]]

    def _matching(self, domain: str, field: str) -> Iterator[NamePlace]:
        for place in self._held:
            if domain in ("", place.domain) and field in ("", place.field):
                yield place

    def _add(self, place: NamePlace, kind: str, value: Any = None) -> None:
        held = self._held.setdefault(place, _SeenNames(set(), set()))
        held.kinds.add(kind)
        if kind in {"string", "version", "quantity"} and len(held.values) < _MAX_VALUES:
            held.values.add(value.number if isinstance(value, CelQuantity) else value)

    def _add_published(self) -> None:
        from dra_driver.hardware.vendors import load_vendor  # noqa: PLC0415  (rarely needed)

        for vendor in VENDORS:
            for row in load_vendor(vendor.name).rows:
                domain, slash, name = row.name.rpartition("/")
                field = CAPACITY if row.kind == "quantity" else ATTRIBUTES
                place = NamePlace(field, domain if slash else vendor.driver, name)
                self._held.setdefault(place, _SeenNames(set(), set())).kinds.add(str(row.kind))


def kind_of_value(value: Any) -> str:
    """Return the kind of an attribute's or capacity's value."""
    if isinstance(value, CelQuantity):
        return "quantity"
    if isinstance(value, Semver):
        return "version"
    return {bool: "bool", int: "int", str: "string", list: "list"}.get(type(value), "")
