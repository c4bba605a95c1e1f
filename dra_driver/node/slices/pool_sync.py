"""Pool sync: makes the slices on the server equal to what is offered, and makes fields that the server drops harmless.

In: a planner, the slices that the watch reports, the pace. Out: writes in their order, with their answers recorded.
Only the writing thread uses it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from threading import Condition
from typing import Protocol

from dra_driver.base.errors import ApiError, Retry
from dra_driver.base.machine import Backoff
from dra_driver.base.wire import SliceWire
from dra_driver.node.devices.offering import KeptFields, Offering
from dra_driver.node.slices.compare import COUNTER_FIELDS, DroppedFields, PoolContent, content_of, find_faults
from dra_driver.node.slices.layout import SliceSpec, WritePlan, generation_of, keys_of, lay_out, plan_writes, pool_of
from dra_driver.node.slices.server_facts import Probe, ServerFacts
from dra_driver.node.slices.watched_slices import WatchedSlices
from dra_driver.node.slices.writer import SliceWriter

# Pace: when the slices may be written, so that neither a refusing server nor another client gets an endless stream.

SPREAD_SECONDS = 60.0  # over how many seconds the agents of a cluster spread what they ask of a restarted API server
REFUSED_MAX_SECONDS = 600.0
BURST = 3
REPAIR_SECONDS = 64.0  # with the burst, an hour then has at most 60 repairs
_REFUSED_STEADY = 0.8  # the least part of the longest delay: an hour then has at most 12 attempts that are refused
_TRANSIENT = (404, 408, 409, 410, 429)  # the statuses below 500 that say nothing against the object that was sent


@dataclass(frozen=True, slots=True)
class WriteTimes:
    """The times by which slices are written, in seconds.

    `settle_s` is how much quiet to wait for after another client's change, and `spread_s` over how much time the
    requests to an API server that was away are spread.
    """

    settle_s: float = 0.25
    spread_s: float = SPREAD_SECONDS
    clock: Callable[[], float] = time.monotonic
    uniform: Callable[[float, float], float] = random.uniform


WRITE_TIMES = WriteTimes()


class RepairTokens:
    """Holds at most `burst` tokens, and gets another one every `every_s` seconds."""

    def __init__(self, burst: int, every_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._burst, self._every_s, self._clock = burst, every_s, clock
        self._full_at = float("-inf")  # when the bucket will be full

    def take(self) -> float:
        """Take a token and return 0; if there is none, return the seconds until there is."""
        now = self._clock()
        missing_s = max(0.0, self._full_at - now)
        if (wait_s := missing_s - (self._burst - 1) * self._every_s) > 0:
            return wait_s
        self._full_at = now + missing_s + self._every_s
        return 0.0


class WritePace:
    """Decides when the next attempt to write one pool may be made. `clock` returns seconds."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        uniform: Callable[[float, float], float] = random.uniform,
        spread_s: float = SPREAD_SECONDS,
    ) -> None:
        def steady(low: float, step: float) -> float:
            return uniform(_REFUSED_STEADY * step if step >= REFUSED_MAX_SECONDS else low, step)

        self._clock = clock
        self._transient = Backoff(base_s=0.1, max_s=spread_s, factor=4.0, uniform=uniform)
        self._refused = Backoff(base_s=2.0, max_s=REFUSED_MAX_SECONDS, factor=8.0, uniform=steady)
        self._repairs = RepairTokens(BURST, REPAIR_SECONDS, clock=clock)
        self._wish: tuple[PoolContent | None] | None = None  # None before the first attempt
        self._is_done = False
        self._retry_at = float("-inf")

    @property
    def attempts(self) -> int:
        """The number of failed attempts since the last success."""
        return self._transient.attempts + self._refused.attempts

    @property
    def retry_s(self) -> float:
        """The seconds until a failed attempt may be repeated; 0 if none waits."""
        return max(0.0, self._retry_at - self._clock())

    def restart(self) -> None:
        """Forget the last wish, because this agent begins to publish again."""
        self._wish = None

    def admit(self, wish: PoolContent | None) -> float:
        """Return 0 if the slices may be written now so that they hold `wish`, otherwise the seconds to wait."""
        if self._wish != (wish,):
            self._wish, self._is_done, self._retry_at = (wish,), False, float("-inf")
            self._reset()
        if not self._is_done:
            return self.retry_s
        wait_s = self._repairs.take()
        self._is_done = wait_s > 0
        return wait_s

    def failed(self, error: ApiError) -> float | None:
        """Record that an attempt failed; return the delay before the next one, or None if only a change can help."""
        if error.retry is Retry.NEVER and not error.status:  # nothing was sent
            return None
        backoff = self._refused if is_refusal(error) else self._transient
        delay_s = backoff.next_s(least_s=error.retry_after_s)
        self._is_done, self._retry_at = False, self._clock() + delay_s
        return delay_s

    def succeeded(self, wish: PoolContent | None) -> None:
        """Record that the slices hold a wish."""
        self._wish, self._is_done = (wish,), True
        self._reset()

    def _reset(self) -> None:
        self._transient.reset()
        self._refused.reset()


def is_refusal(error: ApiError) -> bool:
    """Return whether the server, a webhook or a policy did not accept what was sent, or who sent it."""
    return 400 <= error.status < 500 and error.status not in _TRANSIENT


# Pool plan: the writes that make the slices on the API server equal to what is offered now.


