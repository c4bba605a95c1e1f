"""Probe: whether the API server keeps shared counters, shares and taints, asked before devices that need them are sent.

In: what a pool is to offer. Out: the fields that the server would drop, found by a create that stores nothing. No two
devices in that request overlap: from 1.35 on it holds the counter sets alone; on 1.34, where counters are in the slice
of their devices, one set and one device. The writer still compares every answer afterwards, because one address may
lead to two servers.

A server that refuses the dry run may do so for reasons of its own: one that has just started refuses everything until
it has read its roles. The last answer then stays in force: that of this process, or else the one that the stored slices
show, since a field that they hold was kept. Without any, the fields count as dropped. Either is an assumption, and the
server is asked again after a growing delay.

Source: Kubernetes API concepts, dry-run; fields of gates that are off are dropped silently at create.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterable

from dra_driver.base import errors
from dra_driver.base.errors import ApiError, Retry
from dra_driver.base.machine import Backoff
from dra_driver.base.telemetry.logs import fields
from dra_driver.base.versions import Since, is_before
from dra_driver.base.wire import DeviceTaint, DeviceWire, SliceWire, TaintEffect, Wire
from dra_driver.kube.answers import NOT_FOUND
from dra_driver.kube.api import KubeApi, ServerVersion
from dra_driver.node.slices.compare import (
    COUNTER_FIELDS,
    SHARE_FIELD,
    TAINT_FIELD,
    DroppedFields,
    PoolContent,
    differing_fields,
)
from dra_driver.node.slices.layout import SliceSpec, created
from dra_driver.node.slices.writer import SliceWriter

log = logging.getLogger(__name__)

COUNTERS, SHARES, TAINTS = "counters", "shares", "taints"
_FIELDS = {COUNTERS: COUNTER_FIELDS, SHARES: (SHARE_FIELD,), TAINTS: (TAINT_FIELD,)}
_AGAIN_SECONDS = 2.0  # roles are read within seconds
AGAIN_MAX_SECONDS = 600.0  # a server that refuses every dry run (a webhook supports none) is asked about this often
_UNSURE = (0, 408, 409, 429)  # statuses without an answer, or with one that does not concern our object
# This taint is only sent in requests that store nothing.
_TAINT = DeviceTaint("dra-driver/probe", "", TaintEffect.NO_SCHEDULE).wire()


class Probe:
    """Asks one server once about each thing that it may drop, and again after `forget`. Not thread-safe.

    `held` returns the names of the fields that our stored slices hold.
    """

    def __init__(
        self,
        writer: SliceWriter,
        *,
        held: Callable[[], frozenset[str]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._writer, self._held, self._clock = writer, held, clock
        self._known: set[str] = set()
        self._last: dict[str, frozenset[str]] = {}  # what the server would have dropped when it answered last
        self._assumed: dict[str, frozenset[str]] = {}  # what counts as dropped since it refused to answer
        self._due_at: dict[str, float] = {}  # until when each assumption counts
        self._refusals: dict[str, Backoff] = {}

    @property
    def due_s(self) -> float | None:
        """Return the seconds until an assumption expires; None if there is none."""
        return max(0.0, min(self._due_at.values()) - self._clock()) if self._due_at else None

    def forget(self) -> None:
        """Ask about everything again, since the server may be another one now."""
        self._known.clear()
        self._assumed.clear()
        self._due_at.clear()
        self._refusals.clear()

    def forget_taints(self) -> None:
        """Ask about taints again."""
        self._forget(TAINTS)

    def expired(self) -> frozenset[str]:
        """End the assumptions whose time is over; return the fields that counted as dropped because of them."""
        now = self._clock()
        ended = [what for what, at in self._due_at.items() if at <= now]
        return frozenset().union(*(self._forget(what) for what in ended))

    def _forget(self, what: str) -> frozenset[str]:
        self._known.discard(what)
        self._due_at.pop(what, None)
        return self._assumed.pop(what, frozenset())

    def ask(self, content: PoolContent, empty: SliceSpec, *, minor: int, known: frozenset[str]) -> DroppedFields:
        """Return which fields of this content the server would drop, without those that it was asked about before.

        `known` are dropped fields that were reported before. A server that refuses the dry run, and never answered, is
        assumed to drop what it was asked about. The exception is counters on a server from 1.35 on: the first write,
        which holds counters and nothing else, will show whether it keeps them. Raises: ApiError if the server gives no
        answer.
        """
        found = DroppedFields(empty.pool, known)
        is_old = is_before(minor, Since.COUNTERS_APART)
        if content.counter_sets and COUNTERS not in self._known:
            sent = _slice_with_counters(content, empty, is_old=is_old)
            self._try(COUNTERS, COUNTER_FIELDS if is_old else (), sent, found, minor)
        if SHARES not in self._known and (shared := _first(content, "allowMultipleAllocations")):
            self._try(SHARES, (SHARE_FIELD,), _slice_with_device(shared, empty), found, minor)
        if TAINTS not in self._known and (tainted := _first(content, "taints")):
            bare = {key: value for key, value in tainted.items() if key != "consumesCounters"}
            tainted_slice = _slice_with_device({**bare, "taints": [_TAINT]}, empty)
            self._try(TAINTS, (TAINT_FIELD,), tainted_slice, found, minor)
        return found

    def _try(self, what: str, assumed: Collection[str], sent: SliceWire, found: DroppedFields, minor: int) -> None:
        """Make one dry run; if the server refuses it, its last answer or else `assumed` decides for some time."""
        version = f"1.{minor}" if minor else "unknown"
        try:
            answer = self._writer.try_create(sent)
        except ApiError as error:
            if error.status in _UNSURE or error.status >= 500:
                raise
            lost = self._last.get(what)
            if lost is None:
                lost = frozenset() if self._held().intersection(_FIELDS[what]) else frozenset(assumed)
            self._assume(what, lost, sent, error)
            if lost:
                found.assume(lost, version=version)
        else:
            self._refusals.pop(what, None)
            _, self._last[what] = found.record(sent, answer, version=version)
        self._known.add(what)

    def _assume(self, what: str, lost: frozenset[str], sent: SliceWire, error: ApiError) -> None:
        backoff = self._refusals.setdefault(what, Backoff(base_s=_AGAIN_SECONDS, max_s=AGAIN_MAX_SECONDS, factor=4.0))
        level = logging.DEBUG if backoff.attempts else logging.WARNING
        delay_s = backoff.next_s(least_s=error.retry_after_s)
        self._assumed[what], self._due_at[what] = lost, self._clock() + delay_s
        keys = fields(pool=sent["spec"]["pool"]["name"], err=str(error), reason=", ".join(sorted(lost)))
        log.log(level, "the API server refuses the dry run about %s; it is asked again", what, extra=keys)


def held_fields(slices: Iterable[SliceWire]) -> frozenset[str]:
    """Return which of the fields that a server may drop these stored slices hold."""
    held = set()
    for spec in (stored["spec"] for stored in slices):
        devices = spec.get("devices") or ()
        held |= {"sharedCounters"} if spec.get("sharedCounters") else set()
        held |= {TAINT_FIELD} if any(device.get("taints") for device in devices) else set()
        held |= {SHARE_FIELD} if any(device.get("allowMultipleAllocations") for device in devices) else set()
    return frozenset(held)


def keeps_counters(writer: SliceWriter, content: PoolContent, empty: SliceSpec, *, minor: int) -> bool:
    """Return whether the server keeps shared counters, without recording it.

    Raises: ApiError, also if the server refuses the dry run.
    """
    sent = _slice_with_counters(content, empty, is_old=is_before(minor, Since.COUNTERS_APART))
    return not differing_fields(sent["spec"], writer.try_create(sent)["spec"]).intersection(COUNTER_FIELDS)


def _slice_with_counters(content: PoolContent, empty: SliceSpec, *, is_old: bool) -> SliceWire:
    sets = content.counter_sets[: 1 if is_old else errors.COUNTER_SETS_PER_SLICE]
    name = sets[0]["name"]
    consumers = [d for d in content.devices if any(c.get("counterSet") == name for c in d.get("consumesCounters", ()))]
    devices = tuple(consumers[:1]) if is_old else ()
    spec = SliceSpec(empty.driver, empty.node, empty.pool, devices, tuple(sets))
    return created(0, spec, spec.wire(1, 1), None)


def _slice_with_device(device: DeviceWire, empty: SliceSpec) -> SliceWire:
    spec = SliceSpec(empty.driver, empty.node, empty.pool, (device,))
    return created(0, spec, spec.wire(1, 1), None)


def _first(content: PoolContent, key: str) -> DeviceWire | None:
    return next((device for device in content.devices if device.get(key)), None)


# Server facts: facts about the API server and this node, asked for once, and again when they may have changed.

FRESH_SECONDS = 3600.0
_UNKNOWN = ServerVersion(0, 0, "")


class ServerFacts:
    """Facts about one API server and one node.

    One thread asks for the facts; `ask_again` and `forget_node` may be called from any thread.
    """

    def __init__(self, api: KubeApi, node: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._api, self._node, self._clock = api, node, clock
        self._asked_at = float("-inf")
        self._owner: Wire | None = None
        self._version = _UNKNOWN
        self._is_known = False
        self._is_changed = False

    @property
    def git_version(self) -> str:
        """The version that the server reported last; "" before the first answer."""
        return self._version.git

    @property
    def orders_versions(self) -> bool:
        """Whether the resourceVersions of this server are numbers that grow, which is promised from 1.35 on."""
        return self._version.minor >= Since.ORDERED_RESOURCE_VERSIONS

    @property
    def is_fresh(self) -> bool:
        """Whether the version was asked for recently.

        Ten thousand agents together renew 26 watches a second, and should not ask for it each time.
        """
        return self._clock() - self._asked_at < FRESH_SECONDS

    def ask_early(self) -> None:
        """Ask for both facts before they are needed; a failure is reported when they are needed."""
        with contextlib.suppress(ApiError):
            self.owner()
            self.minor()

    def owner(self) -> Wire:
        """Return the ownerReference to the node, whose deletion then deletes the slices as well.

        Raises: ApiError; "api.no-node" while the kubelet has not created the Node object.
        """
        owner = self._owner
        if owner is None:
            uid = self._node_uid()
            owner = {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": uid, "controller": True}
            self._owner = owner
        return owner

    def minor(self) -> int:
        """Return the server's minor version; 0 if it does not report one. Raises: ApiError."""
        if not self._is_known:
            self._asked_at = self._clock()
            # Set before asking, because a request to ask again may come while we wait for the answer.
            self._is_known = True
            try:
                version = self._api.server_version()
            except ApiError as err:
                if err.status not in (403, 404):
                    self._is_known = False
                    raise
                version = _UNKNOWN
            if version != self._version:
                self._is_changed = self._version is not _UNKNOWN
                log.info("API server version", extra=fields(version=version.git or "unknown"))
                self._version = version
        return self._version.minor

    def is_changed(self) -> bool:
        """Return whether the version has changed since the last call."""
        was_changed, self._is_changed = self._is_changed, False
        return was_changed

    def ask_again(self) -> None:
        """Ask for the version again the next time it is needed."""
        self._is_known = False

    def forget_node(self) -> None:
        """Ask for the node again the next time it is needed."""
        self._owner = None

    def _node_uid(self) -> str:
        try:
            node = self._api.get_node(self._node)
        except ApiError as err:
            if err.code != NOT_FOUND:
                raise
            raise ApiError(
                "no-node",
                f"node {self._node!r} does not exist in the API: its slices need it as their owner",
                status=404,
                hint="it appears when the kubelet registers; otherwise check --node-name",
                retry=Retry.LATER,
            ) from err
        return str(node["metadata"]["uid"])
