"""Sharing settings: how several users of one device are kept apart, and which device is meant.

Out: frozen values that the agent's configuration, a device class or a claim decides on. Never: what they do on the node
(`sharing`), who may say them (`claims`), what is published of them (`inventory`). They lie here because all three need
them and do not know each other.
Source: NVIDIA's DRA driver, API group resource.nvidia.com/v1beta1 (intervals and limits).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from dra_driver.model.wire import Wire


class Strategy(enum.StrEnum):
    """How a device is shared."""

    TIME_SLICING = "TimeSlicing"
    MPS = "MPS"


class Interval(enum.StrEnum):
    """How long a time slice is; the driver knows four lengths."""

    DEFAULT = "Default"
    SHORT = "Short"
    MEDIUM = "Medium"
    LONG = "Long"

    @property
    def level(self) -> int:
        """Return the driver's number: 0 for its default, 1 to 3 for short to long."""
        return tuple(Interval).index(self)


class Tenants(enum.StrEnum):
    """Whose claims may meet behind one MPS daemon."""

    ANY = "any"  # whoever the sharing rules let
    NAMESPACE = "namespace"  # those of one namespace, to which each shared device is offered from the start


class ComputeMode(enum.StrEnum):
    """How many processes may use a device; the words are those of nvidia-smi."""

    DEFAULT = "DEFAULT"  # any number
    EXCLUSIVE_THREAD = "EXCLUSIVE_THREAD"  # one context; not on newer drivers
    PROHIBITED = "PROHIBITED"  # none
    EXCLUSIVE_PROCESS = "EXCLUSIVE_PROCESS"  # one process, or one MPS server


@dataclass(frozen=True, slots=True)
class TimeSlicingSettings:
    """Processes take turns. A MIG device has no interval of its own: DEFAULT there."""

    interval: Interval = Interval.DEFAULT


@dataclass(frozen=True, slots=True)
class MpsSettings:
    """Processes run at once behind one MPS server.

    `active_thread_percentage` (0 to 100) and `pinned_memory_limit` (bytes) are what the daemon gives each client unless
    the client asks for less; None leaves the daemon's own default. `per_device_limits` are bytes by GPU or MIG UUID or
    by index, and beat `pinned_memory_limit`. `across_namespaces` lets claims of several namespaces share the daemon,
    its control channel and its shared memory; only the agent's configuration can say so.
    """

    active_thread_percentage: int | None = None
    pinned_memory_limit: int | None = None
    per_device_limits: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    multi_user: bool = False
    across_namespaces: bool = False


SharingSettings = TimeSlicingSettings | MpsSettings


def strategy_of(settings: SharingSettings) -> Strategy:
    """Name the strategy that settings belong to."""
    return Strategy.MPS if isinstance(settings, MpsSettings) else Strategy.TIME_SLICING


def record_of_settings(settings: SharingSettings) -> Wire:
    """Return settings as JSON, for the ledger."""
    if isinstance(settings, TimeSlicingSettings):
        return {"strategy": Strategy.TIME_SLICING, "interval": settings.interval}
    return {
        "strategy": Strategy.MPS,
        "activeThreadPercentage": settings.active_thread_percentage,
        "pinnedMemoryLimit": settings.pinned_memory_limit,
        "perDeviceLimits": dict(sorted(settings.per_device_limits.items())),
        "multiUser": settings.multi_user,
        "acrossNamespaces": settings.across_namespaces,
    }


def settings_of_record(record: Mapping[str, Any]) -> SharingSettings:
    """Return the settings that `record_of_settings` wrote. Raises: KeyError, ValueError for what it did not write."""
    if record["strategy"] == Strategy.TIME_SLICING:
        return TimeSlicingSettings(Interval(record["interval"]))
    if record["strategy"] != Strategy.MPS:
        raise ValueError(f"unknown strategy {record['strategy']}")
    return MpsSettings(
        active_thread_percentage=record["activeThreadPercentage"],
        pinned_memory_limit=record["pinnedMemoryLimit"],
        per_device_limits=MappingProxyType(dict(record["perDeviceLimits"])),
        multi_user=record["multiUser"],
        across_namespaces=record["acrossNamespaces"],
    )


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """What one MPS client is to keep to; its environment says so, and nothing makes it.

    `active_thread_percentage` 1 to 100, `pinned_memory_limit` in bytes; None leaves what the daemon gives.
    """

    active_thread_percentage: int | None = None
    pinned_memory_limit: int | None = None


@dataclass(frozen=True, slots=True)
class SharedDevice:
    """The physical device that is shared: a whole GPU, or one MIG device of it.

    `name` is the stable published name of the device itself, never that of a replica or a share. `minor` and
    `pci_address` are the GPU's.
    """

    name: str
    gpu_uuid: str
    minor: int
    pci_address: str = ""
    mig_uuid: str | None = None

    @property
    def uuid(self) -> str:
        """Return the UUID by which CUDA finds the device."""
        return self.mig_uuid or self.gpu_uuid

    def __str__(self) -> str:
        """Name the device for people."""
        return f"{self.name} ({self.uuid})"
