"""What a profile may describe besides its GPUs: how a model can be divided, and what other drivers would publish.

In: the `mig` section of a model. Out: the table of its partitions, and the faults of a list of placements. In: an entry
of a profile's `foreign` list, for examples that align devices. Out: devices in wire form, which are never prepared.

Placement units are the model's memory slices: eighths on GPUs with seven compute slices, quarters on an A30, twelfths
on an RTX PRO 6000. A profile is looked up by its whole name (`1g.24gb` is not `1g.24gb-me`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dra_driver.base import errors, names
from dra_driver.base.errors import DriverError
from dra_driver.base.quantity import Quantity
from dra_driver.base.text.json_text import Fields
from dra_driver.base.text.yaml_values import read_document
from dra_driver.base.versions import Semver
from dra_driver.base.wire import DeviceWire, Wire

_MAX_SLICES = 16
PROFILE_NAME = r"[1-9][0-9]*g\.[1-9][0-9]*gb([+-][a-z.]+)?"


@dataclass(frozen=True, slots=True)
class Engines:
    """Engines of one partition, as counts."""

    copy: int
    decoders: int
    encoders: int
    jpeg: int
    ofa: int


@dataclass(frozen=True, slots=True)
class ModelMigProfile:
    """One GPU-instance profile of a model. A figure without a source is None; `starts` is empty if none are known.

    `gi_profile_id` is the hardware's id of the profile; `nvml_profile` is the NVML constant without its prefix.
    `are_starts_inferred` is true if the starts come from the layout of related models and were not seen on this one.
    """

    name: str
    gi_profile_id: int | None
    nvml_profile: str
    compute_slices: int
    memory_slices: int
    memory_mib: int | None
    multiprocessors: int | None
    engines: Engines | None
    max_instances: int
    starts: tuple[int, ...]
    are_starts_inferred: bool

    @property
    def has_figures(self) -> bool:
        """Return whether everything that a partition of this profile reports is known."""
        known = (self.gi_profile_id, self.memory_mib, self.multiprocessors, self.engines)
        return all(figure is not None for figure in known)


@dataclass(frozen=True, slots=True)
class MigTable:
    """All profiles of a model, and how many slices there are to divide."""

    memory_slices: int
    compute_slices: int
    toggles_without_reset: bool
    profiles: tuple[ModelMigProfile, ...]

    def profile(self, name: str) -> ModelMigProfile | None:
        """Return the profile with this whole name, or None."""
        return next((profile for profile in self.profiles if profile.name == name), None)


@dataclass(frozen=True, slots=True)
class Placement:
    """One desired partition: a profile and its first memory slice."""

    profile: ModelMigProfile
    start: int

    @property
    def slices(self) -> range:
        """Return the memory slices that the partition covers."""
        return range(self.start, self.start + self.profile.memory_slices)


def decode_mig_table(fields: Fields) -> MigTable:
    """Read the `mig` section of a model."""
    table = MigTable(
        memory_slices=fields.integer("memorySlices", 1, _MAX_SLICES),
        compute_slices=fields.integer("computeSlices", 1, _MAX_SLICES),
        toggles_without_reset=bool(fields.optional_flag("togglesWithoutReset")),
        profiles=tuple(_decode_profile(row) for row in fields.rows("profiles", maximum=64)),
    )
    for name, count in Counter(profile.name for profile in table.profiles).items():
        if count > 1:
            fields.fault("profiles", f"profile {name} is listed {count} times")
    for profile in table.profiles:
        if any(start + profile.memory_slices > table.memory_slices for start in profile.starts):
            fields.fault("profiles", f"profile {profile.name} starts beyond {table.memory_slices} memory slices")
    fields.close()
    return table


def _decode_profile(row: Fields) -> ModelMigProfile:
    profile = ModelMigProfile(
        name=row.text("name", pattern=PROFILE_NAME, what="a profile name such as 1g.10gb+me"),
        gi_profile_id=row.optional_integer("id", 0, 255),
        nvml_profile=row.text("nvml", pattern=r"[0-9]+_SLICE(_[A-Z0-9_]+)?", what="a constant such as 1_SLICE_REV1"),
        compute_slices=row.integer("compute", 1, _MAX_SLICES),
        memory_slices=row.integer("slices", 1, _MAX_SLICES),
        memory_mib=row.optional_integer("memoryMiB", 1, 1 << 24),
        multiprocessors=row.optional_integer("sms", 1, 1024),
        engines=_decode_engines(row),
        max_instances=row.integer("max", 1, _MAX_SLICES),
        starts=row.integers("starts", _MAX_SLICES - 1),
        are_starts_inferred=bool(row.optional_flag("startsInferred")),
    )
    row.close()
    return profile


def _decode_engines(row: Fields) -> Engines | None:
    if not row.has("engines"):
        return None
    counts = row.integers("engines", 64)
    if len(counts) != 5:
        row.fault("engines", "expected five numbers: copy, decoders, encoders, jpeg, ofa")
        return None
    return Engines(*counts)


def placement_faults(table: MigTable, placements: Sequence[Placement]) -> Iterator[tuple[int, str]]:
    """Return which placements are impossible, each with its index and the reason; nothing if all are possible."""
    taken: dict[int, str] = {}
    counts: Counter[str] = Counter()
    compute = 0
    for index, placement in enumerate(placements):
        profile = placement.profile
        if not profile.starts:
            yield index, f"it is not known where a {profile.name} may start"
        elif placement.start not in profile.starts:
            yield index, f"a {profile.name} starts at one of {list(profile.starts)}, not at {placement.start}"
        clash = next((taken[index] for index in placement.slices if index in taken), None)
        if clash:
            yield index, f"{profile.name} at {placement.start} overlaps {clash}"
        taken.update(dict.fromkeys(placement.slices, f"{profile.name} at {placement.start}"))
        counts[profile.name] += 1
        if counts[profile.name] > profile.max_instances:
            yield index, f"at most {profile.max_instances} of {profile.name} fit"
        compute += profile.compute_slices
        if compute > table.compute_slices:
            yield index, f"{compute} compute slices are used, but the GPU has {table.compute_slices}"


# Models: the properties of a kind of GPU, one file for each model.

FOLDER = Path(__file__).parent / "models"
DATE = r"20[0-9]{2}-[01][0-9]-[0-3][0-9]"


@dataclass(frozen=True, slots=True)
class Model:
    """One kind of GPU. `nvlinks` is the number of links of the card, None where it is unknown."""

    product_name: str
    memory_mib: int | None
    brand: str | None = None
    architecture: str | None = None
    compute_capability: str | None = None  # a strict semantic version
    pci_device_id: str | None = None
    memory_bandwidth_gb_per_s: int | None = None
    multiprocessors: int | None = None
    power_limit_max_w: int | None = None
    sm_clock_max_mhz: int | None = None
    nvlinks: int | None = None
    mig_capable: bool | None = None
    mig: MigTable | None = None


def model_names() -> tuple[str, ...]:
    """Return the names of the shipped models."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))


