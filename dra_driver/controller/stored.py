"""Stored: our slices on the API server, as far as they are known here.

In: lists, watch events and answers to our own writes, in any interleaving. Out: the newest state of each slice, and
whether another client changed something. Not thread-safe: the owner holds a lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from dra_driver.controller.diff import is_ours
from dra_driver.model.wire import SliceWire, Wire

_DELETED_UIDS = 1_000  # how many deleted slices are remembered, so that late events about them are ignored


class StoredSlices:
    """The slices of one driver on one node."""

    def __init__(self, *, driver: str, node: str) -> None:
        self._driver, self._node = driver, node
        self._slices: dict[str, SliceWire] = {}
        self._deleted_uids: deque[str] = deque(maxlen=_DELETED_UIDS)
        self._listed_at = ""
        self.is_complete = False

    def all(self) -> tuple[SliceWire, ...]:
        """Return every slice, in the order of names."""
        return tuple(self._slices[name] for name in sorted(self._slices))

    def replace(self, objects: Iterable[SliceWire], resource_version: str, *, is_latest: bool = False) -> bool:
        """Take over a list, and return whether it contains changes.

        Slices that this agent wrote after the list was made are kept, unless `is_latest`, which means that no write was
        under way when it was made. A list that is older than the last one also counts as the latest: the server's store
        was restored to an earlier state.
        """
        is_latest = is_latest or _is_newer(self._listed_at, resource_version)
        self._listed_at = resource_version
        before, known = {n: _version(s) for n, s in self._slices.items()}, self._slices
        listed = {_name(o): o for o in objects if is_ours(o, driver=self._driver, node=self._node)}
        kept = {n: s for n, s in known.items() if n not in listed and _is_newer(_version(s), resource_version)}
        for name in known.keys() - listed.keys() - (set() if is_latest else kept.keys()):
            self._deleted_uids.append(_uid(known[name]))
        self._slices = {} if is_latest else {**kept, **{n: s for n, s in known.items() if n in listed}}
        for name, wire in listed.items():
            if name in known and _version(known[name]) == _version(wire):
                self._slices[name] = known[name]  # the known object may hold a spec in place of the stored one
            self.changed(wire)
        self.is_complete = True
        return before != {n: _version(s) for n, s in self._slices.items()}

    def changed(self, wire: SliceWire) -> bool:
        """Take over an object that was read, and return whether it differs from the known one."""
        if not is_ours(wire, driver=self._driver, node=self._node) or _uid(wire) in self._deleted_uids:
            return False
        known = self._slices.get(_name(wire))
        if known is not None and _uid(known) == _uid(wire) and not _is_newer(_version(wire), _version(known)):
            return False
        self._slices[_name(wire)] = _without_managed_fields(wire)
        return True

    def deleted(self, wire: SliceWire) -> bool:
        """Record that an object is gone, and return whether it was known."""
        self._deleted_uids.append(_uid(wire))
        known = self._slices.get(_name(wire))
        if known is None or _uid(known) != _uid(wire):
            return False
        del self._slices[_name(wire)]
        return True

    def wrote(self, answer: SliceWire, *, instead: Wire | None = None) -> None:
        """Take over the answer to our own write; `instead` is a spec to remember in place of the stored one.

        An event about a change after our write may have arrived before the answer; the event then wins.
        """
        known = self._slices.get(_name(answer))
        if _uid(answer) in self._deleted_uids:
            return
        if known is not None and _uid(known) == _uid(answer) and _is_newer(_version(known), _version(answer)):
            return
        wire = answer if instead is None else {**answer, "spec": instead}
        self._slices[_name(answer)] = _without_managed_fields(wire)


def _without_managed_fields(wire: SliceWire) -> SliceWire:
    """Return a slice without managedFields, which are large. An update without them does not remove the server's."""
    metadata = {key: value for key, value in wire["metadata"].items() if key != "managedFields"}
    return {**wire, "metadata": metadata}


def _is_newer(version: str, than: str) -> bool:
    """Return whether a resourceVersion is newer than another.

    Versions that can't be compared count as newer, which at worst costs an unnecessary examination.
    """
    if version.isdigit() and than.isdigit():
        return int(version) > int(than)
    return version != than


def _name(wire: SliceWire) -> str:
    return str(wire["metadata"].get("name", ""))


def _uid(wire: SliceWire) -> str:
    return str(wire["metadata"].get("uid", ""))


def _version(wire: SliceWire) -> str:
    return str(wire["metadata"].get("resourceVersion", ""))
