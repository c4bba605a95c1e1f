"""Series: names, labels and values, and that no sum counts anything twice."""

from dataclasses import replace

import pytest

from dra_driver.hardware.metered import Measure, ProcessUse
from dra_driver.hardware.nvidia.dcgm_names import NAMES
from dra_driver.node.metering.series import ReadingAges, claim_lines, lines_of, xid_lines
from dra_driver.node.neighbours.pod_resources import ClaimUser
from tests.support.metering.snapshots import Made, gpus, holder, samples

GIB = 1 << 30
FULL = dict.fromkeys(Measure, 3.0)


@pytest.fixture
def made():
    return Made()


def with_pods(folder, *pods):
    """Write /proc with one process in the cgroup of each pod, in the forms of both cgroup drivers."""
    forms = ("0::/kubepods/burstable/pod{}/abc\n", "0::/kubepods.slice/kubepods-pod{}.slice/cri-x.scope\n")
    for index, (pid, uid) in enumerate(pods):
        path = folder / "proc" / str(pid)
        path.mkdir(parents=True)
        text = forms[index % 2]
        (path / "cgroup").write_text(text.format(uid.replace("-", "_") if index % 2 else uid))
    return folder / "proc"


def test_a_gpu_has_the_labels_of_the_common_exporter_in_their_order_and_those_of_its_claim(made):
    made.read(0, {Measure.TEMPERATURE_C: 54.0})
    made.holders[made.gpus[0].pci_address, None] = (holder("train", uid="p-1", pod="train-0"),)
    text = next(line for line in lines_of(NAMES, made.snapshot()) if line.startswith("DCGM_FI_DEV_GPU_TEMP"))
    gpu = made.gpus[0]
    assert text == (
        f'DCGM_FI_DEV_GPU_TEMP{{gpu="0",UUID="{gpu.uuid}",pci_bus_id="00000000:1B:00.0",device="nvidia0",'
        f'modelName="{gpu.product_name}",Hostname="node-1",DCGM_FI_DRIVER_VERSION="580.126.20",namespace="team",'
        'pod="train-0",container="main",pod_uid="p-1",dra_claim_name="train",dra_claim_namespace="team",'
        'dra_claim_uid="uid-train",dra_driver_name="gpu.nvidia.com",dra_pool_name="node-1/gpu.nvidia.com",'
        'dra_device_name="gpu-0000-1b-00-0",dra_device_class="gpu.nvidia.com"} 54'
    )


GOLDEN = {
    "DCGM_FI_DEV_SM_CLOCK": "gauge", "DCGM_FI_DEV_MEM_CLOCK": "gauge", "DCGM_FI_DEV_MEMORY_TEMP": "gauge",
    "DCGM_FI_DEV_GPU_TEMP": "gauge", "DCGM_FI_DEV_POWER_USAGE": "gauge",
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": "counter", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": "counter",
    "DCGM_FI_DEV_GPU_UTIL": "gauge", "DCGM_FI_DEV_MEM_COPY_UTIL": "gauge", "DCGM_FI_DEV_ENC_UTIL": "gauge",
    "DCGM_FI_DEV_DEC_UTIL": "gauge", "DCGM_FI_DEV_XID_ERRORS": "gauge", "DCGM_FI_DEV_FB_FREE": "gauge",
    "DCGM_FI_DEV_FB_USED": "gauge", "DCGM_FI_DEV_FB_RESERVED": "gauge",
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": "counter", "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": "counter",
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": "counter", "DCGM_FI_DEV_ROW_REMAP_FAILURE": "gauge",
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": "gauge", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": "gauge",
    "DCGM_FI_PROF_DRAM_ACTIVE": "gauge", "DCGM_FI_PROF_PCIE_TX_BYTES": "gauge", "DCGM_FI_PROF_PCIE_RX_BYTES": "gauge",
}  # fmt: skip


def test_everything_that_is_measured_has_the_common_exporter_s_name_and_type(made):
    made.read(0, FULL)
    lines = list(lines_of([name for name in NAMES if name.is_default], made.snapshot()))
    types = dict(line.split()[2:4] for line in lines if line.startswith("# TYPE"))
    assert types == {**GOLDEN, "DCGM_FI_PROF_SM_ACTIVE": "gauge"}


