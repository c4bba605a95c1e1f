"""What is measured of Intel's GPUs, and what their files report about their health."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.hardware.evidence import BusState, Vitals
from dra_driver.hardware.intel import attributes
from dra_driver.hardware.intel.attributes import NAMES, THROTTLED, IntelHardware, IntelReader, read_vitals
from dra_driver.hardware.intel.reading import DRIVERS, INTEL
from dra_driver.hardware.metered import Measure, MeterPlan
from dra_driver.hardware.pci import read_functions
from dra_driver.hardware.port import HealthReporter, Metered
from dra_driver.node.health.faults import FaultKey
from dra_driver.node.health.xids import EarlierReadings, indications_of
from dra_driver.node.metering.billing import default_selection
from tests.support.nodes.intel_tree import IntelCard, IntelTree

ARC = IntelCard("0000:03:00.0")
XE = {
    "hwmon/hwmon3/energy1_input": "5000000",
    "hwmon/hwmon3/energy1_label": "card",
    "hwmon/hwmon3/energy2_input": "4000000",
    "hwmon/hwmon3/energy2_label": "pkg",
    "hwmon/hwmon3/temp2_input": "51000",
    "hwmon/hwmon3/temp2_label": "pkg",
    "hwmon/hwmon3/temp2_crit": "100000",
    "hwmon/hwmon3/temp3_input": "60000",
    "hwmon/hwmon3/temp3_label": "vram",
    "tile0/gt0/freq0/act_freq": "2400",
    "tile0/gt0/freq0/throttle/status": "0",
    "tile0/gt0/freq0/throttle/reason_thermal": "0",
    "tile0/gt0/freq0/throttle/reason_pl1": "0",
    "tile0/gt0/gtidle/idle_residency_ms": "1000",
    "tile0/gt1/freq0/act_freq": "1500",
    "tile0/gt1/gtidle/idle_residency_ms": "3000",
}
I915 = {
    "hwmon/hwmon3/energy1_input": "7000000",
    "drm/card0/gt/gt0/rps_act_freq_mhz": "2000",
    "drm/card0/gt/gt0/throttle_reason_status": "1",
    "drm/card0/gt/gt0/throttle_reason_thermal": "1",
    "drm/card0/gt/gt0/rc6_residency_ms": "500",
}


@pytest.fixture
def tree(tmp_path: Path) -> IntelTree:
    return IntelTree(tmp_path)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(attributes.time, "monotonic", lambda: now[0])
    return now


def vitals(tree: IntelTree, card: IntelCard) -> Vitals:
    (function,) = read_functions(tree.write(card).roots, INTEL, DRIVERS)
    return read_vitals(function, tree.roots)


def bad(reading: Vitals) -> set[FaultKey]:
    return {sign.key for sign in indications_of(reading, EarlierReadings()) if sign.is_bad}


def test_power_and_use_follow_from_two_rounds(tree: IntelTree, clock: list[float]) -> None:
    reader = IntelReader(tree.write(replace(ARC, files=XE)).roots)
    (first,) = reader.read()
    assert first.values == {
        Measure.TEMPERATURE_C: 51,
        Measure.MEMORY_TEMPERATURE_C: 60,
        Measure.SM_CLOCK_MHZ: 2400,
        THROTTLED: 0,
        Measure.ENERGY_MJ_TOTAL: 5000,
        Measure.MEMORY_TOTAL_BYTES: 12 << 30,
    }
    later = {**XE, "hwmon/hwmon3/energy1_input": "1505000000", "tile0/gt0/gtidle/idle_residency_ms": "3500"}
    later["tile0/gt1/gtidle/idle_residency_ms"] = "13000"
    tree.write(replace(ARC, files=later))
    clock[0] += 10
    (second,) = reader.read()
    assert (second.values[Measure.POWER_W], second.values[Measure.GPU_PERCENT]) == (150, 75)


def test_the_names_are_those_of_todays_exporter_and_the_former_ones_come_on_demand() -> None:
    usual = {name.head.name for name in default_selection(NAMES).names}
    assert usual == {
        *("hw_power_watts", "hw_energy_joules_total", "hw_temperature_celsius", "hw_frequency_hertz"),
        *("hw_gpu_utilization_ratio", "hw_memory_size_bytes", "hw_memory_usage_bytes", "hw_status"),
    }
    both = {name.head.name for name in default_selection(NAMES, has_former=True).names}
    assert usual < both
    assert {name for name in both if name.startswith("xpum_")} >= {"xpum_energy_joules_total", "xpum_power_watts"}


def test_values_are_in_the_units_of_the_exporter() -> None:
    shown = {
        (name.head.name, name.labels): name.value(1000.0)
        for name in default_selection(NAMES).names
        if name.head.name in ("hw_frequency_hertz", "hw_gpu_utilization_ratio", "hw_energy_joules_total")
    }
    assert sorted(shown.values()) == [1.0, 10.0, 1e9]  # J of mJ, a ratio of percent, Hz of MHz
    assert (("aggregation", "avg"), ("hw_frequency_domain", "gpu")) in {labels for _, labels in shown}


def test_a_counter_that_went_back_gives_no_value(tree: IntelTree, clock: list[float]) -> None:
    reader = IntelReader(tree.write(replace(ARC, files=XE)).roots)
    list(reader.read())
    tree.write(replace(ARC, files={**XE, "hwmon/hwmon3/energy1_input": "1", "tile0/gt0/gtidle/idle_residency_ms": "0"}))
    clock[0] += 10
    (reading,) = reader.read()
    assert Measure.POWER_W not in reading.values
    assert reading.values[Measure.GPU_PERCENT] == 100  # from the other graphics unit


def test_i915_has_its_values_below_the_card(tree: IntelTree) -> None:
    card = replace(ARC, driver="i915", device_id=0x56A5, files=I915)
    (reading,) = IntelReader(tree.write(card).roots).read()
    assert reading.values[Measure.SM_CLOCK_MHZ] == 2000
    assert reading.values[THROTTLED] == 1
    assert bad(vitals(tree, card)) == {FaultKey.THROTTLED}


@pytest.mark.parametrize(
    ("free", "used"), [("1073741824", 15 << 30), ("0", 16 << 30), ("17179869185", None), ("", None), ("-1", None)]
)
def test_used_memory_is_what_the_kernel_does_not_call_free(tree: IntelTree, free: str, used: int | None) -> None:
    files = {"drm/card0/lmem_total_bytes": str(16 << 30), "drm/card0/lmem_avail_bytes": free}
    card = replace(ARC, driver="i915", device_id=0x56A5, files=files)
    (reading,) = IntelReader(tree.write(card).roots).read()
    assert reading.values.get(Measure.MEMORY_USED_BYTES) == used


def test_a_gpu_without_the_files_has_no_readings_and_no_faults(tree: IntelTree) -> None:
    (reading,) = IntelReader(tree.write(ARC).roots).read()
    assert reading.values == {Measure.MEMORY_TOTAL_BYTES: 12 << 30}
    assert bad(vitals(tree, ARC)) == set()


def test_heat_is_a_fault_and_a_power_limit_is_not(tree: IntelTree) -> None:
    limited = {"tile0/gt0/freq0/throttle/status": "1", "tile0/gt0/freq0/throttle/reason_pl1": "1"}
    assert bad(vitals(tree, replace(ARC, files={**XE, **limited}))) == set()
    hot = {"hwmon/hwmon3/temp2_input": "101000", "tile0/gt0/freq0/throttle/reason_thermal": "1"}
    assert bad(vitals(tree, replace(ARC, files={**XE, **hot}))) == {FaultKey.THERMAL, FaultKey.THROTTLED}


def test_a_gpu_whose_configuration_reads_all_ones_is_lost(tree: IntelTree) -> None:
    tree.write(ARC)
    (tree.function(ARC.address) / "config").write_bytes(b"\xff" * 64)
    (function,) = read_functions(tree.roots, INTEL, DRIVERS)
    assert read_vitals(function, tree.roots).is_lost


def test_the_vendor_reports_health_and_measures_at_once(tree: IntelTree) -> None:
    hardware = IntelHardware(tree.write(replace(ARC, files=XE)).roots)
    assert isinstance(hardware, HealthReporter)
    assert isinstance(hardware, Metered)
    seen = threading.Event()
    hardware.watch_health(lambda: None, log_position=-1)
    hardware.begin_metering(MeterPlan(1, False, seen.set))
    assert [one.gpu for one in hardware.health(is_urgent=True, patience_s=60).readings] == [ARC.address]
    assert hardware.bus_states((ARC.address,)) == {ARC.address: BusState.HERE}
    assert seen.wait(60)
    assert hardware.meter_report().readings[0].values[Measure.TEMPERATURE_C] == 51
    hardware.end_health()
    hardware.end_metering()
