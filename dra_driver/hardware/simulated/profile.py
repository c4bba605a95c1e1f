"""Profiles: one simulated node (or one node of a fleet), from a YAML file.

In: the name of a shipped profile, or a path. Out: `Profile`, frozen, or one InputError with every fault and its path.
Nothing is guessed: what the file does not state is unknown. The format is described in docs/profiles.md.
"""

from __future__ import annotations

import enum
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dra_driver.base import versions
from dra_driver.base.errors import InputError
from dra_driver.base.text.json_text import Fields
from dra_driver.base.text.yaml_values import read_document
from dra_driver.hardware.evidence import BusState
from dra_driver.hardware.metered import Measure, ProcessUse, Values
from dra_driver.hardware.simulated.models import (
    DATE,
    ForeignDriver,
    Model,
    Placement,
    decode_foreign,
    decode_model,
    model_names,
    placement_faults,
    read_model,
)

# The `health` section of a GPU in a profile: what a simulated GPU reports about itself.


class ComputeBehaviour(enum.StrEnum):
    """What a test of the GPU finds."""

    PASSES = "passes"
    WRONG_DATA = "wrong-data"
    HANGS = "hangs"
    CRASHES = "crashes"
    NOT_READY = "not-ready"


MAX_XIDS = 1000
_MIN, _MAX = -1000, 1 << 40


class ResetOutcome(enum.StrEnum):
    """What a reset of a simulated GPU does."""

    CURES = "cures"  # the reset ends the fault
    NOTHING = "nothing"
    FAILS = "fails"


@dataclass(frozen=True, slots=True)
class SimulatedXid:
    """One Xid, of the GPU or of one of its GPU instances."""

    code: int
    gi_id: int | None = None


@dataclass(frozen=True, slots=True)
class SimulatedHealth:
    """What one GPU reports; the units are those of `evidence.Vitals`. With `hangs` no call about the GPU returns."""

    recovery_action: int | None = None
    ecc_uncorrectable: int | None = None
    sram_threshold_exceeded: bool | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    thermal_margin: int | None = None
    slowdown_margin: int | None = None
    clock_reasons: int | None = None
    links_down: tuple[int, ...] = ()
    fabric_summary: int | None = None
    pcie_replays: int | None = None
    bus: BusState = BusState.HERE
    hangs: bool = False
    compute: ComputeBehaviour = ComputeBehaviour.PASSES
    reset: ResetOutcome = ResetOutcome.CURES
    xids: tuple[SimulatedXid, ...] = ()


NO_FAULTS = SimulatedHealth()


def decode_health(fields: Fields) -> SimulatedHealth:
    """Return a section as a value; the faults are collected by `fields`."""
    bus = fields.optional_text("bus", pattern="|".join(BusState), what=f"one of {', '.join(BusState)}")
    names = tuple(ComputeBehaviour)
    compute = fields.optional_text("compute", pattern="|".join(names), what=f"one of {', '.join(names)}")
    reset = fields.optional_text("reset", pattern="|".join(ResetOutcome), what=f"one of {', '.join(ResetOutcome)}")
    found = SimulatedHealth(
        recovery_action=fields.optional_integer("recoveryAction", 0, 99),
        ecc_uncorrectable=fields.optional_integer("eccUncorrectable", 0, _MAX),
        sram_threshold_exceeded=fields.optional_flag("sramThresholdExceeded"),
        remap_pending=fields.optional_flag("remapPending"),
        remap_failed=fields.optional_flag("remapFailed"),
        thermal_margin=fields.optional_integer("thermalMargin", _MIN, 1000),
        slowdown_margin=fields.optional_integer("slowdownMargin", _MIN, 1000),
        clock_reasons=fields.optional_integer("clockReasons", 0, _MAX),
        links_down=fields.integers("linksDown", 63),
        fabric_summary=fields.optional_integer("fabricSummary", 0, 255),
        pcie_replays=fields.optional_integer("pcieReplays", 0, _MAX),
        bus=BusState(bus) if bus in set(BusState) else BusState.HERE,
        hangs=bool(fields.optional_flag("hangs")),
        compute=ComputeBehaviour(compute) if compute in names else ComputeBehaviour.PASSES,
        reset=ResetOutcome(reset) if reset in set(ResetOutcome) else ResetOutcome.CURES,
        xids=tuple(_decode_xid(row) for row in fields.rows("xids", maximum=MAX_XIDS)),
    )
    fields.close()
    return found


