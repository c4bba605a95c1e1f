"""Stored: our slices on the API server, as far as they are known here.

In: lists, watch events and answers to our own writes, in any interleaving. Out: the newest state of each slice, and
whether an event told anything new. An event that is older than what we wrote never wins. Versions are compared as
numbers where the server promises that they are (from 1.35 on); where they can't be compared, `is_uncertain` asks for a
new list. Not thread-safe: the owner holds a lock.

Source: KEP-5504, comparable resourceVersions.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from dra_driver.base.errors import ApiError, Retry
from dra_driver.base.wire import SliceWire, Wire
from dra_driver.kube.answers import Changed, Deleted, Listed, memory_of
from dra_driver.node.slices.compare import differing_fields
from dra_driver.node.slices.layout import is_ours, pool_of

# Slice room: how many slices of one node are kept in memory, and how large they may be together.

MAX_SLICES = 1_000
MAX_MEMORY = 32 << 20  # bytes; a slice with 128 devices takes about 2 MiB


def memory_of_slice(wire: SliceWire) -> int:
    """Return about how many bytes of memory a slice takes."""
    return memory_of(json.dumps(wire, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass"))


def check_room(slices: int, memory: int) -> None:
    """Check the number of all slices of a node and their memory together. Raises: ApiError("api.slices-too-large")."""
    if slices > MAX_SLICES or memory > MAX_MEMORY:
        raise ApiError(
            "slices-too-large",
            f"the API server has more than {MAX_SLICES} slices of this driver and node, or they take more than "
            f"{MAX_MEMORY >> 20} MiB of memory: nothing is published until they are gone",
            hint="delete those that this agent did not write: kubectl get resourceslices",
            retry=Retry.LATER,
        )


def check_room_for(wires: Iterable[SliceWire]) -> None:
    """Check these slices, which are all of a node. Raises: ApiError("api.slices-too-large")."""
    count = memory = 0
    for wire in wires:
        count, memory = count + 1, memory + memory_of_slice(wire)
        check_room(count, memory)


_NUMBER = re.compile(r"0|[1-9][0-9]*")
_OVERWRITTEN = 100  # how many versions of a slice that our own writes replaced are remembered
_DELETED_UIDS = 1_000  # how many deleted slices are remembered, so that late events about them are ignored


@dataclass(frozen=True, slots=True)
class _KnownSlice:
    """A slice as the server holds it.

    `is_from_watch`: it was reported in the order of the watch, so any event after it is newer. If it was not,
    `overwritten` are the versions that our last writes replaced: events about them may still come. If the server
    returned something else than we sent last, `sent` and `returned` are these two specs.
    """

    wire: SliceWire
    memory: int
    is_from_watch: bool
    overwritten: tuple[str, ...] = ()
    sent: Wire | None = None
    returned: Wire | None = None

    @property
    def as_wished(self) -> SliceWire:
        """The slice; with the spec that we sent, as long as it holds what the server returned for that."""
        if self.sent is None or self.returned is None or differing_fields(self.returned, self.wire["spec"]):
            return self.wire
        return {**self.wire, "spec": self.sent}


class StoredSlices:
    """The slices of one driver on one node. `is_ordered` returns whether versions are numbers that grow."""

    def __init__(self, *, driver: str, node: str, is_ordered: Callable[[], bool] = lambda: True) -> None:
        self._driver, self._node, self._is_ordered = driver, node, is_ordered
        self._slices: dict[str, _KnownSlice] = {}
        self._deleted_uids: deque[str] = deque(maxlen=_DELETED_UIDS)
        self._listed_at = ""
        self.is_complete = False
        self.is_uncertain = False  # whether only a new list shows what is stored

    def all(self) -> tuple[SliceWire, ...]:
        """Return every slice, in the order of names; with what we sent where the server returned something else."""
        return tuple(self._slices[name].as_wished for name in sorted(self._slices))

    def as_stored(self) -> tuple[SliceWire, ...]:
        """Return every slice as the server holds it."""
        return tuple(slice_.wire for slice_ in self._slices.values())

    def replace(self, objects: Iterable[SliceWire], resource_version: str, *, is_latest: bool = False) -> bool:
        """Take over a list, and return whether it contains changes.

        Slices that this agent wrote after the list was made are kept, unless `is_latest`, which means that no write was
        under way when it was made, and that it was not made by the watch. A list that is older than the last one also
        replaces everything: the server's store was restored to an earlier state.
        """
        is_whole = is_latest or self._is_newer(self._listed_at, resource_version) is True
        self._listed_at, before = resource_version, self._versions()
        listed = {_name(o): o for o in objects if is_ours(o, driver=self._driver, node=self._node)}
        if is_latest:
            self.is_uncertain = False
        for name, known in list(self._slices.items()):
            if name not in listed and (is_whole or not self._is_after(known, resource_version)):
                self.deleted(known.wire)
        for wire in listed.values():
            if not is_whole:
                self.changed(wire)
            elif _uid(wire) not in self._deleted_uids:
                self._take(wire, is_from_watch=not is_latest)
        self.is_complete = True
        return before != self._versions()

    def changed(self, wire: SliceWire) -> bool:
        """Take over an object that the watch reported, and return whether it differs from the known one."""
        if not is_ours(wire, driver=self._driver, node=self._node) or _uid(wire) in self._deleted_uids:
            return False
        known = self._slices.get(_name(wire))
        if known is not None and _uid(known.wire) == _uid(wire):
            if _version(known.wire) == _version(wire):
                self._slices[_name(wire)] = replace(known, is_from_watch=True)
                return False
            if not known.is_from_watch and _version(wire) in known.overwritten:
                return False
            is_newer = self._is_newer(_version(wire), _version(known.wire))
            if is_newer is None and not known.is_from_watch:
                self.is_uncertain = True
                return True
            if is_newer is False:
                return False
        self._take(wire, is_from_watch=True)
        return True

    def deleted(self, wire: SliceWire) -> bool:
        """Record that an object is gone, and return whether it was known."""
        self._deleted_uids.append(_uid(wire))
        known = self._slices.get(_name(wire))
        if known is None or _uid(known.wire) != _uid(wire):
            return False
        del self._slices[_name(wire)]
        return True

    def wrote(self, answer: SliceWire, *, over: str = "", instead: Wire | None = None) -> None:
        """Take over the answer to our own write of a slice that had the version `over` ("" if it was created).

        `instead` is the spec to show in place of the returned one. An event about a change after our write may have
        arrived before the answer; the event then wins.
        """
        if _uid(answer) in self._deleted_uids:
            return
        known, version = self._slices.get(_name(answer)), _version(answer)
        returned = None if instead is None else answer["spec"]
        if known is not None and _uid(known.wire) == _uid(answer) and _version(known.wire) != over:
            is_newer = self._is_newer(_version(known.wire), version)
            self.is_uncertain |= is_newer is None
            if _version(known.wire) == version or is_newer is not False:
                self._slices[_name(answer)] = replace(known, sent=instead, returned=returned)
                return
        overwritten = () if known is None or known.is_from_watch else (*known.overwritten, over)[-_OVERWRITTEN:]
        self._keep(answer, _KnownSlice(answer, 0, False, overwritten, instead, returned))

    def _take(self, wire: SliceWire, *, is_from_watch: bool) -> None:
        known = self._slices.get(_name(wire))
        if known is not None and _uid(known.wire) == _uid(wire):
            self._keep(wire, replace(known, is_from_watch=is_from_watch))
        else:
            self._keep(wire, _KnownSlice(wire, 0, is_from_watch))

    def _keep(self, wire: SliceWire, known: _KnownSlice) -> None:
        """Keep what is known of a slice, with this state. Raises: ApiError("api.slices-too-large")."""
        trimmed, others = _trimmed(wire), [one.memory for name, one in self._slices.items() if name != _name(wire)]
        memory = memory_of_slice(trimmed)
        check_room(len(others) + 1, sum(others) + memory)
        self._slices[_name(wire)] = replace(known, wire=trimmed, memory=memory)

    def _is_after(self, known: _KnownSlice, resource_version: str) -> bool:
        """Return whether a slice that the watch's list lacks may have been written after the list was made."""
        if known.is_from_watch:
            return False
        is_newer = self._is_newer(_version(known.wire), resource_version)
        self.is_uncertain |= is_newer is None
        return is_newer is not False

    def _is_newer(self, version: str, than: str) -> bool | None:
        """Return whether a resourceVersion is newer than another; None if they can't be compared."""
        if version == than:
            return False
        if not self._is_ordered() or not _NUMBER.fullmatch(version) or not _NUMBER.fullmatch(than):
            return None
        return (len(version), version) > (len(than), than)

    def _versions(self) -> dict[str, str]:
        return {name: _version(known.wire) for name, known in self._slices.items()}


