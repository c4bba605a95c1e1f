"""What is measured of AMD's GPUs: files as the kernel writes them, and what can't be read."""

import ctypes
import struct
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.hardware.amd.hardware import AmdHardware
from dra_driver.hardware.amd.metering import NAMES, AmdMeasure, errors_of_block, measures_of, read_all
from dra_driver.hardware.metered import Measure, MeterPlan
from dra_driver.hardware.port import Metered
from tests.support.nodes.amd_tree import AmdCard, AmdTree

CARD = AmdCard("0000:05:00.0")
BUSY = {
    "gpu_busy_percent": "97",
    "mem_busy_percent": "41",
    "vcn_busy_percent": "3",
    "pcie_replay_count": "5",
    "current_link_speed": "16.0 GT/s PCIe",
    "max_link_speed": "32.0 GT/s PCIe",
    "mem_info_vram_used": str(64 << 30),
    "hwmon/hwmon4/temp1_input": "48000",
    "hwmon/hwmon4/temp1_label": "edge",
    "hwmon/hwmon4/temp2_input": "61000",
    "hwmon/hwmon4/temp2_label": "junction",
    "hwmon/hwmon4/temp3_input": "58000",
    "hwmon/hwmon4/temp3_label": "mem",
    "hwmon/hwmon4/power1_average": "512000000",
    "hwmon/hwmon4/power1_label": "PPT",
    "hwmon/hwmon4/freq1_input": "2100000000",
    "hwmon/hwmon4/freq1_label": "sclk",
    "hwmon/hwmon4/freq2_input": "1300000000",
    "hwmon/hwmon4/freq2_label": "mclk",
    "hwmon/hwmon4/in0_input": "793",
    "hwmon/hwmon4/in0_label": "vddgfx",
    "ras/umc_err_count": "ue: 0\nce: 7",
    "ras/aca_umc": "ue: 0\nce: 9\nde: 2",
    "ras/gfx_err_count": "ue: 1\nce: 0",
}


@pytest.fixture
def tree(tmp_path: Path) -> AmdTree:
    return AmdTree(tmp_path)


def measured(tree: AmdTree, **changes: str) -> dict[str, float]:
    files = {**BUSY, **{name.replace("__", "/"): text for name, text in changes.items()}}
    (reading,) = read_all(tree.write(replace(CARD, files=files)).roots)
    assert reading.gpu == CARD.address
    return dict(reading.values)


def table(content: int, places: dict[int, int], energy_at: int, energy: int, size: int = 264) -> bytes:
    made = bytearray(b"\xff" * size)
    struct.pack_into("<HBB", made, 0, size, 1, content)
    struct.pack_into("<Q", made, energy_at, energy)
    for place, value in places.items():
        struct.pack_into("<H", made, place, value)
    return bytes(made)


def test_files_and_sensors_are_read_in_their_units(tree: AmdTree) -> None:
    values = measured(tree)
    expected = {
        Measure.GPU_PERCENT: 97,
        Measure.MEMORY_COPY_PERCENT: 41,
        Measure.DECODER_PERCENT: 3,
        Measure.PCIE_REPLAYS_TOTAL: 5,
        AmdMeasure.PCIE_SPEED_GTS: 16,
        AmdMeasure.PCIE_MAX_SPEED_GTS: 32,
        Measure.TEMPERATURE_C: 48,
        AmdMeasure.JUNCTION_TEMPERATURE_C: 61,
        Measure.MEMORY_TEMPERATURE_C: 58,
        Measure.POWER_W: 512,
        Measure.SM_CLOCK_MHZ: 2100,
        Measure.MEMORY_CLOCK_MHZ: 1300,
        AmdMeasure.GRAPHICS_VOLTAGE_MV: 793,
        AmdMeasure.MEMORY_TOTAL_BYTES: 192 << 30,
        Measure.MEMORY_USED_BYTES: 64 << 30,
        Measure.MEMORY_FREE_BYTES: 128 << 30,
        AmdMeasure.HOST_MEMORY_TOTAL_BYTES: 251 << 30,
        AmdMeasure.ERRORS_CORRECTED_TOTAL: 9,
        AmdMeasure.ERRORS_UNCORRECTED_TOTAL: 1,
        AmdMeasure.AVERAGE_POWER_W: 512,
        errors_of_block("ce", "umc"): 9,
        errors_of_block("ue", "umc"): 0,
        errors_of_block("ce", "gfx"): 0,
        errors_of_block("ue", "gfx"): 1,
    }
    assert values == expected


