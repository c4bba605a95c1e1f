"""Facts of whole GPUs, read through the real ctypes path from the fake library; what is missing, and what fails.

Left out: MIG (test_mig), links (test_links), calls that hang (test_hanging), changes at run time (test_changes).
"""

import uuid
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dra_driver.hardware.nvidia.published import NvidiaGpu
from tests.hardware.nvidia.conftest import Machine, by_address, codes
from tests.support.fake_nvml import Code, a100_40, gb200, h100, hgx_h100, l40s, nvl72_tray, t4

MIB = 2**20

OPTIONAL = {
    "nvmlDeviceGetName": "product_name",
    "nvmlDeviceGetBrand": "brand",
    "nvmlDeviceGetArchitecture": "architecture",
    "nvmlDeviceGetCudaComputeCapability": "compute_capability",
    "nvmlDeviceGetAddressingMode": "addressing_mode",
    "nvmlDeviceGetMigMode": "mig_capable",
    "nvmlDeviceGetEccMode": "ecc_enabled",
    "nvmlDeviceGetSerial": "serial",
    "nvmlDeviceGetVbiosVersion": "vbios_version",
    "nvmlDeviceGetMemoryBusWidth": "memory_bandwidth_bytes_per_s",
    "nvmlDeviceGetPowerManagementLimitConstraints": "power_limit_max_w",
    "nvmlDeviceGetMaxClockInfo": "sm_clock_max_mhz",
    "nvmlDeviceGetNvLinkState": "nvlink_count",
}
REQUIRED = ("nvmlDeviceGetUUID", "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetMemoryInfo")


def test_an_h100_has_the_words_and_numbers_that_nvidia_publishes(machine: Machine) -> None:
    (gpu,) = machine.add(h100("0000:65:00.0", 3))
    machine.node.add_gpu("0000:65:00.0", 3, numa=1, root="pci0000:64")
    facts = machine.discover()
    assert facts.problems == ()
    assert (facts.driver_version, facts.runtime_version) == ("580.65.6", "13.0.0")
    assert len(facts.gpus[0].mig_profiles) == 7
    assert tuple(replace(gpu, mig_profiles=()) for gpu in facts.gpus) == (
        NvidiaGpu(
            uuid=gpu.uuid,
            pci_address="0000:65:00.0",
            minor=3,
            nodes=("nvidia3",),
            memory_bytes=81559 * MIB,
            product_name="NVIDIA H100 80GB HBM3",
            brand="Nvidia",
            architecture="Hopper",
            compute_capability="9.0.0",
            addressing_mode="None",
            numa_node=1,
            pcie_root="pci0000:64",
            mig_capable=True,
            mig_enabled=False,
            ecc_enabled=True,
            serial="1650020000003",
            vbios_version="96.00.74.00.01",
            memory_bandwidth_bytes_per_s=3_352_320_000_000,
            power_limit_max_w=700,
            sm_clock_max_mhz=1980,
            mig_toggles_without_reset=True,
        ),
    )


def test_other_models_have_facts_of_their_own(machine: Machine) -> None:
    machine.add(a100_40("0000:07:00.0", 0), l40s("0000:52:00.0", 1), t4("0000:d1:00.0", 2), gb200("0008:01:00.0", 3))
    gpus = by_address(machine.discover())
    a100, ada, turing, blackwell = (gpus[a] for a in ("0000:07:00.0", "0000:52:00.0", "0000:d1:00.0", "0008:01:00.0"))
    assert (a100.architecture, a100.compute_capability, a100.mig_capable) == ("Ampere", "8.0.0", True)
    assert a100.memory_bandwidth_bytes_per_s == 1_555_200_000_000
    assert (ada.architecture, ada.compute_capability, ada.mig_capable) == ("Ada Lovelace", "8.9.0", False)
    assert (turing.architecture, turing.brand, turing.addressing_mode) == ("Turing", "Tesla", None)
    assert (blackwell.architecture, blackwell.addressing_mode) == ("Blackwell", "ATS")
    assert blackwell.compute_capability == "10.0.0"
    assert blackwell.memory_bandwidth_bytes_per_s is None, "no clock, no figure"