def _trimmed(wire: SliceWire) -> SliceWire:
    """Return a slice without managedFields, which are large. An update without them does not remove the server's."""
    metadata = {key: value for key, value in wire["metadata"].items() if key != "managedFields"}
    return {**wire, "metadata": metadata}


def _name(wire: SliceWire) -> str:
    return str(wire["metadata"].get("name", ""))


def _uid(wire: SliceWire) -> str:
    return str(wire["metadata"].get("uid", ""))


def _version(wire: SliceWire) -> str:
    return str(wire["metadata"].get("resourceVersion", ""))


# Watched slices: the slices of this node as the watch and the answers to our own writes report them.


class WatchedSlices:
    """The slices of one driver on one node. `is_ordered` returns whether their versions are numbers that grow."""

    def __init__(self, *, driver: str, node: str, pool: str, is_ordered: Callable[[], bool]) -> None:
        self._driver, self._node, self._pool, self._is_ordered = driver, node, pool, is_ordered
        self.forget()

    def forget(self) -> None:
        """Forget everything, because the watch starts over."""
        self._stored = StoredSlices(driver=self._driver, node=self._node, is_ordered=self._is_ordered)
        self._listed: list[SliceWire] = []  # the pages so far of a list that is not complete yet
        self.events = 0  # how many events have come

    @property
    def is_complete(self) -> bool:
        """Whether a complete list has been read; before that, nothing may be written."""
        return self._stored.is_complete

    @property
    def is_uncertain(self) -> bool:
        """Whether only a new list shows what is stored."""
        return self._stored.is_uncertain

    def all(self) -> tuple[SliceWire, ...]:
        """Return every slice of this driver on this node, in the order of names.

        A slice that holds what the server returned for our last write has the spec that was sent.
        """
        return self._stored.all()

    def own(self) -> tuple[SliceWire, ...]:
        """Return the slices of our pool as the server holds them."""
        return tuple(one for one in self._stored.as_stored() if pool_of(one) == self._pool)

    def record(self, event: Listed | Changed | Deleted) -> bool:
        """Record one event, and return whether it changed what was known; the first list changes nothing.

        Raises: ApiError("api.slices-too-large"); then everything has to be listed again.
        """
        was_complete = self._stored.is_complete
        self.events += 1
        if isinstance(event, Listed):
            ours = (wire for wire in event.objects if is_ours(wire, driver=self._driver, node=self._node))
            self._listed = [*([] if event.is_first else self._listed), *ours]
            check_room_for(self._listed)
            if not event.is_last:
                return False
            objects, self._listed = self._listed, []
            is_change = self._stored.replace(objects, event.resource_version)
        elif isinstance(event, Changed):
            is_change = self._stored.changed(event.wire)
        else:
            is_change = self._stored.deleted(event.wire)
        return was_complete and is_change

    def deleted(self, stored: SliceWire) -> None:
        """Record that we deleted a slice."""
        self._stored.deleted(stored)

    def wrote(self, sent: SliceWire, answer: SliceWire, *, instead: Wire | None) -> None:
        """Take over the answer to a write of ours; `instead` is a spec to remember in place of the stored one."""
        self._stored.wrote(answer, over=str(sent["metadata"].get("resourceVersion", "")), instead=instead)

    def read_again(self, objects: list[SliceWire], resource_version: str) -> None:
        """Take over a list that was made while no write of ours was under way."""
        self._stored.replace(objects, resource_version, is_latest=True)