def test_a_block_that_the_exporter_has_no_name_for_counts_only_in_the_sum(tree: AmdTree) -> None:
    values = measured(tree, ras__newer_err_count="ue: 3\nce: 0", ras__pcie_bif_err_count="ue: 0\nce: 4")
    assert values[AmdMeasure.ERRORS_UNCORRECTED_TOTAL] == 4
    assert values[errors_of_block("ce", "pcie_bif")] == 4
    assert not [name for name in values if "newer" in name]
    names = {one.quantity: one.head.name for one in NAMES.names}
    assert names[errors_of_block("ce", "pcie_bif")] == "gpu_ecc_correct_bif"
    assert names[errors_of_block("ue", "xgmi_wafl")] == "gpu_ecc_uncorrect_xgmi_wafl"


@pytest.mark.parametrize("text", ["", "N/A", "65535%", "\0\0\0", "-1", "nan", "9" * 40])
def test_what_is_no_number_is_left_out_and_never_0(tree: AmdTree, text: str) -> None:
    values = measured(tree, gpu_busy_percent=text, mem_info_vram_used=text, current_link_speed=text)
    affected = {Measure.GPU_PERCENT, Measure.MEMORY_USED_BYTES, Measure.MEMORY_FREE_BYTES, AmdMeasure.PCIE_SPEED_GTS}
    assert not affected & set(values)
    assert values[AmdMeasure.MEMORY_TOTAL_BYTES] == 192 << 30


def test_trailing_nul_bytes_are_no_part_of_a_number(tree: AmdTree) -> None:
    assert measured(tree, gpu_busy_percent="12\n" + "\0" * 4000)[Measure.GPU_PERCENT] == 12


def test_the_current_power_takes_precedence_over_the_average(tree: AmdTree) -> None:
    assert measured(tree, hwmon__hwmon4__power1_input="300000000")[Measure.POWER_W] == 300


def test_the_table_of_metrics_supplies_what_no_text_file_has(tree: AmdTree) -> None:
    tree.write(CARD)
    made = table(3, {4: 40, 6: 55, 8: 50, 16: 88, 18: 12, 22: 300}, 24, 65536 * 1000)
    (tree.function(CARD) / "gpu_metrics").write_bytes(made)
    (reading,) = read_all(tree.roots)
    assert reading.values[Measure.POWER_W] == 300
    assert reading.values[Measure.ENERGY_MJ_TOTAL] == 1_000_000
    assert reading.values[Measure.GPU_PERCENT] == 88


@pytest.mark.parametrize(("content", "energy_at"), [(4, 24), (5, 88), (6, 16), (7, 24), (8, 24)])
def test_the_tables_of_newer_gpus_have_their_energy_where_each_revision_puts_it(content: int, energy_at: int) -> None:
    values = measures_of(table(content, {4: 61, 6: 50, 10: 700, 12: 99, 14: 20}, energy_at, 65536))
    assert (values[AmdMeasure.JUNCTION_TEMPERATURE_C], values[Measure.POWER_W]) == (61, 700)
    assert values[Measure.ENERGY_MJ_TOTAL] == 1000


def layout(content: int) -> type[ctypes.Structure]:
    """Return the table of a revision from 1.4 to 1.8 as the kernel declares it, aligned as a compiler does."""
    one, two, four, eight = ctypes.c_uint8, ctypes.c_uint16, ctypes.c_uint32, ctypes.c_uint64

    class Partition(ctypes.Structure):
        _fields_ = (("busy", four * 8), ("rest", one * {6: 136, 7: 200, 8: 344}.get(content, 0)), ("end", eight * 0))

    engines = {4: [("video", two * 4)], 5: [("video", two * 4), ("images", two * 32)]}
    bandwidth = [("most_bandwidth", eight)] if content >= 7 else []
    throttled = [("throttled", four)] if content <= 5 else [("accumulation", four), ("residencies", four * 5)]
    refused = [("sent", four), ("received", four)] if content >= 5 else []
    parts = [("partitions", two), ("partition", Partition * 8), ("other_end", four)] if content >= 6 else []

    class Table(ctypes.Structure):
        _fields_ = (
            *(("size", two), ("format", one), ("content", one), ("first", two * 6)),
            *(*engines.get(content, ()), *bandwidth, ("energy", eight), ("clock", eight), *throttled, ("locked", four)),
            *(("links", two * 4), ("accumulated", four * 2), ("pcie_total", eight), ("pcie", eight)),
            *(("recoveries", eight), ("replays", eight), ("rollovers", eight), *refused, ("hive", eight * 16)),
            *(*((("hive_links", two * 8), ("padding", two)) if content >= 7 else ()), ("firmware_clock", eight)),
            *(("clocks", two * 21), *parts),
        )

    return Table


