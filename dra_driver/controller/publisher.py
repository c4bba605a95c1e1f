"""Publisher: keeps this node's ResourceSlices equal to its devices.

In: devices, from any thread at any time; the newest ones count. Out: the fewest writes that bring the API server to
that state. Two threads: one follows the server's slices, the other plans and writes. No write is periodic: the slices
are examined when the devices have changed, when another client has changed our slices (the kubelet deletes them when
it starts), after a failure, and when the watch reconnects. Stopping deletes nothing: the next instance adopts the
slices that it finds.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from dra_driver.controller.compare import COUNTER_FIELDS, SHARE_FIELD
from dra_driver.controller.diff import WritePlan, generation_of, keys_of, plan_writes, pool_of
from dra_driver.controller.layout import PoolContent, SliceSpec, lay_out
from dra_driver.controller.losses import Losses
from dra_driver.controller.probe import Probe
from dra_driver.controller.rivals import AgentMark, Rivals
from dra_driver.controller.schedule import SETTLE_SECONDS, Schedule
from dra_driver.controller.server import ServerFacts
from dra_driver.controller.status import PublisherStatus
from dra_driver.controller.stored import StoredSlices
from dra_driver.controller.validity import find_faults, without_dropped
from dra_driver.controller.writer import SliceWriter
from dra_driver.hardware.facts import Problem
from dra_driver.inventory.device import Device
from dra_driver.inventory.wire import counter_set_wire, device_wire
from dra_driver.kube.api import KubeApi
from dra_driver.kube.paths import SLICES
from dra_driver.kube.shapes import check_slice
from dra_driver.kube.watch import Changed, Connected, Deleted, Event, Listed, Watch
from dra_driver.model.errors import ApiError, Retry
from dra_driver.model.names import pool_name
from dra_driver.model.wire import SliceWire
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

STOP_SECONDS = 5.0


class _StoppedError(Exception):
    """The publisher is stopping and must not write any more."""


class _LookAgainError(Exception):
    """The server can't store what was wanted, so a smaller content has to be planned at once."""


