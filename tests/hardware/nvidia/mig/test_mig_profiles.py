"""MIG profiles through the real ctypes path: which are offered, by which library, with which warning."""

import pytest

from dra_driver.hardware.port import Partitionable
from tests.hardware.nvidia.conftest import Machine, by_address, codes
from tests.hardware.nvidia.support.mig_bench import PCI, Bench
from tests.support.fake_nvml import a100_40, h100, hgx_h100, l40s

MIB = 2**20


def test_every_profile_and_placement_of_an_h100_is_offered(machine: Machine) -> None:
    bench = Bench(machine, mig=False)
    assert isinstance(bench.hardware, Partitionable)
    assert {(p.gi_profile_id, p.name, p.slices, p.size, p.starts, p.max_instances) for p in bench.gpu.mig_profiles} == {
        (19, "1g.10gb", 1, 1, (0, 1, 2, 3, 4, 5, 6), 7),
        (20, "1g.10gb+me", 1, 1, (0, 1, 2, 3, 4, 5, 6), 1),
        (15, "1g.20gb", 1, 2, (0, 2, 4, 6), 4),
        (14, "2g.20gb", 2, 2, (0, 2, 4), 3),
        (9, "3g.40gb", 3, 4, (0, 4), 2),
        (5, "4g.40gb", 4, 4, (0,), 1),
        (0, "7g.80gb", 7, 8, (0,), 1),
    }
    assert bench.gpu.mig_toggles_without_reset
    whole = bench.profile("7g.80gb")
    assert (whole.memory_bytes, whole.multiprocessors, whole.copy_engines) == (81152 * MIB, 132, 8)
    assert (whole.decoders, whole.encoders, whole.jpeg_engines, whole.ofa_engines) == (7, 0, 7, 1)


def test_profiles_are_read_once(machine: Machine) -> None:
    bench = Bench(machine)
    before = machine.calls("nvmlDeviceGetGpuInstancePossiblePlacements_v2")
    bench.hardware.discover()
    assert machine.calls("nvmlDeviceGetGpuInstancePossiblePlacements_v2") == before > 0


def test_a_driver_that_reports_placements_only_in_mig_mode_is_asked_again(machine: Machine) -> None:
    gpu = h100(PCI, 0)
    gpu.facts["mig_placements_need_mode"] = 1
    bench = Bench(machine, gpu, mig=False)
    facts = bench.hardware.discover()
    assert facts.gpus[0].mig_profiles == ()
    assert codes(facts) == {"hardware.mig-profiles-unknown"}
    bench.hardware.set_mig_mode(bench.gpu, True, 10)
    facts = bench.hardware.discover()
    assert len(facts.gpus[0].mig_profiles) == 7
    assert codes(facts) == set()


def test_ampere_offers_profiles_but_does_not_toggle(machine: Machine) -> None:
    gpu = Bench(machine, a100_40(PCI, 0), mig=False).gpu
    assert len(gpu.mig_profiles) == 7
    assert not gpu.mig_toggles_without_reset


def test_a_card_without_mig_and_a_virtual_gpu_offer_nothing(machine: Machine) -> None:
    virtual = h100("0000:66:00.0", 1)
    virtual.facts["virtualization_mode"] = 2
    machine.add(l40s(PCI, 0), virtual)
    assert [gpu.mig_profiles for gpu in machine.discover().gpus] == [(), ()]


@pytest.mark.parametrize(
    "without", ["nvmlDeviceGetGpuInstanceProfileInfo", "nvmlGpuInstanceGetComputeInstanceProfileInfo"]
)
@pytest.mark.parametrize("version", [2, 3])
def test_profiles_are_asked_for_by_whichever_version_the_library_has(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, without: str, version: int
) -> None:
    machine.install_library(without=(without,))
    monkeypatch.setenv("FAKE_NVML_PROFILE_VERSION", str(version))
    bench = Bench(machine)
    assert len(bench.gpu.mig_profiles) == 7
    for name, start in (("1g.10gb+me", 0), ("3g.40gb", 4)):
        assert bench.create(name, start).profile == name
    assert {p.profile for p in bench.hardware.discover().gpus[0].partitions} == {"1g.10gb+me", "3g.40gb"}


@pytest.mark.parametrize(
    ("version", "is_bad"),
    [("570.133.20", True), ("575.51.03", True), ("580.65.05", True), ("580.65.06", False), ("565.57.01", False)],
)
def test_mig_beside_whole_gpus_is_a_problem_with_drivers_that_hang(
    machine: Machine, version: str, is_bad: bool
) -> None:
    gpus = hgx_h100(2)
    machine.state.driver_version = version
    machine.add(*gpus)
    hardware = machine.hardware()
    assert codes(hardware.discover()) == set()
    gpus[1].set_mig(True)
    machine.write()
    facts = hardware.discover()
    assert codes(facts) == ({"hardware.mixed-mig-driver"} if is_bad else set())
    assert not is_bad or "580.65.06" in facts.problems[0].message
    assert by_address(facts)[gpus[1].pci].mig_enabled
