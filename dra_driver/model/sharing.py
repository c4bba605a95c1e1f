"""Sharing settings: how several users of one device are kept apart, and which device that is.

Out: frozen values that the agent's configuration, a device class or a claim sets. Never: what they do on the node
(`plugin.effects.sharing`), who may set them (`claims`), or what is published about them (`inventory`). They live here
because all three need them and do not know each other.
Source: NVIDIA's DRA driver, API group resource.nvidia.com/v1beta1 (intervals and limits).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from dra_driver.model.records import Key, RecordForm
from dra_driver.model.wire import Wire


class Strategy(enum.StrEnum):
    """How a device is shared."""

    TIME_SLICING = "TimeSlicing"
    MPS = "MPS"


class Interval(enum.StrEnum):
    """How long a time slice is; the driver has four lengths."""

    DEFAULT = "Default"
    SHORT = "Short"
    MEDIUM = "Medium"
    LONG = "Long"

    @property
    def level(self) -> int:
        """Return the number that the driver uses: 0 for its default, 1 to 3 for short to long."""
        return tuple(Interval).index(self)


class Tenants(enum.StrEnum):
    """Whose claims may share one MPS daemon."""

    ANY = "any"  # those of all namespaces that the sharing rules admit
    NAMESPACE = "namespace"  # those of one namespace, to which each shared device is offered from the start


class ComputeMode(enum.StrEnum):
    """How many processes may use a device, in nvidia-smi's terms."""

    DEFAULT = "DEFAULT"  # any number of processes
    EXCLUSIVE_THREAD = "EXCLUSIVE_THREAD"  # one context; newer drivers no longer offer it
    PROHIBITED = "PROHIBITED"  # no process
    EXCLUSIVE_PROCESS = "EXCLUSIVE_PROCESS"  # one process, or one MPS server


@dataclass(frozen=True, slots=True)
class TimeSlicingSettings:
    """Processes take turns. A MIG device has no interval of its own, so its interval is always DEFAULT."""

    interval: Interval = Interval.DEFAULT


@dataclass(frozen=True, slots=True)
class MpsSettings:
    """Processes run at the same time behind one MPS server.

    `active_thread_percentage` (0 to 100) and `pinned_memory_limit` (bytes) are the daemon's limits for each client
    unless the client sets lower ones; None leaves the daemon's own default. `per_device_limits` maps a GPU or MIG UUID,
    or an index, to bytes, and takes precedence over `pinned_memory_limit`. `across_namespaces` lets claims of several
    namespaces share the daemon, its control channel and its shared memory; only the agent's configuration can set it.
    """

    active_thread_percentage: int | None = None
    pinned_memory_limit: int | None = None
    per_device_limits: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    multi_user: bool = False
    across_namespaces: bool = False


SharingSettings = TimeSlicingSettings | MpsSettings


def strategy_of(settings: SharingSettings) -> Strategy:
    """Return the strategy that the settings belong to."""
    return Strategy.MPS if isinstance(settings, MpsSettings) else Strategy.TIME_SLICING


_FORMS: dict[Strategy, RecordForm[Any]] = {
    Strategy.TIME_SLICING: RecordForm(TimeSlicingSettings, interval=Key("interval", read=Interval)),
    Strategy.MPS: RecordForm(
        MpsSettings,
        active_thread_percentage=Key("activeThreadPercentage"),
        pinned_memory_limit=Key("pinnedMemoryLimit"),
        per_device_limits=Key(
            "perDeviceLimits",
            write=lambda limits: dict(sorted(limits.items())),
            read=lambda limits: MappingProxyType(dict(limits)),
        ),
        multi_user=Key("multiUser"),
        across_namespaces=Key("acrossNamespaces"),
    ),
}


def record_of_settings(settings: SharingSettings) -> Wire:
    """Return the settings as a JSON object for the ledger."""
    strategy = strategy_of(settings)
    return {"strategy": strategy, **_FORMS[strategy].write(settings)}


def settings_of_record(record: Mapping[str, Any]) -> SharingSettings:
    """Return the settings that `record_of_settings` wrote. Raises: KeyError or ValueError for any other record."""
    settings: SharingSettings = _FORMS[Strategy(record["strategy"])].read(record)
    return settings


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """The limits that one MPS client should keep to. They are set in its environment, and nothing enforces them.

    `active_thread_percentage` is 1 to 100 and `pinned_memory_limit` is in bytes; None leaves the daemon's limit.
    """

    active_thread_percentage: int | None = None
    pinned_memory_limit: int | None = None


@dataclass(frozen=True, slots=True)
class SharedDevice:
    """The physical device that is shared: a whole GPU, or one MIG device of it.

    `name` is the stable published name of the device itself, never that of a replica or a share. `minor` and
    `pci_address` are those of the GPU.
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
        """Return the device's name and UUID, as users read them."""
        return f"{self.name} ({self.uuid})"


SHARED_DEVICE, CLIENT_LIMITS = RecordForm(SharedDevice), RecordForm(ClientLimits)
