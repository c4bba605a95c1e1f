"""Equal slices: ResourceSlices whose text equals that of an earlier one, except for names and some attributes.

In: the entries of a list while it is read. Out: for a slice whose text equals an earlier one's, an object with its own
names, whose devices are a `Replica`, made without parsing; nothing for any other entry. Ten thousand nodes of one kind
have slices of a few shapes, which differ only in short texts: UUIDs, names, times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dra_driver.allocation.pools.replicas import Replica, ReplicaShape
from dra_driver.documents.json_pattern import Opener, OpenText, Path, TextPattern, put_in
from dra_driver.documents.shared_values import SharedValues
from dra_driver.model.wire import DeviceWire, Wire
from dra_driver.views.progress import ProgressLine

_KIND, _VERSIONS = "ResourceSlice", (None, "resource.k8s.io/v1", "resource.k8s.io/v1beta2")
_MAX_KINDS = 64
_MAX_VARYING = 6  # attributes that differ; slices that differ in more of them are of different kinds
_FIRST_TRIES = 64
_DEVICES = ("spec", "devices")
_NODE = ("spec", "nodeName")
_NAMES = frozenset({_NODE, ("spec", "pool", "name")})
_NOT_PLAIN = frozenset({"basic", "nodeName"})  # fields of v1beta1, and of devices that have a node of their own
_TEXTS = frozenset({"string", "version"})

_Own = tuple[tuple[Path, ...], Sequence[str]]  # places in a list of devices, and the texts that a node has there


class _SliceKind:
    """Slices that differ only at some places. `wire` is the first of them, with a plain list of devices."""

    def __init__(self, base: OpenText, wire: Wire) -> None:
        self.base, self._wire = base, wire
        self._devices: list[DeviceWire] = wire["spec"]["devices"]
        self._holes: set[int] = set()
        self._own: dict[str, _Own] = {}
        self.shape = ReplicaShape(wire["spec"]["driver"], self._devices, (), self._make, is_simulated=False)
        self._renew()

    def match(self, text: str, place: int) -> tuple[Wire, int] | None:
        """Return the slice that begins at an offset of a text, and where it ends; None if it is not of this kind."""
        found = self._pattern.match(text, place)
        if found is None:
            return None
        wire = self._slice(found[0])
        return None if wire is None else (wire, found[1])

    def widen(self, other: OpenText) -> Wire | None:
        """Let the texts in which another slice differs vary from now on; return that slice.

        Return None if too many attributes differ, or if this kind already has the slice's node.
        """
        pairs = zip(self.base.values, other.values, strict=True)
        holes = self._holes | {number for number, (one, another) in enumerate(pairs) if one != another}
        varying = {path[4] for path in (self.base.paths[number] for number in holes) if path[:2] == _DEVICES}
        if len(varying) > _MAX_VARYING:
            return None
        self._holes = holes
        self._renew()
        self.shape.add_varying(map(str, varying))
        return self._slice([other.values[number] for number in sorted(holes)])

    def _renew(self) -> None:
        self._pattern = TextPattern(self.base, self._holes)
        paths = self._pattern.paths
        self._head = [(path, number) for number, path in enumerate(paths) if path[:2] != _DEVICES]
        inner = [number for number, path in enumerate(paths) if path[:2] == _DEVICES]
        self._inner = inner, tuple(paths[number][2:] for number in inner)

    def _slice(self, values: Sequence[str]) -> Wire | None:
        head = [(path, values[number]) for path, number in self._head]
        wire: Wire = put_in(self._wire, head) if head else {**self._wire}
        node = wire["spec"]["nodeName"]
        if not node or node in self._own:
            return None
        numbers, paths = self._inner
        self._own[node] = paths, [values[number] for number in numbers]
        wire["spec"] = {**wire["spec"], "devices": Replica(self.shape, node)}
        return wire

    def _make(self, node: str) -> Sequence[DeviceWire]:
        paths, values = self._own[node]
        made: list[DeviceWire] = (
            put_in(self._devices, list(zip(paths, values, strict=True))) if paths else self._devices
        )
        return made


class EqualSlices:
    """The kinds of slices that were seen in one or several lists; `line` shows how many entries were read."""

    def __init__(self, line: ProgressLine) -> None:
        self._line = line
        self._values = SharedValues()
        self._kinds: list[_SliceKind] = []
        self._by_text: dict[tuple[str, ...], list[_SliceKind]] = {}
        self._tries = self._matches = 0

    def share(self, value: Any) -> None:
        """Replace the parts of an entry that equal parts of earlier entries, so that these are in memory once."""
        self._tries += 1
        self._line.update(self._tries + self._matches)
        self._values.share(value)

    def take(self, text: str, place: int) -> tuple[Any, int] | None:
        """Return the entry that begins at an offset, and its end, if it equals an earlier slice; otherwise None."""
        for number, kind in enumerate(self._kinds):
            found = kind.match(text, place)
            if found is not None:
                self._matches += 1
                self._line.update(self._tries + self._matches)
                if number:
                    self._kinds.insert(0, self._kinds.pop(number))
                return found
        return None

    def parsed(self, text: str, value: Any, opened: Opener) -> Any:
        """Return what to keep of an entry that was parsed from a text; `opened` splits the text where it may vary."""
        self.share(value)
        if self._tries > _FIRST_TRIES and self._tries > self._matches:
            return value  # the slices have little in common, so looking for equal ones costs more than it saves
        own = opened(text, _may_be_open) if _is_plain(value) else None
        if own is None or not own.agrees_with(value):
            return value
        kinds = self._by_text.setdefault(own.pieces, [])
        for kind in kinds:
            if (found := kind.widen(own)) is not None:
                return found
        if len(self._kinds) >= _MAX_KINDS:
            return value
        kind = _SliceKind(own, value)
        kinds.append(kind)
        self._kinds.insert(0, kind)
        return kind.widen(own) or value


def _may_be_open(path: Path) -> bool:
    """Return whether the text at a path may differ between equal slices: names, metadata, texts of attributes."""
    if path[:2] == _DEVICES:
        return len(path) == 6 and path[3] == "attributes" and path[5] in _TEXTS
    return path[0] == "metadata" or path in _NAMES


def _is_plain(value: Any) -> bool:
    """Return whether a value is a slice of one node in the shape of v1."""
    if not isinstance(value, dict) or value.get("kind", _KIND) != _KIND or value.get("apiVersion") not in _VERSIONS:
        return False
    spec = value.get("spec")
    if (
        not isinstance(spec, dict)
        or not isinstance(spec.get("driver"), str)
        or not isinstance(spec.get("nodeName"), str)
    ):
        return False
    devices = spec.get("devices")
    return isinstance(devices, list) and bool(devices) and all(_is_device(one) for one in devices)


def _is_device(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("name"), str) and _NOT_PLAIN.isdisjoint(value)
