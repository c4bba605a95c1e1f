"""GPUs that the library answers for count as driven, whatever sysfs lacks and whichever other call is missing."""

import shutil
from collections.abc import Callable
from dataclasses import fields

import pytest

from dra_driver.base.errors import HardwareError
from dra_driver.hardware.nvidia.hardware import NvidiaHardware
from dra_driver.hardware.nvidia.published import NvidiaGpu
from tests.hardware.nvidia.conftest import Machine, by_address, codes
from tests.support.fake_nvml import Code, h100

WHOLE, PARTITIONED = "0000:65:00.0", "0000:66:00.0"
FUNCTION_NOT_FOUND = 13
# Without these a GPU has no name, or nothing can be known of it.
REQUIRED = {"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetUUID"}


def two_gpus(machine: Machine) -> None:
    whole, partitioned = machine.add(h100(WHOLE, 0), h100(PARTITIONED, 1))
    whole.links = [(1, 0, PARTITIONED)]
    partitioned.partition("1g.10gb", 0)
    partitioned.partition("3g.40gb", 4)
    machine.write()


def called(machine: Machine) -> list[str]:
    return sorted({line.split()[1] for line in machine.log.read_text().splitlines()})


def differing_facts(found: NvidiaGpu, known: NvidiaGpu) -> list[str]:
    """Return the facts that differ from the known ones and are not absent; unusable places are checked apart."""
    names = [one.name for one in fields(NvidiaGpu) if one.name != "unusable"]
    differing = [name for name in names if getattr(found, name) != getattr(known, name)]
    return [name for name in differing if getattr(found, name) not in (None, False, ())]


@pytest.mark.parametrize("code", [Code.NOT_SUPPORTED, FUNCTION_NOT_FOUND, Code.UNKNOWN])
def test_each_single_call_that_fails_costs_only_what_it_reports(machine: Machine, code: int) -> None:
    two_gpus(machine)
    known = by_address(machine.discover())
    assert len(known) == 2
    functions = called(machine)
    assert len(functions) > 30
    wrong = {}
    for function in functions:
        for gpu in machine.state.gpus:
            gpu.faults.clear()
            gpu.fail(function, code)
        machine.write()
        hardware = machine.hardware()
        facts = hardware.discover()
        hardware.close()
        found = by_address(facts)
        if found.keys() != known.keys() and function not in REQUIRED and not _is_needed(function, code):
            wrong[function] = f"GPUs {sorted(found)}: {[p.message for p in facts.problems]}"
        for address, gpu in found.items():
            if differing := differing_facts(gpu, known[address]):
                wrong[f"{function} {address}"] = f"{differing}"
            if gpu.mig_enabled and gpu.partitions != known[address].partitions:
                assert gpu.unusable, f"{function} hides partitions of {address}, and their places count as free"
    assert not wrong


def _is_needed(function: str, code: int) -> bool:
    """Return whether a GPU is rightly left out: it exists, but does not report the size of its memory."""
    return code == Code.UNKNOWN and function == "nvmlDeviceGetMemoryInfo"


def without_driver_link(machine: Machine) -> None:
    for address in (WHOLE, PARTITIONED):
        machine.node.bind(address, None)


def without_numa_node(machine: Machine) -> None:
    for path in machine.node.folder.glob("sys/devices/*/*/*/numa_node"):
        path.unlink()


def without_pci_devices(machine: Machine) -> None:
    shutil.rmtree(machine.node.folder / "sys/bus/pci")


def without_one_pci_device(machine: Machine) -> None:
    machine.node.folder.joinpath("sys/bus/pci/devices", PARTITIONED).unlink()


def without_sysfs(machine: Machine) -> None:
    shutil.rmtree(machine.node.folder / "sys")


def without_links_to_devices(machine: Machine) -> None:
    for link in list(machine.node.folder.glob("sys/bus/pci/devices/*")):
        home = link.resolve()
        link.unlink()
        shutil.copytree(home, link, symlinks=True)


