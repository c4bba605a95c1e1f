"""This machine: its boot, files that were replaced; a cache of limited size, delays before trying again, deadlines."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from dra_driver.base.errors import PrepareError, Retry

# This machine: the boot, whose id shows whether earlier changes to the hardware can still be in effect.

_BOOT_ID = "sys/kernel/random/boot_id"
STEP_SECONDS = 1.0  # a smaller difference is drift, which changes no time that was shown


def boot_id_file(proc_root: str | os.PathLike[str]) -> Path:
    """Return the path of the boot id's file below a mount of /proc."""
    return Path(proc_root, _BOOT_ID)


def read_boot_id(proc_root: str | os.PathLike[str]) -> str:
    """Return the id of this boot. Raises: OSError where it can't be read."""
    return boot_id_file(proc_root).read_text(encoding="ascii").strip()


def boot_time() -> float:
    """Return the seconds since this machine was booted, including those in which it was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class PeopleTime:
    """The time that people read, of moments of `clock`; it stays the same for a moment until that time is set."""

    def __init__(self, clock: Callable[[], float] = boot_time, wall: Callable[[], float] = time.time) -> None:
        self.clock, self._wall = clock, wall
        self._offset = wall() - clock()

    @property
    def offset(self) -> float:
        """Return how many seconds the time that people read is ahead of the boot time."""
        now = self._wall() - self.clock()
        if abs(now - self._offset) > STEP_SECONDS:
            self._offset = now
        return self._offset


# A cache of a limited number of values by key; the oldest value goes first.

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class FifoCache(Generic[K, V]):
    """At most `maximum` values; the value that was stored first is dropped first. Any thread may use it."""

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._mutex = threading.Lock()
        self._values: dict[K, V] = {}

    def get(self, key: K) -> V | None:
        """Return the value of a key, or None if there is none."""
        return self._values.get(key)

    def keep(self, key: K, value: V) -> None:
        """Store a value, replacing any earlier value of the key."""
        with self._mutex:
            values = self._values
            values.pop(key, None)
            values[key] = value
            if len(values) > self._maximum:
                del values[next(iter(values))]


# Stamps: how to notice that a file was replaced or rewritten, without reading it.


class Stamp(NamedTuple):
    """The properties in which a file differs from the next one at the same path."""

    device: int
    inode: int
    size: int
    mtime_ns: int


def stamp_of(path: str | os.PathLike[str], *, follows_links: bool = True) -> Stamp | None:
    """Return the stamp of the file at `path`, or of the link itself; None if there is none or it can't be seen."""
    try:
        return stamp_of_status(os.stat(path, follow_symlinks=follows_links))  # noqa: PTH116 - called for many paths
    except OSError:
        return None


def stamp_of_status(status: os.stat_result) -> Stamp:
    """Return the stamp of a file whose status is known."""
    return Stamp(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


# How long to wait before trying again: a sequence of delays with full jitter.


@dataclass(slots=True)
class Backoff:
    """Random delays below a step that grows from `base_s` to `max_s`, each time by `factor`, in seconds.

    `uniform` is random.uniform, or a substitute in tests.
    """

    base_s: float = 0.1
    max_s: float = 30.0
    factor: float = 2.0
    uniform: Callable[[float, float], float] = random.uniform
    attempts: int = field(default=0, init=False)

    def next_s(self, *, least_s: float = 0.0) -> float:
        """Return the next delay in seconds: `least_s` plus the jitter of this step."""
        step = min(self.max_s, self.base_s * self.factor ** min(self.attempts, 32))
        self.attempts += 1
        return least_s + self.uniform(0.0, step)

    def reset(self) -> None:
        """Start over from the first step, because the last try worked."""
        self.attempts = 0


# Deadline: a point in monotonic time by which a call has to be answered.

KUBELET_SECONDS = 45.0  # the deadline of each NodePrepareResources and NodeUnprepareResources
BUDGET_SECONDS = 40.0  # how much of it a call may use
HOLDER_SECONDS = 35.0  # how long a Prepare waits for a device that another claim holds
NODE_SECONDS = 2.0  # how long for a device node: udev makes it within milliseconds, after the driver or a partition


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Deadline:
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
