"""Bounds: what an agent reports of its node, cut to what can be true according to the API server.

In: the claims and totals of an agent's page, and what the API server has of the node. Out: the same, each no larger
than possible, and a sentence for each cut. A claim can't have had more devices than it was allocated, nor for longer
than it has existed; a node can't have given away more than its devices, nor for longer than its Node has existed. What
the API server does not have bounds nothing: claims that were deleted, nodes without slices.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache
from typing import TypeVar

from dra_driver.allocation.allocator import Allocator
from dra_driver.base.errors import ApiError
from dra_driver.base.versions import Since, minor_of
from dra_driver.base.wire import Wire
from dra_driver.hardware.simulated.models import Model, model_names, read_model
from dra_driver.kube import paths
from dra_driver.kube.api import KubeApi
from dra_driver.kube.watch import objects
from dra_driver.tools.usage.usage_counts import ClaimUsage, GpuParts, NamespaceUsage, PageSums, UnclaimedTime

# The profiles of a model, and the fraction of the GPU that each has; for advice, and for series without that
# fraction.

WHOLE = "gpu"
SHARE = "-share"


@dataclass(frozen=True, slots=True)
class ProfileSize:
    """What a device of a profile has: memory in bytes, and its fractions of the multiprocessors and of the GPU."""

    name: str
    memory_bytes: int
    sm_part: float
    gpu_part: float


@cache
def profiles_of(model: str) -> tuple[ProfileSize, ...]:
    """Return the sizes of a model's partitions, the smallest part of a GPU first and the whole GPU last."""
    known = _models().get(model)
    if known is None or known.memory_mib is None:
        return ()
    whole = ProfileSize(WHOLE, known.memory_mib << 20, 1.0, 1.0)
    return (*sorted(_of_table(known), key=lambda one: (one.gpu_part, one.memory_bytes, one.sm_part)), whole)


def size_of(model: str, profile: str) -> ProfileSize | None:
    """Return the size of a device of a profile; None if it is not known. Shares are as large as their device."""
    name = profile.removesuffix(SHARE)
    return next((one for one in profiles_of(model) if one.name == name), None)


def gpu_part_of(model: str, profile: str) -> float:
    """Return the fraction of a GPU that a device takes; 1 if that is not known."""
    size = size_of(model, profile)
    return size.gpu_part if size is not None else 1.0


def _of_table(model: Model) -> list[ProfileSize]:
    table = model.mig
    if table is None:
        return []
    found = []
    for one in table.profiles:
        # Profiles with other media engines or graphics are not proposed.
        if "+" in one.name or "-" in one.name or one.memory_mib is None:
            continue
        memory, compute = one.memory_slices / table.memory_slices, one.compute_slices / table.compute_slices
        sms = one.multiprocessors / model.multiprocessors if one.multiprocessors and model.multiprocessors else compute
        found.append(ProfileSize(one.name, one.memory_mib << 20, sms, max(memory, compute)))
    return found


@cache
def _models() -> dict[str, Model]:
    faults: list[str] = []
    models = (read_model(name, faults) for name in model_names())
    return {one.product_name: one for one in models}


SLACK_SECONDS = 300.0  # by how much the clocks of a node and of the API server may differ
MAX_NAMED = 5
_TOGETHER = 1.1  # the parts of a GPU may add up to more than 1: a 3g and a 4g partition take 3/7 or 4/8, and 4/7
_MIN_PART = 1 / 8  # no partition is smaller, whatever an agent says
_Hours = TypeVar("_Hours", ClaimUsage, NamespaceUsage)


