"""The table of attributes and capacities of Intel's devices, in the domain of their driver.

The names, kinds and values of Intel's own driver come first, so that classes and claims written for it work unchanged;
then those of Kubernetes and our own. A fact that is not known is left out, except memory, which is 0 then.

Source: attributes of intel/intel-resource-drivers-for-kubernetes v0.11 (model, family, driver, type, sriov, pciId,
pciAddress, pciRoot, health; memory, millicores).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dra_driver.base.machine import boot_time
from dra_driver.hardware import pci
from dra_driver.hardware.evidence import HARDWARE_THERMAL, BusState, Vitals
from dra_driver.hardware.facts import Edits, Facts, GpuFacts, Mount, PartitionFacts, merge
from dra_driver.hardware.intel.reading import (
    DRIVERS,
    INTEL,
    GraphicsTile,
    IntelGpu,
    model_of,
    read_gpus,
    read_tiles,
    read_used_memory,
)
from dra_driver.hardware.metered import FamilyHead, Measure, MetricName, MetricNames, Pairs, Reading, SampleKind, gauge
from dra_driver.hardware.pci import DrmFunction, bus_state, edits_of_nodes, on_bus, read_device_nodes, read_functions
from dra_driver.hardware.port import Fingerprint, Roots
from dra_driver.hardware.sysfs import Sensor, SysfsObservation, dmem_capacity, margins, read_sensors, value_of
from dra_driver.hardware.vendors import (
    ALL,
    EVERY,
    MEMORY,
    PASSED,
    PCI_ROOT,
    STANDARD_ATTRIBUTES,
    Fact,
    FoundDevice,
    Owner,
    Published,
    ValueKind,
    memory_or_zero,
    of_gpu,
)

if TYPE_CHECKING:
    from dra_driver.hardware.sysfs import VitalsSource


_WHOLE_GPU_MILLICORES = 1000  # Intel's driver counts a GPU's time in thousandths, and hands out whole GPUs


def _id(gpu: IntelGpu) -> str | None:
    return None if gpu.device_id is None else f"0x{gpu.device_id:04x}"


def _row(name: str, kind: ValueKind, meaning: str, read: Callable[[IntelGpu], Fact], owner: Owner) -> Published:
    types = ALL if name == "driver" else EVERY  # no driver of the host has a GPU that a virtual machine has
    return Published(name, kind, meaning, types, of_gpu(IntelGpu, read), owner=owner, since="0.2.0")


def _type(found: FoundDevice) -> Fact:
    if found.is_passed:
        return found.type.value
    return "vf" if isinstance(found.gpu, IntelGpu) and found.gpu.is_virtual else "gpu"


INTEL_ROWS: tuple[Published, ...] = (
    Published(
        "type",
        ValueKind.STRING,
        "What the device is: `gpu`, or `vf` for a virtual function of one (SR-IOV); `vfio` for either one for a "
        "virtual machine.",
        EVERY,
        _type,
        since="0.2.0",
    ),
    _row(
        "model",
        ValueKind.STRING,
        "Model, such as `B580`; for a device id that our table lacks, the id itself, such as `0x9a60`.",
        lambda gpu: gpu.model or _id(gpu),
        Owner.VENDOR,
    ),
    _row(
        "family",
        ValueKind.STRING,
        "Family, such as `Arc B-Series`; `Unknown` for a device id that our table lacks.",
        lambda gpu: gpu.family or "Unknown",
        Owner.VENDOR,
    ),
    _row("pciId", ValueKind.STRING, "PCI device id, such as `0xe20b`.", _id, Owner.VENDOR),
    _row("driver", ValueKind.STRING, "Kernel driver: `i915` or `xe`.", lambda gpu: gpu.kernel_driver, Owner.VENDOR),
    _row(
        "sriov",
        ValueKind.BOOL,
        "Whether the GPU can have virtual functions.",
        lambda gpu: gpu.may_be_divided,
        Owner.VENDOR,
    ),
    _row(
        "health",
        ValueKind.STRING,
        "Always `Unknown`: faults of these GPUs are taints, and change no attribute.",
        lambda _: "Unknown",
        Owner.VENDOR,
    ),
    _row(
        "pciAddress",
        ValueKind.STRING,
        "The same as the standard pciBusID, which Intel's driver recommends instead.",
        lambda gpu: gpu.pci_address,
        Owner.VENDOR,
    ),
    PCI_ROOT,
    *(replace(row, types=EVERY) for row in STANDARD_ATTRIBUTES),
    *PASSED,
    _row(
        "integrated",
        ValueKind.BOOL,
        "Whether the GPU is part of a processor and uses the host's memory; absent where that is not certain.",
        lambda gpu: gpu.is_integrated,
        Owner.OURS,
    ),
    _row(
        "physicalFunction",
        ValueKind.STRING,
        "PCI address of the GPU that a virtual function belongs to; absent on others.",
        lambda gpu: gpu.physical_address,
        Owner.OURS,
    ),
    Published(
        MEMORY,
        ValueKind.QUANTITY,
        "The GPU's own memory. 0 on integrated GPUs, and where the kernel does not report it.",
        EVERY,
        memory_or_zero,
        unit="bytes",
        since="0.2.0",
    ),
    _row(
        "millicores", ValueKind.QUANTITY, "Always 1000: the whole GPU.", lambda _: _WHOLE_GPU_MILLICORES, Owner.VENDOR
    ),
)


# The health of Intel's GPUs, as far as sysfs shows it: the bus, temperatures, and clocks throttled by heat.


def read_all_vitals(roots: Roots) -> Iterator[Vitals]:
    """Yield the vitals of each GPU, as its files show them now."""
    return (read_vitals(function, roots) for function in read_functions(roots, INTEL, DRIVERS))


def read_vitals(function: DrmFunction, roots: Roots) -> Vitals:
    """Return the vitals of one GPU, as its files show them now."""
    if bus_state(roots, function.address, DRIVERS) is BusState.DEAD:
        return Vitals(function.address, boot_time(), is_lost=True)
    heat = [tile.is_throttled_by_heat for tile in read_tiles(function) if tile.is_throttled_by_heat is not None]
    margin = min(margins(read_sensors(function.folder)), default=None)
    return Vitals(
        function.address,
        boot_time(),
        thermal_margin=margin,
        slowdown_margin=None if margin is None else 0,
        clock_reasons=(HARDWARE_THERMAL if any(heat) else 0) if heat else None,
    )


# One round of measurements of Intel's GPUs.

THROTTLED = "throttled"  # 1 while the clocks of a graphics part are throttled, else 0
_BEFORE = tuple[float, float | None, tuple[int | None, ...]]  # when, energy in mJ, how long each part had slept


class IntelReader:
    """A reader that remembers its previous round; for one thread."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._before: dict[str, _BEFORE] = {}

    def read(self) -> Iterator[Reading]:
        """Yield a reading of each GPU that its kernel driver drives."""
        functions = read_functions(self._roots, INTEL, DRIVERS)
        self._before = {one.address: self._before[one.address] for one in functions if one.address in self._before}
        return (self._read(function) for function in functions)

    def _read(self, function: DrmFunction) -> Reading:
        now = time.monotonic()
        sensors, tiles = read_sensors(function.folder), read_tiles(function)
        energy = _energy_mj(sensors)
        values = _values(sensors, tiles)
        slept = tuple(tile.slept_ms for tile in tiles)
        if energy is not None:
            values[Measure.ENERGY_MJ_TOTAL] = energy
        if (memory := dmem_capacity(self._roots, function.address)) is not None:
            values[Measure.MEMORY_TOTAL_BYTES] = float(memory)
        if (used := read_used_memory(function)) is not None:
            values[Measure.MEMORY_USED_BYTES] = float(used)
        values |= _since(self._before.get(function.address), (now, energy, slept))
        self._before[function.address] = (now, energy, slept)
        return Reading(function.address, now, values)


