"""Probe: whether the API server keeps shared counters, shares and taints, asked before devices that need them are sent.

In: what a pool is to offer. Out: the fields that the server would drop, found by a create that stores nothing. No two
devices in that request overlap: from 1.35 on it holds the counter sets alone; on 1.34, where counters are in the slice
of their devices, one set and one device. The writer still compares every answer afterwards, because one address may
lead to two servers.

Source: Kubernetes API concepts, dry-run; fields of gates that are off are dropped silently at create.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from dra_driver.controller.compare import COUNTER_FIELDS, SHARE_FIELD, TAINT_FIELD, differing_fields
from dra_driver.controller.content import PoolContent
from dra_driver.controller.diff import created
from dra_driver.controller.dropped_fields import DroppedFields
from dra_driver.controller.layout import SliceSpec
from dra_driver.controller.writer import SliceWriter
from dra_driver.model import limits
from dra_driver.model.errors import ApiError
from dra_driver.model.kubernetes import COUNTERS_APART_MINOR
from dra_driver.model.taints import DeviceTaint, TaintEffect
from dra_driver.model.wire import DeviceWire, SliceWire
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

COUNTERS, SHARES, TAINTS = "counters", "shares", "taints"
_UNSURE = (0, 408, 409, 429)  # statuses without an answer, or with one that does not concern our object
# This taint is only sent in requests that store nothing.
_TAINT = DeviceTaint("dra-driver/probe", "", TaintEffect.NO_SCHEDULE).wire()


class Probe:
    """Asks one server once about each thing that it may drop, and again after `forget`. Not thread-safe."""

    def __init__(self, writer: SliceWriter) -> None:
        self._writer = writer
        self._known: set[str] = set()

    def forget(self) -> None:
        """Forget the answers, since the server may be another one now; the next `ask` asks again."""
        self._known.clear()

    def forget_taints(self) -> None:
        """Forget the answer about taints."""
        self._known.discard(TAINTS)

    def ask(self, content: PoolContent, empty: SliceSpec, *, minor: int, known: frozenset[str]) -> DroppedFields:
        """Return which fields of this content the server would drop, without those that it was asked about before.

        `known` are dropped fields that were reported before. A server that refuses the dry run is assumed to drop what
        it was asked about. The exception is counters on a server from 1.35 on: the first write, which holds counters
        and nothing else, will show whether it keeps them. Raises: ApiError if the server gives no answer.
        """
        found = DroppedFields(empty.pool, known)
        is_old = 0 < minor < COUNTERS_APART_MINOR
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
        """Make one dry run; if the server refuses it, the fields `assumed` count as dropped."""
        version = f"1.{minor}" if minor else "unknown"
        try:
            answer = self._writer.try_create(sent)
        except ApiError as error:
            if error.status in _UNSURE or error.status >= 500:
                raise
            keys = fields(pool=sent["spec"]["pool"]["name"], err=str(error))
            log.warning("the API server refuses the dry run about %s", what, extra=keys)
            if assumed:
                found.assume(frozenset(assumed), version=version)
        else:
            found.record(sent, answer, version=version)
        self._known.add(what)


def keeps_counters(writer: SliceWriter, content: PoolContent, empty: SliceSpec, *, minor: int) -> bool:
    """Return whether the server keeps shared counters, without recording it.

    Raises: ApiError, also if the server refuses the dry run.
    """
    sent = _slice_with_counters(content, empty, is_old=0 < minor < COUNTERS_APART_MINOR)
    return not differing_fields(sent["spec"], writer.try_create(sent)["spec"]).intersection(COUNTER_FIELDS)


def _slice_with_counters(content: PoolContent, empty: SliceSpec, *, is_old: bool) -> SliceWire:
    sets = content.counter_sets[: 1 if is_old else limits.COUNTER_SETS_PER_SLICE]
    name = sets[0]["name"]
    consumers = [d for d in content.devices if any(c.get("counterSet") == name for c in d.get("consumesCounters", ()))]
    devices = tuple(consumers[:1]) if is_old else ()
    spec = SliceSpec(empty.driver, empty.node, empty.pool, devices, tuple(sets))
    return created(0, spec, spec.wire(1, 1), None)


def _slice_with_device(device: DeviceWire, empty: SliceSpec) -> SliceWire:
    spec = SliceSpec(empty.driver, empty.node, empty.pool, (device,))
    return created(0, spec, spec.wire(1, 1), None)


def _first(content: PoolContent, key: str) -> DeviceWire | None:
    """Return the first device that has a field."""
    return next((device for device in content.devices if device.get(key)), None)
