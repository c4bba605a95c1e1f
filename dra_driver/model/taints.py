"""Device taints: marks on a published device that keep pods away from it, or only inform.

Values only. Which code raises a taint, and where it is published, is decided elsewhere.
Source: Kubernetes API resource/v1 DeviceTaint; KEP-5055.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from dra_driver.model.wire import Wire


class TaintEffect(enum.StrEnum):
    """What a taint does to pods that do not tolerate it."""

    NONE = "None"  # nothing: the taint informs (Kubernetes 1.35 and newer)
    NO_SCHEDULE = "NoSchedule"  # no claim is allocated the device
    NO_EXECUTE = "NoExecute"  # the same, and pods that use the device are deleted

    @property
    def is_blocking(self) -> bool:
        """Return whether no new pod gets the device."""
        return self is not TaintEffect.NONE


@dataclass(frozen=True, slots=True)
class DeviceTaint:
    """One taint of one device. `key` is a label key and `value` a label value, as the API demands.

    `time_added` is when the fault began, in UTC and whole seconds: evictions count from it, so it must stay the same
    for as long as the fault lasts. If it is None, the time that the API server has stored is kept.

    Raises: ValueError for a time without a time zone.
    """

    key: str
    value: str
    effect: TaintEffect
    time_added: datetime | None = None

    def __post_init__(self) -> None:
        """Truncate the time to the precision that the API server stores, so that both compare as equal."""
        if self.time_added is None:
            return
        if self.time_added.tzinfo is None:
            raise ValueError(f"the time of taint {self.key} has no time zone: {self.time_added}")
        object.__setattr__(self, "time_added", self.time_added.astimezone(UTC).replace(microsecond=0))

    def wire(self) -> Wire:
        """Return the taint in the form of the API, without empty fields.

        >>> since = datetime(2026, 1, 2, 3, 4, 5, 6, UTC)
        >>> DeviceTaint("gpu.nvidia.com/xid", "79", TaintEffect.NO_EXECUTE, since).wire()
        {'key': 'gpu.nvidia.com/xid', 'value': '79', 'effect': 'NoExecute', 'timeAdded': '2026-01-02T03:04:05Z'}
        """
        time = {"timeAdded": f"{self.time_added:%Y-%m-%dT%H:%M:%SZ}"} if self.time_added else {}
        return {"key": self.key, **({"value": self.value} if self.value else {}), "effect": str(self.effect), **time}


DeviceTaints = Mapping[str, tuple[DeviceTaint, ...]]
"""The taints of a node's devices, by device name; a device without taints is absent."""