def test_gpus_are_in_pci_order_whatever_their_minors(machine: Machine) -> None:
    machine.add(h100("0000:b1:00.0", 0), h100("0000:1b:00.0", 7), h100("0000:65:00.0", 2))
    assert [g.pci_address for g in machine.discover().gpus] == ["0000:1b:00.0", "0000:65:00.0", "0000:b1:00.0"]


def test_a_gpu_without_its_device_node_is_discovered_and_a_problem(machine: Machine) -> None:
    machine.add(h100("0000:1b:00.0", 0), h100("0000:65:00.0", 1))
    (machine.node.folder / "dev/nvidia1").unlink()
    facts = machine.discover()
    assert len(facts.gpus) == 2
    (problem,) = facts.problems
    assert (problem.code, problem.subject) == ("hardware.node-missing", "0000:65:00.0")
    assert "/dev/nvidia1" in problem.message


def test_of_two_gpus_with_one_address_the_second_is_a_problem(machine: Machine) -> None:
    machine.add(h100("0000:1b:00.0", 0), h100("0000:65:00.0", 1))
    machine.state.gpus[1].pci = "0000:1b:00.0"
    machine.write()
    facts = machine.discover()
    assert [gpu.minor for gpu in facts.gpus] == [0]
    assert ("hardware.address-shared", "0000:1b:00.0") in {(p.code, p.subject) for p in facts.problems}


@pytest.mark.parametrize(("fact", "word"), [("minor", "minor 0"), ("uuid", "UUID GPU-")])
def test_gpus_that_report_the_same_minor_or_uuid_are_a_problem_of_each(machine: Machine, fact: str, word: str) -> None:
    first, second = machine.add(h100("0000:1b:00.0", 0), h100("0000:65:00.0", 1))
    second.facts[fact] = first.facts[fact]
    machine.write()
    facts = machine.discover()
    assert len(facts.gpus) == 2
    assert [(p.code, p.subject) for p in facts.problems] == [
        ("hardware.identity-shared", "0000:1b:00.0"),
        ("hardware.identity-shared", "0000:65:00.0"),
    ]
    assert all(word in problem.message for problem in facts.problems)


def test_a_rack_s_gpus_share_the_fabric_s_domain(machine: Machine) -> None:
    cluster = uuid.UUID("12345678-1234-5678-1234-567812345678")
    machine.add(*nvl72_tray(cluster))
    assert {g.link_domain for g in machine.discover().gpus} == {f"{cluster}.32766"}


@pytest.mark.parametrize("code", [Code.UNKNOWN, Code.NO_PERMISSION])
@pytest.mark.parametrize("function", OPTIONAL)
def test_an_optional_fact_that_fails_is_left_out_and_reported(machine: Machine, function: str, code: Code) -> None:
    gpus = machine.add(*hgx_h100(2))
    gpus[0].fail(function, code)
    machine.write()
    facts = machine.discover()
    failing, whole = facts.gpus
    assert getattr(failing, OPTIONAL[function]) is None
    assert getattr(whole, OPTIONAL[function]) is not None
    assert {(p.code, p.subject) for p in facts.problems} == {("hardware.fact-unreadable", gpus[0].pci)}


@pytest.mark.parametrize("function", OPTIONAL)
def test_an_optional_fact_that_is_not_supported_is_left_out_without_a_problem(machine: Machine, function: str) -> None:
    gpus = machine.add(*hgx_h100(2))
    gpus[0].fail(function, Code.NOT_SUPPORTED)
    machine.write()
    facts = machine.discover()
    assert getattr(facts.gpus[0], OPTIONAL[function]) in (None, False)
    assert len(facts.gpus) == 2
    assert facts.problems == ()