def _values(sensors: tuple[Sensor, ...], tiles: tuple[GraphicsTile, ...]) -> dict[str, float]:
    values: dict[str, float] = {}
    package = _temperature(sensors, "pkg", 2)
    if package is None:
        package = _temperature(sensors, "", 1)
    memory = _temperature(sensors, "vram", 3)
    clocks = [tile.clock_mhz for tile in tiles if tile.clock_mhz is not None]
    throttled = [tile.is_throttled for tile in tiles if tile.is_throttled is not None]
    found = {
        Measure.TEMPERATURE_C: None if package is None else package / 1000,
        Measure.MEMORY_TEMPERATURE_C: None if memory is None else memory / 1000,
        Measure.SM_CLOCK_MHZ: max(clocks, default=None),
        THROTTLED: any(throttled) if throttled else None,
    }
    values |= {measure: float(value) for measure, value in found.items() if value is not None}
    return values


def _temperature(sensors: tuple[Sensor, ...], label: str, number: int) -> int | None:
    named = value_of(sensors, "temp", label) if label else None
    if named is not None:
        return named
    return next((one.value for one in sensors if (one.kind, one.number, one.label) == ("temp", number, "")), None)


def _energy_mj(sensors: tuple[Sensor, ...]) -> float | None:
    """Return the energy of the whole card, else that of its package, in mJ."""
    by_number = {sensor.number: sensor.value for sensor in sensors if sensor.kind == "energy"}
    microjoules = by_number[min(by_number)] if by_number else None
    return None if microjoules is None else microjoules / 1000


