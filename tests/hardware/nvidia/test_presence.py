"""Whether there is a GPU at all, where the library is, and what is imported on a node without a GPU."""

import threading
from pathlib import Path

import pytest

from dra_driver.hardware.facts import Facts
from dra_driver.hardware.nvidia.hardware import NvidiaHardware
from dra_driver.hardware.port import Hardware, ProcessLister
from tests.hardware.nvidia.conftest import Machine, OtherProcess, codes
from tests.support.fake_nvml import build, environment, h100
from tests.support.nodes.fake_node import FakeNode
from tests.support.waiting import until


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNode:
    """A node without GPU, driver and library."""
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    return FakeNode(tmp_path / "bare")


def present(node: FakeNode, **roots: str) -> bool:
    return NvidiaHardware(node.roots._replace(**roots)).is_present()


def test_the_vendor_implements_the_port(bare: FakeNode) -> None:
    hardware: Hardware = NvidiaHardware(bare.roots)
    assert isinstance(hardware, ProcessLister)
    assert hardware.vendor == "nvidia"


def test_a_node_without_gpus_has_no_facts_and_no_problems(bare: FakeNode) -> None:
    bare.add_gpu("0000:02:00.0", vendor="0x1002")
    bare.add_gpu("0000:03:00.0", pci_class="0x040300")
    hardware = NvidiaHardware(bare.roots)
    assert not hardware.is_present()
    assert hardware.discover() == Facts("nvidia")
    assert hardware.fingerprint() == hardware.fingerprint()
    hardware.close()


@pytest.mark.parametrize("pci_class", ["0x030000", "0x030200"])
def test_display_and_compute_functions_count_whatever_drives_them(bare: FakeNode, pci_class: str) -> None:
    bare.add_gpu("0000:65:00.0", pci_class=pci_class, driver=None)
    assert present(bare)


def test_a_driver_without_a_visible_bus_counts(bare: FakeNode) -> None:
    bare.load_driver()
    assert present(bare)


def test_a_library_below_a_driver_root_of_its_own_counts(bare: FakeNode, tmp_path: Path) -> None:
    driver_root = tmp_path / "driver"
    assert not present(bare, driver_mount=str(driver_root))
    build(driver_root / "usr/lib/x86_64-linux-gnu")
    assert present(bare, driver_mount=str(driver_root))


def test_roots_that_do_not_exist_are_a_node_without_gpus(tmp_path: Path, bare: FakeNode) -> None:
    nowhere = str(tmp_path / "nowhere")
    assert not present(bare, sys=nowhere, proc=nowhere, dev=nowhere)


def test_a_gpu_on_the_bus_without_a_library_says_what_it_waits_for(bare: FakeNode, tmp_path: Path) -> None:
    bare.add_gpu("0000:65:00.0", driver=None)
    with OtherProcess(bare.roots._replace(driver_mount=str(tmp_path / "driver"))) as other:
        facts = other.discover()
    assert str(tmp_path / "driver") in facts["waiting_for"]
    assert facts["codes"] == ["hardware.library-missing", "hardware.gpu-not-driven"]
    assert not facts["pynvml"]