@dataclass(frozen=True, slots=True)
class KnownClaim:
    """A claim of the API server: when it was created (None if unknown), and its devices by pool ("POOL/DRIVER")."""

    name: str
    created: float | None
    devices: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class KnownCluster:
    """What the API server has: claims by UID, devices by pool, and when each Node was created.

    `notes` say what could not be read.
    """

    claims: Mapping[str, KnownClaim] = field(default_factory=dict)
    devices: Mapping[str, int] = field(default_factory=dict)
    nodes: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def read_cluster(api: KubeApi, namespace: str = "") -> KnownCluster:
    """Read what bounds the reports of agents; `namespace` is the only one whose claims are wanted, "" for all."""
    notes: list[str] = []

    def read(what: str, path: str, add: Callable[[Wire], None]) -> None:
        try:
            for one in objects(api, path):
                add(one)
        except ApiError as error:
            notes.append(f"what agents report is not compared with the {what}: {error.message[:200]}")

    claims: dict[str, KnownClaim] = {}
    devices: Counter[str] = Counter()
    nodes: dict[str, float] = {}

    def add_node(wire: Wire) -> None:
        created = _created(wire)
        if created is not None:
            nodes[wire["metadata"]["name"]] = created

    def add_slice(wire: Wire) -> None:
        devices[f"{wire['spec']['pool']['name']}/{wire['spec']['driver']}"] += len(wire["spec"].get("devices") or ())

    read("claims", paths.within(paths.CLAIMS, namespace) if namespace else paths.CLAIMS, lambda one: _add(claims, one))
    read("slices", paths.SLICES, add_slice)
    read("nodes", paths.NODES, add_node)
    return KnownCluster(claims, devices, nodes, tuple(notes))


@dataclass(frozen=True, slots=True)
class NodeBounds:
    """The bounds of one node's report at `now`, in seconds since 1970."""

    known: KnownCluster
    node: str
    now: float

    def cut(self, page: PageSums) -> tuple[PageSums, tuple[str, ...]]:
        """Return the page, reduced to what can be true of its node, and a sentence for each reduction."""
        claims = tuple(self._claims(page.claims))
        totals, unclaimed, text = self._totals(page)
        kept = tuple(one for one, _ in claims)
        cuts = dict.fromkeys(filter(None, (text, *(cut for _, cut in claims))))
        return PageSums(kept, totals, unclaimed, page.parts), tuple(cuts)

    def _claims(self, rows: Sequence[ClaimUsage]) -> Iterator[tuple[ClaimUsage, str]]:
        """Yield each claim, cut if it has to be, and a sentence about the cut, "" if there was none."""
        reported: dict[tuple[str, str], float] = {}
        for one in rows:
            reported[one.uid, one.pool] = reported.get((one.uid, one.pool), 0.0) + one.allocated_s
        for one in rows:
            known = self.known.claims.get(one.uid)
            name = f"{one.namespace}/{one.name}"
            if known is not None and known.name != name:
                yield _scaled(one, 0.0), f"claim {name}, whose UID is that of {known.name}"
                continue
            whole = reported[one.uid, one.pool]
            maximum = self._max_of_claim(known, one.pool)
            text = f"claim {name} from {_hours(whole)} to {_hours(maximum)}" if whole > maximum else ""
            yield (_scaled(one, maximum / whole) if text else one), text

    def _totals(self, page: PageSums) -> tuple[tuple[NamespaceUsage, ...], tuple[UnclaimedTime, ...], str]:
        """Return the totals and the unclaimed time, cut if they have to be, and a sentence about the cut."""
        rows, free = page.totals, page.unclaimed
        whole = sum(one.allocated_s * _part(one, page.parts) for one in rows) + sum(one.seconds for one in free)
        devices = sum(count for pool, count in self.known.devices.items() if pool.partition("/")[0] == self.node)
        maximum = self._age(self.known.nodes.get(self.node)) * devices * _TOGETHER if devices else math.inf
        if whole <= maximum:
            return rows, free, ""
        factor = maximum / whole
        free = tuple(replace(one, seconds=one.seconds * factor) for one in free)
        text = f"all GPUs from {_hours(whole)} to {_hours(maximum)}"
        return tuple(_scaled(one, factor) for one in rows), free, text

    def _max_of_claim(self, known: KnownClaim | None, pool: str) -> float:
        """Return the maximum of a claim's device-seconds; if it has no device here now, of any in the pool."""
        age = self._age(self.known.nodes.get(self.node))
        devices = self.known.devices.get(pool)
        if known is not None:
            age = min(age, self._age(known.created))
            devices = known.devices.get(pool, devices)
        return age * devices if devices else math.inf

    def _age(self, created: float | None) -> float:
        return math.inf if created is None else max(0.0, self.now - created) + SLACK_SECONDS


def _part(one: NamespaceUsage, parts: GpuParts) -> float:
    known = parts.get((one.model, one.profile))
    part = known if known is not None and 0 < known <= 1 else gpu_part_of(one.model, one.profile)
    return max(_MIN_PART, part)


def _scaled(one: _Hours, factor: float) -> _Hours:
    return replace(
        one,
        allocated_s=one.allocated_s * factor,
        busy_s=one.busy_s * factor,
        measured_s=one.measured_s * factor,
    )


