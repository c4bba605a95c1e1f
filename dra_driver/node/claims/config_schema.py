"""The opaque configs as pydantic models: one definition for reading, for admission and for the exported JSON schema.

`nvidia_config` reads with them, and `schema_faults` puts their errors in words. Importing this module costs megabytes
of memory, so `reading` imports it only when there is a config to read. `python -m dra_driver.node.claims.config_schema`
writes the JSON schema.
Source: NVIDIA's DRA driver, API group resource.nvidia.com/v1beta1 (field names, defaults and ranges).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, WithJsonSchema
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, InitErrorDetails

from dra_driver.base.quantity import Quantity, QuantityError
from dra_driver.base.text.sections import Section, complete, fault, wrong
from dra_driver.base.wire import Interval, MpsSettings, SharingSettings, Tenants, TimeSlicingSettings
from dra_driver.node.claims.device_config import (
    API_VERSION,
    PREFER_IOMMUFD,
    ConfigFault,
    DeviceConfig,
    IommuSettings,
    type_name,
)
from dra_driver.node.devices.rules import SharingRules
from dra_driver.node.devices.rules_files import read_rules

# What is wrong with an opaque config, in the API's words.

_BY_DEVICE = "defaultPerDevicePinnedMemoryLimit"


def as_fault(error: ErrorDetails, path: str) -> ConfigFault:
    """Return a validation error as a fault at its field, whose path begins with `path`."""
    parts = [str(part) for part in error["loc"] if part != "[key]"]
    where = path
    for previous, part in zip(("", *parts), parts, strict=False):
        name = part if part.isprintable() else repr(part)  # a tenant's key may hold orders to a terminal
        where += f"[{name}]" if previous == _BY_DEVICE else f".{name}"
    return ConfigFault(where, complete(error))


def message_of(error: ErrorDetails, fields: Mapping[str, FieldInfo]) -> str:
    """Return one of pydantic's errors in words; `fields` are those of the object that it was found in."""
    kind, value = error["type"], error["input"]
    if kind == "extra_forbidden":
        return f"unknown field; known are {', '.join(fields)}"
    if kind in {"literal_error", "missing"}:
        allowed = get_args(fields[str(error["loc"][0])].annotation)
        return must_be(tuple(_words(allowed)), None if kind == "missing" else value)
    if kind in {"greater_than_equal", "less_than_equal"}:
        return f"must be between 0 and 100, is {value}"
    expected = {"int_type": "an integer", "bool_type": "true or false"}.get(kind, "an object")
    return f"must be {expected}, is {type_name(value)}"


def must_be(allowed: tuple[str, ...], found: Any) -> str:
    """Return a message with the allowed words and the word that was found."""
    expected = f"must be {allowed[0]}" if len(allowed) == 1 else f"must be one of {', '.join(allowed)}"
    return f"{expected}, is {found!r}" if isinstance(found, str) else f"{expected}, is {_absent(found)}"


def _absent(found: Any) -> str:
    return "missing" if found is None else type_name(found)


def _words(allowed: tuple[Any, ...]) -> Iterator[str]:
    """Yield the words of a Literal, even of one that may be absent."""
    for word in allowed:
        if isinstance(word, str):
            yield word
        else:
            yield from _words(get_args(word))


MIB = 1 << 20
MIN_LIMIT = Quantity.parse("1Mi")
MAX_LIMIT = Quantity.of(2**63 - 1)  # the largest number of bytes that the API server keeps exactly
_DEVICE_KEY = re.compile(r"[0-9]{1,3}|(GPU|MIG)-[0-9A-Za-z/-]{1,60}")


def _memory_limit(value: Any) -> int:
    """Read a quantity as bytes, cut to whole MiB, the unit in which the MPS daemon takes it."""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise wrong(f"must be a quantity such as 10Gi, is {type_name(value)}")
    try:
        limit = Quantity.parse(str(value))
    except (QuantityError, ValueError):
        raise wrong(f"must be a quantity such as 10Gi, is {value!r}") from None
    if limit < MIN_LIMIT:
        raise wrong(f"must be at least {MIN_LIMIT}, is {value}")
    if limit > MAX_LIMIT:  # checked before the number is written out: "1e999999999" is short
        raise wrong(f"must be at most {MAX_LIMIT}, is {value}")
    return int(limit.value) // MIB * MIB


