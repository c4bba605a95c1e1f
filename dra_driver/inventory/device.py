"""Device: what the inventory makes of the hardware's facts, and everything above it works with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dra_driver.hardware.facts import GpuFacts, MigProfile, PartitionFacts
from dra_driver.model.shares import DeviceType, Share

AttributeValue = bool | int | str | tuple[str, str]
"""A published value: a bool, int or string as it is, or a pair such as ("version", "9.0.0") for a semver."""

# The facts that a MIG profile and a partition of its shape have in common.
_COMMON_FACTS = (
    "multiprocessors",
    "copy_engines",
    "decoders",
    "encoders",
    "jpeg_engines",
    "ofa_engines",
    "memory_bytes",
)


@dataclass(frozen=True, slots=True)
class MigPlacement:
    """A partition that Prepare creates: a profile of the GPU at a first memory slice."""

    profile: MigProfile
    start: int

    @property
    def slices(self) -> range:
        """Return the memory slices that the partition covers."""
        return range(self.start, self.start + self.profile.size)

    @property
    def expected_partition(self) -> PartitionFacts:
        """Return the facts of the partition that Prepare would create; it has no UUID and no instance ids yet."""
        shape = self.profile
        engines = {name: getattr(shape, name) for name in _COMMON_FACTS}
        return PartitionFacts("", shape.name, shape.gi_profile_id, -1, -1, self.start, shape.size, **engines)

    def is_at(self, partition: PartitionFacts) -> bool:
        """Return whether an existing partition is at this placement."""
        return (partition.gi_profile_id, partition.start) == (self.profile.gi_profile_id, self.start)


@dataclass(frozen=True, slots=True)
class RequestPolicy:
    """How much of a capacity one share takes, in the capacity's base unit.

    `default` applies where a claim requests no amount. With a `minimum`, the requested amount is raised to it and
    rounded up to a multiple of `step` above it, to at most `maximum`; with `values`, only those amounts exist. With
    neither, a share takes exactly the requested amount.
    """

    default: int
    minimum: int | None = None
    maximum: int | None = None
    step: int | None = None
    values: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Device:
    """One device as published.

    `attributes` and `capacity` are keyed by published name (names of our own domain without the domain). A version
    attribute is the pair ("version", text). Capacities are integers in base units (bytes, counts). `gpu` and
    `partition` are the facts behind the device, about which Prepare asks the hardware port. A device with a `placement`
    is a partition that Prepare creates; its `partition` is None unless it exists now. `counters` is what the device
    consumes of its `counter_set`, "" for none. A device with `policies`, one for each of its capacities, may be
    allocated many times.
    """

    name: str
    type: DeviceType
    attributes: Mapping[str, AttributeValue]
    capacity: Mapping[str, int]
    gpu: GpuFacts
    partition: PartitionFacts | None = None
    placement: MigPlacement | None = None
    counter_set: str = ""
    counters: Mapping[str, int] = field(default_factory=dict)
    share: Share | None = None
    policies: Mapping[str, RequestPolicy] = field(default_factory=dict)

    @property
    def uuid(self) -> str:
        """Return the partition's UUID; the GPU's for a GPU, and for a partition that does not exist now."""
        return self.partition.uuid if self.partition else self.gpu.uuid

    @property
    def shared_name(self) -> str:
        """Return the name of the physical device: that of the parent for a replica, the device's own otherwise."""
        return self.share.parent if self.share else self.name
