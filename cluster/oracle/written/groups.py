"""Worlds about compatibility groups of parts of GPUs."""

from __future__ import annotations

from itertools import product

from cluster.oracle.worlds import DRIVER
from cluster.oracle.written.parts import Wire, apart, make_claim, make_device, world


def groups_worlds() -> dict[str, Wire]:
    """Return worlds with partitions that name compatibility groups, some of them in use, some drawing from two GPUs."""
    group_sets: dict[str, list[list[str]]] = {
        "alike": [["a"], ["a"], ["a"]],
        "chain": [["a", "b"], ["b", "c"], ["c", "a"]],
        "apart": [["a"], ["b"], ["a"]],
        "some without": [["a"], [], ["a"], []],
        "none": [[], [], []],
    }
    wished: tuple[list[Wire], ...] = (
        [{}], [{"count": 2}], [{}, {}], [{"count": 3}], [{"allocationMode": "All", "count": 0}]
    )  # fmt: skip
    return {
        f"groups {name}, {held} held, {gpus} GPUs, {wishes}": _with_groups(groups, held, gpus, wishes)
        for (name, groups), held, gpus, wishes in product(group_sets.items(), (None, 0, 1), (1, 2), wished)
    }


def _with_groups(groups: list[list[str]], held: int | None, gpus: int, wishes: list[Wire]) -> Wire:
    """Return a world of parts with these groups, of which one may be in use."""
    devices = [
        make_device(f"part-{index}", shared=False, consumesCounters=_draws(index, one, gpus))
        for index, one in enumerate(groups)
    ]
    result = {"request": "r", "driver": DRIVER, "pool": "node-1", "device": f"part-{held}"}
    status = {"allocation": {"devices": {"results": [result]}}}
    holder = {"metadata": {"name": "held", "namespace": "default"}, "spec": {}, "status": status}
    made = world(
        *devices,
        claims=[make_claim(*wishes)],
        allocated=[] if held is None else [holder],
        features={"CompatibilityGroups": True},
    )
    sets = [{"name": f"gpu-{gpu}", "counters": {"slot": {"value": "4"}}} for gpu in range(gpus)]
    made["slices"] = apart(made["slices"][0], {"sharedCounters": sets})
    return made


def _draws(index: int, groups: list[str], gpus: int) -> list[Wire]:
    """Return what a part draws: of two GPUs the even parts draw from both, the odd ones from the second."""
    slot = {"slot": {"value": "1"}}
    names = [f"gpu-{gpu}" for gpu in range(gpus)][index % 2 if gpus > 1 else 0 :]
    said = {"compatibilityGroups": groups} if groups else {}
    return [{"counterSet": name, "counters": slot} | said for name in names]