def read_model(name: str, faults: list[str]) -> Model:
    """Read a shipped model; append what is wrong with it to `faults`. Raises: InputError if its file can't be read."""
    model, found = _read_once(name)
    faults += found
    return model


@cache  # a shipped file does not change, and all GPUs of all profiles are of a few models
def _read_once(name: str) -> tuple[Model, tuple[str, ...]]:
    faults: list[str] = []
    model = decode_model(Fields(read_document(FOLDER / f"{name}.yaml"), f"model {name}", faults))
    return model, tuple(faults)


def decode_model(fields: Fields) -> Model:
    """Decode one model; a shipped one must state where its figures come from."""
    sources = fields.section("sources")
    for key, text in sources.entries():
        if not isinstance(text, str) or not text:
            sources.fault(key, "expected the source as a string")
    fields.optional_text("lookedUp", pattern=DATE, what="a date such as 2026-11-20")
    capability = fields.optional_text("computeCapability", pattern=r"[1-9][0-9]?\.[0-9]", what="such as 9.0")
    model = Model(
        product_name=fields.text("productName"),
        memory_mib=fields.optional_integer("memoryMiB", 1, 1 << 24),
        brand=fields.optional_text("brand"),
        architecture=fields.optional_text("architecture"),
        compute_capability=f"{capability}.0" if capability else None,
        pci_device_id=fields.optional_text("pciDeviceId", pattern=r"0x[0-9a-f]{4}", what="such as 0x2330"),
        memory_bandwidth_gb_per_s=fields.optional_integer("memoryBandwidthGBps", 1, 1_000_000),
        multiprocessors=fields.optional_integer("multiprocessors", 1, 1024),
        power_limit_max_w=fields.optional_integer("powerLimitMaxW", 1, 10_000),
        sm_clock_max_mhz=fields.optional_integer("smClockMaxMHz", 1, 10_000),
        nvlinks=fields.optional_integer("nvlinks", 0, 64),
        mig_capable=fields.optional_flag("migCapable"),
        mig=decode_mig_table(fields.section("mig")) if fields.has("mig") else None,
    )
    if model.mig and model.mig_capable is not True:
        fields.fault("migCapable", "must be true where a mig table is given")
    fields.close()
    return model


