"""Published devices as rows of a table, in which all placements of a GPU share one row.

In: devices as ResourceSlices have them. Out: cells, and lines that count the placements of each GPU. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from dra_driver.model.names import gpu_of_device
from dra_driver.model.wire import DeviceWire
from dra_driver.views.fleet.device_facts import attribute_of, memory_of, memory_text, profile_of, string_of
from dra_driver.views.wording import counted, plural

TITLES = ("device", "type", "product", "memory", "NUMA", "compute", "NVLink domain", "UUID")
NUMBERS = frozenset({"memory", "NUMA"})
FEW_TITLES = 5  # how many of these a narrow table shows


def device_rows(devices: Sequence[DeviceWire], *, is_wide: bool = False) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each device, GPU by GPU; without `is_wide`, the placements of a GPU are counted in one row."""
    if is_wide:
        yield from map(_cells, devices)
        return
    for gpu in _by_gpu(devices).values():
        placements = [one for one in gpu if is_placement(one)]
        yield from (_cells(one)[:FEW_TITLES] for one in gpu if not is_placement(one))
        if placements:
            profiles = plural(len({profile_of(one) for one in placements}), "profile")
            yield f"  {plural(len(placements), 'placement')}", "mig", f"{profiles}, on demand", "", ""


def placement_lines(devices: Sequence[DeviceWire]) -> list[str]:
    """Return which placements GPUs have, in one line for all GPUs with the same placements."""
    alike: dict[tuple[tuple[str, int], ...], int] = {}
    for gpu in _by_gpu(devices).values():
        counts = Counter(f"{profile_of(one)} ({memory_of(one)})" for one in gpu if is_placement(one))
        if counts:
            key = tuple(counts.items())
            alike[key] = alike.get(key, 0) + 1
    return [
        f"{plural(gpus, 'GPU')}, {plural(sum(count for _, count in counts), 'placement')} each: {counted(counts)}"
        for counts, gpus in alike.items()
    ]


def is_placement(wire: DeviceWire) -> bool:
    """Return whether a device is a partition that is made when a claim needs it."""
    return bool(wire.get("consumesCounters")) and bool(profile_of(wire))


def _by_gpu(devices: Sequence[DeviceWire]) -> dict[str, list[DeviceWire]]:
    found: dict[str, list[DeviceWire]] = {}
    for one in devices:
        found.setdefault(gpu_of_device(str(one["name"])), []).append(one)
    return found


def _cells(wire: DeviceWire) -> tuple[str, ...]:
    memory = memory_of(wire)
    product = string_of(wire, "productName") or string_of(wire, "model") or "?"
    return (
        str(wire["name"]),
        string_of(wire, "type") or "-",
        f"{product} {profile_of(wire)}".rstrip(),
        memory_text(memory) if memory else "-",
        attribute_of(wire, "numaNode"),
        attribute_of(wire, "cudaComputeCapability"),
        attribute_of(wire, "nvlinkDomain"),
        attribute_of(wire, "uuid"),
    )
