"""Watched slices: the slices of this node as the watch and the answers to our own writes report them.

In: events of the watch, answers, lists. Out: the stored slices, and whether an event told anything new.
Not thread-safe: the owner holds a lock.
"""

from __future__ import annotations

from collections.abc import Callable

from dra_driver.controller.diff import is_ours, pool_of
from dra_driver.controller.slice_room import check_room_for
from dra_driver.controller.stored import StoredSlices
from dra_driver.kube.watch_events import Changed, Deleted, Listed
from dra_driver.model.wire import SliceWire, Wire


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
            ours = (one for one in event.objects if is_ours(one, driver=self._driver, node=self._node))
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
