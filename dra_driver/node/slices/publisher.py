"""Publisher: keeps this node's ResourceSlices equal to what the node offers.

In: offers, asked for right before each write. Out: the fewest writes that bring the API server to that state. Two
threads: one follows the server's slices, the other plans and writes. No write is periodic: the slices are examined when
the offers have changed, when another client has changed our slices (the kubelet deletes them when it starts), after a
failure, and when the watch reconnects. How often they may be written is decided by the pace. Stopping deletes nothing:
the next instance adopts the slices that it finds.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from threading import Condition

from dra_driver.base.errors import ApiError, Retry
from dra_driver.base.machine import Backoff
from dra_driver.base.names import pool_name
from dra_driver.base.telemetry.logs import PartThread, fields
from dra_driver.hardware.facts import Problem
from dra_driver.kube.answers import Connected, Deleted, Event, Listed, check_slice
from dra_driver.kube.api import KubeApi, NodeEvents
from dra_driver.kube.paths import SLICES
from dra_driver.kube.watch import Watch
from dra_driver.node.devices.offering import ALL_KEPT, KeptFields
from dra_driver.node.slices.compare import DroppedFields
from dra_driver.node.slices.layout import SliceSpec, generation_of
from dra_driver.node.slices.pool_sync import (
    WRITE_TIMES,
    NotYetError,
    Offers,
    PoolPlanner,
    PoolState,
    PoolSync,
    Schedule,
    StoppedError,
    WritePace,
    WriteTimes,
    is_refusal,
)
from dra_driver.node.slices.server_facts import Probe, ServerFacts, held_fields
from dra_driver.node.slices.watched_slices import WatchedSlices
from dra_driver.node.slices.writer import AgentMark, CompetingAgents, SliceWriter

# Publication: the attempts to publish one pool, and what is known of their success.

log = logging.getLogger(__name__)

EVENT_QUIET_SECONDS = 3600.0


class Publication:
    """The state of publishing a pool. `attempt` belongs to the writing thread, and is called without the lock."""

    def __init__(
        self, pool: str, schedule: Schedule, pace: WritePace, events: RefusalEvents, *, changed: Condition
    ) -> None:
        self._pool, self._schedule, self._pace, self._events, self._changed = pool, schedule, pace, events, changed
        # How often the offers changed, and up to which change they were asked for, and are published.
        self._wanted, self._asked, self._done = 0, 0, 0
        self._is_published = False
        self.fault: ApiError | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether anything was offered yet."""
        return self._wanted > 0

    @property
    def is_published(self) -> bool:
        """Whether the server holds what was offered at the last attempt."""
        return self._is_published

    @property
    def is_current(self) -> bool:
        """Whether the server holds what was offered last."""
        return self._is_published and self._done == self._wanted

    def start(self) -> None:
        """Begin anew: compare what is stored with what is offered."""
        self._is_published, self.fault = False, None
        self._pace.restart()
        self._schedule.begin()
        self._schedule.at_once()

    def want(self) -> None:
        """Record that the offers may have changed."""
        self._wanted += 1
        self._schedule.at_once()

    def asking(self) -> None:
        """Record that the offers are asked for now."""
        self._schedule.begin()
        self._asked = self._wanted

    def disturbed(self) -> None:
        """Record that slices changed."""
        self._is_published = False
        self._schedule.disturbed()

    def due_s(self, questions: list[float]) -> float | None:
        """Return the seconds until the next attempt; None if none is due.

        `questions`: the seconds until the server is to be asked about something again; after a failure these wait.
        """
        work_s = self._schedule.wait_s()
        due = [max(at, self._pace.retry_s) for at in questions] + ([] if work_s is None else [work_s])
        return min(due, default=None)

    def attempt(self, run: Callable[[], int], figures: Callable[[], Mapping[str, str | int]]) -> bool:
        """Make an attempt, which returns the number of its writes; return False if the publisher is stopping.

        `figures` returns what the log line about a success says of the pool.
        """
        started = time.monotonic()
        try:
            writes = run()
        except StoppedError:
            return False
        except NotYetError as not_yet:
            self._postponed(not_yet.seconds)
        except ApiError as err:
            self._failed(err)
        except Exception as err:
            log.exception("publishing failed", extra=fields(pool=self._pool))
            self._failed(ApiError("bug", f"publishing failed: {err!r}", retry=Retry.LATER))
        else:
            self._succeeded()
            keys = fields(**figures(), count=writes, took_ms=round((time.monotonic() - started) * 1000))
            log.log(logging.INFO if writes else logging.DEBUG, "slices published", extra=keys)
        return True

    def _postponed(self, seconds: float) -> None:
        with self._changed:
            self._is_published = False
            # Without a failed attempt that waits for its time, another client has undone what was written.
            self.fault = fault = self.fault or _overwritten(self._pool, seconds)
            self._schedule.within(seconds)
            self._changed.notify_all()
        keys = fields(pool=self._pool, code=fault.code, err=str(fault), seconds=round(seconds))
        log.info("slices differ, and are written later", extra=keys)

    def _failed(self, err: ApiError) -> None:
        with self._changed:
            self.fault, self._is_published = err, False
            delay = self._pace.failed(err)
            if delay is not None:
                self._schedule.within(delay)
            attempt = self._pace.attempts
            self._changed.notify_all()
        keys = fields(pool=self._pool, code=err.code, err=err.message, hint=err.hint, attempt=attempt)
        log.log(logging.INFO if err.status in (404, 409) else logging.WARNING, "slices not published", extra=keys)
        self._events.report(err)

    def _succeeded(self) -> None:
        with self._changed:
            self.fault, self._done = None, self._asked
            self._is_published = self._asked == self._wanted and not self._schedule.is_disturbed
            self._changed.notify_all()


