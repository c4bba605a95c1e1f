"""Opaque configs of `resource.nvidia.com/v1beta1`: parameters come in, a `DeviceConfig` goes out.

Strict: an unknown field, a wrong type or a value out of range is a fault with the field's path, and all faults are told
at once. What is well-formed but not built yet is refused with "not supported yet": a setting is never silently ignored.
Source: NVIDIA's DRA driver, API group resource.nvidia.com/v1beta1 (field names and ranges).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dra_driver.inventory.device import DeviceType
from dra_driver.model.errors import ClaimError
from dra_driver.model.quantity import Quantity, QuantityError
from dra_driver.model.wire import Wire

API_VERSION = "resource.nvidia.com/v1beta1"
DEVICE_TYPES = {"GpuConfig": DeviceType.GPU, "MigDeviceConfig": DeviceType.MIG}
# Kinds that NVIDIA's driver knows and this one does not.
UNSUPPORTED_KINDS = ("VfioDeviceConfig", "ComputeDomainChannelConfig", "ComputeDomainDaemonConfig")
STRATEGIES = ("TimeSlicing", "MPS")
INTERVALS = ("Default", "Short", "Medium", "Long")
PINNED_MEMORY_MIN = Quantity.parse("1Mi")


@dataclass(frozen=True, slots=True)
class DeviceConfig:
    """One decoded config. `kind` says for which type of device it is meant."""

    kind: str

    @property
    def device_type(self) -> DeviceType:
        """Give the type of device that this config can be applied to."""
        return DEVICE_TYPES[self.kind]

    def record(self) -> Wire:
        """Give the config as `decode_config` takes it, for the ledger."""
        return {"apiVersion": API_VERSION, "kind": self.kind}


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with a config: `path` is the field, as a person would write it."""

    path: str
    message: str
    is_unsupported: bool = False

    def __str__(self) -> str:
        """Give `path: message`."""
        return f"{self.path}: {self.message}"


def decode_config(parameters: Any, path: str = "parameters") -> DeviceConfig:
    """Decode opaque parameters.

    Raises: ClaimError("claim.bad-config") with every fault, or ("claim.config-not-supported") when all that is wrong is
    that we can't do it yet.
    """
    faults: list[Fault] = []
    config = read_config(parameters, path, faults)
    refuse(faults)
    assert config is not None  # noqa: S101 - no config without a fault
    return config


def refuse(faults: Iterable[Fault], subject: str = "opaque config") -> None:
    """Raise all faults as one ClaimError; return when there is none."""
    faults = tuple(faults)
    if not faults:
        return
    code = "config-not-supported" if all(f.is_unsupported for f in faults) else "bad-config"
    raise ClaimError(
        code, f"{subject}: " + "; ".join(map(str, faults)), hint="change the config in the claim or in its device class"
    )


def read_config(parameters: Any, path: str, faults: list[Fault]) -> DeviceConfig | None:
    """Decode one config; add what is wrong to `faults`, and give None when there was something."""
    before = len(faults)
    if not isinstance(parameters, dict):
        faults.append(Fault(path, f"must be an object, is {_type_name(parameters)}"))
        return None
    kind = _one_of(parameters, "kind", (*DEVICE_TYPES, *UNSUPPORTED_KINDS), path, faults)
    _one_of(parameters, "apiVersion", (API_VERSION,), path, faults)
    if len(faults) > before:
        return None
    if kind in UNSUPPORTED_KINDS:
        faults.append(Fault(f"{path}.kind", f"{kind} is not supported yet", is_unsupported=True))
        return None
    _known_fields(parameters, ("apiVersion", "kind", "sharing"), path, faults)
    if parameters.get("sharing") is not None:
        _read_sharing(parameters["sharing"], f"{path}.sharing", faults, is_gpu=kind == "GpuConfig")
    return DeviceConfig(str(kind)) if len(faults) == before else None


