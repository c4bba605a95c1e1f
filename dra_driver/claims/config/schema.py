"""The opaque configs as pydantic models: one definition for reading, for admission and for the exported JSON schema.

`nvidia_config` reads with them, and `schema_faults` puts their errors in words. Importing this module costs megabytes
of memory, so `reading` imports it only when there is a config to read. `python -m dra_driver.claims.config.schema`
writes the JSON schema.
Source: NVIDIA's DRA driver, API group resource.nvidia.com/v1beta1 (field names, defaults and ranges).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    WithJsonSchema,
)
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, InitErrorDetails

from dra_driver.claims.config.device_config import (
    API_VERSION,
    type_name,
)
from dra_driver.claims.config.schema_faults import message_of
from dra_driver.documents.section import Section, fault, wrong
from dra_driver.model.quantity import Quantity
from dra_driver.model.quantity_text import QuantityError

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