def _since(before: _BEFORE | None, now: _BEFORE) -> dict[str, float]:
    """Return the values computed from two rounds; none if a counter went back (the driver was loaded again)."""
    values: dict[str, float] = {}
    seconds = now[0] - before[0] if before else 0.0
    if before is None or seconds <= 0:
        return values
    if before[1] is not None and now[1] is not None and now[1] >= before[1]:
        values[Measure.POWER_W] = round((now[1] - before[1]) / 1000 / seconds, 3)
    pairs = zip(before[2], now[2], strict=False) if len(before[2]) == len(now[2]) else ()
    slept = [new - old for old, new in pairs if old is not None and new is not None and new >= old]
    if slept:
        values[Measure.GPU_PERCENT] = round(100 * (1 - min(1.0, min(slept) / 1000 / seconds)), 1)
    return values


# Intel's GPUs behind the hardware port.

_BIND = ("rw", "nosuid", "noexec", "bind")


class IntelHardware(SysfsObservation):
    """Intel's GPUs on this node.

    Args:
        roots: where the node's trees are.
    """

    vendor = "intel"
    drivers = DRIVERS

    def is_present(self) -> bool:
        """Return whether there is a GPU of Intel that a kernel driver drives, or one on the bus."""
        return bool(read_functions(self._roots, INTEL, DRIVERS) or on_bus(self._roots, INTEL))

    def discover(self) -> Facts:
        """Read everything and return it."""
        reading = read_gpus(self._roots)
        undriven = pci.undriven(self._roots, INTEL, DRIVERS)
        return Facts(self.vendor, tuple(reading.gpus), problems=(*reading.problems, *undriven))

    def fingerprint(self) -> Fingerprint:
        """Return a value that changes when `discover` would return something else."""
        functions = tuple((function.address, function.drm) for function in read_functions(self._roots, INTEL, DRIVERS))
        capacity = pci.read_text(Path(self._roots.sys, "fs/cgroup/dmem.capacity"))
        return Fingerprint((functions, capacity, on_bus(self._roots, INTEL), read_device_nodes(self._roots)))

    def common_edits(self) -> Edits:
        """Return no edits: a container needs nothing but the nodes of its own devices."""
        return Edits()

    def device_edits(self, gpu: GpuFacts, partition: PartitionFacts | None) -> Edits:  # noqa: ARG002 - there are none
        """Return the nodes of one device, also under their names by PCI path, which Intel's runtimes look for.

        Raises: HardwareError("hardware.node-missing", retry LATER).
        """
        edits = edits_of_nodes(gpu.nodes, self._roots)
        return merge((edits, Edits(mounts=tuple(self._by_path(gpu)))))

    def admin_edits(self, gpu: GpuFacts) -> Edits:
        """Return the nodes of the GPU's management engine. Raises: HardwareError("hardware.node-missing")."""
        return edits_of_nodes(gpu.admin_nodes, self._roots) if isinstance(gpu, IntelGpu) else Edits()

    def edit_problems(self) -> tuple[str, ...]:
        """Return nothing: the edits leave nothing out, and containers bring their own libraries."""
        return ()

    def close(self) -> None:
        """Do nothing: no library and no device node is held."""

    def _vitals_source(self) -> VitalsSource:
        from dra_driver.hardware.sysfs import VitalsSource  # noqa: PLC0415 - as above

        return VitalsSource(partial(read_all_vitals, self._roots))

    def _figures_reader(self) -> Callable[[], Iterable[Reading]]:

        return IntelReader(self._roots).read

    def _by_path(self, gpu: GpuFacts) -> list[Mount]:
        found = []
        for node in gpu.nodes:
            kind = "card" if node.startswith("dri/card") else "render"
            name = f"dri/by-path/pci-{gpu.pci_address}-{kind}"
            if os.path.lexists(f"{self._roots.dev}/{name}"):
                found.append(Mount(f"{self._roots.dev}/{node}", f"/dev/{name}", _BIND))
        return found


# Names

_Q = Measure
_CARD = (("hw_sensor_location", "card"),)
_FREQUENCY = (("aggregation", "avg"), ("hw_frequency_domain", "gpu"))


def _heat(location: str) -> Pairs:
    return (("hw_sensor_location", location), ("statistic", "max"))


