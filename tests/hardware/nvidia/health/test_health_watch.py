"""What is observed of GPUs' health: the real vendor over the fake library, the kernel log, and the bus."""

import pytest

from dra_driver.hardware.evidence import BusState
from dra_driver.hardware.pci import bus_state
from dra_driver.hardware.port import HealthReporter
from tests.hardware.nvidia.support.watching import Watching, healed
from tests.support.nodes.fake_node import FakeNode
from tests.support.waiting import until

pytestmark = pytest.mark.gcc


@pytest.fixture
def watching(tmp_path, monkeypatch):
    with healed(Watching(tmp_path, monkeypatch)) as it:
        yield it


def test_an_xid_is_reported_once_with_its_instance(watching):
    assert isinstance(watching.hardware, HealthReporter)
    one, two = watching.state.gpus
    watching.notified.clear()
    one.xid(48)
    two.xid(94, gi=3)
    watching.state.write()
    assert watching.notified.wait(60)
    watching.until(lambda: len(watching.xids) == 2)
    assert set(watching.xids) == {(one.pci, 48, None), (two.pci, 94, 3)}
    watching.look(is_urgent=True)
    assert len(watching.xids) == 2


def test_an_urgent_look_takes_new_readings(watching):
    one, two = watching.state.gpus
    one.report_health(
        recovery_action=1, remap_pending=1, remap_failed=0, ecc_uncorrectable=3, sram_threshold=1, thermal_margin=-7,
        slowdown_margin=-2, clock_reasons=0x40, fabric_health=2, pcie_replays=5, pcie_link="5 16",
    )  # fmt: skip
    one.links[4] = (0, *one.links[4][1:])
    watching.state.write()
    watching.look(is_urgent=True)
    found = watching.vitals[one.pci]
    assert (found.recovery_action, found.remap_pending, found.remap_failed) == (1, True, False)
    assert (found.ecc_uncorrectable, found.sram_threshold_exceeded) == (3, True)
    assert (found.thermal_margin, found.slowdown_margin, found.clock_reasons) == (-7, -2, 0x40)
    assert (found.fabric_summary, found.pcie_replays, found.pcie_generation, found.pcie_lanes) == (2, 5, 5, 16)
    assert [link for link, is_up in enumerate(found.links) if not is_up] == [4]
    assert watching.vitals[two.pci].recovery_action == 0


def test_what_a_gpu_does_not_report_is_none(watching):
    one, _ = watching.state.gpus
    one.report_health(recovery_action=None, remap_pending=None, remap_failed=None)
    watching.state.write()
    watching.look(is_urgent=True)
    found = watching.vitals[one.pci]
    assert (found.recovery_action, found.remap_pending, found.ecc_uncorrectable) == (None, None, None)
    assert not found.is_lost


def test_a_lost_gpu_is_reported_and_the_other_gpu_is_still_read(watching):
    one, two = watching.state.gpus
    one.is_lost = True
    watching.state.write()
    watching.look(is_urgent=True)
    assert watching.vitals[one.pci].is_lost
    assert not watching.vitals[two.pci].is_lost


def test_a_gpu_that_comes_back_under_another_index_is_read_again_and_its_xids_are_its_own(watching):
    one, two = watching.state.gpus
    one.is_lost = True
    watching.state.write()
    watching.until(lambda: watching.vitals[one.pci].is_lost)
    watching.state.gpus[:] = [two]
    watching.state.write()
    watching.until(
        lambda: [gpu.pci_address for gpu in watching.hardware.discover().gpus if not gpu.is_lost] == [two.pci]
    )
    one.is_lost = False
    watching.state.gpus[:] = [two, one]
    watching.state.write()
    watching.until(lambda: {gpu.pci_address for gpu in watching.hardware.discover().gpus if not gpu.is_lost}
                   == {one.pci, two.pci})  # fmt: skip
    watching.until(lambda: watching.vitals[one.pci].is_lost is False)
    one.xid(48)
    watching.state.write()
    watching.until(lambda: watching.xids == [(one.pci, 48, None)])


def test_a_call_that_hangs_makes_the_watch_silent_and_blocks_no_discovery(watching, monkeypatch):
    monkeypatch.setattr("dra_driver.hardware.nvidia.observation.EXPECTED_SECONDS", 0.7)
    one, two = watching.state.gpus
    one.hang("nvmlDeviceGetFieldValues")
    watching.state.write()
    watching.hardware.health(is_urgent=True, patience_s=0.0)
    watching.until(lambda: watching.silent > 0.7)
    assert {gpu.pci_address for gpu in watching.hardware.discover().gpus} == {one.pci, two.pci}
    one.heal()
    watching.state.write()
    watching.until(lambda: watching.silent == 0.0)


def test_the_library_is_released_while_it_is_watched(watching):
    held = watching.state.path.with_name("held")
    held.touch()
    watching.hardware.close()
    until(lambda: watching.hardware.close() or not watching.hardware._use.leaving)
    until(watching.has_opened)
    watching.vitals.clear()
    watching.until(lambda: len(watching.vitals) == 2)


def test_a_gpu_that_supports_no_events_is_polled(watching):
    for gpu in watching.state.gpus:
        gpu.report_health(supported_events=None, recovery_action=2)
    watching.state.write()
    watching.hardware.close()
    watching.hardware.discover()
    watching.until(lambda: all(one.recovery_action == 2 for one in watching.vitals.values()))
    assert watching.silent == 0.0


def test_the_bus_shows_what_is_gone_dead_and_bound_to_another_driver(tmp_path):
    node = FakeNode(tmp_path)
    for number, pci in enumerate(("0000:01:00.0", "0000:02:00.0", "0000:03:00.0", "0000:04:00.0")):
        node.add_gpu(pci, number)
    (tmp_path / "sys/bus/pci/devices/0000:02:00.0/config").write_bytes(b"\xff" * 64)
    (tmp_path / "sys/bus/pci/devices/0000:01:00.0/config").write_bytes(b"\xde\x10" + b"\xff" * 62)
    node.bind("0000:03:00.0", "vfio-pci")
    node.bind("0000:04:00.0", None)
    shown = [bus_state(node.roots, f"0000:0{n}:00.0", ("nvidia",)) for n in range(1, 6)]
    elsewhere = BusState.ELSEWHERE
    assert shown == [BusState.HERE, BusState.DEAD, elsewhere, elsewhere, BusState.GONE]


def test_without_a_visible_bus_nothing_is_gone(tmp_path):
    assert bus_state(FakeNode(tmp_path).roots, "0000:01:00.0", ("nvidia",)) is BusState.HERE


def test_a_virtual_function_has_no_vendor_in_its_configuration_space_and_is_not_dead(tmp_path):
    node = FakeNode(tmp_path)
    node.add_gpu("0000:01:00.1", 1)
    config = tmp_path / "sys/bus/pci/devices/0000:01:00.1/config"
    config.write_bytes(bytes.fromhex("ffffffff00001000") + bytes(56))
    assert bus_state(node.roots, "0000:01:00.1", ("nvidia",)) is BusState.HERE