class RefusalEvents:
    """Sends at most one Event an hour about the node for each cause (the error's code) why its slices are refused."""

    def __init__(self, events: NodeEvents, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._events, self._clock = events, clock
        self._sent_at: dict[str, float] = {}

    def report(self, error: ApiError) -> None:
        """Send an Event about a refusal, unless one with the same cause was sent within an hour."""
        now = self._clock()
        if not is_refusal(error) or now - self._sent_at.get(error.code, float("-inf")) < EVENT_QUIET_SECONDS:
            return
        self._sent_at[error.code] = now
        # The reason has the cause in it, because Events of one reason are held back for some time.
        cause = "".join(word.capitalize() for word in error.code.removeprefix("api.").split("-"))
        self._events.send(f"SlicesRefused{cause}", f"devices not published, tried again later: {error}", "Warning")


def _overwritten(pool: str, seconds: float) -> ApiError:
    return ApiError(
        "overwritten",
        f"another client keeps changing the slices of pool {pool}; they are written again in {seconds:.0f} s",
        hint="find it with: kubectl get resourceslices -o yaml --show-managed-fields",
        retry=Retry.LATER,
    )


# Status: the state of publishing, for readiness, metrics and people.


@dataclass(frozen=True, slots=True)
class PublisherStatus:
    """The state of publishing. `slices`, `devices` and `generation` are what the API server holds of our pool.

    `is_published`: whether this is what was offered last. `keeps`: which fields the server has not been seen to drop;
    if it drops one, a substitute is offered. `dropped`: the fields that it did not keep. `writes`: how many writes it
    has accepted since the process started, by verb.
    """

    pool: str
    is_published: bool = False
    generation: int = 0
    slices: int = 0
    devices: int = 0
    keeps: KeptFields = ALL_KEPT
    server: str = ""
    last_error: str = ""
    dropped: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    writes: Mapping[str, int] = field(default_factory=dict)

    def figures(self) -> Mapping[str, str | int]:
        """Return the figures of the pool for a log line."""
        return {"pool": self.pool, "generation": self.generation, "slices": self.slices, "devices": self.devices}


STOP_SECONDS = 5.0


class Publisher:
    """Publishes one pool, `<node>/<driver>`. All methods may be called from any thread.

    `offers` decides what the pool holds; the writing thread asks it. With `mark`, the mark of this agent, another agent
    that publishes the same pool is recognized.
    """

    def __init__(
        self,
        api: KubeApi,
        *,
        node: str,
        driver: str,
        offers: Offers,
        mark: AgentMark | None = None,
        times: WriteTimes = WRITE_TIMES,
    ) -> None:
        self._api, self._node, self._driver = api, node, driver
        self._times, clock = times, times.clock
        self._pool = pool_name(node, driver)
        self._selector = f"spec.nodeName={node},spec.driver={driver}"
        self._writer = SliceWriter(api, CompetingAgents(mark, driver=driver) if mark else None)
        self._server = ServerFacts(api, node, clock=clock)
        self._probe = Probe(self._writer, held=self._held_fields, clock=clock)  # used by the writing thread only
        self._changed = threading.Condition()
        # The following are guarded by _changed.
        self._schedule = Schedule(clock=clock, settle_s=times.settle_s)
        self._pace = WritePace(clock=clock, uniform=times.uniform, spread_s=times.spread_s)
        events = RefusalEvents(NodeEvents(api, node=node, driver=driver), clock=clock)
        self._publication = Publication(self._pool, self._schedule, self._pace, events, changed=self._changed)
        self._watched = WatchedSlices(
            driver=driver, node=node, pool=self._pool, is_ordered=lambda: self._server.orders_versions
        )
        self._dropped_fields = DroppedFields(self._pool, clock=clock)
        self._watch: Watch | None = None
        self._threads: list[PartThread] = []
        self._is_stopping = False
        self._sync = self._pool_sync(offers)

    def _pool_sync(self, offers: Offers) -> PoolSync:
        empty = SliceSpec(self._driver, self._node, self._pool)
        state = PoolState(self._changed, self._schedule, self._pace, self._watched, self._dropped_fields)
        return PoolSync(
            self._writer,
            PoolPlanner(empty, offers, self._server, self._probe, state),
            self._server,
            state,
            asking=self._publication.asking,
            is_stopping=lambda: self._is_stopping,
        )

    # -- called by others ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start to follow the API server; nothing is written before the first `publish_changes`.

        Do nothing if the publisher is running already. Raises: NodeError("node.thread").
        """
        with self._changed:
            if self._threads:
                return
            self._is_stopping = False
            self._probe.forget()
            self._dropped_fields.forget()
            self._watched.forget()
            self._publication.start()
            self._watch = self._new_watch()
            observe = partial(self._observe, self._watch)
            for thread in (PartThread("slice-watch", observe), PartThread("publisher", self._run)):
                thread.start()
                self._threads.append(thread)

    def _new_watch(self) -> Watch:
        # After an isolated fault the watch is back within moments, after an outage at any moment of the spread.
        backoff = Backoff(base_s=0.5, max_s=self._times.spread_s, factor=8.0, uniform=self._times.uniform)
        return Watch(self._api, SLICES, field_selector=self._selector, check=check_slice, backoff=backoff)

    def publish_changes(self) -> None:
        """Publish what has changed in the offers; return before it is written.

        If the offers are the same as before, nothing is written. A pool without devices is one empty slice. `status`
        reports what went wrong.
        """
        with self._changed:
            self._publication.want()
            self._changed.notify_all()

    def stop(self, timeout_s: float = STOP_SECONDS) -> None:
        """Stop both threads, waiting up to `timeout_s` seconds for a write under way. The slices stay as they are."""
        with self._changed:
            self._is_stopping = True
            watch, threads = self._watch, self._threads
            self._changed.notify_all()
        if watch is not None:
            watch.stop()
        deadline = time.monotonic() + timeout_s
        for thread in threads:
            thread.release()
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in threads):
            log.warning("a request is still under way", extra=fields(pool=self._pool, seconds=timeout_s))
        with self._changed:
            self._threads = []

    def wait_published(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds until the API server holds what was offered last; return whether it does."""
        with self._changed:
            return self._changed.wait_for(lambda: self._publication.is_current, timeout)

    def status(self) -> PublisherStatus:
        """Return the state of publishing."""
        with self._changed:
            slices = self._watched.own()
            fault = self._publication.fault or (self._watch.fault if self._watch else None)
            problems = (Problem(fault.code, self._pool, str(fault)),) if fault else ()
            return PublisherStatus(
                pool=self._pool,
                is_published=self._publication.is_published,
                generation=max(map(generation_of, slices), default=0),
                slices=len(slices),
                devices=sum(len(s["spec"].get("devices") or ()) for s in slices),
                keeps=self._dropped_fields.kept,
                server=self._server.git_version,
                last_error=str(fault) if fault else "",
                dropped=tuple(sorted(self._dropped_fields.fields)),
                problems=problems + self._dropped_fields.problems(),
                writes=dict(self._writer.counts),
            )

    # -- the thread that follows the server ---------------------------------------------------------------------------

    def _observe(self, watch: Watch, _thread: PartThread) -> None:
        connections = 0
        for event in watch.events():
            connections += isinstance(event, Connected)
            with self._changed:
                try:
                    self._record(event, is_reconnect=connections > 1)
                except ApiError as err:
                    self._watched.forget()  # so that nothing is written before a new list was taken over
                    watch.start_over(err)
                except Exception:
                    log.exception("watch event not understood", extra=fields(pool=self._pool))
                self._changed.notify_all()

    def _record(self, event: Event, *, is_reconnect: bool) -> None:
        """Record one event, and schedule what follows from it."""
        if isinstance(event, Connected):
            # This may be another server, or a newer version of it.
            if is_reconnect and not (event.is_renewal and self._server.is_fresh):
                self._server.ask_again()
                self._schedule.within(self._times.uniform(0.0, self._times.spread_s))
        elif self._watched.record(event):
            if isinstance(event, Deleted | Listed):  # a node that was recreated under its old name has another UID
                self._server.forget_node()
            self._publication.disturbed()

    # -- the thread that plans and writes -----------------------------------------------------------------------------

    def _run(self, thread: PartThread) -> None:
        self._server.ask_early()
        while self._wait_until_due():
            with thread.turn():
                goes_on = self._attempt()
            if not goes_on:
                return

    def _wait_until_due(self) -> bool:
        """Wait until there is work and return True; return False when stopping."""
        with self._changed:
            while not self._is_stopping:
                delay = self._due_s()
                if delay == 0.0:
                    return True
                self._changed.wait(delay)
            return False

    def _due_s(self) -> float | None:
        if not self._publication.is_wanted or not self._watched.is_complete:
            return None
        questions = (self._dropped_fields.taints_due_s, self._probe.due_s)
        return self._publication.due_s([at for at in questions if at is not None])

    def _attempt(self) -> bool:
        return self._publication.attempt(lambda: self._sync.run(self._selector), lambda: self.status().figures())

    def _held_fields(self) -> frozenset[str]:
        with self._changed:
            return held_fields(self._watched.own())
