"""Publisher: keeps this node's ResourceSlices equal to what the node offers.

In: offers, asked for right before each write. Out: the fewest writes that bring the API server to that state. Two
threads: one follows the server's slices, the other plans and writes. No write is periodic: the slices are examined when
the offers have changed, when another client has changed our slices (the kubelet deletes them when it starts), after a
failure, and when the watch reconnects. Stopping deletes nothing: the next instance adopts the slices that it finds.
"""

from __future__ import annotations

import logging
import threading
import time
from functools import partial

from dra_driver.controller.competing_agents import AgentMark, CompetingAgents
from dra_driver.controller.diff import WritePlan, generation_of
from dra_driver.controller.dropped_fields import DroppedFields
from dra_driver.controller.layout import SliceSpec
from dra_driver.controller.pool_plan import Offers, PoolPlanner
from dra_driver.controller.pool_sync import PoolSync, StoppedError
from dra_driver.controller.probe import Probe
from dra_driver.controller.schedule import SETTLE_SECONDS, Schedule
from dra_driver.controller.server_facts import ServerFacts
from dra_driver.controller.status import PublisherStatus
from dra_driver.controller.watched_slices import WatchedSlices
from dra_driver.controller.writer import SliceWriter
from dra_driver.hardware.facts import Problem
from dra_driver.kube.api import KubeApi
from dra_driver.kube.paths import SLICES
from dra_driver.kube.shapes import check_slice
from dra_driver.kube.watch import Watch
from dra_driver.kube.watch_events import Connected, Event
from dra_driver.model.errors import ApiError, Retry
from dra_driver.model.names import pool_name
from dra_driver.telemetry.logs import fields
from dra_driver.telemetry.part_thread import PartThread

log = logging.getLogger(__name__)

STOP_SECONDS = 5.0


class Publisher:
    """Publishes one pool, `<node>/<driver>`. All methods may be called from any thread.

    `offers` decides what the pool holds; the writing thread asks it. With `mark`, the mark of this agent, another agent
    that publishes the same pool is recognized. `settle_s` is how many seconds of quiet to wait after another client's
    change.
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
    ) -> None:
        self._api, self._node, self._driver, self._settle_s = api, node, driver, settle_s
        self._pool = pool_name(node, driver)
        self._selector = f"spec.nodeName={node},spec.driver={driver}"
        self._writer = SliceWriter(api, CompetingAgents(mark, driver=driver) if mark else None)
        self._server = ServerFacts(api, node)
        self._changed = threading.Condition()
        # The following are guarded by _changed.
        self._schedule = Schedule(settle_s=settle_s)
        self._watched = WatchedSlices(driver=driver, node=node, pool=self._pool, disturbed=self._disturbed)
        self._dropped_fields = DroppedFields(self._pool)
        self._wanted, self._done = 0, 0  # how often the offers changed, and up to which change they are published
        self._is_published = False
        self._fault: ApiError | None = None
        self._watch: Watch | None = None
        self._threads: list[PartThread] = []
        self._is_stopping = False
        self._probe = Probe(self._writer)  # used by the writing thread only
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
            changed=self._changed,
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
            self._is_stopping = self._is_published = False
            self._probe.forget()
            self._dropped_fields.forget()
            self._fault = None
            self._watched.forget()
            self._sync.compare_again()
            self._schedule = Schedule(settle_s=self._settle_s)
            self._schedule.at_once()
            self._watch = Watch(self._api, SLICES, field_selector=self._selector, check=check_slice)
            observe = partial(self._observe, self._watch)
            for thread in (PartThread("slice-watch", observe), PartThread("publisher", self._run)):
                thread.start()
                self._threads.append(thread)

    def publish_changes(self) -> None:
        """Publish what has changed in the offers; return before it is written.

        If the offers are the same as before, nothing is written. A pool without devices is one empty slice. `status`
        reports what went wrong.
        """
        with self._changed:
            self._wanted += 1
            self._schedule.at_once()
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
            return self._changed.wait_for(lambda: self._is_published and self._done == self._wanted, timeout)

    def status(self) -> PublisherStatus:
        """Return the state of publishing."""
        with self._changed:
            slices = self._watched.own()
            fault = self._fault or (self._watch.fault if self._watch else None)
            problems = (Problem(fault.code, self._pool, str(fault)),) if fault else ()
            return PublisherStatus(
                pool=self._pool,
                is_published=self._is_published,
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
                except Exception:
                    log.exception("watch event not understood", extra=fields(pool=self._pool))
                self._changed.notify_all()

    def _record(self, event: Event, *, is_reconnect: bool) -> None:
        """Record one event, and schedule what follows from it."""
        if isinstance(event, Connected):
            # This may be another server, or a newer version of it.
            if is_reconnect and not (event.is_renewal and self._server.is_fresh):
                self._server.ask_again()
                self._sync.compare_again()
                self._schedule.at_once()
        else:
            self._watched.record(event)

    def _disturbed(self, may_be_gone: bool) -> None:
        if may_be_gone:  # a node that was recreated under its old name has another UID
            self._server.forget_node()
        self._is_published = False
        self._sync.compare_again()
        self._schedule.disturbed()

    # -- the thread that plans and writes -----------------------------------------------------------------------------

    def _run(self, thread: PartThread) -> None:
        self._server.ask_early()
        while self._wait_until_due():
            started = time.monotonic()
            try:
                wanted = self._wanted
                with thread.turn():
                    plan = self._sync.run(self._selector)
            except StoppedError:
                return
            except ApiError as err:
                self._failed(err)
            except Exception as err:
                log.exception("publishing failed", extra=fields(pool=self._pool))
                self._failed(ApiError("bug", f"publishing failed: {err!r}", retry=Retry.LATER))
            else:
                self._succeeded(wanted, plan, started)

    def _wait_until_due(self) -> bool:
        """Wait until there is work and return True; return False when stopping."""
        with self._changed:
            while not self._is_stopping:
                delay = self._due_s() if self._wanted and self._watched.is_complete else None
                if delay == 0.0:
                    self._schedule.begin()
                    return True
                self._changed.wait(delay)
            return False

    def _due_s(self) -> float | None:
        due = [at for at in (self._schedule.wait_s(), self._dropped_fields.taints_due_s) if at is not None]
        return min(due) if due else None

    def _failed(self, err: ApiError) -> None:
        with self._changed:
            self._fault, self._is_published = err, False
            self._sync.read_again()
            self._schedule.failed(least_s=err.retry_after_s, is_final=err.retry is Retry.NEVER)
            attempt = self._schedule.attempts
            self._changed.notify_all()
        keys = fields(pool=self._pool, code=err.code, err=err.message, hint=err.hint, attempt=attempt)
        log.log(logging.INFO if err.status in (404, 409) else logging.WARNING, "slices not published", extra=keys)

    def _succeeded(self, wanted: int, plan: WritePlan, started: float) -> None:
        with self._changed:
            self._fault = None
            self._schedule.succeeded(writes=len(plan))
            self._done = wanted
            if self._schedule.wait_s() is None:
                self._sync.settled()
            self._is_published = wanted == self._wanted and self._schedule.wait_s() is None
            self._changed.notify_all()
        took_ms = round((time.monotonic() - started) * 1000)
        keys = fields(**self.status().figures(), count=len(plan), took_ms=took_ms)
        log.log(logging.INFO if len(plan) else logging.DEBUG, "slices published", extra=keys)
