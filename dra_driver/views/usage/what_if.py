"""What if: which GPUs would become free if claims had the advised size, as this driver's allocator decides.

In: advice, the cluster's slices and claims. Out: how many claims can be resized, and the GPUs that would then be free,
with their nodes. All claims to be resized release their devices first, and are then placed one after the other, each on
the first of their nodes on which it fits; the other claims keep their devices. It is only simulated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dra_driver.allocation.allocator import Allocator
from dra_driver.model.kubernetes import Since, minor_of
from dra_driver.model.wire import Wire
from dra_driver.views.usage.advice import SizeAdvice

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
