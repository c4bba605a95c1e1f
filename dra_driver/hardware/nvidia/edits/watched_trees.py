"""WatchedTrees: whether driver roots have changed since they were last read. Each Prepare asks this.

Comparing every path takes a third of the time of a Prepare. So the kernel is asked whether anything happened, and the
paths are compared only if something did, or if the last comparison is older than `COMPARED_SECONDS`: for a network file
system the kernel does not report what other machines change.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from dra_driver.hardware.nvidia.edits.driver_root import DriverRoot
from dra_driver.hardware.nvidia.edits.path_watch import PathWatch

COMPARED_SECONDS = 2.0


class WatchedTrees:
    """Trees that were read, with a watch over every path that was read. Any thread may call any method.

    `beside` are further paths that are watched, but not compared here. While `comparisons` stays the same, nothing has
    happened at them either.
    """

    def __init__(self, *trees: DriverRoot, beside: Iterable[str] = ()) -> None:
        self._trees, self._beside = trees, tuple(beside)
        self.comparisons = 0
        self._lock = threading.Lock()  # guards all below; the first three are also read without it
        self._watch: PathWatch | None = None
        self._is_in_doubt = True  # whether something may have happened since the paths were compared
        self._compared_at = 0.0
        self._can_watch = True

    def is_unchanged(self) -> bool:
        """Return whether every path is as it was when it was read."""
        watch, is_fresh = self._watch, time.monotonic() - self._compared_at < COMPARED_SECONDS
        if (
            watch is not None and is_fresh and watch.is_quiet() and not self._is_in_doubt
        ):  # the order matters: see `_is_same`
            return True
        with self._lock:
            return self._is_same()

    def close(self) -> None:
        """End the watch."""
        with self._lock:
            self._can_watch = False
            self._end_watch()

    def _is_same(self) -> bool:
        """Compare every path, unless nothing relevant has happened.

        Reading the watch clears it before the result is known, so `_is_in_doubt` is set throughout.
        """
        was_in_doubt, self._is_in_doubt = self._is_in_doubt, True
        is_fresh = time.monotonic() - self._compared_at < COMPARED_SECONDS
        if self._watch is not None and not self._watch.has_seen() and is_fresh and not was_in_doubt:
            self._is_in_doubt = False
            return True
        if self._watch is not None and not self._watch.is_whole:
            self._end_watch()
        if self._watch is None and self._can_watch:
            self._begin_watch()
        self._compared_at = time.monotonic()
        self.comparisons += 1
        is_same = all(tree.is_unchanged() for tree in self._trees)
        self._is_in_doubt = not is_same
        return is_same

    def _begin_watch(self) -> None:
        try:
            self._watch = PathWatch((*self._beside, *(path for tree in self._trees for path in tree.looked())))
        except OSError:  # the kernel allows no more watches: then each call compares
            self._can_watch = False

    def _end_watch(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None
