"""Dropped fields: what the API server did not keep because their feature gates are off.

In: what was sent and what came back. Out: what to remember as stored, which drops are unsafe, one log line, one
problem. A harmless loss is remembered as if the field had been kept, so the field is sent again only with the next
write that is needed anyway. After an unsafe loss (shared counters, blocking taints, devices that may be allocated many
times) the pool offers a substitute until the server has another version. From time to time the server is also asked
again whether it keeps taints, so that devices withheld because their taints were dropped are soon offered again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from dra_driver.controller.compare import COUNTER_FIELDS, SHARE_FIELD, TAINT_FIELD, differing_fields, gates_behind
from dra_driver.controller.validity import has_blocking_taint
from dra_driver.hardware.facts import Problem
from dra_driver.inventory.offering import KeptFields
from dra_driver.model.wire import SliceWire, Wire
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

FIELDS_DROPPED = "controller.fields-dropped"
TAINTS_AGAIN_SECONDS = 600.0  # seconds until a server that dropped taints is asked about them again


class DroppedFields:
    """The dropped fields of one pool. Not thread-safe: the owner holds a lock."""

    def __init__(
        self, pool: str, known: frozenset[str] = frozenset(), *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._pool, self._clock = pool, clock
        self.fields = known  # fields in `known` were reported before, and are not reported again
        self.unsafe: frozenset[str] = frozenset()
        self._assumed: frozenset[str] = frozenset()  # those that the server refused to show
        self._taints_asked_at = 0.0

    @property
    def kept(self) -> KeptFields:
        """Return what may be offered to this server."""
        unsafe = self.unsafe
        return KeptFields(
            counters=unsafe.isdisjoint(COUNTER_FIELDS),
            shares=SHARE_FIELD not in unsafe,
            taints=TAINT_FIELD not in unsafe,
        )

    @property
    def taints_due_s(self) -> float | None:
        """Return the seconds until the server is asked about taints again; None unless it is known to drop them."""
        if TAINT_FIELD not in self.unsafe:
            return None
        return max(0.0, self._taints_asked_at + TAINTS_AGAIN_SECONDS - self._clock())

    @property
    def taints_are_due(self) -> bool:
        """Return whether the server is to be asked about taints again now."""
        return self.taints_due_s == 0.0

    def record(self, sent: SliceWire, answer: SliceWire, *, version: str) -> tuple[Wire | None, frozenset[str]]:
        """Compare an answer with what was sent, and record the fields that were dropped.

        Returns the spec to remember in place of the stored one (None to remember the stored one), and the unsafe fields
        that this answer has lost.
        """
        lost = differing_fields(sent["spec"], answer["spec"])
        unsafe = set(lost.intersection((*COUNTER_FIELDS, SHARE_FIELD)))
        if TAINT_FIELD in lost and any(has_blocking_taint(d) for d in sent["spec"].get("devices", ())):
            unsafe.add(TAINT_FIELD)
        new = lost - self.fields
        self.fields |= lost
        self._add_unsafe(frozenset(unsafe))
        if new:
            self._report(new, version)
        return (sent["spec"] if lost and not unsafe else None), frozenset(unsafe)

    def add(self, other: DroppedFields) -> None:
        """Add the dropped fields that were found elsewhere."""
        self.fields |= other.fields
        self._assumed = (self._assumed | other._assumed) & self.fields
        self._add_unsafe(other.unsafe)

    def assume(self, lost: frozenset[str], *, version: str) -> None:
        """Record fields as lost and unsafe, because the server refused to show whether it keeps them."""
        self._assumed |= lost
        if new := lost - self.fields:
            self._report(new, version)
        self.fields |= lost
        self._add_unsafe(lost)

    def forget_taints(self) -> None:
        """Forget that taints were dropped, because the server is asked again."""
        self.forget_fields(frozenset({TAINT_FIELD}))

    def forget_fields(self, lost: frozenset[str]) -> None:
        """Forget that some fields were dropped, because the server is asked again."""
        self.fields -= lost
        self.unsafe -= lost
        self._assumed -= lost

    def forget_harmless(self) -> None:
        """Forget the fields whose loss is harmless, because they will be sent again with new content."""
        self.fields = self.unsafe

    def forget(self) -> None:
        """Forget all dropped fields: another server may keep what the last one dropped."""
        self.fields = self.unsafe = self._assumed = frozenset()

    def problems(self) -> tuple[Problem, ...]:
        """Return a problem that lists the dropped fields; none if no field was dropped."""
        if not self.fields:
            return ()
        verb = "may drop" if self.fields <= self._assumed else "dropped"
        message = f"the API server {verb} {_listed(self.fields)}; {_hint(self.fields, self._assumed)}"
        return (Problem(FIELDS_DROPPED, self._pool, message),)

    def _add_unsafe(self, lost: frozenset[str]) -> None:
        if TAINT_FIELD in lost - self.unsafe:
            self._taints_asked_at = self._clock()
        self.unsafe |= lost

    def _report(self, lost: frozenset[str], version: str) -> None:
        keys = fields(pool=self._pool, reason=_listed(lost), version=version, hint=_hint(lost, self._assumed))
        log.warning("the API server dropped fields of our slices", extra=keys)


def _listed(lost: frozenset[str]) -> str:
    return ", ".join(sorted(lost))


def _hint(lost: frozenset[str], assumed: frozenset[str]) -> str:
    gates = ", ".join(gates_behind(lost)) or "unknown"
    instead = "whole GPUs and existing partitions are offered; " if lost.intersection(COUNTER_FIELDS) else ""
    if SHARE_FIELD in lost:
        instead += "shared devices are offered as their replicas, or whole if none are configured; "
    if TAINT_FIELD in lost:
        instead += "tainted devices that no claim has are withheld; "
    if lost <= assumed:
        return f"{instead}it refused the dry run that would show whether it keeps them, and is asked again soon"
    only_taints = lost == {TAINT_FIELD}
    then = (
        "the server is asked again every ten minutes" if only_taints else "restart this agent after switching them on"
    )
    return f"{instead}feature gates that are probably off: {gates}; {then}"