def _device_key(key: str) -> str:
    if not _DEVICE_KEY.fullmatch(key):
        raise wrong("must name a device: the UUID of a GPU or MIG device, or an index from 0")
    return key


MemoryLimit = Annotated[
    int,
    BeforeValidator(_memory_limit),
    WithJsonSchema(
        {
            "anyOf": [{"type": "string"}, {"type": "integer", "minimum": MIB}],
            "description": "A Kubernetes quantity of at least 1Mi, such as 10Gi; cut to whole MiB.",
        }
    ),
]
DeviceKey = Annotated[str, AfterValidator(_device_key)]


class _Part(Section):
    """What all parts share: the words of faults, which are those of the API."""

    @classmethod
    def message_of(cls, error: ErrorDetails, fields: Mapping[str, FieldInfo]) -> str:
        """Return one of pydantic's errors in words."""
        return message_of(error, fields)


class TimeSlicingConfig(_Part):
    """How processes take turns on a GPU."""

    interval: Literal["Default", "Short", "Medium", "Long"] | None = Field(
        None, description="How long a turn is; Default leaves it to the driver."
    )


class MpsConfig(_Part):
    """Limits that the MPS daemon sets for its clients."""

    defaultActiveThreadPercentage: Annotated[int, Field(ge=0, le=100)] | None = Field(  # noqa: N815 - the API's name
        None, description="Share of the multiprocessors that a client may use, in percent."
    )
    defaultPinnedDeviceMemoryLimit: MemoryLimit | None = Field(  # noqa: N815
        None, description="Device memory that a client may pin."
    )
    defaultPerDevicePinnedMemoryLimit: dict[DeviceKey, MemoryLimit] | None = Field(  # noqa: N815
        None,
        description="The same for single devices: by UUID, or by index in the list of the devices sorted by UUID.",
    )
    multiUser: bool | None = Field(  # noqa: N815
        None, description="Whether clients of several users may share the daemon; needs compute capability 7.0."
    )


def _only_with(field: str, strategy: str) -> dict[str, Any]:
    """Return a JSON schema by which a field is only allowed with one strategy."""
    return {
        "if": {"properties": {"strategy": {"const": strategy}}},
        "else": {"properties": {field: {"type": "null"}}},
    }


class _Sharing(_Part):
    strategy: Literal["TimeSlicing", "MPS"]

    def combined_faults(self) -> Iterator[InitErrorDetails]:
        """Yield faults for settings of the strategy that was not chosen."""
        for field, owner in (("timeSlicingConfig", "TimeSlicing"), ("mpsConfig", "MPS")):
            if field in type(self).model_fields and field in self._given and self.strategy != owner:
                yield fault(f"only goes with strategy {owner}, strategy is {self.strategy}", field)


class GpuSharing(_Sharing):
    """How the processes on one GPU share it."""

    model_config = ConfigDict(
        json_schema_extra={"allOf": [_only_with("timeSlicingConfig", "TimeSlicing"), _only_with("mpsConfig", "MPS")]}
    )

    timeSlicingConfig: TimeSlicingConfig | None = None  # noqa: N815
    mpsConfig: MpsConfig | None = None  # noqa: N815


class MigDeviceSharing(_Sharing):
    """How the processes on one MIG device share it; its time slices have no interval."""

    model_config = ConfigDict(json_schema_extra={"allOf": [_only_with("mpsConfig", "MPS")]})

    mpsConfig: MpsConfig | None = None  # noqa: N815


class GpuConfig(_Part):
    """What a claim or a class may configure for whole GPUs and for shares of them."""

    apiVersion: Literal["resource.nvidia.com/v1beta1"]  # noqa: N815
    kind: Literal["GpuConfig"]
    sharing: GpuSharing | None = None


