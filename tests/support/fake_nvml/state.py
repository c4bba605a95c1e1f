"""The state file as Python values: what the fake library answers. The words are explained in `nvml.c`."""

import enum
import fcntl
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self


class Code(enum.IntEnum):
    """NVML_ERROR_* as nvml.h has them."""

    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    NOT_FOUND = 6
    DRIVER_NOT_LOADED = 9
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    LIB_RM_VERSION_MISMATCH = 18
    IN_USE = 19
    INSUFFICIENT_RESOURCES = 23
    UNKNOWN = 999


XID_EVENT, RECOVERY_EVENT, LOST_EVENT = 0x8, 0x8000, 0x4000
SUPPORTED_EVENTS = 0x1FF | 0xC000 | 0x400
FIELDS = {"recovery_action": 230, "remap_pending": 144, "remap_failed": 145, "slowdown_margin": 194, "pcie_replays": 94}

# The calls that change something while a partition is made and destroyed, in this order.
MIG_STEPS = (
    "nvmlDeviceSetMigMode",
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlComputeInstanceDestroy",
    "nvmlGpuInstanceDestroy",
)

# Where instances of a profile may begin on a GPU of eight memory slices, by NVML_GPU_INSTANCE_PROFILE_*.
STARTS = {0: tuple(range(7)), 7: tuple(range(7)), 9: (0, 2, 4, 6), 1: (0, 2, 4), 2: (0, 4), 3: (0,), 4: (0,)}


@dataclass
class Profile:
    """A GPU instance profile. `constant` is NVML_GPU_INSTANCE_PROFILE_*, `id` what `nvidia-smi mig -lgip` prints."""

    constant: int
    id: int
    slices: int
    instances: int
    sms: int
    copy: int
    decoders: int
    jpeg: int
    ofa: int
    mib: int
    name: str
    size: int = 0  # placement size in memory slices
    encoders: int = 0
    starts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self.starts = self.starts or STARTS[self.constant]

    def line(self) -> str:
        numbers = (self.constant, self.id, self.slices, self.instances, self.sms, self.copy, self.decoders)
        words = (*numbers, self.encoders, self.jpeg, self.ofa, self.mib, self.name, self.size)
        return " ".join(map(str, ("profile", *words, ",".join(map(str, self.starts)))))


@dataclass
class Gi:
    id: int
    profile_id: int
    start: int
    size: int


@dataclass
class Ci:
    gi: int
    id: int
    index: int
    slices: int
    start: int
    size: int
    sms: int
    uuid: str
    name: str


