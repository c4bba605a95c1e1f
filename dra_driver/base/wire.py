"""Sharing settings: how several users of one device are kept apart, and which device that is.

Out: frozen values that the agent's configuration, a device class or a claim sets. Never: what they do on the node
(`prepare.steps.sharing`), who may set them (`claims`), or what is published about them (`devices`). They live here
because all three need them and do not know each other.
Source: NVIDIA's DRA driver, API group resource.nvidia.com/v1beta1 (intervals and limits).
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from operator import attrgetter, itemgetter
from types import MappingProxyType
from typing import Any, Generic, TypeVar

# Wire objects: what the Kubernetes API sends and accepts, as plain JSON dicts with camelCase keys.

Wire = dict[str, Any]
SliceWire = dict[str, Any]  # resource.k8s.io/v1 ResourceSlice
DeviceWire = dict[str, Any]  # resource.k8s.io/v1 Device (an entry of spec.devices)
ClaimWire = dict[str, Any]  # resource.k8s.io/v1 ResourceClaim
ClassWire = dict[str, Any]  # resource.k8s.io/v1 DeviceClass
CdiWire = dict[str, Any]  # CDI specification document


# A claim's identity and its allocated devices, read from an object that may be malformed.

ClaimName = tuple[str, str]
"""A claim's namespace and name."""


def results(claim: ClaimWire) -> Iterator[Mapping[str, Any]]:
    """Yield the entries of a claim's allocation; those that don't name a device are left out."""
    found: Any = claim
    for key in ("status", "allocation", "devices", "results"):
        found = found.get(key) if isinstance(found, dict) else None
    for result in found if isinstance(found, list) else ():
        if isinstance(result, dict) and all(isinstance(result.get(key), str) for key in ("driver", "pool", "device")):
            yield result


def name_of(claim: ClaimWire) -> ClaimName:
    """Return a claim's namespace and name."""
    metadata = _metadata(claim)
    return str(metadata.get("namespace", "")), str(metadata.get("name", ""))


def uid_of(claim: ClaimWire) -> str:
    """Return a claim's UID, "" if it is not known."""
    return str(_metadata(claim).get("uid", ""))


def _metadata(claim: ClaimWire) -> Mapping[str, Any]:
    metadata = claim.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


# Records: frozen values as JSON objects that outlive the process, written and read by one codec.

T = TypeVar("T")

_NO_DEFAULT: Any = object()


@dataclass(frozen=True, slots=True)
class Key:
    """How one field is recorded: its `name` in the object, and how its value is written and read.

    With `left_out`, the key is omitted where the field has that value. With `missing`, the key is always written, and
    an object without it has that value.
    """

    name: str
    write: Callable[[Any], Any] | None = None
    read: Callable[[Any], Any] | None = None
    left_out: Any = _NO_DEFAULT
    missing: Any = _NO_DEFAULT


class RecordForm(Generic[T]):
    """The form in which values of one type are recorded, as objects with these `keys`.

    `without` names fields that are not recorded.
    """

    def __init__(self, kind: type[T], *, without: tuple[str, ...] = (), **keys: Key) -> None:
        names = [name for name in _field_names(kind) if name not in without]
        form = [(name, keys.get(name) or Key(name)) for name in names]
        self._kind = kind
        self.keys = frozenset(key.name for _, key in form)
        # The keys are sorted into kinds once, because every call of the kubelet reads and writes records.
        kept = [(name, key) for name, key in form if key.left_out is _NO_DEFAULT]
        optional = [(name, key) for name, key in form if key.left_out is not _NO_DEFAULT]
        self._plain_keys = tuple(key.name for _, key in kept if key.write is None)
        self._plain_values = _getter([name for name, key in kept if key.write is None])
        self._converted = tuple((key.name, attrgetter(name), key.write) for name, key in kept if key.write is not None)
        self._optional = tuple((key.name, key.left_out, key.write) for _, key in optional)
        self._optional_values = _getter([name for name, _ in optional])
        self._left_out = tuple(key.left_out for _, key in optional)
        defaults = {name: key.missing if key.left_out is _NO_DEFAULT else key.left_out for name, key in form}
        self._defaults = {name: default for name, default in defaults.items() if default is not _NO_DEFAULT}
        copied = [(name, key) for name, key in form if key.read is None and name not in self._defaults]
        self._copied = [name for name, _ in copied]
        self._found = _getter([key.name for _, key in copied], itemgetter)
        self._read = tuple((name, key.name, key.read) for name, key in form if name not in self._copied)

    def write(self, value: T) -> Wire:
        """Return the value as a JSON object."""
        record: Wire = dict(zip(self._plain_keys, self._plain_values(value), strict=True))
        for key, get, write in self._converted:
            record[key] = write(get(value))
        found = self._optional_values(value)
        if found != self._left_out:  # most values have none of the optional fields
            for (key, left_out, convert), one in zip(self._optional, found, strict=True):
                if one != left_out:
                    record[key] = one if convert is None else convert(one)
        return record

    def read(self, record: Mapping[str, Any], **more: Any) -> T:
        """Return the value of an object; `more` are the fields that are not recorded.

        Raises: KeyError, TypeError, ValueError for an object that `write` can't have written.
        """
        more.update(self._defaults)
        more.update(zip(self._copied, self._found(record), strict=True))
        for name, key, read in self._read:
            if key in record:
                found = record[key]
                more[name] = found if read is None else read(found)
            elif name not in self._defaults:
                raise KeyError(key)
        return self._kind(**more)

    def unknown(self, record: Mapping[str, Any]) -> Wire:
        """Return the keys of the object that this form does not have, with their values."""
        return {key: value for key, value in record.items() if key not in self.keys}


