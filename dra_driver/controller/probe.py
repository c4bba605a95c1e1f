"""Probe: whether the API server keeps shared counters and shares, asked before devices that need them are sent.

In: what a pool is to offer. Out: the fields that the server would drop, found by a create that stores nothing. No two
devices in that request overlap: from 1.35 on it holds the counter sets alone; on 1.34, where counters are in the slice
of their devices, one set and one device. The writer still compares every answer afterwards, because one address may
lead to two servers.

Source: Kubernetes API concepts, dry-run; fields of gates that are off are dropped silently at create.
"""

from __future__ import annotations

import logging

from dra_driver.controller.compare import COUNTER_FIELDS, SHARE_FIELD, differing_fields
from dra_driver.controller.diff import created
from dra_driver.controller.layout import PoolContent, SliceSpec
from dra_driver.controller.losses import Losses
from dra_driver.controller.writer import SliceWriter
from dra_driver.model import limits
from dra_driver.model.errors import ApiError
from dra_driver.model.kubernetes import COUNTERS_APART_MINOR
from dra_driver.model.wire import SliceWire
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

_UNSURE = (0, 408, 409, 429)  # statuses without an answer, or with one that does not concern our object


class Probe:
    """Asks one server once about each thing that it may drop, and again after `forget`. Not thread-safe."""

    def __init__(self, writer: SliceWriter) -> None:
        self._writer = writer
        self._knows_counters = self._knows_shares = False

    def forget(self) -> None:
        """Forget the answers, since the server may be another one now; the next `ask` asks again."""
        self._knows_counters = self._knows_shares = False

    def ask(self, content: PoolContent, empty: SliceSpec, *, minor: int) -> Losses:
        """Return what of this content the server would drop; nothing for what it was asked already.

        Raises: ApiError if the server gives no answer.
        """
        found = Losses(empty.pool)
        if content.counter_sets and not self._knows_counters:
            find_losses(self._writer, found, content, empty, minor=minor)
            self._knows_counters = True
        if content.instead and not self._knows_shares:
            find_share_losses(self._writer, found, content, empty, minor=minor)
            self._knows_shares = True
        return found


def find_losses(writer: SliceWriter, losses: Losses, content: PoolContent, empty: SliceSpec, *, minor: int) -> None:
    """Record in `losses` which counter fields the server would drop. `empty` identifies the pool.

    A 1.34 server that refuses the question is assumed to drop counters. With a newer one the first write settles it,
    since that write holds counters and nothing else. Raises: ApiError if the server gives no answer.
    """
    is_old = 0 < minor < COUNTERS_APART_MINOR
    sent = _question(content, empty, is_old=is_old)
    try:
        answer = writer.try_create(sent)
    except ApiError as error:
        if error.status in _UNSURE or error.status >= 500:
            raise
        log.warning("api server refuses the dry run about counters", extra=fields(pool=empty.pool, err=str(error)))
        if is_old:
            losses.assume(frozenset(COUNTER_FIELDS), version=f"1.{minor}")
        return
    losses.note(sent, answer, version=f"1.{minor}" if minor else "unknown")


def keeps_counters(writer: SliceWriter, content: PoolContent, empty: SliceSpec, *, minor: int) -> bool:
    """Return whether the server keeps shared counters, without recording it.

    Raises: ApiError, also if the server refuses the question.
    """
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
    """Record in `losses` whether the server would drop that a device may be allocated many times.

    The question holds one such device and nothing else, and nothing is stored. A server that refuses it is assumed to
    drop the field; then replicas or whole devices are offered. Raises: ApiError if the server gives no answer.
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
        log.warning("api server refuses the dry run about shares", extra=fields(pool=empty.pool, err=str(error)))
        losses.assume(frozenset({SHARE_FIELD}), version=version)
        return
    losses.note(sent, answer, version=version)