@dataclass
class Gpu:
    """One GPU: facts by key (a missing key is NOT_SUPPORTED), MIG, links, processes, faults."""

    pci: str
    facts: dict[str, object]
    profiles: list[Profile] = field(default_factory=list)
    gis: list[Gi] = field(default_factory=list)
    cis: list[Ci] = field(default_factory=list)
    links: list[tuple[int, int, str]] = field(default_factory=list)  # active, type, remote
    processes: list[tuple[str, int, int, int, int]] = field(default_factory=list)  # kind, pid, gi, ci, bytes
    faults: dict[str, str] = field(default_factory=dict)
    events: list[tuple[int, int, int, int, int]] = field(default_factory=list)  # sequence, type, data, gi, ci
    is_lost: bool = False

    @property
    def uuid(self) -> str:
        return str(self.facts["uuid"])

    @property
    def minor(self) -> int:
        return int(str(self.facts["minor"]))

    def fail(self, function: str, code: int) -> None:
        self.faults[function] = str(int(code))

    def hang(self, function: str) -> None:
        self.faults[function] = "hang"

    def slow(self, function: str, ms: int) -> None:
        self.faults[function] = f"slow {ms}"

    def crash(self, function: str, when: str = "after") -> None:
        """Kill the process that calls the function next, "before" or "after" its effect; once."""
        self.faults[function] = f"crash {when}"

    def xid(self, code: int, *, gi: int = -1, ci: int = -1) -> None:
        """Report an Xid through the event set."""
        self.events.append((len(self.events) + 1, XID_EVENT, code, gi, ci))

    def report_health(self, **values: object) -> None:
        """Let the GPU support events and report its health: `recovery_action`, `remap_pending`, `remap_failed`,
        and the facts of health.h by their own names. None removes a value."""
        fields = {name: f"field_{number}" for name, number in FIELDS.items()}
        for name, value in {"supported_events": hex(SUPPORTED_EVENTS), **values}.items():
            self.facts[fields.get(name, name)] = value

    def measure(self, **values: object) -> None:
        """Let the GPU report what it does: the facts of metering.h by their own names, and `fields` by number."""
        fields = {f"field_{number}": value for number, value in dict(values.pop("fields", {})).items()}
        self.facts |= {**values, **fields}

    def heal(self) -> None:
        self.faults.clear()
        self.is_lost = False

    def set_mig(self, enabled: bool, *, pending: bool | None = None) -> None:
        self.facts["mig_mode"] = f"{int(enabled)} {int(enabled if pending is None else pending)}"

    def partition(self, profile: str, start: int, *, compute_slices: tuple[int, ...] = ()) -> list[Ci]:
        """Make a GPU instance with one compute instance of its size, or several of the given sizes."""
        kind = next(p for p in self.profiles if p.name == profile)
        self.set_mig(True)
        gi = Gi(max([0, *(g.id for g in self.gis)]) + 1, kind.id, start, kind.size)
        self.gis.append(gi)
        made = []
        for ci_id, slices in enumerate(compute_slices or (kind.slices,)):
            name = profile if slices == kind.slices else f"{slices}c.{profile}"
            seed = f"{self.uuid}/{gi.profile_id}/{start}/{ci_id}/{slices}"
            made.append(
                Ci(
                    gi=gi.id,
                    id=ci_id,
                    index=len(self.cis),
                    slices=slices,
                    start=sum(compute_slices[:ci_id]),
                    size=slices,
                    sms=kind.sms * slices // kind.slices,
                    uuid=f"MIG-{uuid.uuid5(uuid.NAMESPACE_OID, seed)}",
                    name=name,
                )
            )
            self.cis.append(made[-1])
        return made

    def unpartition(self) -> None:
        self.gis.clear()
        self.cis.clear()

    def memory_limits(self) -> dict[str, int]:
        """Return the limits in bytes that are set, by cgroup."""
        kept = [str(value).split(" ", 1) for key, value in self.facts.items() if key.startswith("memory_limit_")]
        return {cgroup: int(limit) for limit, cgroup in kept}

    def run(self, ci: Ci, pid: int) -> None:
        """Let a process run on a MIG device."""
        self.processes.append(("compute", pid, ci.gi, ci.id, 1))

    def take(self, lines: list[str]) -> None:
        """Take over what the library changed: mode, instances, and a crash that happened."""
        self.gis, self.cis, faults = [], [], {}
        self.facts = {key: value for key, value in self.facts.items() if not key.startswith("memory_limit_")}
        for line in lines:
            word, *rest = line.split()
            if word == "gi":
                self.gis.append(Gi(*map(int, rest)))
            elif word == "ci":
                self.cis.append(Ci(*map(int, rest[:7]), uuid=rest[7], name=rest[8]))
            elif word in {"mig_mode", "persistence"} or word.startswith(("compute_mode", "memory_limit_")):
                self.facts[word] = " ".join(rest)
            elif word == "fault":
                faults[rest[0]] = " ".join(rest[1:])
        self.faults = faults

    def lines(self) -> list[str]:
        out = [f"gpu {self.pci}", *(["lost"] if self.is_lost else [])]
        out += [f"{key} {value}" for key, value in self.facts.items() if value is not None]
        out += [profile.line() for profile in self.profiles]
        out += [f"gi {g.id} {g.profile_id} {g.start} {g.size}" for g in self.gis]
        out += [f"ci {c.gi} {c.id} {c.index} {c.slices} {c.start} {c.size} {c.sms} {c.uuid} {c.name}" for c in self.cis]
        out += [f"event {' '.join(map(str, event))}" for event in self.events]
        out += [f"link {i} {active} {kind} {remote}" for i, (active, kind, remote) in enumerate(self.links)]
        out += ["process " + " ".join(map(str, process)) for process in self.processes]
        return out + [f"fault {function} {what}" for function, what in self.faults.items()]


@dataclass
class State:
    """The machine. `enumerate_live`: GPUs that come later are seen without a new nvmlInit (the real one looks once)."""

    gpus: list[Gpu] = field(default_factory=list)
    driver_version: str | None = "580.65.06"
    cuda_version: int | None = 13000
    init: int = 0
    enumerate_live: bool = False
    hold: Path | None = None  # a file kept open between init and shutdown, as the real library keeps device nodes
    faults: dict[str, str] = field(default_factory=dict)
    path: Path | None = None

    def gpu(self, pci: str) -> Gpu:
        return next(gpu for gpu in self.gpus if gpu.pci == pci)

    @contextmanager
    def change(self) -> Iterator[None]:
        """Take over what the library changed, let the caller change more, write it; the library waits meanwhile."""
        assert self.path is not None
        with Path(f"{self.path}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._take()
            yield
            self.write()

    def read(self) -> Self:
        """Take over what the library changed."""
        with self.change():
            return self

    def _take(self) -> None:
        assert self.path is not None
        blocks: dict[str, list[str]] = {}
        lines: list[str] = []
        for line in self.path.read_text("utf-8", "surrogateescape").splitlines():
            word, _, rest = line.partition(" ")
            if word in {"gpu", "changed"}:  # changes follow the GPUs
                lines = blocks.setdefault(rest, [])
            elif word == "drop":
                lines[:] = [each for each in lines if not f"{each} ".startswith(f"{rest} ")]
            else:
                lines.append(line)
        for pci, found in blocks.items():
            self.gpu(pci).take(found)

    def write(self, path: Path | None = None) -> Path:
        """Write the state in one step: to `path`, or where it was written before."""
        self.path = path or self.path
        assert self.path is not None
        facts = {
            "driver_version": self.driver_version,
            "cuda_version": self.cuda_version,
            "init": self.init or None,
            "enumerate": "call" if self.enumerate_live else None,
            "hold": self.hold,
        }
        lines = [f"{key} {value}" for key, value in facts.items() if value is not None]
        lines += [f"fault {function} {what}" for function, what in self.faults.items()]
        for gpu in self.gpus:
            lines += gpu.lines()
        temporary = self.path.with_name(f"{self.path.name}.new")
        text = "\n".join(lines) + "\n"
        temporary.write_bytes(text.encode("utf-8", "surrogateescape"))  # tests write bytes that are not text
        temporary.replace(self.path)
        return self.path