@pytest.mark.parametrize("content", [4, 5, 6, 7, 8])
@pytest.mark.parametrize("is_unknown", [False, True])
def test_the_link_and_the_dies_are_read_where_the_kernels_declaration_puts_them(content: int, is_unknown: bool) -> None:
    kind = layout(content)
    made = bytearray((b"\xff" if is_unknown else b"\0") * ctypes.sizeof(kind))
    filled = kind.from_buffer(made)
    filled.size, filled.format, filled.content = len(made), 1, content
    if not is_unknown:
        filled.energy, filled.pcie, filled.recoveries, filled.replays, filled.rollovers = 65536, 11, 12, 13, 14
    if content >= 5 and not is_unknown:
        filled.sent, filled.received = 15, 16
    if content >= 6:
        filled.partitions = 1
        filled.partition[0].busy[:3] = (97, 98, 0xFFFFFFFF)
    values = measures_of(bytes(made))
    link = {
        AmdMeasure.PCIE_MBPS: 11,
        AmdMeasure.PCIE_RECOVERIES_TOTAL: 12,
        AmdMeasure.PCIE_REPLAY_ROLLOVERS_TOTAL: 14,
        **({AmdMeasure.PCIE_NACKS_SENT_TOTAL: 15, AmdMeasure.PCIE_NACKS_RECEIVED_TOTAL: 16} if content >= 5 else {}),
    }
    assert {name: value for name, value in values.items() if name.startswith("pcie")} == ({} if is_unknown else link)
    dies = {name.quantity: dict(name.labels)["xcc_index"] for name in NAMES.names if "instantaneous" in name.head.name}
    shown = {dies[name]: value for name, value in values.items() if name in dies}
    assert {die: shown.get(die) for die in "012"} == (
        {"0": 97, "1": 98, "2": None} if content >= 6 else dict.fromkeys("012")
    )
    if content >= 6:
        filled.partitions = 2
        assert not dies.keys() & measures_of(bytes(made)).keys()


@pytest.mark.parametrize(
    "made",
    [b"", b"\x08", table(3, {}, 24, 1)[:20], table(9, {}, 24, 1), b"\x80\x00\x02\x04" + bytes(124), b"\xff" * 300],
)
def test_a_table_that_is_cut_short_or_unknown_gives_no_values(made: bytes) -> None:
    assert measures_of(made) == {}


def test_the_stacks_of_memory_have_temperatures_of_their_own() -> None:
    values = measures_of(table(3, {88: 51, 90: 52, 92: 0xFFFF, 94: 54}, 24, 1))
    names = {name.quantity: (name.head.name, name.labels) for name in NAMES.names}
    shown = {names[quantity]: value for quantity, value in values.items() if "Stack" in quantity}
    assert shown == {("gpu_hbm_temperature", (("hbm_index", str(n)),)): t for n, t in ((0, 51), (1, 52), (3, 54))}


def test_a_field_of_all_ones_is_one_that_the_gpu_lacks() -> None:
    assert measures_of(table(3, {}, 24, (1 << 64) - 1)) == {}


def test_the_vendor_measures_in_a_thread_of_its_own_until_metering_ends(tree: AmdTree) -> None:
    hardware = AmdHardware(tree.write(replace(CARD, files=BUSY)).roots)
    assert isinstance(hardware, Metered)
    read = threading.Event()
    hardware.begin_metering(MeterPlan(1, False, read.set))
    assert read.wait(60)
    (reading,) = hardware.meter_report().readings
    assert reading.values[Measure.GPU_PERCENT] == 97
    hardware.end_metering()
    assert hardware.meter_report().readings == ()


def test_names_and_labels_are_those_of_amds_exporter(tree: AmdTree) -> None:
    names = {name.head.name for name in NAMES.names}
    assert {"gpu_power_usage", "gpu_junction_temperature", "gpu_gfx_activity", "gpu_used_vram", "gpu_clock"} <= names
    board = {"serial_number": "PCB0012-0034", "product_number": "102-G30211-0C"}
    tree.write(replace(CARD, modes=("DPX", "NPS1"), partitions=(128, 129), files=board))
    whole = next(gpu for gpu in AmdHardware(tree.roots).discover().gpus if gpu.parts)
    labels = {name: value for name, value in NAMES.gpu_labels(0, whole) if value}
    assert labels == {
        "gpu_id": "0",
        "gpu_uuid": "93bb3629c01aea1c",
        "card_model": "102-G30211-0C",
        "serial_number": "PCB0012-0034",
        "gpu_compute_partition_type": "dpx",
        "gpu_memory_partition_type": "nps1",
        "pci_bus_id": "0000:05:00.0",
        "card_series": "AMD Instinct MI300X",
        "card_vendor": "Advanced Micro Devices Inc",
    }


def test_the_model_of_a_board_without_a_number_is_its_series(tree: AmdTree) -> None:
    (gpu,) = AmdHardware(tree.write(CARD).roots).discover().gpus
    labels = dict(NAMES.gpu_labels(0, gpu))
    assert (labels["card_model"], labels["serial_number"]) == (labels["card_series"], "")