@pytest.mark.parametrize(
    ("quantity", "measured", "name", "shown"),
    [
        (Measure.MEMORY_USED_BYTES, 70 * GIB + 1, "DCGM_FI_DEV_FB_USED", 71680),
        (Measure.ENERGY_MJ_TOTAL, 7e9, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 7e9),
        (Measure.POWER_W, 312.5, "DCGM_FI_DEV_POWER_USAGE", 312.5),
        (Measure.GRAPHICS_RATIO, 0.875, "DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.875),
    ],
)
def test_values_are_in_the_units_of_their_names(made, quantity, measured, name, shown):
    made.read(0, {quantity: measured})
    assert [one.value for one in made.samples(name)] == [shown]


def test_what_is_not_measured_has_no_series(made):
    made.read(0, {Measure.TEMPERATURE_C: 40.0})
    assert {one.name for one in made.samples()} == {"DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_XID_ERRORS"}


def test_two_claims_on_a_gpu_have_a_series_each_and_add_up_to_the_gpu(made, tmp_path):
    uids = ("11111111-2222-3333-4444-555555555555", "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee")
    made.proc = with_pods(tmp_path, (41, uids[0]), (42, uids[1]), (43, uids[1]))
    made.holders[made.gpus[0].pci_address, None] = (
        holder("a", uid=uids[0], pod="pod-a", share="s1"),
        holder("b", uid=uids[1], pod="pod-b", share="s2"),
    )
    uses = (
        ProcessUse(41, 10 * GIB, 20.0),
        ProcessUse(42, 5 * GIB, 30.0),
        ProcessUse(43, GIB, 0.0),
        ProcessUse(44, 1, 1.0),
    )
    made.read(0, {Measure.MEMORY_USED_BYTES: 17.0 * GIB, Measure.GPU_PERCENT: 60.0, Measure.POWER_W: 500.0}, None, uses)
    used = {one.labels.get("dra_claim_name", ""): one.value for one in made.samples("DCGM_FI_DEV_FB_USED")}
    assert used == {"": 1024, "a": 10240, "b": 6144}
    util = {one.labels.get("pod", ""): one.value for one in made.samples("DCGM_FI_DEV_GPU_UTIL")}
    assert util == {"": 10, "pod-a": 20, "pod-b": 30}
    (power,) = made.samples("DCGM_FI_DEV_POWER_USAGE")
    assert power.value == 500
    assert "dra_claim_name" not in power.labels


def test_what_partitions_report_is_not_repeated_for_their_gpu_nor_the_reverse(made):
    made.gpus = gpus("mixed")
    index, gpu = next((i, one) for i, one in enumerate(made.gpus) if len(one.partitions) > 1)
    made.read(index, {Measure.POWER_W: 300.0, Measure.MEMORY_USED_BYTES: 9.0 * GIB})
    for number, partition in enumerate(gpu.partitions):
        made.read(index, {Measure.MEMORY_USED_BYTES: (number + 1.0) * GIB}, partition.gi_id)
    of_parts = {
        one.labels.get("GPU_I_ID"): one.labels.get("GPU_I_PROFILE") for one in made.samples("DCGM_FI_DEV_FB_USED")
    }
    assert of_parts == {str(one.gi_id): one.profile for one in gpu.partitions}
    (power,) = made.samples("DCGM_FI_DEV_POWER_USAGE")
    assert "GPU_I_ID" not in power.labels
    made.repeats_gpu = True
    assert len(made.samples("DCGM_FI_DEV_POWER_USAGE")) == len(gpu.partitions)


def test_the_newest_xid_is_a_gauge_and_every_xid_is_counted(made):
    made.read(0, {Measure.TEMPERATURE_C: 40.0})
    address = made.gpus[0].pci_address
    made.last_xids = {(address, None): 79}
    assert [one.value for one in made.samples("DCGM_FI_DEV_XID_ERRORS")] == [79]
    snapshot = made.snapshot()
    counted = replace(snapshot, report=replace(snapshot.report, xids={(address, None): {79: 2, 13: 5}}))
    assert [(one.labels["xid"], one.value) for one in samples(xid_lines(counted))] == [("13", 5), ("79", 2)]


def test_a_claim_of_several_containers_is_listed_for_each_and_its_values_appear_once(made):
    users = (ClaimUser("pod-a", "one"), ClaimUser("pod-a", "two"))
    shared = replace(holder("a", uid="p-1", pod="pod-a"), users=users)
    made.holders[made.gpus[0].pci_address, None] = (shared,)
    made.read(0, {Measure.TEMPERATURE_C: 40.0})
    (temperature,) = made.samples("DCGM_FI_DEV_GPU_TEMP")
    assert temperature.labels["pod"] == "pod-a"
    assert "container" not in temperature.labels
    named = [(one.labels["pod"], one.labels["container"]) for one in samples(claim_lines(made.snapshot()))]
    assert named == [("pod-a", "one"), ("pod-a", "two")]


def test_the_age_of_readings_grows_while_none_come(made):
    made.read(1, {Measure.TEMPERATURE_C: 40.0})
    ages = ReadingAges(made.snapshot())
    assert [one.value for now in (1003.0, 1060.5) for one in samples(ages.lines(now))] == [3, 60.5]


def test_the_host_s_label_may_be_written_as_newer_exporters_do(made):
    made.style = replace(made.style, hostname_label="hostname")
    made.read(0, {Measure.TEMPERATURE_C: 40.0})
    (temperature,) = made.samples("DCGM_FI_DEV_GPU_TEMP")
    assert temperature.labels["hostname"] == "node-1"
    assert "Hostname" not in temperature.labels
