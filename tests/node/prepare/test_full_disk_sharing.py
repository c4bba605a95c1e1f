"""Unprepare of shared devices on a full disk: time slices and MPS daemons end with their last holder there too.

The data folder, with the ledger and the locks, is on a file system that is full to the last byte.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.base.errors import DriverError, SharingError
from dra_driver.base.wire import Interval, MpsSettings, SharingSettings, TimeSlicingSettings
from tests.node.support.full_disk import Disk, on_disk
from tests.support.plugin.mig_parts import WHOLE
from tests.support.plugin.sharing_parts import BOTH_MODES, SharingRig, replica, time_slicing

SERVED = ("EXCLUSIVE_PROCESS", "DEFAULT")


def rig_of(root: Path, disk: Path, settings: SharingSettings | None) -> Iterator[tuple[SharingRig, Disk]]:
    rig = SharingRig(root, settings)
    yield rig, on_disk(rig, disk)
    rig.close()


@pytest.fixture
def sliced(tmp_path: Path, small_disk: Path) -> Iterator[tuple[SharingRig, Disk]]:
    yield from rig_of(tmp_path, small_disk, TimeSlicingSettings(Interval.LONG))


@pytest.fixture
def served(tmp_path: Path, small_disk: Path) -> Iterator[tuple[SharingRig, Disk]]:
    yield from rig_of(tmp_path, small_disk, MpsSettings(50, 40 << 30, multi_user=True))


def prepare(rig: SharingRig, count: int = 3) -> list[str]:
    uids = [rig.allocate(f"u{index}", replica(index)) for index in range(count)]
    for uid in uids:
        rig.prepare(uid)
    return uids


def assert_nothing_is_left_once_there_is_space(rig: SharingRig, disk: Disk) -> None:
    """Do what the reaper does once a minute."""
    disk.free()
    rig.repair.run()
    rig.repair.settle_sharing()
    rig.assert_unshared()


def test_the_last_replica_restores_the_time_slice(sliced: tuple[SharingRig, Disk]) -> None:
    rig, disk = sliced
    *first, last = prepare(rig)
    disk.fill()
    for uid in first:
        rig.unprepare(uid)
        assert rig.intervals() == ("Long", "Default"), "another claim still holds it"
    rig.unprepare(last)
    assert rig.intervals() == ("Default", "Default")
    assert rig.files() == {}
    rig.unprepare(last)
    assert_nothing_is_left_once_there_is_space(rig, disk)


@pytest.mark.parametrize("is_killed", [False, True])
def test_an_agent_that_starts_on_a_full_disk_still_has_the_holders_of_a_time_slice(
    sliced: tuple[SharingRig, Disk], is_killed: bool
) -> None:
    rig, disk = sliced
    prepare(rig)
    disk.fill()
    rig.unprepare("u1")
    disk.restart(is_killed=is_killed)
    disk.fill()  # what the restart freed
    rig.unprepare("u0")
    assert rig.intervals() == ("Long", "Default")
    disk.restart(is_killed=is_killed)
    rig.unprepare("u2")
    assert rig.intervals() == ("Default", "Default")
    for path in disk.disk.glob("ballast*"):
        path.unlink()
    disk.restart(is_killed=is_killed)
    rig.repair.run()
    rig.repair.settle_sharing()
    rig.assert_unshared()


def test_an_interval_that_a_claim_chose_ends_with_it_and_the_next_claim_gets_its_own(
    tmp_path: Path,
    small_disk: Path,
) -> None:
    for rig, disk in rig_of(tmp_path, small_disk, None):
        rig.allocate("u1", WHOLE, configs=(time_slicing("Long"),))
        rig.allocate("next", WHOLE, configs=(time_slicing("Short"),))
        rig.prepare("u1")
        disk.fill()
        rig.unprepare("u1")
        assert rig.intervals() == ("Default", "Default")
        with pytest.raises(DriverError) as refused:
            rig.prepare("next", 1)
        assert refused.value.code in {"ledger.full", "ledger.input-output"}
        assert rig.intervals() == ("Default", "Default")
        disk.free()
        rig.prepare("next")
        assert rig.intervals() == ("Short", "Default")
        rig.unprepare("next")
        rig.assert_unshared()


def test_the_last_client_ends_the_daemon_and_restores_the_mode(served: tuple[SharingRig, Disk]) -> None:
    rig, disk = served
    *first, last = prepare(rig)
    assert rig.compute_modes() == SERVED
    disk.fill()
    for uid in first:
        rig.unprepare(uid)
        assert rig.supervisor.daemons() == {WHOLE: rig.gpu(0).uuid}, "the daemon still has clients"
    rig.unprepare(last)
    assert rig.supervisor.daemons() == {}
    assert rig.compute_modes() == BOTH_MODES
    assert_nothing_is_left_once_there_is_space(rig, disk)


def test_a_missing_supervisor_is_an_error_and_the_next_try_ends_the_daemon(served: tuple[SharingRig, Disk]) -> None:
    rig, disk = served
    prepare(rig, 1)
    disk.fill()
    rig.supervisor.is_there = False
    with pytest.raises(SharingError, match="no MPS supervisor"):
        rig.unprepare("u0")
    rig.supervisor.is_there = True
    rig.unprepare("u0")
    assert rig.supervisor.daemons() == {}
    assert rig.compute_modes() == BOTH_MODES
    assert_nothing_is_left_once_there_is_space(rig, disk)


def test_a_claim_that_is_prepared_once_there_is_space_gets_a_new_daemon(served: tuple[SharingRig, Disk]) -> None:
    rig, disk = served
    prepare(rig, 1)
    disk.fill()
    rig.unprepare("u0")
    disk.free()
    rig.allocate("next", replica(1))
    rig.prepare("next")
    assert rig.supervisor.daemons() == {WHOLE: rig.gpu(0).uuid}
    assert rig.effects() == {WHOLE: ["next"]}
    rig.unprepare("next")
    rig.repair.run()
    rig.assert_unshared()