class MigDeviceConfig(_Part):
    """What a claim or a class may configure for MIG devices and for shares of them."""

    apiVersion: Literal["resource.nvidia.com/v1beta1"]  # noqa: N815
    kind: Literal["MigDeviceConfig"]
    sharing: MigDeviceSharing | None = None


class IommuConfig(_Part):
    """By which device nodes a virtual machine gets a GPU."""

    backendPolicy: Literal["LegacyOnly", "PreferIommuFD"] | None = Field(  # noqa: N815
        None, description="LegacyOnly (default): the node of the IOMMU group; PreferIommuFD: a node below iommufd."
    )
    enableAPIDevice: bool | None = Field(  # noqa: N815
        None, description="Whether the container gets /dev/vfio/vfio or /dev/iommu too; KubeVirt needs it."
    )


class VfioDeviceConfig(_Part):
    """What a claim or a class may configure for GPUs for virtual machines."""

    apiVersion: Literal["resource.nvidia.com/v1beta1"]  # noqa: N815
    kind: Literal["VfioDeviceConfig"]
    iommu: IommuConfig | None = None


AnyConfig = GpuConfig | MigDeviceConfig | VfioDeviceConfig
MODELS: Mapping[str, type[AnyConfig]] = {
    "GpuConfig": GpuConfig,
    "MigDeviceConfig": MigDeviceConfig,
    "VfioDeviceConfig": VfioDeviceConfig,
}


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of all kinds."""
    adapter: TypeAdapter[Any] = TypeAdapter(Annotated[AnyConfig, Field(discriminator="kind")])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Opaque device configs of {API_VERSION}",
        **adapter.json_schema(),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(json_schema(), indent=2) + "\n")


# Opaque configs of NVIDIA's API group: parameters come in, a `DeviceConfig` goes out, or every fault with its path.


def read_nvidia_config(kind: str, parameters: Mapping[str, Any], path: str) -> DeviceConfig | tuple[ConfigFault, ...]:
    """Return the config, or everything that is wrong with it."""
    try:
        config = MODELS[kind].model_validate(parameters)
    except ValidationError as error:
        return tuple(as_fault(one, path) for one in error.errors(include_url=False))
    if isinstance(config, VfioDeviceConfig):
        return DeviceConfig(kind, iommu=_iommu(config.iommu or IommuConfig()))  # type: ignore[call-arg] # has defaults
    return DeviceConfig(kind, settings_of(config.sharing) if config.sharing else None)


def _iommu(iommu: IommuConfig) -> IommuSettings:
    return IommuSettings(iommu.backendPolicy == PREFER_IOMMUFD, has_api_device=iommu.enableAPIDevice is True)


def settings_of(sharing: GpuSharing | MigDeviceSharing) -> SharingSettings:
    """Return a valid `sharing` section as settings."""
    if sharing.strategy == "TimeSlicing":
        slicing = sharing.timeSlicingConfig if isinstance(sharing, GpuSharing) else None
        return TimeSlicingSettings(Interval(slicing.interval or "Default") if slicing else Interval.DEFAULT)
    mps = sharing.mpsConfig or MpsConfig()  # type: ignore[call-arg] # every field has a default
    return MpsSettings(
        active_thread_percentage=mps.defaultActiveThreadPercentage,
        pinned_memory_limit=mps.defaultPinnedDeviceMemoryLimit,
        per_device_limits=MappingProxyType(mps.defaultPerDevicePinnedMemoryLimit or {}),
        multi_user=bool(mps.multiUser),
    )


# The `sharing` section of the agent's configuration, read by the code that also reads it in a claim.


def read_settings(section: object) -> SharingSettings:
    """Read one section. Raises: ValidationError."""
    sharing = GpuSharing.model_validate(section)
    settings = settings_of(sharing)
    if isinstance(settings, MpsSettings) and (sharing.mpsConfig is None or sharing.mpsConfig.multiUser is None):
        return replace(settings, multi_user=True)
    return settings


def read_sharing_config(path: Path, tenants: Tenants = Tenants.ANY) -> SharingRules:
    """Read the agent's sharing configuration. Raises: InputError with every fault, its line and its path."""
    return read_rules(path, read_settings, tenants)
