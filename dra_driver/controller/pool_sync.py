"""Pool sync: makes the slices on the server equal to what is offered, and makes fields that the server drops harmless.

In: a planner, the slices that the watch reports, the pace. Out: writes in their order, with their answers recorded.
Only the writing thread uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import Condition

from dra_driver.controller.compare import COUNTER_FIELDS
from dra_driver.controller.content import PoolContent
from dra_driver.controller.diff import WritePlan
from dra_driver.controller.dropped_fields import DroppedFields
from dra_driver.controller.pace import WritePace
from dra_driver.controller.pool_plan import PoolPlanner
from dra_driver.controller.schedule import Schedule
from dra_driver.controller.server_facts import ServerFacts
from dra_driver.controller.watched_slices import WatchedSlices
from dra_driver.controller.writer import SliceWriter
from dra_driver.model.wire import SliceWire


class StoppedError(Exception):
    """The publisher is stopping and must not write any more."""


class NotYetError(Exception):
    """The slices differ from what is offered, but may only be written again after `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds


class _PlanAgainError(Exception):
    """The server can't store what was wanted, so a smaller content has to be planned at once."""


class PoolSync:
    """Writes one pool. `changed` guards what is shared with other threads.

    `asking` is called with that lock held, right before the offers are asked for.
    """

    def __init__(
        self,
        writer: SliceWriter,
        planner: PoolPlanner,
        watched: WatchedSlices,
        dropped: DroppedFields,
        server: ServerFacts,
        *,
        schedule: Schedule,
        pace: WritePace,
        changed: Condition,
        asking: Callable[[], None],
        is_stopping: Callable[[], bool],
    ) -> None:
        self._writer, self._planner, self._watched = writer, planner, watched
        self._dropped_fields, self._server, self._schedule, self._pace = dropped, server, schedule, pace
        self._changed, self._asking, self._is_stopping = changed, asking, is_stopping
        self._content: PoolContent | None = None  # the content of the last plan
        self._must_read = False  # whether our record of what is stored may be wrong

    def run(self, selector: str) -> int:
        """Plan and write until the server holds what is offered, as far as it can; return the number of writes.

        Raises: ApiError, StoppedError, NotYetError.
        """
        while True:
            try:
                return self._write(self._wish(selector), selector)
            except _PlanAgainError:
                continue
            except (StoppedError, NotYetError):
                raise
            except Exception:
                self._must_read = True  # the write that failed may have had an effect
                raise

    def _wish(self, selector: str) -> PoolContent | None:
        """Return what the pool is to hold."""
        with self._changed:
            self._asking()
        self._read_if_needed(selector)
        content = self._planner.content()
        with self._changed:
            if content != self._content:
                self._content = content
                self._dropped_fields.forget_harmless()
        return content

    def _write(self, content: PoolContent | None, selector: str) -> int:
        """Write a content, if the server does not hold it; return the number of writes.

        What another client has changed meanwhile is left to the next run. Raises: as `run`; _PlanAgainError.
        """
        plan = self._plan(content, selector)
        if len(plan):
            self._admit(content, plan)
            self._carry_out(plan)
        is_undone = bool(len(plan)) and len(self._plan(content, selector)) > 0
        with self._changed:
            self._pace.succeeded(content)
            if is_undone:
                self._schedule.disturbed()
        return len(plan)

    def _plan(self, content: PoolContent | None, selector: str) -> WritePlan:
        self._read_if_needed(selector)
        with self._changed:
            if not self._must_read:
                self._schedule.compared()
            stored = self._watched.all()
        if content is None:  # slices that another agent published in the meantime belong to that agent
            stored = tuple(one for one in stored if not self._writer.is_by_other_agent(one))
        return self._planner.plan(content, stored)

    def _read_if_needed(self, selector: str) -> None:
        if self._must_read or self._watched.is_uncertain:
            self._read(selector)

    def _read(self, selector: str) -> None:
        """List what is stored. If an event comes meanwhile, it may be newer than the list, which is then made again."""
        with self._changed:
            events = self._watched.events
        objects, version = self._writer.read_all(selector)
        with self._changed:
            self._must_read = self._watched.events != events
            self._watched.read_again(objects, version)

    def _admit(self, content: PoolContent | None, plan: WritePlan) -> None:
        """Return if a plan may be carried out now. Raises: ApiError, NotYetError."""
        self._writer.admit(plan)
        with self._changed:
            wait_s = self._pace.admit(content)
        if wait_s > 0:
            raise NotYetError(wait_s)

    def _carry_out(self, plan: WritePlan) -> None:
        """Make the writes of a plan, deletions first.

        Raises: ApiError, StoppedError; _PlanAgainError if counters, shares or blocking taints were dropped.
        """
        self._delete(plan.deletes)
        writes = [(wire, self._writer.update) for wire in plan.updates]
        writes += [(wire, self._writer.create) for wire in plan.creates]
        for wire, write in sorted(writes, key=lambda one: not _has_counters_alone(one[0])):
            self._check_running()
            self._record_answer(wire, write(wire))

    def _delete(self, slices: Iterable[SliceWire]) -> None:
        for stored in slices:
            self._check_running()
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
            self._watched.wrote(sent, answer, instead=instead)
            every = sorted(self._watched.all(), key=lambda s: s["metadata"]["uid"] != answer["metadata"]["uid"])
        if unsafe.intersection(COUNTER_FIELDS):
            # Delete all slices, this one first: without counters the scheduler would allocate overlapping devices.
            self._delete(every)
        if unsafe:
            raise _PlanAgainError


def _has_counters_alone(wire: SliceWire) -> bool:
    """Return whether a slice holds only counters. Such slices are written first, so that a loss of counters shows."""
    return bool(wire["spec"].get("sharedCounters")) and not wire["spec"].get("devices")
