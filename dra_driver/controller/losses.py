"""Losses: fields that the API server did not keep because their feature gates are off.

In: what was sent and what came back. Out: what to remember as stored, which losses are unsafe, one log line, one
problem. A harmless loss is remembered as if the field had been kept, so the field is sent again only with the next
write that is needed anyway. After an unsafe loss (shared counters, blocking taints, devices that may be allocated many
times) the pool offers something else until the server has another version.
"""

from __future__ import annotations

import logging

from dra_driver.controller.compare import COUNTER_FIELDS, SHARE_FIELD, TAINT_FIELD, differing_fields, gates_behind
from dra_driver.controller.validity import has_blocking_taint
from dra_driver.hardware.facts import Problem
from dra_driver.model.wire import SliceWire, Wire
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

FIELDS_DROPPED = "controller.fields-dropped"


class Losses:
    """The losses of one pool. Not thread-safe: the owner holds a lock."""

    def __init__(self, pool: str) -> None:
        self._pool = pool
        self.fields: frozenset[str] = frozenset()
        self.unsafe: frozenset[str] = frozenset()

    def note(self, sent: SliceWire, answer: SliceWire, *, version: str) -> tuple[Wire | None, frozenset[str]]:
        """Compare an answer with what was sent, and record the losses.

        Returns the spec to remember in place of the stored one (None to remember the stored one), and the unsafe fields
        that this answer has lost.
        """
        lost = differing_fields(sent["spec"], answer["spec"])
        unsafe = set(lost.intersection((*COUNTER_FIELDS, SHARE_FIELD)))
        if TAINT_FIELD in lost and any(has_blocking_taint(d) for d in sent["spec"].get("devices", ())):
            unsafe.add(TAINT_FIELD)
        news = lost - self.fields
        self.fields |= lost
        self.unsafe |= unsafe
        if news:
            self._report(news, version)
        return (sent["spec"] if lost and not unsafe else None), frozenset(unsafe)

    def add(self, other: Losses) -> None:
        """Add the losses that were found elsewhere."""
        self.fields |= other.fields
        self.unsafe |= other.unsafe

    def assume(self, lost: frozenset[str], *, version: str) -> None:
        """Record fields as lost and unsafe, because the server refused to show whether it keeps them."""
        self._report(lost - self.fields, version)
        self.fields |= lost
        self.unsafe |= lost

    def forget_harmless(self) -> None:
        """Forget the harmless losses: those fields will be sent again with new content."""
        self.fields = self.unsafe

    def forget(self) -> None:
        """Forget all losses: another server may keep what the last one dropped."""
        self.fields = self.unsafe = frozenset()

    def problems(self) -> tuple[Problem, ...]:
        """Return the losses as a problem like those of the inventory; nothing if there are none."""
        if not self.fields:
            return ()
        message = f"the API server dropped {_listed(self.fields)}; {_hint(self.fields)}"
        return (Problem(FIELDS_DROPPED, self._pool, message),)

    def _report(self, news: frozenset[str], version: str) -> None:
        keys = fields(pool=self._pool, reason=_listed(news), version=version, hint=_hint(news))
        log.warning("api server dropped fields of our slices", extra=keys)


def _listed(lost: frozenset[str]) -> str:
    return ", ".join(sorted(lost))


def _hint(lost: frozenset[str]) -> str:
    gates = ", ".join(gates_behind(lost)) or "unknown"
    instead = "whole GPUs and existing partitions are offered; " if lost.intersection(COUNTER_FIELDS) else ""
    if SHARE_FIELD in lost:
        instead += "shared devices are offered as their replicas, or whole where none are configured; "
    return f"{instead}feature gates that are probably off: {gates}; restart this agent after switching them on"