@pytest.mark.parametrize("function", OPTIONAL)
def test_an_older_library_without_a_function_costs_only_that_fact(machine: Machine, function: str) -> None:
    machine.install_library(without=(function,))
    machine.add(*hgx_h100(2))
    facts = machine.discover()
    assert [getattr(g, OPTIONAL[function]) for g in facts.gpus] == [None, None]
    assert facts.problems == ()


@pytest.mark.parametrize("code", [Code.UNKNOWN, Code.NO_PERMISSION])
@pytest.mark.parametrize("function", REQUIRED)
def test_a_gpu_without_a_required_fact_is_dropped_and_no_other(machine: Machine, function: str, code: Code) -> None:
    gpus = machine.add(*hgx_h100(3))
    gpus[1].fail(function, code)
    machine.write()
    facts = machine.discover()
    assert [g.pci_address for g in facts.gpus] == [gpus[0].pci, gpus[2].pci]
    (problem,) = facts.problems
    assert (problem.code, problem.subject) == ("hardware.gpu-unreadable", gpus[1].pci)
    assert function.removesuffix("_v3") in problem.message


def test_a_minor_that_the_library_does_not_report_comes_from_procfs(machine: Machine) -> None:
    gpus = machine.add(*hgx_h100(2))
    gpus[0].fail("nvmlDeviceGetMinorNumber", Code.NOT_SUPPORTED)
    machine.write()
    assert [g.minor for g in machine.discover().gpus] == [0, 1]


def test_a_gpu_whose_minor_cannot_be_found_is_dropped(machine: Machine) -> None:
    gpus = machine.add(*hgx_h100(2))
    gpus[0].fail("nvmlDeviceGetMinorNumber", Code.UNKNOWN)
    machine.write()
    (machine.folder / "node/proc/driver/nvidia/gpus" / gpus[0].pci / "information").unlink()
    facts = machine.discover()
    assert [g.pci_address for g in facts.gpus] == [gpus[1].pci]
    assert codes(facts) == {"hardware.gpu-unreadable"}


def test_a_gpu_that_does_not_report_its_memory_is_not_dropped(machine: Machine) -> None:
    (gpu,) = machine.add(h100("0000:65:00.0", 0))
    gpu.fail("nvmlDeviceGetMemoryInfo", Code.NOT_SUPPORTED)
    machine.write()
    facts = machine.discover()
    assert [g.memory_bytes for g in facts.gpus] == [None]
    assert facts.problems == ()


def test_mig_devices_prove_mig_mode_where_it_can_t_be_read(machine: Machine) -> None:
    (gpu,) = machine.add(h100("0000:65:00.0", 0))
    gpu.partition("1g.10gb", 2)
    gpu.fail("nvmlDeviceGetMigMode", Code.UNKNOWN)
    machine.write()
    facts = machine.discover()
    assert facts.gpus[0].mig_enabled
    assert [p.start for p in facts.gpus[0].partitions] == [2]


def test_a_gpu_of_another_driver_is_a_problem_and_no_device(machine: Machine) -> None:
    machine.add(h100("0000:65:00.0", 0))
    machine.node.add_gpu("0000:66:00.0", driver="vfio-pci")
    machine.node.add_gpu("0000:67:00.0", driver=None)
    machine.node.add_gpu("0000:65:00.4", driver=None, physfn="0000:65:00.0")
    facts = machine.discover()
    assert [g.pci_address for g in facts.gpus] == ["0000:65:00.0"]
    assert [(p.code, p.subject) for p in facts.problems] == [
        ("hardware.gpu-not-driven", "0000:66:00.0"),
        ("hardware.gpu-not-driven", "0000:67:00.0"),
    ]


def test_a_driven_gpu_that_the_library_does_not_report_is_a_problem(machine: Machine) -> None:
    machine.add(h100("0000:65:00.0", 0))
    machine.node.add_gpu("0000:66:00.0", 1)
    facts = machine.discover()
    assert [(p.code, p.subject) for p in facts.problems] == [("hardware.gpu-not-reported", "0000:66:00.0")]


