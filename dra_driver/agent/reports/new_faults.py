"""New faults: an Event about each fault when it begins to keep claims from a device, and no second one while it lasts.

In: the verdicts on the node's devices, and all current faults. Out: Events about the node and about the pods that use
an affected device. A fault that another instance of the agent reported before this one got the node's role is not
reported again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from dra_driver.agent.reports.fault_events import FAULT_REASON, FaultEvents, PodNotice
from dra_driver.health.fault import Fault, FaultKey, Subject
from dra_driver.health.policy import FaultVerdict

_DELETE_POD = "; delete this pod: its claim keeps the device for as long as it exists, also if it can't be started"


class NewFaults:
    """The faults of one node about which an Event was sent. For use by a single thread at a time."""

    def __init__(self, events: FaultEvents) -> None:
        self._events = events
        self._is_starting = False
        self._began = 0.0
        self._reported: frozenset[tuple[Subject, str]] = frozenset()

    def begin(self) -> None:
        """Treat the faults of the next call as reported, because the instance that recorded them reported them."""
        self._is_starting, self._began = True, time.time()

    def report(self, verdicts: Mapping[str, tuple[FaultVerdict, ...]], current: Iterable[Fault]) -> None:
        """Send an Event about each new fault. `verdicts` are those on each device, `current` all faults of the node."""
        blocking = _notices(verdicts)
        lasting = frozenset((one.subject, one.sentence) for one in current)
        if self._is_starting:
            self._is_starting, self._reported = False, lasting
        for (subject, sentence), notice in blocking.items():
            is_old = sentence.startswith(FaultKey.CORDONED) and notice.since < self._began
            if sentence.startswith(FaultKey.REMEDIATION):
                continue  # each stage of a remediation has its own Event
            if (subject, sentence) not in self._reported and not is_old:
                self._events.send_node_event(FAULT_REASON, f"GPU {subject.gpu}: {sentence}")
                self._events.send_pod_events(notice)
        self._reported = frozenset(blocking) | (self._reported & lasting)


def _notices(verdicts: Mapping[str, tuple[FaultVerdict, ...]]) -> dict[tuple[Subject, str], PodNotice]:
    """Return the notice for each fault that keeps claims from devices, with all the devices that it affects."""
    found: dict[tuple[Subject, str], PodNotice] = {}
    for name, of_device in verdicts.items():
        for one in (one for one in of_device if one.effect.is_blocking):
            key = (one.fault.subject, one.fault.sentence)
            before = found[key].devices if key in found else frozenset()
            advice = _DELETE_POD if one.fault.key is FaultKey.GPU_LOST else ""
            found[key] = PodNotice(before | {name}, FAULT_REASON, f"{one.fault.sentence}{advice}", one.since)
    return found