class Offers(Protocol):
    """Decides what a node offers."""

    def current(self, keeps: KeptFields) -> Offering | None:
        """Return what to offer now to a server that keeps these fields; None withdraws the pool.

        Raises: ApiError while that can't be decided; then nothing is written.
        """


class PoolPlanner:
    """Plans the writes of one pool."""

    def __init__(self, empty: SliceSpec, offers: Offers, server: ServerFacts, probe: Probe, state: PoolState) -> None:
        self._empty, self._offers, self._server, self._probe = empty, offers, server, probe
        self._dropped_fields, self._changed = state.dropped, state.changed
        self._highest_generation = 0

    def content(self) -> PoolContent | None:
        """Return the content that the pool is to have on this server; None if it is to have no slices.

        The server is first asked which fields of that content it keeps. Raises: ApiError.
        """
        minor = self._server.minor()
        with self._changed:
            if self._server.is_changed():
                self._dropped_fields.forget()
                self._probe.forget()
            known = self._dropped_fields.fields
            if self._dropped_fields.taints_are_due:
                self._probe.forget_taints()
                self._dropped_fields.forget_taints()
            self._dropped_fields.forget_fields(self._probe.expired())
        while True:
            with self._changed:
                kept = self._dropped_fields.kept
            offering = self._offers.current(kept)
            if offering is None:
                return None
            content = content_of(offering, server_minor=minor)
            found = self._probe.ask(content, self._empty, minor=minor, known=known)
            with self._changed:
                self._dropped_fields.add(found)
                if self._dropped_fields.kept == kept:
                    return content

    def plan(self, content: PoolContent | None, stored: Sequence[SliceWire]) -> WritePlan:
        """Return the writes that lead from the stored slices to this content. Raises: ApiError."""
        own = tuple(one for one in stored if pool_of(one) == self._empty.pool)
        if content is None:
            return WritePlan(self._highest_generation, deletes=own)
        owner, minor = self._server.owner(), self._server.minor()
        if faults := find_faults(content, server_minor=minor):
            raise ApiError("pool-invalid", f"pool {self._empty.pool} can't be published: {'; '.join(faults)}")
        current = max(map(generation_of, own), default=0)
        specs = lay_out(
            content.devices,
            pool=self._empty.pool,
            node=self._empty.node,
            driver=self._empty.driver,
            server_minor=minor,
            counter_sets=content.counter_sets,
            placement=[keys_of(s) for s in own if generation_of(s) == current],
        )
        plan = plan_writes(specs, stored, owner=owner, least_generation=self._highest_generation + 1)
        self._highest_generation = max(self._highest_generation, plan.generation)
        return plan


# Schedule: when the slices have to be examined next.

_MAX_SETTLE = 2.0  # the longest wait after the first of many changes


class Schedule:
    """Due times on a monotonic clock, in seconds."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, settle_s: float = WRITE_TIMES.settle_s) -> None:
        self._clock, self._settle_s = clock, settle_s
        self._work_at: float | None = None
        self._answer_at: float | None = None
        self._answer_latest = 0.0

    @property
    def is_disturbed(self) -> bool:
        """Whether a change by another client has still to be examined."""
        return self._answer_at is not None

    def at_once(self) -> None:
        """Schedule an examination now."""
        self.within(0.0)

    def within(self, seconds: float) -> None:
        """Schedule an examination after these seconds, unless an earlier one is scheduled."""
        at = self._clock() + seconds
        self._work_at = at if self._work_at is None else min(at, self._work_at)

    def disturbed(self) -> None:
        """Schedule an examination after a quiet time, because another client may have changed something."""
        now = self._clock()
        if self._answer_at is None:
            self._answer_latest = now + _MAX_SETTLE
        self._answer_at = min(now + self._settle_s, self._answer_latest)

    def wait_s(self) -> float | None:
        """Return the seconds until an examination is due; 0 if it is due now, None if none is scheduled."""
        due = [at for at in (self._work_at, self._answer_at) if at is not None]
        return max(0.0, min(due) - self._clock()) if due else None

    def begin(self) -> None:
        """Record that an examination begins now."""
        self._work_at = self._answer_at = None

    def compared(self) -> None:
        """Record that the slices are compared with what is wanted now, after all changes that were reported so far."""
        self._answer_at = None


class StoppedError(Exception):
    """The publisher is stopping and must not write any more."""


class NotYetError(Exception):
    """The slices differ from what is offered, but may only be written again after `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds


class _PlanAgainError(Exception):
    """The server can't store what was wanted, so a smaller content has to be planned at once."""


@dataclass(frozen=True, slots=True)
class PoolState:
    """What the threads of a publisher share about one pool; `changed` guards the rest, and is notified of changes."""

    changed: Condition
    schedule: Schedule
    pace: WritePace
    watched: WatchedSlices
    dropped: DroppedFields


class PoolSync:
    """Writes one pool. `asking` is called with the state's lock held, right before the offers are asked for."""

    def __init__(
        self,
        writer: SliceWriter,
        planner: PoolPlanner,
        server: ServerFacts,
        state: PoolState,
        *,
        asking: Callable[[], None],
        is_stopping: Callable[[], bool],
    ) -> None:
        self._writer, self._planner, self._server = writer, planner, server
        self._changed, self._watched, self._dropped_fields = state.changed, state.watched, state.dropped
        self._schedule, self._pace, self._asking, self._is_stopping = state.schedule, state.pace, asking, is_stopping
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