def notes_of_cuts(cuts: Collection[str]) -> tuple[str, ...]:
    """Return a note that names some of the cuts and counts the others; none if nothing was cut."""
    if not cuts:
        return ()
    more = f"; and {len(cuts) - MAX_NAMED} more" if len(cuts) > MAX_NAMED else ""
    named = "; ".join(sorted(cuts)[:MAX_NAMED])
    return (f"agents report more than can be true according to the API server, which was cut: {named}{more}",)


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:,.1f} h"


def _add(claims: dict[str, KnownClaim], wire: Wire) -> None:
    metadata = wire["metadata"]
    allocation = (wire.get("status") or {}).get("allocation") or {}
    results = (allocation.get("devices") or {}).get("results") or ()
    devices = Counter(f"{one['pool']}/{one['driver']}" for one in results)
    claims[metadata["uid"]] = KnownClaim(f"{metadata['namespace']}/{metadata['name']}", _created(wire), devices)


def _created(wire: Wire) -> float | None:
    try:
        return datetime.fromisoformat(str(wire["metadata"].get("creationTimestamp"))).timestamp()
    except ValueError:
        return None


# Advice: claims whose devices are idle, and claims for which a smaller device would be enough.

MARGIN = 1.2
MIN_HOURS = 24.0
IDLE_RATIO = 0.05
IDLE_LEAST_HOURS = 1.0


@dataclass(frozen=True, slots=True)
class IdleClaim:
    """A claim whose devices were idle. `hours` are the idle hours of each device; `cost` is that of all devices."""

    namespace: str
    name: str
    devices: int
    model: str
    profile: str
    hours: float
    cost: float | None


@dataclass(frozen=True, slots=True)
class SizeAdvice:
    """The advised profile of a claim, and the reason for it; `profile` is "" if nothing is advised."""

    namespace: str
    name: str
    model: str
    current: str
    profile: str
    reason: str
    uid: str = ""
    gpus_saved: float = 0.0
    saved_per_hour: float | None = None


def is_idle(claim: ClaimUsage) -> bool:
    """Return whether a claim was measured for an hour, and busy for less than a twentieth of it."""
    hours = claim.measured_s / 3600 / claim.devices
    return hours >= IDLE_LEAST_HOURS and claim.busy_s < IDLE_RATIO * claim.measured_s


def idle_hours(claim: ClaimUsage) -> float:
    """Return for how many hours each device of a claim did nothing, as far as that was measured."""
    return (claim.measured_s - claim.busy_s) / 3600 / claim.devices


def size_for(claim: ClaimUsage) -> tuple[ProfileSize | None, str]:
    """Return the profile that would be enough for a claim, and why; None if there is no advice."""
    current = size_of(claim.model, claim.profile)
    if claim.profile.endswith(SHARE):
        return None, "no advice: the claim has a share"
    if current is None:
        return None, f"no advice: the profiles of {claim.model or 'its model'} are not known"
    if claim.measured_s / 3600 / claim.devices < MIN_HOURS:
        return None, "no advice: less than 24 hours of data"
    if claim.sm_p95 is None or claim.memory_max_bytes is None:
        return None, "no advice: no data about multiprocessors or memory (telemetry.level: full)"
    memory, sms = claim.memory_max_bytes * MARGIN, claim.sm_p95 * current.sm_part * MARGIN
    sizes = profiles_of(claim.model)
    fits = next((one for one in sizes if one.memory_bytes >= memory and one.sm_part >= sms), None)
    if fits is None or fits.gpu_part >= current.gpu_part:
        return None, "its size is right"
    used = f"{claim.memory_max_bytes / (1 << 30):.1f} GiB and {claim.sm_p95:.0%} of the multiprocessors of its"
    kind = "GPU" if claim.profile == WHOLE else claim.profile
    return fits, f"it used at most {used} {kind}"


# What if: which GPUs would become free if claims had the advised size, as this driver's allocator decides.

_CLASS = "what-if"
Gpu = tuple[str, str]
"""The pool and the UUID of a GPU."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The devices that the advice would free. `unplaced` are claims for which no smaller device was found."""

    changes: int
    gpus: int
    nodes: tuple[str, ...]
    unplaced: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UsageState:
    """Slices and claims as wire objects, the version whose allocator decides, and the driver to look at."""

    slices: Sequence[Wire]
    claims: Sequence[Wire]
    kubernetes: str
    driver: str


