"""Geometry file: named configurations in the format of NVIDIA's MIG manager.

In: a path. Out: the configurations, or one InputError with every fault, its line and its path. A field that the format
does not define is a fault, because a misspelt name would otherwise go unnoticed and leave GPUs unchanged. Importing
this module costs megabytes of memory, as `sections` does.

    version: v1
    mig-configs:
      two-kinds:
        - device-filter: ["0x233010DE"]      # PCI device and vendor id; without it every model
          devices: all                       # or a list of indices in PCI order
          mig-enabled: true
          mig-devices: {"1g.10gb": 4, "3g.40gb": 1}

If several entries cover a GPU, the last one counts. Source: NVIDIA mig-parted, `api/spec/v1`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, PlainValidator
from pydantic_core import InitErrorDetails

from dra_driver.base.text.sections import Section, described, fault, read_strictly, wrong
from dra_driver.node.devices.geometry import PART_OF_INSTANCE, PROFILE, Configurations, GeometryEntry

_MAX_COUNT = 64


def read_configurations(path: Path) -> Configurations:
    """Read the file. Raises: InputError("input.mig-config") with every fault; those of `read_document`."""
    file = read_strictly(
        path,
        _GeometryFile,
        "mig-config",
        "file of MIG configurations",
        hint="the format is that of the MIG manager's mig-configs, see docs/mig.md",
    )
    return {name: tuple(section.entry() for section in entries) for name, entries in file.mig_configs.items()}


def _indices(value: object) -> frozenset[int] | None:
    if value == "all":
        return None
    if isinstance(value, list) and all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in value):
        return frozenset(value)
    raise wrong(f"expected all or a list of indices, got {described(value)}")


def _as_list(value: object) -> object:
    return value if isinstance(value, list) else [value]


def _profile(name: str) -> str:
    if not re.fullmatch(f"{PROFILE}|{PART_OF_INSTANCE}", name):
        raise wrong(f"{described(name)} is not a profile such as 1g.10gb or 1g.10gb+me")
    return name


_PciId = Annotated[str, Field(pattern="^0[xX][0-9a-fA-F]{8}$")]


def _kebab(name: str) -> str:
    return name.replace("_", "-")


class _EntrySection(Section):
    model_config = ConfigDict(alias_generator=_kebab)

    device_filter: Annotated[list[_PciId], BeforeValidator(_as_list)] = Field(
        [], description='a PCI device and vendor id such as "0x233010DE"'
    )
    devices: Annotated[frozenset[int] | None, PlainValidator(_indices)] = Field(description="all or a list of indices")
    mig_enabled: bool = Field(description="true or false")
    mig_devices: dict[Annotated[str, AfterValidator(_profile)], Annotated[int, Field(ge=0, le=_MAX_COUNT)]] = Field(
        {}, description=f"a whole number from 0 to {_MAX_COUNT}"
    )

    def combined_faults(self) -> Iterator[InitErrorDetails]:
        """Yield a fault if the partitions don't go with the mode."""
        if self.mig_enabled and "mig-devices" not in self._given:
            yield fault("missing, although mig-enabled is true ({} for none)", "mig-devices")
        if not self.mig_enabled and self.mig_devices:
            yield fault("given, although mig-enabled is false", "mig-devices")

    def entry(self) -> GeometryEntry:
        """Return the entry as a value."""
        filters = frozenset(int(text, 16) for text in self.device_filter)
        return GeometryEntry(self.mig_enabled, self.mig_devices, self.devices, filters)


class _GeometryFile(Section):
    model_config = ConfigDict(alias_generator=_kebab)

    version: Literal["v1"]
    mig_configs: dict[str, Annotated[list[_EntrySection], Field(min_length=1)]] = Field(
        min_length=1, description="at least one configuration by name"
    )
