"""Device and Inventory: our nouns between hardware and everything that uses it."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

from dra_driver.hardware.facts import GpuFacts, PartitionFacts, Problem


class DeviceType(enum.StrEnum):
    """Value of the attribute `type`; device classes and opaque configs choose by it."""

    GPU = "gpu"
    MIG = "mig"


AttributeValue = bool | int | str | tuple[str, str]
"""A published value: bool, int or string as they are; ("version", "9.0.0") for a semver."""


@dataclass(frozen=True, slots=True)
class Device:
    """One device as published.

    `attributes` and `capacity` are keyed by published name (own-domain names without a domain). A version attribute is
    the pair ("version", text). Capacities are integers in base units (bytes, counts). `gpu` and `partition` are the
    facts behind it: what Prepare asks the hardware port about.
    """

    name: str
    type: DeviceType
    attributes: Mapping[str, AttributeValue]
    capacity: Mapping[str, int]
    gpu: GpuFacts
    partition: PartitionFacts | None = None


@dataclass(frozen=True)
class Inventory:
    """Everything that this node offers now, in name order, and what could not be offered.

    `waiting_for` is non-empty while the hardware does not answer at all.
    """

    devices: tuple[Device, ...] = ()
    problems: tuple[Problem, ...] = ()
    waiting_for: str = ""
    driver_version: str | None = field(default=None, compare=False)

    @cached_property
    def by_name(self) -> Mapping[str, Device]:
        """Look devices up by name."""
        return MappingProxyType({d.name: d for d in self.devices})