class Publisher:
    """Publishes one pool, `<node>/<driver>`. All methods may be called from any thread.

    `settle_s` is how many seconds of quiet to wait after another client's change. `plain_now`, called by the writing
    thread, returns what to offer if the server does not keep counters. It is asked right before the write, because what
    a scheduler has just allocated must stay. If it raises ApiError, nothing is withdrawn. With `mark`, the mark of this
    agent, another agent that publishes the same pool is recognized.
    """

    def __init__(
        self,
        api: KubeApi,
        *,
        node: str,
        driver: str,
        settle_s: float = SETTLE_SECONDS,
        plain_now: Callable[[], Sequence[Device]] | None = None,
        mark: AgentMark | None = None,
    ) -> None:
        self._api, self._node, self._driver, self._settle_s = api, node, driver, settle_s
        self._plain_now = plain_now
        self._pool = pool_name(node, driver)
        self._selector = f"spec.nodeName={node},spec.driver={driver}"
        self._writer = SliceWriter(api, Rivals(mark, driver=driver) if mark else None)
        self._server = ServerFacts(api, node)
        self._changed = threading.Condition()
        # The following are guarded by _changed.
        self._schedule = Schedule(settle_s=settle_s)
        self._stored = StoredSlices(driver=driver, node=node)
        self._content: PoolContent | None = None
        self._is_withdrawn = False
        self._revision = 0
        self._is_published = False
        self._is_writing = False
        self._echoes: dict[str, str] = {}  # slices that changed while we write: perhaps by us; name -> resourceVersion
        self._deleted: set[str] = set()  # UIDs of slices that we delete ourselves
        self._listed: list[SliceWire] = []  # pages of a list that is not whole yet
        self._is_doubtful = False  # a write failed: what we believe is stored may be wrong
        self._highest_generation = 0
        self._losses = Losses(self._pool)
        self._probe = Probe(self._writer)  # used by the writing thread only
        self._fault: ApiError | None = None
        self._watch: Watch | None = None
        self._threads: list[threading.Thread] = []
        self._is_stopping = False

    # -- called by others ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to follow the API server; nothing is written before the first `publish`.

        Does nothing if it is running.
        """
        with self._changed:
            if self._threads:
                return
            self._is_stopping = self._is_published = self._is_doubtful = False
            self._probe.forget()
            self._losses.forget()
            self._fault = None
            self._stored = StoredSlices(driver=self._driver, node=self._node)
            self._schedule = Schedule(settle_s=self._settle_s)
            self._schedule.at_once()
            self._watch = Watch(self._api, SLICES, field_selector=self._selector, check=check_slice)
            self._threads = [
                threading.Thread(target=self._observe, args=(self._watch,), name="slice-watch", daemon=True),
                threading.Thread(target=self._run, name="publisher", daemon=True),
            ]
            for thread in self._threads:
                thread.start()

    def publish(
        self,
        devices: Sequence[Device],
        *,
        counter_sets: Mapping[str, Mapping[str, int]] | None = None,
        plain: Sequence[Device] = (),
        instead: Mapping[str, Sequence[Device]] | None = None,
    ) -> None:
        """Publish these devices as the pool, and return before it is written.

        No devices make a pool, too: one empty slice. The same content again causes no write. `counter_sets` maps the
        name of each counter set to its counters. If the server does not keep them, `plain` is published instead of all
        devices; if it does not keep that a device may be allocated many times, `instead` maps such a device's name to
        its replacement. `status` reports what went wrong.
        """
        content = PoolContent(
            tuple(device_wire(device) for device in devices),
            tuple(counter_set_wire(name, counters) for name, counters in (counter_sets or {}).items()),
            tuple(device_wire(device) for device in plain) if counter_sets else None,
            {name: tuple(map(device_wire, others)) for name, others in (instead or {}).items()},
        )
        self._want(content, is_withdrawn=False)

    def withdraw(self) -> None:
        """Delete the pool's slices, and write nothing more until the next `publish`; return before it is done.

        Meant for a node where another driver publishes under our name: each would delete the other's slices forever.
        """
        self._want(PoolContent((), (), None), is_withdrawn=True)

    def _want(self, content: PoolContent, *, is_withdrawn: bool) -> None:
        with self._changed:
            if (content, is_withdrawn) != (self._content, self._is_withdrawn):
                self._content, self._is_withdrawn = content, is_withdrawn
                self._revision += 1
                self._losses.forget_harmless()
                self._is_published = False
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
            thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in threads):
            log.warning("a request is still under way", extra=fields(pool=self._pool, seconds=timeout_s))
        with self._changed:
            self._threads = []

    def wait_published(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds until the API server holds what was last requested; return whether it does."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_published, timeout)

    def status(self) -> PublisherStatus:
        """Return the state of publishing."""
        with self._changed:
            slices = [s for s in self._stored.all() if pool_of(s) == self._pool]
            fault = self._fault or (self._watch.fault if self._watch else None)
            problems = (Problem(fault.code, self._pool, str(fault)),) if fault else ()
            return PublisherStatus(
                pool=self._pool,
                is_published=self._is_published,
                generation=max(map(generation_of, slices), default=0),
                slices=len(slices),
                devices=sum(len(s["spec"].get("devices") or ()) for s in slices),
                is_counting=not self._losses.unsafe.intersection(COUNTER_FIELDS),
                is_sharing=SHARE_FIELD not in self._losses.unsafe,
                server=self._server.git_version,
                last_error=str(fault) if fault else "",
                dropped=tuple(sorted(self._losses.fields)),
                problems=problems + self._losses.problems(),
                writes=dict(self._writer.counts),
            )

    # -- the thread that follows the server ---------------------------------------------------------------------------

    def _observe(self, watch: Watch) -> None:
        connections = 0
        for event in watch.events():
            connections += isinstance(event, Connected)
            with self._changed:
                try:
                    self._take(event, is_reconnect=connections > 1)
                except Exception:
                    log.exception("watch event not understood", extra=fields(pool=self._pool))
                self._changed.notify_all()

    def _take(self, event: Event, *, is_reconnect: bool) -> None:
        """Record one event, and schedule what follows from it."""
        stored = self._stored
        if isinstance(event, Connected):
            if is_reconnect and not (event.is_renewal and self._server.is_fresh):  # perhaps another, or a newer server
                self._server.ask_again()
                self._schedule.at_once()
            return
        was_complete = stored.is_complete
        if isinstance(event, Listed):
            self._listed = [*([] if event.is_first else self._listed), *event.objects]
            if not event.is_last:
                return
            objects, self._listed = self._listed, []
            is_news = stored.replace(objects, event.resource_version)
        elif isinstance(event, Changed):
            is_news = stored.changed(event.wire)
        else:
            is_news = stored.deleted(event.wire)
        if is_news and self._is_writing and isinstance(event, Changed):
            self._echoes[event.wire["metadata"]["name"]] = event.wire["metadata"]["resourceVersion"]
        elif isinstance(event, Deleted) and event.wire["metadata"].get("uid") in self._deleted:
            self._deleted.discard(event.wire["metadata"]["uid"])
        elif was_complete and is_news:
            if isinstance(event, Deleted | Listed):  # a node that was recreated under its old name has another UID
                self._server.forget_node()
            self._is_published = False
            self._schedule.disturbed()

    # -- the thread that plans and writes -----------------------------------------------------------------------------

    def _run(self) -> None:
        self._server.ask_early()
        while self._wait_until_due():
            started = time.monotonic()
            try:
                revision, plan = self._sync()
            except _StoppedError:
                return
            except ApiError as err:
                self._failed(err)
            except Exception as err:
                log.exception("publishing failed", extra=fields(pool=self._pool))
                self._failed(ApiError("bug", f"publishing failed: {err!r}", retry=Retry.LATER))
            else:
                self._succeeded(revision, plan, started)

    def _wait_until_due(self) -> bool:
        """Wait until there is work and return True; return False when stopping."""
        with self._changed:
            while not self._is_stopping:
                is_ready = self._content is not None and self._stored.is_complete
                delay = self._schedule.wait_s() if is_ready else None
                if delay == 0.0:
                    self._schedule.take()
                    return True
                self._changed.wait(delay)
            return False

    def _sync(self) -> tuple[int, WritePlan]:
        """Plan and write until the server holds what is wanted, as far as it can."""
        while True:
            with self._changed:
                content, revision, is_doubtful = self._content, self._revision, self._is_doubtful
                is_withdrawn = self._is_withdrawn
            if content is None:
                raise _StoppedError
            if is_doubtful:
                self._list_again()
            plan = self._withdrawal() if is_withdrawn else self._plan(content)
            try:
                self._carry_out(plan)
            except _LookAgainError:
                continue
            return revision, plan

    def _withdrawal(self) -> WritePlan:
        with self._changed:
            stored = self._stored.all()
        own = tuple(s for s in stored if pool_of(s) == self._pool and not self._writer.is_anothers(s))
        return WritePlan(self._highest_generation, deletes=own)

    def _plan(self, content: PoolContent) -> WritePlan:
        owner, minor = self._server.owner(), self._server.minor()
        with self._changed:
            if self._server.is_changed():
                self._losses.forget()
                self._probe.forget()
        found = self._probe.ask(content, SliceSpec(self._driver, self._node, self._pool), minor=minor)
        with self._changed:
            self._losses.add(found)
            unsafe, stored = self._losses.unsafe, self._stored.all()
        if self._plain_now and content.plain is not None and unsafe.intersection(COUNTER_FIELDS):
            content = replace(content, plain=tuple(map(device_wire, self._plain_now())))
        offered = without_dropped(content, unsafe)
        if faults := find_faults(offered, server_minor=minor):
            raise ApiError("pool-invalid", f"pool {self._pool} can't be published: {'; '.join(faults)}")
        own = [s for s in stored if pool_of(s) == self._pool]
        current = max(map(generation_of, own), default=0)
        specs = lay_out(
            offered.devices,
            pool=self._pool,
            node=self._node,
            driver=self._driver,
            server_minor=minor,
            counter_sets=offered.counter_sets,
            placement=[keys_of(s) for s in own if generation_of(s) == current],
        )
        plan = plan_writes(specs, stored, owner=owner, least_generation=self._highest_generation + 1)
        self._highest_generation = max(self._highest_generation, plan.generation)
        return plan

    def _carry_out(self, plan: WritePlan) -> None:
        self._writer.admit(plan)
        with self._changed:
            self._is_writing = True
        try:
            self._delete(plan.deletes)
            writes = [(wire, self._writer.update) for wire in plan.updates]
            writes += [(wire, self._writer.create) for wire in plan.creates]
            for wire, write in sorted(writes, key=lambda one: not _has_counters_alone(one[0])):
                self._check_running()
                self._note_answer(wire, write(wire))
        finally:
            with self._changed:
                self._is_writing = False
                if self._echoes:  # changes that no write of ours explains
                    self._echoes.clear()
                    self._schedule.disturbed()

    def _delete(self, slices: Iterable[SliceWire]) -> None:
        for stored in slices:
            self._check_running()
            with self._changed:
                self._deleted.add(stored["metadata"]["uid"])
            self._writer.delete(stored)
            with self._changed:
                self._stored.deleted(stored)

    def _check_running(self) -> None:
        if self._is_stopping:
            raise _StoppedError

    def _note_answer(self, sent: SliceWire, answer: SliceWire) -> None:
        """Record what the server stored; if it dropped fields, make sure that no published devices overlap.

        Raises: _LookAgainError if counters, shares or blocking taints were dropped.
        """
        with self._changed:
            instead, unsafe = self._losses.note(sent, answer, version=self._server.git_version)
            self._stored.wrote(answer, instead=instead)
            if self._echoes.get(answer["metadata"]["name"]) == answer["metadata"]["resourceVersion"]:
                del self._echoes[answer["metadata"]["name"]]
            own = sorted(self._stored.all(), key=lambda s: s["metadata"]["uid"] != answer["metadata"]["uid"])
        if unsafe.intersection(COUNTER_FIELDS):
            self._delete(
                own
            )  # at once, and this slice first: without counters the scheduler allocates overlapping devices
        if unsafe:
            raise _LookAgainError

    def _list_again(self) -> None:
        """List the slices again to find out what is really stored."""
        objects, version = self._writer.read_all(self._selector)
        with self._changed:
            self._stored.replace(objects, version, is_latest=True)
            self._is_doubtful = False

    def _failed(self, err: ApiError) -> None:
        with self._changed:
            self._fault, self._is_published = err, False
            self._is_doubtful = True
            self._schedule.failed(least_s=err.retry_after_s, is_final=err.retry is Retry.NEVER)
            attempt = self._schedule.attempts
            self._changed.notify_all()
        keys = fields(pool=self._pool, code=err.code, err=err.message, hint=err.hint, attempt=attempt)
        log.log(logging.INFO if err.status in (404, 409) else logging.WARNING, "slices not published", extra=keys)

    def _succeeded(self, revision: int, plan: WritePlan, started: float) -> None:
        with self._changed:
            self._fault = None
            self._schedule.succeeded(writes=len(plan))
            self._is_published = revision == self._revision and self._schedule.wait_s() is None
            self._changed.notify_all()
        now = self.status()
        took_ms = round((time.monotonic() - started) * 1000)
        keys = fields(
            pool=now.pool,
            generation=now.generation,
            slices=now.slices,
            devices=now.devices,
            count=len(plan),
            took_ms=took_ms,
        )
        log.log(logging.INFO if len(plan) else logging.DEBUG, "slices published", extra=keys)


def _has_counters_alone(wire: SliceWire) -> bool:
    """Return whether a slice holds only counters; these are written first, so that their loss shows before all else."""
    return bool(wire["spec"].get("sharedCounters")) and not wire["spec"].get("devices")
