"""What AMD's GPUs report of their health, from files as the kernel writes them."""

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.hardware.amd.hardware import AmdHardware
from dra_driver.hardware.amd.health import AMD, DRIVERS, ResetLog, read_all_vitals, read_vitals
from dra_driver.hardware.evidence import BusState, DriverReset, KernelRecords, Vitals
from dra_driver.hardware.facts import Facts
from dra_driver.hardware.pci import read_functions
from dra_driver.hardware.port import HealthReporter
from dra_driver.node.health.faults import FaultKey, KnownGpus
from dra_driver.node.health.xids import EarlierReadings, FaultTrack, indications_of
from tests.support.nodes.amd_tree import AmdCard, AmdTree

CARD = AmdCard("0000:05:00.0")


def vitals(tree: AmdTree, **files: str) -> Vitals:
    tree.write(replace(CARD, files={name.replace("__", "/"): text for name, text in files.items()}))
    (function,) = read_functions(tree.roots, AMD, DRIVERS)
    return read_vitals(function, tree.roots)


def bad(reading: Vitals) -> set[FaultKey]:
    return {sign.key for sign in indications_of(reading, EarlierReadings()) if sign.is_bad}


@pytest.fixture
def tree(tmp_path: Path) -> AmdTree:
    return AmdTree(tmp_path)


def test_a_gpu_without_the_files_has_no_readings_of_memory_and_heat(tree: AmdTree) -> None:
    reading = vitals(tree)
    assert (reading.ecc_uncorrectable, reading.remap_pending, reading.thermal_margin) == (None, None, None)
    assert bad(reading) == set()


def test_uncorrectable_errors_of_all_blocks_are_summed_and_corrected_ones_are_no_fault(tree: AmdTree) -> None:
    counts = {"ras__umc_err_count": "ue: 2\nce: 7", "ras__gfx_err_count": "ue: 1\nce: 0", "ras__features": "mask: 0x5"}
    assert vitals(tree, **counts).ecc_uncorrectable == 3
    reading = vitals(tree, ras__umc_err_count="ue: 0\nce: 7")
    assert (reading.ecc_uncorrectable, bad(reading)) == (0, set())


@pytest.mark.parametrize(
    ("states", "expected"),
    [("", set()), ("R", set()), ("RP", {FaultKey.ROW_REMAP_PENDING}), ("RF", {FaultKey.ROW_REMAP_FAILED})],
)
def test_bad_pages_that_are_not_retired_are_faults(tree: AmdTree, states: str, expected: set[FaultKey]) -> None:
    pages = "\n".join(f"0x0000000{n} : 0x00001000 : {state}" for n, state in enumerate(states))
    assert bad(vitals(tree, ras__gpu_vram_bad_pages=pages)) == expected


def test_a_gpu_above_its_critical_temperature_is_too_hot(tree: AmdTree) -> None:
    sensors = {"hwmon__hwmon3__temp1_input": "60000", "hwmon__hwmon3__temp1_crit": "100000"}
    assert vitals(tree, **sensors).thermal_margin == 40
    hot = {**sensors, "hwmon__hwmon3__temp2_input": "112000", "hwmon__hwmon3__temp2_crit": "110000"}
    assert bad(vitals(tree, **hot)) == {FaultKey.THERMAL}


def test_a_gpu_whose_configuration_reads_all_ones_is_lost(tree: AmdTree) -> None:
    tree.write(CARD)
    (tree.function(CARD) / "config").write_bytes(b"\xff" * 64)
    (function,) = read_functions(tree.roots, AMD, DRIVERS)
    assert read_vitals(function, tree.roots).is_lost


def test_the_vendor_reports_each_gpu_and_what_the_bus_shows(tree: AmdTree) -> None:
    hardware = AmdHardware(tree.write(CARD).roots)
    assert isinstance(hardware, HealthReporter)
    notified = threading.Event()
    hardware.watch_health(notified.set, log_position=-1)
    assert notified.wait(60)
    report = hardware.health(is_urgent=True, patience_s=60)
    assert [reading.gpu for reading in report.readings] == [CARD.address]
    assert hardware.bus_states((CARD.address, "0000:99:00.0")) == {
        CARD.address: BusState.HERE,
        "0000:99:00.0": BusState.GONE,
    }
    hardware.end_health()
    assert hardware.health(is_urgent=True, patience_s=0).readings == ()


def test_all_parts_of_a_divided_gpu_are_known_and_lost_together(tree: AmdTree) -> None:
    tree.write(replace(CARD, modes=("DPX", "NPS1"), partitions=(128, 129)))
    facts = AmdHardware(tree.roots).discover()
    known = KnownGpus(lambda _: {})
    assert known.completed(facts) == facts
    lost = known.completed(Facts("amd"))
    assert [(gpu.part, gpu.is_lost) for gpu in lost.gpus] == [("dpx-0", True), ("dpx-1", True), ("dpx-all", True)]


def test_partitions_that_ended_with_their_mode_are_not_lost(tree: AmdTree) -> None:
    known = KnownGpus(lambda _: {})
    known.completed(
        AmdHardware(tree.write(replace(CARD, modes=("DPX", "NPS1"), partitions=(128, 129))).roots).discover()
    )
    whole = AmdHardware(tree.write(CARD).roots).discover()
    assert known.completed(whole) == whole


