"""Deadline: a point in monotonic time by which a call has to be answered.

The kubelet allows 45 s for each call. A failed Prepare delays the pod by 60 to 90 s, so a call waits until a transient
fault is over, but its answer must still reach the kubelet in time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from dra_driver.model.errors import PrepareError, Retry

KUBELET_SECONDS = 45.0  # the deadline of each NodePrepareResources and NodeUnprepareResources
BUDGET_SECONDS = 40.0  # how much of it a call may use
HOLDER_SECONDS = 35.0  # how long a Prepare waits for a device that another claim holds
NODE_SECONDS = 2.0  # how long for a device node: udev makes it within milliseconds, after the driver or a partition


def _always() -> bool:
    return True


class Deadline(NamedTuple):
    """A point in monotonic time, in seconds.

    A call that `goes_first` is served before others, which wait for it. `is_wanted` returns whether the caller still
    waits for the answer.
    """

    at: float
    goes_first: bool = False
    is_wanted: Callable[[], bool] = _always

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """Return the deadline `seconds` from now."""
        return cls(time.monotonic() + seconds)

    @classmethod
    def of_call(
        cls,
        time_remaining_s: float | None,
        *,
        goes_first: bool = False,
        is_wanted: Callable[[], bool] = _always,
    ) -> Deadline:
        """Return the deadline of a gRPC call: its budget, less a margin for the answer to travel back."""
        if time_remaining_s is None or time_remaining_s > KUBELET_SECONDS:
            time_remaining_s = KUBELET_SECONDS
        margin = min(2.0, time_remaining_s / 5)
        return cls(time.monotonic() + min(BUDGET_SECONDS, time_remaining_s - margin), goes_first, is_wanted)

    def remaining(self) -> float:
        """Return the seconds that are left; 0 once the deadline has passed."""
        return max(0.0, self.at - time.monotonic())

    def has_passed(self) -> bool:
        """Return whether no time is left."""
        return time.monotonic() >= self.at

    def sooner(self, seconds: float) -> Deadline:
        """Return the earlier of this deadline and `seconds` from now."""
        return Deadline(min(self.at, time.monotonic() + seconds), self.goes_first, self.is_wanted)

    def require_caller(self) -> None:
        """Refuse to begin what nobody waits for any more.

        A call that had to wait may run after the kubelet has given up, asked again and been answered. Called under the
        locks, before the first effect. Raises: PrepareError("prepare.given-up").
        """
        if not self.is_wanted():
            raise PrepareError(
                "given-up",
                "the kubelet gave up this call before its turn came; nothing was changed",
                hint="the kubelet asks again",
                retry=Retry.LATER,
            )