def what_if(sizes: Sequence[SizeAdvice], state: UsageState) -> WhatIf:
    """Return what the advice would free in a cluster."""
    gpus = _gpus_of_devices(state)
    wanted = {one.uid: one.profile for one in sizes if one.profile}
    held = [one for one in state.claims if _devices(one, state.driver)]
    changed = [one for one in held if one["metadata"].get("uid") in wanted]
    staying = [one for one in held if one["metadata"].get("uid") not in wanted]
    placed, unplaced = [], []
    gates = {"DRAPartitionableDevices": True, "DRAConsumableCapacity": minor_of(state.kubernetes) >= Since.SAFE_SHARES}
    allocator = Allocator(
        slices=state.slices, classes=[_class(state.driver)], allocated=staying, kubernetes=state.kubernetes, gates=gates
    )
    nodes = list(dict.fromkeys(_node(pool) for one in changed for pool, _ in _devices(one, state.driver)))
    for one in sorted(changed, key=_name):
        smaller = _smaller(one, wanted[one["metadata"]["uid"]], len(_devices(one, state.driver)), state.driver)
        allocation = _placed(allocator, smaller, nodes)
        if allocation is None:
            unplaced.append(one)
            continue
        smaller["status"] = {"allocation": allocation}
        allocator.hold(smaller)
        placed.append(smaller)
    before, after = _used(held, gpus, state.driver), _used([*staying, *placed, *unplaced], gpus, state.driver)
    free = before - after
    names = tuple(sorted({_node(pool) for pool, _ in free}))
    return WhatIf(len(placed), len(free), names, tuple(map(_name, unplaced)))


def _placed(allocator: Allocator, claim: Wire, nodes: Sequence[str]) -> Wire | None:
    pod = allocator.for_claims([claim])
    for node in nodes:
        outcome = pod.allocate({"metadata": {"name": node, "labels": {"kubernetes.io/hostname": node}}})
        if outcome.results:
            return outcome.results[0]
    return None


def _smaller(claim: Wire, profile: str, count: int, driver: str) -> Wire:
    of_profile = f'device.attributes["{driver}"].type == "mig" && device.attributes["{driver}"].profile == "{profile}"'
    exactly: Wire = {"deviceClassName": _CLASS, "allocationMode": "ExactCount", "count": count}
    exactly["selectors"] = [{"cel": {"expression": of_profile}}]
    metadata = {name: claim["metadata"].get(name) for name in ("name", "namespace", "uid")}
    return {"metadata": metadata, "spec": {"devices": {"requests": [{"name": "smaller", "exactly": exactly}]}}}


def _class(driver: str) -> Wire:
    return {
        "metadata": {"name": _CLASS},
        "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{driver}"'}}]},
    }


def _gpus_of_devices(state: UsageState) -> dict[tuple[str, str], Gpu]:
    return {
        (pool, str(device.get("name"))): (pool, uuid)
        for one in state.slices
        if (one.get("spec") or {}).get("driver") == state.driver
        for pool in [one["spec"]["pool"]["name"]]
        for device in one["spec"].get("devices") or ()
        if (uuid := _uuid(device.get("attributes") or {}))
    }


def _uuid(attributes: Mapping[str, Wire]) -> str:
    """Return the UUID of the GPU that a device is, or is a partition of."""
    texts = (attributes.get(name, {}).get("string") for name in ("parentUUID", "uuid"))
    return next((str(text) for text in texts if text), "")


def _devices(claim: Wire, driver: str) -> list[tuple[str, str]]:
    results = ((claim.get("status") or {}).get("allocation") or {}).get("devices", {}).get("results") or ()
    return [(one["pool"], one["device"]) for one in results if one["driver"] == driver and not one.get("adminAccess")]


def _used(claims: Sequence[Wire], gpus: Mapping[tuple[str, str], Gpu], driver: str) -> set[Gpu]:
    def found() -> Iterator[Gpu]:
        for claim in claims:
            for device in _devices(claim, driver):
                if device in gpus:
                    yield gpus[device]

    return set(found())


def _node(pool: str) -> str:
    return pool.partition("/")[0]


def _name(claim: Wire) -> str:
    return f"{claim['metadata'].get('namespace', '')}/{claim['metadata']['name']}"