def _read_sharing(sharing: Any, path: str, faults: list[Fault], *, is_gpu: bool) -> None:
    """Check a sharing block; a faultless one is not supported yet."""
    before = len(faults)
    if not _is_object(sharing, path, faults):
        return
    settings = ("timeSlicingConfig", "mpsConfig") if is_gpu else ("mpsConfig",)
    _known_fields(sharing, ("strategy", *settings), path, faults)
    strategy = _one_of(sharing, "strategy", STRATEGIES, path, faults)
    for field, owner, read in (
        ("timeSlicingConfig", "TimeSlicing", _read_time_slicing),
        ("mpsConfig", "MPS", _read_mps),
    ):
        if field not in settings or sharing.get(field) is None:
            continue
        if strategy is not None and strategy != owner:
            faults.append(Fault(f"{path}.{field}", f"only goes with strategy {owner}, strategy is {strategy}"))
        read(sharing[field], f"{path}.{field}", faults)
    if len(faults) == before:
        faults.append(Fault(f"{path}.strategy", f"{strategy} is not supported yet", is_unsupported=True))


def _read_time_slicing(settings: Any, path: str, faults: list[Fault]) -> None:
    if not _is_object(settings, path, faults):
        return
    _known_fields(settings, ("interval",), path, faults)
    if settings.get("interval") is not None:
        _one_of(settings, "interval", INTERVALS, path, faults)


def _read_mps(settings: Any, path: str, faults: list[Fault]) -> None:
    if not _is_object(settings, path, faults):
        return
    _known_fields(settings, tuple(_MPS_FIELDS), path, faults)
    for field, read in _MPS_FIELDS.items():
        if settings.get(field) is not None:
            read(settings[field], f"{path}.{field}", faults)


def _read_percentage(value: Any, path: str, faults: list[Fault]) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        faults.append(Fault(path, f"must be an integer, is {_type_name(value)}"))
    elif not 0 <= value <= 100:
        faults.append(Fault(path, f"must be between 0 and 100, is {value}"))


def _read_bool(value: Any, path: str, faults: list[Fault]) -> None:
    if not isinstance(value, bool):
        faults.append(Fault(path, f"must be true or false, is {_type_name(value)}"))


def _read_memory_limit(value: Any, path: str, faults: list[Fault]) -> None:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        faults.append(Fault(path, f"must be a quantity such as 10Gi, is {_type_name(value)}"))
        return
    try:
        limit = Quantity.parse(str(value))
    except QuantityError:
        faults.append(Fault(path, f"must be a quantity such as 10Gi, is {value!r}"))
        return
    if limit < PINNED_MEMORY_MIN:
        faults.append(Fault(path, f"must be at least {PINNED_MEMORY_MIN}, is {value}"))


def _read_device_limits(value: Any, path: str, faults: list[Fault]) -> None:
    if _is_object(value, path, faults):
        for device, limit in value.items():
            _read_memory_limit(limit, f"{path}[{device}]", faults)


_MPS_FIELDS: Mapping[str, Callable[[Any, str, list[Fault]], None]] = {
    "defaultActiveThreadPercentage": _read_percentage,
    "defaultPinnedDeviceMemoryLimit": _read_memory_limit,
    "defaultPerDevicePinnedMemoryLimit": _read_device_limits,
    "multiUser": _read_bool,
}


def _known_fields(wire: Wire, known: tuple[str, ...], path: str, faults: list[Fault]) -> None:
    message = f"unknown field; known are {', '.join(known)}"
    faults.extend(Fault(f"{path}.{field}", message) for field in wire if field not in known)


def _one_of(wire: Wire, field: str, allowed: tuple[str, ...], path: str, faults: list[Fault]) -> str | None:
    value = wire.get(field)
    if isinstance(value, str) and value in allowed:
        return value
    expected = f"must be {allowed[0]}" if len(allowed) == 1 else f"must be one of {', '.join(allowed)}"
    found = repr(value) if isinstance(value, str) else "missing" if value is None else _type_name(value)
    faults.append(Fault(f"{path}.{field}", f"{expected}, is {found}"))
    return None


def _is_object(value: Any, path: str, faults: list[Fault]) -> bool:
    if isinstance(value, dict):
        return True
    faults.append(Fault(path, f"must be an object, is {_type_name(value)}"))
    return False


def _type_name(value: Any) -> str:
    """Name a JSON type as a person would."""
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list", dict: "an object"}
    return "null" if value is None else names.get(type(value), type(value).__name__)
