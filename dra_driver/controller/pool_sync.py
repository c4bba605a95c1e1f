"""Pool sync: makes the slices on the server equal to what is offered, and makes fields that the server drops harmless.

In: a planner, the slices that the watch reports. Out: writes in their order, with their answers recorded. `run` belongs
to the writing thread; the other methods may be called by any thread that holds the lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import Condition

from dra_driver.controller.compare import COUNTER_FIELDS
from dra_driver.controller.content import PoolContent
from dra_driver.controller.diff import WritePlan
from dra_driver.controller.dropped_fields import DroppedFields
from dra_driver.controller.pool_plan import PoolPlanner
from dra_driver.controller.server_facts import ServerFacts
from dra_driver.controller.watched_slices import WatchedSlices
from dra_driver.controller.writer import SliceWriter
from dra_driver.model.wire import SliceWire

_NOTHING_TO_WRITE = WritePlan(0)


class StoppedError(Exception):
    """The publisher is stopping and must not write any more."""


class _PlanAgainError(Exception):
    """The server can't store what was wanted, so a smaller content has to be planned at once."""


class PoolSync:
    """Writes one pool. `changed` guards the watched slices, the dropped fields, and what is known of the server."""

    def __init__(
        self,
        writer: SliceWriter,
        planner: PoolPlanner,
        watched: WatchedSlices,
        dropped: DroppedFields,
        server: ServerFacts,
        *,
        changed: Condition,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._writer, self._planner, self._watched = writer, planner, watched
        self._dropped_fields, self._server, self._changed, self._is_stopping = dropped, server, changed, is_stopping
        self._content: PoolContent | None = None  # the content of the last plan
        self._must_compare = True  # whether what is stored may differ from it
        self._must_read = False  # whether our record of what is stored may be wrong

    def compare_again(self) -> None:
        """Compare what is stored with what is offered the next time, even if the offers stay the same."""
        self._must_compare = True

    def read_again(self) -> None:
        """Read the stored slices again before the next comparison, because a write failed."""
        self._must_compare = self._must_read = True

    def settled(self) -> None:
        """Record that nothing happened since the last run that would need another comparison."""
        self._must_compare = False

    def run(self, selector: str) -> WritePlan:
        """Plan and write until the server holds what is offered, as far as it can; return the last plan.

        Raises: ApiError, StoppedError.
        """
        while True:
            if self._must_read:
                objects, version = self._writer.read_all(selector)
                with self._changed:
                    self._watched.read_again(objects, version)
                    self._must_read = False
            plan = self._plan()
            try:
                self._carry_out(plan)
            except _PlanAgainError:
                continue
            return plan

    def _plan(self) -> WritePlan:
        content = self._planner.content()
        with self._changed:
            if content != self._content:
                self._content, self._must_compare = content, True
                self._dropped_fields.forget_harmless()
            if not self._must_compare:
                return _NOTHING_TO_WRITE
            stored = self._watched.all()
        if content is None:  # slices that another agent published in the meantime belong to that agent
            stored = tuple(one for one in stored if not self._writer.is_by_other_agent(one))
        return self._planner.plan(content, stored)

    def _carry_out(self, plan: WritePlan) -> None:
        """Make the writes of a plan, deletions first.

        Raises: ApiError, StoppedError; _PlanAgainError if counters, shares or blocking taints were dropped.
        """
        self._writer.admit(plan)
        with self._changed:
            self._watched.begin_writing()
        try:
            self._delete(plan.deletes)
            writes = [(wire, self._writer.update) for wire in plan.updates]
            writes += [(wire, self._writer.create) for wire in plan.creates]
            for wire, write in sorted(writes, key=lambda one: not _has_counters_alone(one[0])):
                self._check_running()
                self._record_answer(wire, write(wire))
        finally:
            with self._changed:
                self._watched.end_writing()

    def _delete(self, slices: Iterable[SliceWire]) -> None:
        for stored in slices:
            self._check_running()
            with self._changed:
                self._watched.deleting(stored)
            self._writer.delete(stored)
            with self._changed:
                self._watched.deleted(stored)

    def _check_running(self) -> None:
        if self._is_stopping():
            raise StoppedError

    def _record_answer(self, sent: SliceWire, answer: SliceWire) -> None:
        """Record what the server stored; if it dropped fields, make sure that no published devices overlap."""
        with self._changed:
            instead, unsafe = self._dropped_fields.record(sent, answer, version=self._server.git_version)
            self._watched.wrote(answer, instead=instead)
            every = sorted(self._watched.all(), key=lambda s: s["metadata"]["uid"] != answer["metadata"]["uid"])
        if unsafe.intersection(COUNTER_FIELDS):
            # Delete all slices, this one first: without counters the scheduler would allocate overlapping devices.
            self._delete(every)
        if unsafe:
            raise _PlanAgainError


def _has_counters_alone(wire: SliceWire) -> bool:
    """Return whether a slice holds only counters. Such slices are written first, so that a loss of counters shows."""
    return bool(wire["spec"].get("sharedCounters")) and not wire["spec"].get("devices")