def _decode_xid(row: Fields) -> SimulatedXid:
    found = SimulatedXid(row.integer("code", 0, 99_999), row.optional_integer("gi", 0, 15))
    row.close()
    return found


# The `metering` section of a GPU in a profile.

_MAX_PERCENT = 100.0
_MAX_PROCESSES = 1000
_NUMBER = re.compile(r"[0-9]{1,16}(\.[0-9]{1,9})?")


@dataclass(frozen=True, slots=True)
class MeteredProcess:
    """The use that one process makes of the GPU or of one of its GPU instances."""

    use: ProcessUse
    gi_id: int | None = None


@dataclass(frozen=True, slots=True)
class SimulatedMetering:
    """The measurements of one GPU."""

    values: Values = field(default_factory=dict)
    instance: Values = field(default_factory=dict)
    instances: Mapping[int, Values] = field(default_factory=dict)
    processes: tuple[MeteredProcess, ...] = ()

    def of_instance(self, gi_id: int) -> Values:
        """Return the values of one GPU instance."""
        return self.instances.get(gi_id, self.instance)


NOT_METERED = SimulatedMetering()


def decode_metering(fields: Fields) -> SimulatedMetering:
    """Return a section as a value; the faults are collected by `fields`."""
    values = _values(fields)
    instance = fields.section("instance")
    by_id = fields.section("instances")
    instances: dict[int, Values] = {}
    for key, _ in by_id.entries():
        row = by_id.section(key)
        if str(key).isdecimal():
            instances[int(key)] = _values(row)
        else:
            by_id.fault(key, "expected the id of a GPU instance")
        row.close()
    processes = tuple(_process(row) for row in fields.rows("processes", maximum=_MAX_PROCESSES))
    found = SimulatedMetering(values, _values(instance), instances, processes)
    instance.close()
    fields.close()
    return found


def _values(fields: Fields) -> Values:
    found = {one: _number(fields, one) for one in Measure}
    return {one: value for one, value in found.items() if value is not None}


def _number(fields: Fields, key: str) -> float | None:
    """Return a number that is not negative, or None if it is missing; decimals are read from their text."""
    value = fields.any(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | str) or not _NUMBER.fullmatch(str(value)):
        fields.fault(key, f"expected a number that is not negative, got {value!r:.80}")
        return None
    return float(value)


def _process(row: Fields) -> MeteredProcess:
    use = ProcessUse(row.integer("pid", 1, 1 << 22), row.optional_integer("memoryBytes", 0, 1 << 50), _percent(row))
    found = MeteredProcess(use, row.optional_integer("gi", 0, 15))
    row.close()
    return found


def _percent(row: Fields) -> float | None:
    value = _number(row, "smPercent")
    if value is not None and value > _MAX_PERCENT:
        row.fault("smPercent", f"expected a percentage, got {value:g}")
    return value


FOLDER = Path(__file__).parent / "profiles"

MAX_GPUS = 512
MAX_FOREIGN_DRIVERS = 16
_PCI = r"[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]"
_PCIE_ROOT = r"pci[0-9a-f]{4}:[0-9a-f]{2}"
_FABRIC = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.[0-9]{1,10}"
_VERSION = r"[0-9]{1,9}(\.[0-9]{1,9}){1,2}"
_NODE = r"[a-z0-9]([-.a-z0-9]|\{n\})*"

_MAX_SHOWN = 4096  # characters of a path


