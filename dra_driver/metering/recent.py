"""Recent events: what happened to each GPU in the last five minutes, for names that count in a window.

In: reports, the time. Out: for each subject how often each Xid occurred, and in how many readings the clocks were
reduced for each reason. Source: dcgm-exporter, whose windows are five minutes by default; nvml.h, the bits of
nvmlClocksEventReasons.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping

from dra_driver.hardware.metered import Measure, MeterReport
from dra_driver.hardware.metric_names import RECENT_CLOCK_EVENTS, RECENT_XIDS
from dra_driver.metering.holders import Subject

WINDOW_SECONDS = 300
_REASONS = {
    0x1: "gpu_idle", 0x2: "clocks_setting", 0x4: "power_cap", 0x8: "hw_slowdown", 0x10: "sync_boost",
    0x20: "sw_thermal", 0x40: "hw_thermal", 0x80: "hw_power_brake", 0x100: "display_clocks",
}  # fmt: skip
Xids = Mapping[Subject, Mapping[int, int]]


class RecentEvents:
    """The last minutes of one node. Not thread-safe."""

    def __init__(self) -> None:
        self._xids: deque[tuple[float, Xids]] = deque()  # the counts at past times; the first is the base
        self._reasons: dict[Subject, deque[tuple[float, int]]] = {}

    def update(self, report: MeterReport, now: float) -> None:
        """Add new events, and forget those that are older than the window. The clock may be set back."""
        if not self._xids:
            self._xids.append((now, {}))
        if self._xids[-1][1] != report.xids:
            self._xids.append((now, report.xids))
        while len(self._xids) > 1 and not 0 <= now - self._xids[1][0] <= WINDOW_SECONDS:
            self._xids.popleft()
        here = {(one.gpu, one.gi_id): one for one in report.readings if Measure.CLOCK_REASONS in one.values}
        self._reasons = {subject: found for subject, found in self._reasons.items() if subject in here}
        for subject, one in here.items():
            found = self._reasons.setdefault(subject, deque())
            if not found or found[-1][0] != one.at:
                found.append((one.at, int(one.values[Measure.CLOCK_REASONS])))
            while found and not 0 <= one.at - found[0][0] <= WINDOW_SECONDS:
                found.popleft()

    def counts(self, quantity: str, subject: Subject) -> Iterator[tuple[tuple[tuple[str, str], ...], int]]:
        """Yield the labels and the count of each kind of event; if there was none, one count of 0 without a kind."""
        if quantity == RECENT_XIDS:
            label, found = "xid", self._recent_xids(subject)
        elif quantity == RECENT_CLOCK_EVENTS:
            label, found = "clock_event", self._recent_reasons(subject)
        else:
            return
        window = ("window_size_in_ms", str(WINDOW_SECONDS * 1000))
        if not found and subject[1] is None:
            yield (window,), 0
        for kind, count in sorted(found.items()):
            yield (window, (label, kind)), count

    def _recent_xids(self, subject: Subject) -> dict[str, int]:
        if len(self._xids) < 2:
            return {}
        before, counts = (self._xids[index][1].get(subject, {}) for index in (0, -1))
        return {str(code): count - before.get(code, 0) for code, count in counts.items() if count > before.get(code, 0)}

    def _recent_reasons(self, subject: Subject) -> dict[str, int]:
        found: Counter[str] = Counter()
        for _, bits in self._reasons.get(subject, ()):
            found.update(name for bit, name in _REASONS.items() if bits & bit)
        return dict(found)
