"""Watched slices: the slices of this node as the watch reports them, with the echoes of our own writes told apart.

In: events of the watch, and our own writes. Out: the stored slices, and whether another client changed something.
Not thread-safe: the owner holds a lock.
"""

from __future__ import annotations

from collections.abc import Callable

from dra_driver.controller.diff import pool_of
from dra_driver.controller.stored import StoredSlices
from dra_driver.kube.watch_events import Changed, Deleted, Listed
from dra_driver.model.wire import SliceWire, Wire


class WatchedSlices:
    """The slices of one driver on one node.

    `disturbed` is called when another client changed a known slice; its argument is whether a slice may be gone.
    """

    def __init__(self, *, driver: str, node: str, pool: str, disturbed: Callable[[bool], None]) -> None:
        self._driver, self._node, self._pool, self._disturbed = driver, node, pool, disturbed
        self.forget()

    def forget(self) -> None:
        """Forget everything, because the watch starts over."""
        self._stored = StoredSlices(driver=self._driver, node=self._node)
        self._is_writing = False
        # Slices that changed while we were writing, perhaps by our own write: name -> resourceVersion.
        self._echoes: dict[str, str] = {}
        self._deleted: set[str] = set()  # UIDs of slices that we delete ourselves
        self._listed: list[SliceWire] = []  # the pages so far of a list that is not complete yet

    @property
    def is_complete(self) -> bool:
        """Whether a complete list has been read; before that, nothing may be written."""
        return self._stored.is_complete

    def all(self) -> tuple[SliceWire, ...]:
        """Return every slice of this driver on this node, in the order of names."""
        return self._stored.all()

    def own(self) -> tuple[SliceWire, ...]:
        """Return the slices of our pool, in the order of names."""
        return tuple(one for one in self._stored.all() if pool_of(one) == self._pool)

    def record(self, event: Listed | Changed | Deleted) -> None:
        """Record one event."""
        was_complete = self._stored.is_complete
        if isinstance(event, Listed):
            self._listed = [*([] if event.is_first else self._listed), *event.objects]
            if not event.is_last:
                return
            objects, self._listed = self._listed, []
            is_change = self._stored.replace(objects, event.resource_version)
        elif isinstance(event, Changed):
            is_change = self._stored.changed(event.wire)
        else:
            is_change = self._stored.deleted(event.wire)
        if is_change and self._is_writing and isinstance(event, Changed):
            self._echoes[event.wire["metadata"]["name"]] = event.wire["metadata"]["resourceVersion"]
        elif isinstance(event, Deleted) and event.wire["metadata"].get("uid") in self._deleted:
            self._deleted.discard(event.wire["metadata"]["uid"])
        elif was_complete and is_change:
            self._disturbed(isinstance(event, Deleted | Listed))

    def begin_writing(self) -> None:
        """Treat reported changes as possible echoes of our own writes from now on."""
        self._is_writing = True

    def end_writing(self) -> None:
        """Stop treating changes as echoes; those that none of our writes explains were made by another client."""
        self._is_writing = False
        if self._echoes:
            self._echoes.clear()
            self._disturbed(False)

    def deleting(self, stored: SliceWire) -> None:
        """Record that we are about to delete a slice."""
        self._deleted.add(stored["metadata"]["uid"])

    def deleted(self, stored: SliceWire) -> None:
        """Record that we deleted a slice."""
        self._stored.deleted(stored)

    def wrote(self, answer: SliceWire, *, instead: Wire | None) -> None:
        """Take over the answer to a write of ours; `instead` is a spec to remember in place of the stored one."""
        self._stored.wrote(answer, instead=instead)
        metadata = answer["metadata"]
        if self._echoes.get(metadata["name"]) == metadata["resourceVersion"]:
            del self._echoes[metadata["name"]]

    def read_again(self, objects: list[SliceWire], resource_version: str) -> None:
        """Take over a list that was made while no write of ours was under way."""
        self._stored.replace(objects, resource_version, is_latest=True)
