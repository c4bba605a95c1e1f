"""Leases as slots of a cluster-wide budget: each may be taken once in a period, by whichever agent comes first.

In: the names of the Leases, a holder. Out: whether the holder has a slot, or when to ask again. A slot is taken by a
write that fails if another client wrote in between. Clocks of nodes may differ by seconds; a time in the future keeps a
slot taken, so a wrong clock makes the budget smaller and never larger.
Source: Kubernetes API coordination.k8s.io/v1 Lease; API conventions on resourceVersion.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from dra_driver.base.errors import ApiError, Retry
from dra_driver.base.wire import Wire
from dra_driver.kube.answers import CONFLICT, FORBIDDEN, NOT_FOUND
from dra_driver.kube.api import KubeApi
from dra_driver.kube.paths import LEASES, named, within

REQUEST_SECONDS = 5.0
REQUEST_TIMEOUT = 408
RACE_SECONDS = 1.0  # the pause before the next try if other agents have just taken every free slot


@dataclass(frozen=True, slots=True)
class _LeaseSlot:
    """One Lease: who holds it, and until when, in seconds since 1970. `wire` is None if it does not exist yet."""

    name: str
    holder: str
    until: float
    wire: Wire | None


class LeaseSlots:
    """Slots of one budget. Any thread may call `acquire`, one at a time.

    Args:
        api: the API server.
        namespace: where the Leases are.
        names: the names of the Leases, one for each slot.
        period_s: how long a slot stays taken.
    """

    def __init__(
        self,
        api: KubeApi,
        *,
        namespace: str,
        names: Sequence[str],
        period_s: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._api, self._names, self._period, self._clock = api, tuple(names), period_s, clock
        self._path = within(LEASES, namespace)
        leases = " to ".join(dict.fromkeys((self._names[0], self._names[-1])))
        self._needed = f"check that this client may get and update the Leases {leases} in namespace {namespace}"

    def acquire(self, holder: str) -> float:
        """Take a slot. Return 0 if the holder has one now, otherwise for how many seconds none will be free.

        Raises: ApiError if a Lease cannot be read that the holder may hold, if no slot can be written, or if it is
        unknown whether one was. The next call finds that out; with another write now, the holder could have two slots.
        """
        slots, unread = self._read()
        now = self._clock()
        if any(slot.holder == holder and slot.until > now for slot in slots):
            return 0.0
        if unread is not None:
            raise unread
        fault = None
        free = [slot for slot in slots if slot.until <= now]
        random.shuffle(free)  # so that agents which fail at the same time don't all try the same one
        for slot in free:
            try:
                self._write(slot, holder, now)
            except ApiError as error:
                if _may_have_written(error):
                    raise
                fault = fault if error.code == CONFLICT else error  # another agent was faster
                continue
            return 0.0
        taken = [slot.until for slot in slots if slot.until > now]
        if fault is not None and not taken:
            raise fault
        return RACE_SECONDS if (free and fault is None) or not taken else max(RACE_SECONDS, min(taken) - now)

    def renew(self, holder: str) -> bool:
        """Restart the period of the holder's slot; return whether it has one. Raises: ApiError."""
        slot = self._of(holder, self._clock())
        if slot is not None:
            self._write(slot, holder, self._clock())
        return slot is not None

    def release(self, holder: str) -> None:
        """Free the slot that is in the holder's name; do nothing if there is none. Raises: ApiError.

        Its period may be over: the clock may have been wrong when it was taken.
        """
        slot = self._of(holder, 0.0)
        if slot is not None:
            self._put(slot, {})

    def _of(self, holder: str, after: float) -> _LeaseSlot | None:
        """Return the holder's slot whose period is over later than that."""
        slots, fault = self._read()
        found = next((slot for slot in slots if slot.holder == holder and slot.until > after), None)
        if found is None and fault is not None:
            raise fault
        return found

    def _read(self) -> tuple[list[_LeaseSlot], ApiError | None]:
        slots: list[_LeaseSlot] = []
        fault = None
        for name in self._names:
            try:
                wire = self._request("GET", named(self._path, name))
            except ApiError as error:
                if error.code == NOT_FOUND:
                    slots.append(_LeaseSlot(name, "", 0.0, None))
                else:
                    fault = error
                continue
            slots.append(self._slot(name, wire))
        return slots, fault

    def _slot(self, name: str, wire: Wire) -> _LeaseSlot:
        spec = wire.get("spec")
        spec = spec if isinstance(spec, dict) else {}
        holder = spec.get("holderIdentity")
        if not isinstance(holder, str) or not holder:
            return _LeaseSlot(name, "", 0.0, wire)
        return _LeaseSlot(name, holder, _seconds(spec.get("renewTime"), self._clock()) + self._period, wire)

    def _write(self, slot: _LeaseSlot, holder: str, now: float) -> None:
        at = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {"holderIdentity": holder, "leaseDurationSeconds": self._period, "acquireTime": at, "renewTime": at}
        if slot.wire is None:
            new = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": slot.name},
                "spec": spec,
            }
            self._request("POST", self._path, new)
            return
        self._put(slot, spec)

    def _put(self, slot: _LeaseSlot, spec: Wire) -> None:
        """Replace the content of a Lease that no client has written since it was read. Raises: ApiError."""
        wire = slot.wire or {}
        metadata = wire.get("metadata")
        if not isinstance(metadata, dict) or not isinstance(metadata.get("resourceVersion"), str):
            raise ApiError("bad-answer", f"Lease {slot.name} has no resourceVersion", retry=Retry.LATER)
        self._request("PUT", named(self._path, slot.name), {**wire, "spec": spec})

    def _request(self, method: str, path: str, body: Wire | None = None) -> Wire:
        """Make a request. Raises: ApiError, which names the missing right if the server refuses."""
        try:
            return self._api.request(method, path, body=body, timeout_s=REQUEST_SECONDS)
        except ApiError as error:
            if error.code == FORBIDDEN:
                error.hint = self._needed
            raise


def _may_have_written(error: ApiError) -> bool:
    """Return whether the server may have carried out a write that ended with this error."""
    return error.status < 400 or error.status == REQUEST_TIMEOUT or error.status >= 500


def _seconds(text: Any, now: float) -> float:
    """Return a time of the API in seconds since 1970; anything that is not a time counts as now."""
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except (ValueError, OverflowError):
        return now
