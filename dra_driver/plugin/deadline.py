"""Deadline: a point in monotonic time by which a call has to be answered.

The kubelet allows 45 s for each call. A failed Prepare delays the pod by 60 to 90 s, so a call waits until a transient
fault is over, but its answer must still reach the kubelet in time.
"""

from __future__ import annotations

import time
from typing import NamedTuple

KUBELET_SECONDS = 45.0  # the deadline of each NodePrepareResources and NodeUnprepareResources
BUDGET_SECONDS = 40.0  # how much of it a call may use
HOLDER_SECONDS = 35.0  # how long a Prepare waits for a device that another claim holds
NODE_SECONDS = 2.0  # how long for a device node: udev makes it within milliseconds, after the driver or a partition


class Deadline(NamedTuple):
    """A point in monotonic time, in seconds. A call that `goes_first` is served before others, which wait for it."""

    at: float
    goes_first: bool = False

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """Return the deadline `seconds` from now."""
        return cls(time.monotonic() + seconds)

    @classmethod
    def of_call(cls, time_remaining_s: float | None, *, goes_first: bool = False) -> Deadline:
        """Return the deadline of a gRPC call: its budget, less a margin for the answer to travel back."""
        if time_remaining_s is None or time_remaining_s > KUBELET_SECONDS:
            time_remaining_s = KUBELET_SECONDS
        margin = min(2.0, time_remaining_s / 5)
        return cls(time.monotonic() + min(BUDGET_SECONDS, time_remaining_s - margin), goes_first)

    def remaining(self) -> float:
        """Return the seconds that are left; 0 once the deadline has passed."""
        return max(0.0, self.at - time.monotonic())

    def has_passed(self) -> bool:
        """Return whether no time is left."""
        return time.monotonic() >= self.at

    def sooner(self, seconds: float) -> Deadline:
        """Return the earlier of this deadline and `seconds` from now."""
        return Deadline(min(self.at, time.monotonic() + seconds), self.goes_first)