@dataclass(frozen=True, slots=True)
class SimulatedGpu:
    """One GPU of a profile. `mig` is None while MIG mode is off. `processes` are ids of processes that run on it."""

    pci_address: str
    minor: int
    model: Model
    numa_node: int | None = None
    pcie_root: str | None = None
    nvlink_group: str | None = None
    nvlink_fabric: str | None = None
    links_up: int | None = None
    serial: str | None = None
    vbios_version: str | None = None
    ecc_enabled: bool | None = None
    mig: tuple[Placement, ...] | None = None
    is_lost: bool = False
    processes: tuple[int, ...] = ()
    health: SimulatedHealth = NO_FAULTS
    metering: SimulatedMetering = NOT_METERED
    mig_delay_ms: int = 0  # how long it takes to create or destroy a partition, or to switch MIG mode


@dataclass(frozen=True, slots=True)
class Profile:
    """The hardware of one node.

    `invented` names the figures that were not looked up. `waiting_for` is what keeps the hardware from answering (""
    when it answers). `node_name` is a template for fleets: `{n}` stands for the number of the node; a name without it
    is the first node's, and further ones have their number appended.
    """

    name: str
    about: str
    gpus: tuple[SimulatedGpu, ...]
    node_name: str
    driver_version: str | None = None
    cuda_driver_version: str | None = None
    addressing_mode: str | None = None
    waiting_for: str = ""
    foreign: tuple[ForeignDriver, ...] = ()
    invented: tuple[str, ...] = ()
    node_major: int | None = None  # of the device nodes; None: they are /dev/null

    def node_name_of(self, number: int) -> str:
        """Return the name of the n-th node of a fleet of such nodes."""
        if number > 1 and "{n}" not in self.node_name:
            return f"{self.node_name}-{number}"
        return self.node_name.replace("{n}", str(number))


