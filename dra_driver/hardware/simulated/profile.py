"""Profiles: one simulated node (or one node of a fleet), from a YAML file.

In: the name of a shipped profile, or a path. Out: `Profile`, frozen, or one InputError with every fault and its path.
Nothing is guessed: what the file does not state is unknown. The format is described in docs/profiles.md.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from dra_driver.documents.document import read_document
from dra_driver.documents.fields import Fields
from dra_driver.hardware.simulated.foreign import ForeignDriver, decode_foreign
from dra_driver.hardware.simulated.health_section import NO_FAULTS, SimulatedHealth, decode_health
from dra_driver.hardware.simulated.metering_section import NOT_METERED, SimulatedMetering, decode_metering
from dra_driver.hardware.simulated.mig import Placement, placement_faults
from dra_driver.hardware.simulated.models import DATE, Model, decode_model, model_names, read_model
from dra_driver.model import semver
from dra_driver.model.errors import InputError

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
    return semver.normalize(text) if text else None


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
