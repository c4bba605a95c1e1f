"""Probe: does the API server keep shared counters, and shares? Asked before devices that need them are in any request.

In: what a pool is to offer. Out: the fields that the server would drop, found by a create that stores nothing. Nothing
in that request overlaps: the counter sets alone from 1.35 on; in 1.34, where counters stand beside their devices, one
set and one device. Whoever writes afterwards still compares every answer: behind one address there may be two servers.

Source: Kubernetes API concepts, dry-run; fields of gates that are off are dropped silently at create.
"""

from __future__ import annotations

import logging

from dra_driver.controller.compare import COUNTER_FIELDS, SHARE_FIELD, differing_fields
from dra_driver.controller.diff import created
from dra_driver.controller.layout import COUNTERS_APART_MINOR, PoolContent, SliceSpec
from dra_driver.controller.losses import Losses
from dra_driver.controller.writer import SliceWriter
from dra_driver.model import limits
from dra_driver.model.errors import ApiError
from dra_driver.model.wire import SliceWire
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

_UNSURE = (0, 408, 409, 429)  # no answer, or none that says anything about our object


class Probe:
    """Asks one server once for each thing that it may drop; again after `forget`. Not thread-safe."""

    def __init__(self, writer: SliceWriter) -> None:
        self._writer = writer
        self._knows_counters = self._knows_shares = False

    def forget(self) -> None:
        """Ask anew: it may be another server now."""
        self._knows_counters = self._knows_shares = False

    def ask(self, content: PoolContent, empty: SliceSpec, *, minor: int) -> Losses:
        """Return what of this content the server would drop, if it was not asked yet. Raises: ApiError: no answer."""
        found = Losses(empty.pool)
        if content.counter_sets and not self._knows_counters:
            find_losses(self._writer, found, content, empty, minor=minor)
            self._knows_counters = True
        if content.instead and not self._knows_shares:
            find_share_losses(self._writer, found, content, empty, minor=minor)
            self._knows_shares = True
        return found


def find_losses(writer: SliceWriter, losses: Losses, content: PoolContent, empty: SliceSpec, *, minor: int) -> None:
    """Note in `losses` what the server would drop. `empty` says whose pool it is. Raises: ApiError without an answer.

    A server of 1.34 that refuses the question is taken to drop counters. A newer one is then asked by the first write,
    which holds counters and nothing else.
    """
    is_old = 0 < minor < COUNTERS_APART_MINOR
    sent = _question(content, empty, is_old=is_old)
    try:
        answer = writer.try_create(sent)
    except ApiError as error:
        if error.status in _UNSURE or error.status >= 500:
            raise
        log.warning("api server refuses to be asked about counters", extra=fields(pool=empty.pool, err=str(error)))
        if is_old:
            losses.assume(frozenset(COUNTER_FIELDS), version=f"1.{minor}")
        return
    losses.note(sent, answer, version=f"1.{minor}" if minor else "unknown")


def keeps_counters(writer: SliceWriter, content: PoolContent, empty: SliceSpec, *, minor: int) -> bool:
    """Ask once, for somebody who only wants to know. Raises: ApiError, also where the server refuses to be asked."""
    sent = _question(content, empty, is_old=0 < minor < COUNTERS_APART_MINOR)
    return not differing_fields(sent["spec"], writer.try_create(sent)["spec"]).intersection(COUNTER_FIELDS)


def _question(content: PoolContent, empty: SliceSpec, *, is_old: bool) -> SliceWire:
    sets = content.counter_sets[: 1 if is_old else limits.COUNTER_SETS_PER_SLICE]
    name = sets[0]["name"]
    consumers = [d for d in content.devices if any(c.get("counterSet") == name for c in d.get("consumesCounters", ()))]
    devices = tuple(consumers[:1]) if is_old else ()
    spec = SliceSpec(empty.driver, empty.node, empty.pool, devices, tuple(sets))
    return created(0, spec, spec.wire(1, 1), None)


def find_share_losses(
    writer: SliceWriter, losses: Losses, content: PoolContent, empty: SliceSpec, *, minor: int
) -> None:
    """Note in `losses` whether the server would drop that a device may be allocated many times.

    The question holds one such device and nothing else; nothing is stored. A server that refuses it is taken to drop
    them: then replicas or whole devices are offered. Raises: ApiError without an answer.
    """
    devices = (*content.devices, *(content.plain or ()))
    shared = next((d for d in devices if d.get("allowMultipleAllocations")), None)
    if shared is None:
        return
    spec = SliceSpec(empty.driver, empty.node, empty.pool, (shared,))
    sent = created(0, spec, spec.wire(1, 1), None)
    version = f"1.{minor}" if minor else "unknown"
    try:
        answer = writer.try_create(sent)
    except ApiError as error:
        if error.status in _UNSURE or error.status >= 500:
            raise
        log.warning("api server refuses to be asked about shares", extra=fields(pool=empty.pool, err=str(error)))
        losses.assume(frozenset({SHARE_FIELD}), version=version)
        return
    losses.note(sent, answer, version=version)