def profile_names() -> tuple[str, ...]:
    """Return the names of the shipped profiles."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))


def profile_path(name_or_path: str | Path) -> Path:
    """Return the path of a profile's file; a shipped name takes precedence over a path.

    Raises: InputError("input.no-profile").
    """
    if str(name_or_path) in profile_names():
        return FOLDER / f"{name_or_path}.yaml"
    path = Path(name_or_path)
    try:
        is_file = path.is_file()
    except (OSError, ValueError):  # too long a name, a loop of links
        is_file = False
    if not is_file:
        raise InputError(
            "no-profile",
            f"{str(name_or_path)[:_MAX_SHOWN]!r} is neither a shipped profile nor a file",
            hint=f"shipped profiles: {', '.join(profile_names())}",
        )
    return path


def load_profile(name_or_path: str | Path) -> Profile:
    """Read a profile.

    Raises: InputError("input.profile") with all faults, or what `profile_path` and `read_document` raise.
    """
    path = profile_path(name_or_path)
    faults: list[str] = []
    profile = _decode(Fields(read_document(path), "", faults), path.stem)
    if faults:
        shown = "".join(f"\n  {fault}" for fault in faults[:50])
        raise InputError("profile", f"{path} has {len(faults)} {'faults' if len(faults) > 1 else 'fault'}:{shown}")
    return profile


def _decode(fields: Fields, name: str) -> Profile:
    fields.texts("sources")  # read and ignored: these are for readers of the file
    fields.optional_text("lookedUp", pattern=DATE, what="a date such as 2026-11-20")
    models = {key: decode_model(section) for key, section in _sections(fields.section("models"))}
    profile = Profile(
        name=name,
        about=fields.text("about"),
        gpus=_decode_gpus(fields, models),
        node_name=fields.optional_text("nodeName", pattern=_NODE, what="a node name, {n} for its number")
        or f"{name}-{{n}}",
        driver_version=_version(fields, "driverVersion"),
        cuda_driver_version=_version(fields, "cudaDriverVersion"),
        addressing_mode=fields.optional_text("addressingMode", pattern="ATS|HMM|None", what="ATS, HMM or None"),
        waiting_for=fields.optional_text("waitingFor") or "",
        foreign=tuple(decode_foreign(row) for row in fields.rows("foreign", maximum=MAX_FOREIGN_DRIVERS)),
        invented=fields.texts("invented"),
        node_major=fields.optional_integer("nodeMajor", 1, 511),
    )
    fields.close()
    return profile


def _sections(fields: Fields) -> list[tuple[str, Fields]]:
    return [(key, fields.section(key)) for key, _ in fields.entries()]


def _version(fields: Fields, key: str) -> str | None:
    text = fields.optional_text(key, pattern=_VERSION, what="a version such as 580.126.20")
    return versions.normalize(text) if text else None


def _decode_gpus(fields: Fields, models: dict[str, Model]) -> tuple[SimulatedGpu, ...]:
    defaults = dict(fields.section("gpuDefaults").entries())
    rows = fields.rows("gpus", maximum=MAX_GPUS, defaults=defaults)
    gpus = tuple(_decode_gpu(row, index, models) for index, row in enumerate(rows))
    for key, values in (("pci", [gpu.pci_address for gpu in gpus]), ("minor", [gpu.minor for gpu in gpus])):
        for value, count in Counter(values).items():
            if count > 1:
                fields.fault("gpus", f"{count} GPUs have {key} {value}")
    return gpus


def _decode_gpu(row: Fields, index: int, models: dict[str, Model]) -> SimulatedGpu:
    model = _model(row, models)
    minor = row.optional_integer("minor", 0, 4095)
    links_up = row.optional_integer("linksUp", 0, 64)
    gpu = SimulatedGpu(
        pci_address=row.text("pci", pattern=_PCI, what="a PCI address such as 0000:1b:00.0"),
        minor=index if minor is None else minor,
        model=model,
        numa_node=row.optional_integer("numaNode", 0, 4095),
        pcie_root=row.optional_text("pcieRoot", pattern=_PCIE_ROOT, what="a PCIe root such as pci0000:16"),
        nvlink_group=row.optional_text("nvlinkGroup"),
        nvlink_fabric=row.optional_text("nvlinkFabric", pattern=_FABRIC, what="<cluster UUID>.<clique id>"),
        links_up=links_up,
        serial=row.optional_text("serial"),
        vbios_version=row.optional_text("vbiosVersion"),
        ecc_enabled=row.optional_flag("eccEnabled"),
        mig=_decode_partitions(row, model) if row.has("mig") else None,
        is_lost=bool(row.optional_flag("lost")),
        processes=row.integers("processes", 1 << 22),
        health=decode_health(row.section("health")) if row.has("health") else NO_FAULTS,
        metering=decode_metering(row.section("metering")) if row.has("metering") else NOT_METERED,
        mig_delay_ms=row.optional_integer("migDelayMs", 0, 600_000) or 0,
    )
    if gpu.nvlink_group and gpu.nvlink_fabric:
        row.fault("nvlinkFabric", "a GPU can be in a group of this node or in a fabric, not in both")
    if links_up and model.nvlinks is not None and links_up > model.nvlinks:
        row.fault("linksUp", f"{links_up} links are up, but the card has {model.nvlinks}")
    row.close()
    return gpu


def _model(row: Fields, models: dict[str, Model]) -> Model:
    """Return a GPU's model: the profile's own first, then a shipped one. Each is read once."""
    name = row.text("model")
    if name and name not in models:
        if name in model_names():
            models[name] = read_model(name, row.faults)
        else:
            known = ", ".join(sorted({*models, *model_names()}))
            row.fault("model", f"no model {name!r} (there are {known})")
    return models.get(name) or Model(product_name="", memory_mib=None)


def _decode_partitions(row: Fields, model: Model) -> tuple[Placement, ...]:
    """Read how a GPU is partitioned; what the model can't do is a fault."""
    placements: list[Placement] = []
    if model.mig is None and model.product_name:
        row.fault("mig", f"{model.product_name} can't be partitioned")
    for part in row.rows("mig", maximum=16):
        name = part.text("profile")
        start = part.integer("start", 0, 15)
        part.close()
        profile = model.mig.profile(name) if model.mig else None
        if profile is None:
            if model.mig and name:
                known = ", ".join(known.name for known in model.mig.profiles)
                part.fault("profile", f"{model.product_name} has no profile {name!r} (it has {known})")
        elif not profile.has_figures:
            part.fault("profile", f"the figures of {name} on this model are not known")
        else:
            placements.append(Placement(profile, start))
    for index, fault in placement_faults(model.mig, placements) if model.mig else ():
        row.fault(f"mig[{index}]", fault)
    return tuple(placements)
