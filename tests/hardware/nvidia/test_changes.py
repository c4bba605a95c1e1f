"""What happens at run time: GPUs lost and found, re-partitioning, drivers that come late, are unloaded or replaced."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from dra_driver.base.errors import HardwareError, Retry
from tests.hardware.nvidia.conftest import Machine, OtherProcess, by_address, codes
from tests.support.fake_nvml import Code, build, environment, h100, hgx_h100
from tests.support.waiting import until


def test_a_lost_gpu_leaves_and_comes_back(machine: Machine) -> None:
    gpus = machine.add(*hgx_h100(3))
    hardware = machine.hardware()
    whole = hardware.discover()
    seen = hardware.fingerprint()
    gpus[1].is_lost = True
    machine.write()
    assert hardware.fingerprint() != seen
    facts = hardware.discover()
    assert [g for g in whole.gpus if g.pci_address != gpus[1].pci] == list(facts.gpus)
    assert [(p.code, p.subject) for p in facts.problems] == [("hardware.gpu-lost", gpus[1].pci)]
    seen = hardware.fingerprint()
    gpus[1].is_lost = False
    machine.write()
    assert hardware.fingerprint() != seen
    assert hardware.discover() == whole


def test_a_gpu_that_only_one_call_reports_as_lost_is_lost(machine: Machine) -> None:
    gpus = machine.add(*hgx_h100(2))
    gpus[0].fail("nvmlDeviceGetMemoryInfo", Code.GPU_IS_LOST)
    machine.write()
    facts = machine.discover()
    assert [g.pci_address for g in facts.gpus] == [gpus[1].pci]
    assert codes(facts) == {"hardware.gpu-lost"}


def test_a_fingerprint_stays_while_nothing_changes(machine: Machine) -> None:
    gpus = machine.add(*hgx_h100(2))
    gpus[0].partition("1g.10gb", 0)
    machine.write()
    hardware = machine.hardware()
    hardware.discover()
    first = hardware.fingerprint()
    assert hash(first) == hash(hardware.fingerprint())
    hardware.discover()
    assert hardware.fingerprint() == first


def test_repartitioning_changes_the_fingerprint_and_the_facts(machine: Machine) -> None:
    (gpu,) = machine.add(h100("0000:65:00.0", 0))
    hardware = machine.hardware()
    profiles = []
    hardware.discover()
    seen = hardware.fingerprint()
    for profile in ("1g.10gb", "2g.20gb", "7g.80gb"):
        gpu.unpartition()
        gpu.partition(profile, 0)
        machine.write()
        assert hardware.fingerprint() != seen
        profiles += [p.profile for p in hardware.discover().gpus[0].partitions]
        seen = hardware.fingerprint()
    assert profiles == ["1g.10gb", "2g.20gb", "7g.80gb"]
    gpu.unpartition()
    gpu.set_mig(False)
    machine.write()
    assert hardware.fingerprint() != seen
    assert not hardware.discover().gpus[0].mig_enabled


def test_a_gpu_that_appears_late_is_found_by_a_new_look_at_the_bus(machine: Machine) -> None:
    first, second = hgx_h100(2)
    machine.add(first)
    hardware = machine.hardware()
    assert len(hardware.discover().gpus) == 1
    seen = hardware.fingerprint()
    machine.add(second)
    assert hardware.fingerprint() != seen
    assert [g.pci_address for g in hardware.discover().gpus] == [first.pci, second.pci]
    assert machine.calls("nvmlShutdown") == 1, "the library looks at the bus only when it is initialised"


def test_a_library_that_sees_late_gpus_by_itself_is_asked_again(machine: Machine) -> None:
    machine.state.enumerate_live = True
    first, second = hgx_h100(2)
    machine.add(first)
    hardware = machine.hardware()
    hardware.discover()
    seen = hardware.fingerprint()
    machine.state.gpus.append(second)
    machine.write()
    assert hardware.fingerprint() != seen
    assert len(hardware.discover().gpus) == 2
    machine.state.gpus.remove(first)
    machine.write()
    assert [g.pci_address for g in hardware.discover().gpus] == [second.pci]


def test_nodes_with_other_numbers_change_the_fingerprint(machine: Machine) -> None:
    machine.add(h100("0000:65:00.0", 0))
    hardware = machine.hardware()
    hardware.discover()
    seen = hardware.fingerprint()
    machine.node.load_driver(caps_major=238)
    assert hardware.fingerprint() != seen


def test_a_library_that_is_installed_late_is_found_without_a_restart(machine: Machine) -> None:
    machine.add(h100("0000:65:00.0", 0))
    library = machine.folder / "late/libnvidia-ml.so.1"
    with OtherProcess(machine.node.roots, **environment(library, machine.folder / "state")) as other:
        facts = other.discover()
        assert facts["gpus"] == []
        assert "libnvidia-ml.so.1" in facts["waiting_for"]
        assert facts["codes"] == ["hardware.library-missing"]
        seen = other.fingerprint()
        build(library.parent)
        assert other.fingerprint() != seen
        facts = other.discover()
        assert (facts["gpus"], facts["waiting_for"]) == (["0000:65:00.0"], "")


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        (Code.DRIVER_NOT_LOADED, "hardware.driver-not-loaded"),
        (Code.LIB_RM_VERSION_MISMATCH, "hardware.driver-mismatch"),
        (Code.UNKNOWN, "hardware.library-failed"),
    ],
)
def test_a_driver_that_can_t_be_used_yet_is_tried_again(
    machine: Machine, code: Code, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_driver.hardware.nvidia.discovery.RETRY_S", 0.2)
    machine.add(h100("0000:65:00.0", 0))
    machine.state.init = code
    machine.write()
    hardware = machine.hardware()
    facts = hardware.discover()
    assert facts.gpus == ()
    assert facts.waiting_for
    assert codes(facts) == {problem}
    seen = hardware.fingerprint()
    machine.state.init = 0
    machine.write()
    until(lambda: hardware.fingerprint() != seen)
    assert len(hardware.discover().gpus) == 1


def test_a_library_that_never_worked_and_is_replaced_needs_a_new_process(machine: Machine) -> None:
    machine.add(h100("0000:65:00.0", 0))
    machine.state.init = Code.LIB_RM_VERSION_MISMATCH
    machine.write()
    hardware = machine.hardware()
    hardware.discover()
    assert not hardware.driver_changed()
    machine.install_library(without=("nvmlDeviceGetSerial",))
    assert hardware.driver_changed(), "the loader would give the old one again"


def test_close_releases_the_nodes_and_a_later_discovery_opens_them_again(machine: Machine, tmp_path: Path) -> None:
    held = tmp_path / "held"
    held.write_text("")
    machine.state.hold = held
    machine.add(h100("0000:65:00.0", 0))
    hardware = machine.hardware()

    def is_held() -> bool:
        links = Path("/proc/self/fd").iterdir()
        return any(os.path.realpath(link) == str(held) for link in links)

    before = hardware.discover()
    assert is_held()
    hardware.close()
    assert not is_held()
    closed = hardware.fingerprint()
    assert hardware.fingerprint() == closed
    assert not is_held(), "a fingerprint opens nothing"
    hardware.close()
    assert hardware.discover() == before
    assert is_held()


def test_a_driver_that_is_unloaded_and_loaded_again_is_used_again(machine: Machine) -> None:
    machine.add(h100("0000:65:00.0", 0))
    hardware = machine.hardware()
    before = hardware.discover()
    hardware.close()
    machine.node.unload_driver()
    machine.state.init = Code.DRIVER_NOT_LOADED
    machine.write()
    assert "driver" in hardware.discover().waiting_for
    assert not hardware.driver_changed()
    machine.node.load_driver()
    machine.node.drive("0000:65:00.0", 0)
    machine.state.init = 0
    machine.write()
    assert hardware.discover() == before


def test_another_kernel_driver_needs_a_new_process(machine: Machine) -> None:
    machine.add(h100("0000:65:00.0", 0))
    hardware = machine.hardware()
    hardware.discover()
    seen = hardware.fingerprint()
    assert not hardware.driver_changed()
    machine.node.load_driver("590.44.01")
    assert hardware.driver_changed()
    assert hardware.fingerprint() != seen
    with pytest.raises(HardwareError) as changed:
        hardware.discover()
    assert (changed.value.code, changed.value.retry) == ("hardware.driver-changed", Retry.LATER)
    assert machine.calls("nvmlShutdown") == 1, "the next process finds nothing held"


def test_another_library_in_place_of_the_loaded_one_needs_a_new_process(machine: Machine) -> None:
    machine.add(h100("0000:65:00.0", 0))
    hardware = machine.hardware()
    hardware.discover()
    machine.install_library(without=("nvmlDeviceGetSerial",))
    assert hardware.driver_changed()


def test_a_process_that_restarts_itself_reads_with_the_new_driver(machine: Machine) -> None:
    machine.add(h100("0000:65:00.0", 0))
    program = """
        import os, sys
        from dra_driver.hardware.nvidia.hardware import NvidiaHardware
        from dra_driver.hardware.port import Roots
        from dra_driver.base.errors import HardwareError
        hardware = NvidiaHardware(Roots(sys=sys.argv[1], proc=sys.argv[2], dev=sys.argv[3]))
        print(hardware.discover().driver_version, flush=True)
        if sys.stdin.readline():
            try:
                hardware.discover()
            except HardwareError as error:
                print(error.code, flush=True)
                os.execv(sys.executable, [sys.executable, "-c", sys.argv[4], *sys.argv[1:]])
    """
    program = textwrap.dedent(program)
    roots = machine.node.roots
    library = build(machine.folder / "lib")
    process = subprocess.Popen(
        [sys.executable, "-c", program, roots.sys, roots.proc, roots.dev, program],
        env=environment(library, machine.folder / "state"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    with process:
        assert process.stdout.readline() == "580.65.6\n"
        machine.node.load_driver("590.44.01")
        machine.state.driver_version = "590.44.01"
        machine.write()
        process.stdin.write("again\n")
        assert process.stdout.readline() == "hardware.driver-changed\n"
        assert process.stdout.readline() == "590.44.1\n"
        process.stdin.close()
    assert process.returncode == 0


def test_a_gpu_taken_off_the_bus_is_gone(machine: Machine) -> None:
    gpus = machine.add(*hgx_h100(2))
    hardware = machine.hardware()
    hardware.discover()
    machine.node.remove_gpu(gpus[0].pci, 0)
    machine.state.gpus.remove(gpus[0])
    machine.write()
    facts = hardware.discover()
    assert set(by_address(facts)) == {gpus[1].pci}
    assert facts.problems == ()