def _field_names(kind: type) -> tuple[str, ...]:
    """Return the names of the fields of a dataclass or a named tuple, as far as they are set when a value is made."""
    if issubclass(kind, tuple):
        return tuple(kind._fields)  # type: ignore[attr-defined]
    return tuple(field.name for field in fields(kind) if field.init)  # type: ignore[arg-type]


def _getter(
    names: list[str], get: Callable[..., Callable[[Any], Any]] = attrgetter
) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that returns these attributes of a value (with `itemgetter`, items), in order."""
    if len(names) > 1:
        return get(*names)
    if not names:
        return lambda _: ()
    only = get(names[0])
    return lambda value: (only(value),)


_ENCODER = json.JSONEncoder(separators=(",", ":"), sort_keys=True)  # made once: every call writes records


def json_text(value: Any) -> str:
    """Return JSON in the one form in which claims and steps are stored: sorted keys, no spaces."""
    return _ENCODER.encode(value)


def json_object(text: str) -> dict[str, Any]:
    """Return the JSON object in a text. Raises: ValueError, TypeError."""
    found = json.loads(text)
    if not isinstance(found, dict):
        raise TypeError(f"{found!s:.40} is no JSON object")
    return found


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


# Shares: the type as which a device is published, and how it takes part in sharing a physical device.


class DeviceType(enum.StrEnum):
    """The value of the attribute `type`, by which device classes and opaque configs select devices."""

    GPU = "gpu"
    MIG = "mig"
    GPU_SHARE = "gpu-share"
    MIG_SHARE = "mig-share"
    VFIO = "vfio"  # a whole GPU for a virtual machine
    IMEX_CHANNEL = "imex-channel"  # by which programs of several nodes reach each other's GPU memory

    @property
    def undivided(self) -> DeviceType:
        """Return the type of the device that shares of this type belong to; any other type returns itself."""
        return {DeviceType.GPU_SHARE: DeviceType.GPU, DeviceType.MIG_SHARE: DeviceType.MIG}.get(self, self)


class ShareMode(enum.StrEnum):
    """What the shares of a device are counted in."""

    REPLICAS = "replicas"  # a fixed number of equal shares
    MEMORY = "memory"  # as much memory as the claim requests
    COMPUTE = "compute"  # as many percent of the multiprocessors as the claim requests


class Enforcement(enum.StrEnum):
    """What keeps a tenant within its share."""

    NONE = "none"  # nothing
    COOPERATIVE = "cooperative"  # limits in the tenant's own environment
    HARD = "hard"  # the driver refuses to allocate more memory


@dataclass(frozen=True, slots=True)
class Share:
    """How a published device takes part in sharing a physical one.

    `parent` is the stable name of the device that is shared; `index` numbers the replicas that are published in its
    place, from 0. Without an index the published device is the parent itself, under its own name, and may be allocated
    many times. `settings` are those of the agent's configuration, complete; a claim may only lower their limits. With
    `is_hard` the driver keeps each pod to the memory of its shares. Only claims of the namespace `tenant` may have the
    share; if `tenant` is empty and `tenants` is NAMESPACE, the device is not shared by MPS at all.
    """

    parent: str
    mode: ShareMode
    index: int | None = None
    settings: SharingSettings | None = None
    is_hard: bool = False
    tenant: str = ""
    tenants: Tenants = Tenants.ANY

    @property
    def strategy(self) -> Strategy | None:
        """Return how the device is shared, or None where nothing is set up."""
        return None if self.settings is None else strategy_of(self.settings)

    @property
    def enforcement(self) -> Enforcement:
        """Return what keeps tenants within their shares. MPS relies on settings in the tenant's environment."""
        if self.is_hard:
            return Enforcement.HARD
        return Enforcement.COOPERATIVE if isinstance(self.settings, MpsSettings) else Enforcement.NONE


# Device taints: marks on a published device that keep pods away from it, or only inform.


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