def without_procfs(machine: Machine) -> None:
    shutil.rmtree(machine.node.folder / "proc/driver")


@pytest.mark.parametrize(
    "lack",
    [
        without_driver_link,
        without_numa_node,
        without_pci_devices,
        without_one_pci_device,
        without_sysfs,
        without_links_to_devices,
        without_procfs,
    ],
    ids=lambda lack: lack.__name__,
)
def test_what_sysfs_lacks_costs_only_what_it_reports(machine: Machine, lack: Callable[[Machine], None]) -> None:
    two_gpus(machine)
    known = by_address(machine.discover())
    lack(machine)
    facts = machine.discover()
    found = by_address(facts)
    assert found.keys() == known.keys()
    assert not [name for address, gpu in found.items() for name in differing_facts(gpu, known[address])]
    assert codes(facts) <= {"hardware.node-missing"}


def test_a_gpu_that_sysfs_never_had_is_not_lost_while_the_library_is_closed(machine: Machine) -> None:
    two_gpus(machine)
    without_one_pci_device(machine)
    hardware = machine.hardware()
    partitioned = by_address(hardware.discover())[PARTITIONED]
    hardware.close()
    assert _refusal(hardware, partitioned) == "hardware.no-library"


def test_a_gpu_that_left_the_bus_is_lost_while_the_library_is_closed(machine: Machine) -> None:
    two_gpus(machine)
    hardware = machine.hardware()
    partitioned = by_address(hardware.discover())[PARTITIONED]
    machine.node.remove_gpu(PARTITIONED, 1)
    hardware.close()
    assert _refusal(hardware, partitioned) == "hardware.gpu-lost"


def _refusal(hardware: NvidiaHardware, gpu: NvidiaGpu) -> str:
    with pytest.raises(HardwareError) as refused:
        hardware.partitions_now(gpu)
    return refused.value.code


def test_a_function_that_the_fake_library_does_not_have_cannot_be_left_out(machine: Machine) -> None:
    with pytest.raises(ValueError, match="no function nvmlDeviceGetSerialNumber: it can't be left out"):
        machine.install_library(without=("nvmlDeviceGetSerial", "nvmlDeviceGetSerialNumber"))


def test_a_library_that_knows_only_the_second_memory_call_reports_the_size(machine: Machine) -> None:
    machine.add(h100(WHOLE, 0))
    machine.install_library(without=("nvmlDeviceGetMemoryInfo",))
    facts = machine.discover()
    assert [gpu.memory_bytes for gpu in facts.gpus] == [81559 * 2**20]


@pytest.mark.parametrize("code", [Code.NOT_SUPPORTED, FUNCTION_NOT_FOUND])
def test_each_single_call_that_partitioning_lacks_is_refused_and_never_raises_anything_else(
    machine: Machine, code: int
) -> None:
    [gpu] = machine.add(h100(WHOLE, 0))

    def cycle() -> str:
        hardware = machine.hardware()
        found = hardware.discover().gpus[0]
        profile = next(p for p in facts.gpus[0].mig_profiles if p.name == "1g.10gb")
        try:
            hardware.set_mig_mode(found, True, 5.0)
            made = hardware.create_partition(found, profile, 0, 5.0).facts
            assert (made.profile, made.start) == ("1g.10gb", 0)
            hardware.destroy_partition(found, made.uuid, 5.0, placement=(profile.gi_profile_id, 0))
            hardware.set_mig_mode(found, False, 5.0)
        except HardwareError as error:
            return error.code
        finally:
            hardware.close()
        return ""

    facts = machine.discover()
    assert cycle() == ""
    refused = {}
    for function in sorted(set(called(machine)) - REQUIRED):
        gpu.fail(function, code)
        with machine.state.change():
            gpu.unpartition()
            gpu.set_mig(False)
            gpu.fail(function, code)
        refused[function] = cycle()
    assert "hardware.partitioning-failed" in refused.values()
    assert set(refused.values()) <= {"", "hardware.partitioning-failed", "hardware.mig-off", "hardware.reset-needed"}