_NAME = re.compile(r"(?P<domain>[a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?(?P<id>[A-Za-z_][A-Za-z0-9_]*)")


@dataclass(frozen=True, slots=True)
class ForeignDriver:
    """All devices that another driver has on the node; its pool is named after the node."""

    driver: str
    devices: tuple[DeviceWire, ...]


def decode_foreign(row: Fields) -> ForeignDriver:
    """Read one driver and its devices."""
    driver = row.text("driver")
    try:
        names.check_driver_name(driver or "x")
    except DriverError as error:
        row.fault("driver", error.message)
    devices = tuple(_decode_device(device) for device in row.rows("devices", maximum=errors.SLICE_DEVICES))
    if len({device["name"] for device in devices}) < len(devices):
        row.fault("devices", "two devices have the same name")
    row.close()
    return ForeignDriver(driver, devices)


def _decode_device(row: Fields) -> DeviceWire:
    name = row.text("name")
    if name and not names.is_dns_label(name):
        row.fault("name", f"{name!r} is not a DNS label")
    attributes: Wire = {}
    section = row.section("attributes")
    for key, value in section.entries():
        _check_key(section, key)
        attributes[key] = _attribute(section, key, value)
    capacity: Wire = {}
    section = row.section("capacity")
    for key, value in section.entries():
        _check_key(section, key)
        capacity[key] = {"value": _quantity(section, key, value)}
    if len(attributes) + len(capacity) > errors.DEVICE_ATTRIBUTES_AND_CAPACITIES:
        row.fault("attributes", f"more than {errors.DEVICE_ATTRIBUTES_AND_CAPACITIES} attributes and capacities")
    row.close()
    return {"name": name, "attributes": attributes, "capacity": capacity}


def _check_key(section: Fields, key: object) -> None:
    match = _NAME.fullmatch(str(key))
    if match is None or len(match["id"]) > errors.ATTRIBUTE_NAME_CHARS:
        section.fault(str(key), f"expected a name, or domain/name, of at most {errors.ATTRIBUTE_NAME_CHARS} characters")
    elif len(match["domain"] or "") > errors.ATTRIBUTE_DOMAIN_CHARS:
        section.fault(str(key), f"the domain has more than {errors.ATTRIBUTE_DOMAIN_CHARS} characters")


def _attribute(section: Fields, key: str, value: object) -> Wire:
    """Return a value in wire form; a version is written as `{version: "1.2.3"}`."""
    if isinstance(value, bool):
        return {"bool": value}
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            section.fault(key, f"{value} does not fit into 64 bits")
        return {"int": value}
    kind = "string"
    if isinstance(value, dict) and value.keys() == {"version"}:
        kind, value = "version", value["version"]
    if not isinstance(value, str) or len(value.encode()) > errors.ATTRIBUTE_STRING_BYTES:
        maximum = errors.ATTRIBUTE_STRING_BYTES
        section.fault(key, f"expected a string of at most {maximum} bytes, a number or true/false")
    elif kind == "version":
        try:
            Semver.parse(value)
        except DriverError as error:
            section.fault(key, f"{value!r} is not a semantic version: {error.message}")
    return {kind: value}


def _quantity(section: Fields, key: str, value: object) -> str:
    try:
        return str(Quantity.parse(str(value)))
    except DriverError as error:
        section.fault(key, f"{value!r} is not a quantity: {error.message}")
        return "0"