def _energy(name: str, labels: Pairs = (), *, is_former: bool = False) -> MetricName:
    head = FamilyHead(name, SampleKind.COUNTER, "Energy used since the driver was loaded (in J).")
    return MetricName(head, _Q.ENERGY_MJ_TOTAL, 0.001, labels=labels, is_former=is_former)


# Source: intel/xpumanager, the daemon xpumd (release 2), whose names are those of OpenTelemetry for hardware.
_TODAY = (
    gauge("hw_power_watts", "Power drawn (in W).", _Q.POWER_W, labels=_CARD),
    _energy("hw_energy_joules_total", _CARD),
    gauge("hw_temperature_celsius", "Temperature (in C).", _Q.TEMPERATURE_C, labels=_heat("gpu")),
    gauge("hw_temperature_celsius", "Temperature (in C).", _Q.MEMORY_TEMPERATURE_C, labels=_heat("memory")),
    gauge("hw_frequency_hertz", "Clock of the fastest part (in Hz).", _Q.SM_CLOCK_MHZ, scale=1e6, labels=_FREQUENCY),
    gauge(
        "hw_gpu_utilization_ratio",
        "Share of time in which the busiest part was not asleep.",
        _Q.GPU_PERCENT,
        scale=0.01,
        labels=(("hw_gpu_task", "all"),),
    ),
    gauge(
        "hw_memory_size_bytes",
        "The GPU's own memory (in bytes).",
        _Q.MEMORY_TOTAL_BYTES,
        labels=(("hw_memory_location", "device"),),
    ),
    gauge(
        "hw_memory_usage_bytes",
        "How much of the GPU's own memory is used (in bytes).",
        _Q.MEMORY_USED_BYTES,
        labels=(("hw_memory_location", "device"),),
    ),
    gauge(
        "hw_status",
        "1 while the GPU is in this state, else 0.",
        THROTTLED,
        labels=(("hw_state", "throttled"), ("hw_type", "frequency")),
    ),
)
# Source: the same, release 1.
_FORMER = (
    gauge("xpum_power_watts", "Power drawn (in W).", _Q.POWER_W),
    gauge("xpum_temperature_celsius", "Temperature (in C).", _Q.TEMPERATURE_C, labels=(("location", "gpu"),)),
    gauge("xpum_temperature_celsius", "Temperature (in C).", _Q.MEMORY_TEMPERATURE_C, labels=(("location", "mem"),)),
    gauge(
        "xpum_frequency_mhz",
        "Clock of the fastest graphics part (in MHz).",
        _Q.SM_CLOCK_MHZ,
        labels=(("location", "gpu"), ("type", "actual")),
    ),
    gauge("xpum_frequency_throttling_ratio", "100 while clocks are throttled, else 0.", THROTTLED, scale=100.0),
    gauge("xpum_engine_ratio", "Share of time in which the busiest part was not asleep (in %).", _Q.GPU_PERCENT),
)
_NAMES = (
    *_TODAY,
    *(replace(name, is_former=True) for name in _FORMER),
    _energy("xpum_energy_joules_total", is_former=True),
)


def gpu_labels(index: int, gpu: GpuFacts) -> Pairs:
    """Return the labels that name a GPU."""
    device_id = gpu.device_id if isinstance(gpu, IntelGpu) else None
    card = next((node.removeprefix("dri/") for node in gpu.nodes if node.startswith("dri/card")), "")
    return (
        ("dev_id", str(index)),
        ("dev_name", gpu.product_name or ""),
        ("dev_file", card),
        ("pci_bdf", gpu.pci_address),
        ("pci_dev", f"0x{device_id:04x}" if device_id else ""),
        ("vendor", "Intel(R) Corporation"),
    )


NAMES = MetricNames(_NAMES, gpu_labels, hostname_label="node")


# Intel's GPUs and virtual functions for virtual machines: what the PCI bus shows of one without a host driver.


def with_pci_facts(gpu: GpuFacts, roots: Roots) -> GpuFacts:
    """Return the facts of a function, completed by what its PCI numbers show."""
    if not isinstance(gpu, IntelGpu) or gpu.pci_id is None:
        return gpu
    device_id = gpu.pci_id >> 16
    folder = pci.function_folder(roots, gpu.pci_address)
    model, physical = model_of(device_id), pci.read_physical(folder)
    return replace(
        gpu,
        product_name=f"Intel {model.family} {model.name}" if model else None,
        device_id=device_id,
        model=model.name if model else None,
        family=model.family if model else None,
        is_integrated=model.is_integrated if model else None,
        is_virtual=physical is not None,
        physical_address=physical,
        may_be_divided=bool(pci.read_size(folder / "sriov_totalvfs")),
    )