@pytest.mark.parametrize(
    "folder",
    ["", "usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "lib64", "lib/x86_64-linux-gnu"],
)
def test_the_library_is_found_below_the_driver_root(
    machine: Machine, tmp_path: Path, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH")
    machine.add(h100("0000:65:00.0", 0))
    build(tmp_path / "driver" / folder)
    hardware = NvidiaHardware(machine.node.roots._replace(driver_mount=str(tmp_path / "driver")))
    assert len(hardware.discover().gpus) == 1
    hardware.close()


def test_the_driver_root_s_library_comes_before_the_environment_s(machine: Machine, tmp_path: Path) -> None:
    machine.add(h100("0000:65:00.0", 0))
    build(tmp_path / "driver/usr/lib64", without=("nvmlDeviceGetSerial",))
    hardware = NvidiaHardware(machine.node.roots._replace(driver_mount=str(tmp_path / "driver")))
    assert hardware.discover().gpus[0].serial is None
    hardware.close()


def test_a_library_that_can_t_be_loaded_is_skipped(machine: Machine, tmp_path: Path) -> None:
    machine.add(h100("0000:65:00.0", 0))
    broken = tmp_path / "driver/usr/lib64/libnvidia-ml.so.1"
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"not a library")
    hardware = NvidiaHardware(machine.node.roots._replace(driver_mount=str(tmp_path / "driver")))
    assert len(hardware.discover().gpus) == 1
    hardware.close()


def test_a_file_that_is_no_library_is_named(bare: FakeNode, tmp_path: Path) -> None:
    broken = tmp_path / "driver/usr/lib64/libnvidia-ml.so.1"
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"not a library")
    bare.add_gpu("0000:65:00.0")
    with OtherProcess(bare.roots._replace(driver_mount=str(tmp_path / "driver"))) as other:
        facts = other.discover()
    assert str(broken) in facts["waiting_for"]
    assert facts["codes"] == ["hardware.library-unusable"]


def test_a_library_without_nvmls_functions_is_a_problem(bare: FakeNode, tmp_path: Path) -> None:
    build(tmp_path / "driver/usr/lib64", without=("nvmlInit_v2", "nvmlInitWithFlags"))
    bare.add_gpu("0000:65:00.0")
    facts = NvidiaHardware(bare.roots._replace(driver_mount=str(tmp_path / "driver"))).discover()
    assert codes(facts) == {"hardware.library-failed"}


def test_a_library_older_than_init_with_flags_is_used(machine: Machine) -> None:
    machine.install_library(without=("nvmlInitWithFlags", "nvmlSystemGetCudaDriverVersion_v2"))
    machine.add(h100("0000:65:00.0", 0))
    facts = machine.discover()
    assert (len(facts.gpus), facts.runtime_version) == (1, "13.0.0")


def test_a_driver_that_has_no_gpu_yet_is_no_failure(machine: Machine) -> None:
    facts = machine.discover()
    assert (facts.gpus, facts.waiting_for, facts.driver_version) == ((), "", "580.65.6")


def test_another_process_finds_the_library_by_its_environment_alone(machine: Machine) -> None:
    machine.add(h100("0000:65:00.0", 0), h100("0000:66:00.0", 1))
    library = build(machine.folder / "elsewhere")
    with OtherProcess(machine.node.roots, **environment(library, machine.folder / "state")) as other:
        assert other.discover()["gpus"] == ["0000:65:00.0", "0000:66:00.0"]


def test_pynvml_is_not_imported_on_a_node_without_gpus(bare: FakeNode) -> None:
    with OtherProcess(bare.roots) as other:
        assert other.discover()["gpus"] == []
        other.fingerprint()
        assert not other.discover()["pynvml"]


def test_the_loader_s_own_search_finds_the_library(machine: Machine, tmp_path: Path) -> None:
    machine.add(h100("0000:65:00.0", 0))
    library = build(tmp_path / "preloaded")
    environ = {"LD_PRELOAD": str(library), "FAKE_NVML_STATE": str(machine.folder / "state")}
    with OtherProcess(machine.node.roots, **environ) as other:  # the loader knows the soname, and no folder has it
        assert other.discover()["gpus"] == ["0000:65:00.0"]


def test_no_thread_is_left_behind_after_close(machine: Machine) -> None:
    machine.add(h100("0000:65:00.0", 0))
    before = set(threading.enumerate())
    hardware = machine.hardware()
    hardware.discover()
    made = {t for t in set(threading.enumerate()) - before if t.name.startswith("gpu-")}
    assert made
    # A call that a busy machine has not quite ended keeps the library, and closing is tried again.
    until(lambda: hardware.close() or not any(thread.is_alive() for thread in made))