class KernelLog:
    """The kernel's records of a node, as a plain file."""

    def __init__(self, tree: AmdTree) -> None:
        self.path, self.number = Path(tree.roots.dev, "kmsg"), 0

    def write(self, text: str, *, facility: int = 0, seconds_ago: float = 0.0) -> None:
        self.number += 1
        at = max(0, int((time.clock_gettime(time.CLOCK_MONOTONIC) - seconds_ago) * 1e6))
        with self.path.open("a") as file:
            file.write(f"{facility << 3 | 4},{self.number},{at},-;{text}\n SUBSYSTEM=pci\n")


@pytest.fixture
def log(tree: AmdTree) -> KernelLog:
    return KernelLog(tree.write(CARD))


def faults(tree: AmdTree, resets: ResetLog) -> set[tuple[FaultKey, str]]:
    (reading,) = read_all_vitals(tree.roots, resets)
    return {(sign.key, sign.value) for sign in indications_of(reading, EarlierReadings()) if sign.is_bad}


def resets_of(log: KernelLog) -> ResetLog:
    return ResetLog(KernelRecords(log.path))


RESET, FAILED = {(FaultKey.NEEDS_ATTENTION, "driver-reset")}, {(FaultKey.NEEDS_REBOOT, "reset-failed")}


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["amdgpu 0000:05:00.0: amdgpu: GPU reset begin!"], RESET),
        (["amdgpu 0000:05:00.0: amdgpu: GPU reset begin!. Source:  4"], RESET),
        (["amdgpu 0000:05:00.0: GPU reset begin!"], RESET),
        ([f"amdgpu 0000:05:00.0: amdgpu: GPU reset{end}" for end in (" begin!", "(3) succeeded!")], RESET),
        (["amdgpu 0000:05:00.0: amdgpu: GPU reset(9) succeeded!"], RESET),  # a peer of its hive hung
        (["amdgpu 0000:05:00.0: amdgpu: GPU reset(1) failed"], FAILED),
        (["amdgpu 0000:05:00.0: amdgpu: GPU reset end with ret = -110"], FAILED),
        (["amdgpu 0000:05:00.0: amdgpu: device lost from bus!"], {(FaultKey.GPU_LOST, "")}),
        (["amdgpu 0000:06:00.0: amdgpu: GPU reset begin!"], set()),
        (["amdgpu 0000:05:00.0: amdgpu: ring gfx_0.0.0 timeout, signaled seq=1, emitted seq=3"], set()),
        (["amdgpu: Process amdgpu 0000:05:00.0: amdgpu: GPU reset begin! pid 1"], set()),
        (["amdgpu 0000:05:00.0: amdgpu: Process information: process GPU reset begin! pid 1"], set()),
        (["amdgpu 0000:05:00.0: amdgpu: GPU reset(1) failed", "[drm] amdgpu kernel modesetting enabled."], set()),
        ([f"amdgpu 0000:05:00.0: amdgpu: GPU reset{end}" for end in ("(1) failed", "(2) succeeded!")], RESET),
    ],
)  # fmt: skip
def test_the_kernel_drivers_own_resets_are_faults(
    tree: AmdTree, log: KernelLog, lines: list[str], expected: set[tuple[FaultKey, str]]
) -> None:
    for line in lines:
        log.write(line)
    assert faults(tree, resets_of(log)) == expected


def test_a_reset_that_succeeded_is_a_fault_once_and_one_that_failed_stays(tree: AmdTree, log: KernelLog) -> None:
    resets = resets_of(log)
    log.write("amdgpu 0000:05:00.0: amdgpu: GPU reset(1) succeeded!")
    assert [faults(tree, resets) for _ in range(2)] == [RESET, set()]
    log.write("amdgpu 0000:05:00.0: amdgpu: GPU reset(2) failed")
    assert [faults(tree, resets) for _ in range(2)] == [FAILED, FAILED]


def test_what_a_user_writes_into_the_log_and_resets_of_long_ago_are_no_faults(tree: AmdTree, log: KernelLog) -> None:
    log.write("amdgpu 0000:05:00.0: amdgpu: GPU reset(1) failed", facility=1)
    log.write("amdgpu 0000:05:00.0: amdgpu: GPU reset begin!", seconds_ago=90)
    log.write("amdgpu 0000:05:00.0: amdgpu: GPU reset(1) succeeded!", seconds_ago=80)
    assert faults(tree, resets_of(log)) == set()


def test_without_a_kernel_log_resets_are_unknown_and_that_is_a_problem(tree: AmdTree) -> None:
    hardware = AmdHardware(tree.write(CARD).roots)
    hardware.watch_health(lambda: None, log_position=-1)
    report = hardware.health(is_urgent=True, patience_s=60)
    hardware.end_health()
    assert ([one.reset for one in report.readings], "kmsg can't be read" in report.problem) == ([None], True)


def test_three_resets_within_an_hour_keep_the_gpu_from_new_claims_for_ten_minutes() -> None:
    track = FaultTrack(FaultKey.NEEDS_ATTENTION)
    at = 0.0
    for _ in range(3):
        for reset in (DriverReset.DONE, *[DriverReset.NONE] * 3):
            reading, at = Vitals(CARD.address, at, reset=reset), at + 10
            (sign,) = (one for one in indications_of(reading, EarlierReadings()) if one.key is track.key)
            track = track.after(sign, at)
    assert track.is_raised
