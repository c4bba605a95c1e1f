"""FreshLook: whether the GPUs of a node, whose history was lost, were looked at again.

A GPU counts as looked at once it was read after the loss and no reading needs a second one. A GPU that can't be read
delays this only for a while, because what the node can't find out does not keep its GPUs from claims for good.
"""

from __future__ import annotations

from collections.abc import Iterable

from dra_driver.health.fault import FaultKey
from dra_driver.health.record import HealthRecord

LOOK_SECONDS = 60.0


class FreshLook:
    """The look at one node's GPUs. It is over while none was begun."""

    def __init__(self) -> None:
        self._began: float | None = None

    @property
    def is_over(self) -> bool:
        """Return whether nothing was lost, or every GPU was looked at since."""
        return self._began is None

    def begin(self, now: float) -> None:
        """Begin to look: what was known of the GPUs is lost."""
        self._began = now

    def follow(self, record: HealthRecord, gpus: Iterable[str], now: float) -> None:
        """End the look if the record shows that every one of these GPUs was looked at."""
        if self._began is None:
            return
        gpus, read = tuple(gpus), {gpu: state.action_at for gpu, state in record.gpus.items()}
        silent = {subject.gpu for (subject, key), one in record.tracks.items() if _is_silent(key) and one.is_raised}
        is_seen = all(read.get(gpu, 0.0) > self._began or gpu in silent for gpu in gpus)
        if (gpus and is_seen and not record.has_suspicion) or now - self._began > LOOK_SECONDS:
            self._began = None


def _is_silent(key: FaultKey) -> bool:
    return key in (FaultKey.UNMONITORED, FaultKey.GPU_LOST, FaultKey.NOT_ANSWERING)