def test_a_driver_version_of_another_form_is_left_out(machine: Machine) -> None:
    machine.add(h100("0000:65:00.0", 0))
    machine.state.driver_version = "unknown build"
    machine.state.cuda_version = None
    machine.write()
    facts = machine.discover()
    assert (facts.driver_version, facts.runtime_version) == (None, None)
    assert len(facts.gpus) == 1


def test_a_virtual_machine_without_sysfs_or_serials_has_no_problems(machine: Machine) -> None:
    guest = t4("0002:00:01.0", 0)
    for key in ("serial", "vbios_version", "power_limits_mw", "ecc_mode"):
        del guest.facts[key]
    machine.state.gpus.append(guest)
    machine.node.add_node("nvidia0", 195, 0)
    machine.write()
    facts = machine.discover()
    assert [(g.pci_address, g.numa_node, g.pcie_root, g.serial) for g in facts.gpus] == [
        ("0002:00:01.0", None, None, None)
    ]
    assert facts.problems == ()


def test_a_pci_domain_of_more_than_four_digits_is_written_as_the_kernel_does(machine: Machine) -> None:
    gpu = h100("10000:e1:00.0", 0)
    machine.state.gpus.append(gpu)
    machine.node.add_gpu("10000:e1:00.0", 0, numa=1, root="pci10000:e0")
    machine.write()
    facts = machine.discover()
    (found,) = facts.gpus
    assert (found.pci_address, found.numa_node, found.pcie_root) == ("10000:e1:00.0", 1, "pci10000:e0")
    assert facts.problems == (), "the library and the bus mean the same GPU"


def test_a_name_that_is_no_text_is_left_out_and_reported(machine: Machine) -> None:
    (gpu,) = machine.add(h100("0000:65:00.0", 0))
    gpu.facts["name"] = "NVIDIA \udcff\udcfe"
    gpu.facts["serial"] = "\udc80"
    machine.write()
    facts = machine.discover()
    assert (facts.gpus[0].product_name, facts.gpus[0].serial) == (None, None)
    assert codes(facts) == {"hardware.fact-unreadable"}


FUNCTIONS = [*OPTIONAL, *REQUIRED, "nvmlDeviceGetMinorNumber", "nvmlDeviceGetHandleByIndex_v2"]
FUNCTIONS += [
    "nvmlDeviceGetGpuFabricInfoV",
    "nvmlDeviceGetNvLinkRemoteDeviceType",
    "nvmlDeviceGetNvLinkRemotePciInfo_v2",
]
FUNCTIONS += ["nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetGpuInstanceById"]
FUNCTIONS += ["nvmlGpuInstanceGetInfo", "nvmlDeviceGetAttributes_v2", "nvmlDeviceGetGpuInstanceProfileInfo"]


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(faults=st.dictionaries(st.sampled_from(FUNCTIONS), st.integers(1, 33) | st.just(999), max_size=4))
def test_no_fault_of_one_gpu_costs_another_or_raises(machine: Machine, faults: dict[str, int]) -> None:
    machine.state.gpus.clear()
    gpus = machine.add(*hgx_h100(2))
    gpus[0].partition("1g.10gb", 0)
    gpus[0].faults = {function: str(code) for function, code in faults.items()}
    machine.write()
    hardware = machine.hardware()
    facts = hardware.discover()
    hardware.close()
    whole = by_address(facts)[gpus[1].pci]
    assert None not in (whole.product_name, whole.memory_bytes, whole.link_domain, whole.serial)
    for gpu in facts.gpus:
        assert gpu.uuid.startswith("GPU-")
    if gpus[0].pci not in by_address(facts):
        assert {p.code for p in facts.problems} & {"hardware.gpu-unreadable", "hardware.gpu-lost"}
