"""Publisher: keeps this node's ResourceSlices equal to what the node offers.

In: offers, asked for right before each write. Out: the fewest writes that bring the API server to that state. Two
threads: one follows the server's slices, the other plans and writes. No write is periodic: the slices are examined when
the offers have changed, when another client has changed our slices (the kubelet deletes them when it starts), after a
failure, and when the watch reconnects. How often they may be written is decided by the pace. Stopping deletes nothing:
the next instance adopts the slices that it finds.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from functools import partial

from dra_driver.controller.competing_agents import AgentMark, CompetingAgents
from dra_driver.controller.diff import generation_of
from dra_driver.controller.dropped_fields import DroppedFields
from dra_driver.controller.layout import SliceSpec
from dra_driver.controller.pace import SPREAD_SECONDS, WritePace
from dra_driver.controller.pool_plan import Offers, PoolPlanner
from dra_driver.controller.pool_sync import PoolSync
from dra_driver.controller.probe import Probe, held_fields
from dra_driver.controller.publication import Publication, RefusalEvents
from dra_driver.controller.schedule import SETTLE_SECONDS, Schedule
from dra_driver.controller.server_facts import ServerFacts
from dra_driver.controller.status import PublisherStatus
from dra_driver.controller.watched_slices import WatchedSlices
from dra_driver.controller.writer import SliceWriter
from dra_driver.hardware.facts import Problem
from dra_driver.kube.api import KubeApi
from dra_driver.kube.backoff import Backoff
from dra_driver.kube.events import NodeEvents
from dra_driver.kube.paths import SLICES
from dra_driver.kube.shapes import check_slice
from dra_driver.kube.watch import Watch
from dra_driver.kube.watch_events import Connected, Deleted, Event, Listed
from dra_driver.model.errors import ApiError
from dra_driver.model.names import pool_name
from dra_driver.telemetry.logs import fields
from dra_driver.telemetry.part_thread import PartThread

log = logging.getLogger(__name__)

STOP_SECONDS = 5.0


class Publisher:
    """Publishes one pool, `<node>/<driver>`. All methods may be called from any thread.

    `offers` decides what the pool holds; the writing thread asks it. With `mark`, the mark of this agent, another agent
    that publishes the same pool is recognized. `settle_s` is how many seconds of quiet to wait after another client's
    change, and `spread_s` over how many seconds the requests to an API server that was away are spread.
    """

    def __init__(
        self,
        api: KubeApi,
        *,
        node: str,
        driver: str,
        offers: Offers,
        mark: AgentMark | None = None,
        settle_s: float = SETTLE_SECONDS,
        spread_s: float = SPREAD_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._api, self._node, self._driver = api, node, driver
        self._spread_s, self._clock, self._uniform = spread_s, clock, uniform
        self._pool = pool_name(node, driver)
        self._selector = f"spec.nodeName={node},spec.driver={driver}"
        self._writer = SliceWriter(api, CompetingAgents(mark, driver=driver) if mark else None)
        self._server = ServerFacts(api, node, clock=clock)
        self._probe = Probe(self._writer, held=self._held_fields, clock=clock)  # used by the writing thread only
        self._changed = threading.Condition()
        # The following are guarded by _changed.
        self._schedule = Schedule(clock=clock, settle_s=settle_s)
        self._pace = WritePace(clock=clock, uniform=uniform, spread_s=spread_s)
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
        planner = PoolPlanner(
            empty, offers, self._server, self._probe, dropped=self._dropped_fields, changed=self._changed
        )
        return PoolSync(
            self._writer,
            planner,
            self._watched,
            self._dropped_fields,
            self._server,
            schedule=self._schedule,
            pace=self._pace,
            changed=self._changed,
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
        backoff = Backoff(base_s=0.5, max_s=self._spread_s, factor=8.0, uniform=self._uniform)
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
                self._schedule.within(self._uniform(0.0, self._spread_s))
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
