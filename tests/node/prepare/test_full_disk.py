"""Unprepare on a full disk: it undoes and answers; the ledger is updated once there is space.

The file systems are really full, to the last byte. An older agent, a newer one, and the agent's restart see the same.
"""

import json
from pathlib import Path

import pytest

from dra_driver.base.errors import DriverError, LedgerError
from dra_driver.node.cdi import CdiStore
from dra_driver.node.ledger.access import SLOTS, UnpreparedClaims
from dra_driver.node.ledger.record import NoClaimFiles
from tests.node.support.full_disk import Disk, on_disk
from tests.node.support.running_pods import CONTAINER, OLD, Machine
from tests.support.plugin.mig_parts import OTHER, WHOLE, MigRig, small
from tests.support.plugin.parts import Rig, claim_wire, result
from tests.support.small_disk import fill, mount


@pytest.fixture
def full(rig: Rig, small_disk: Path) -> Disk:
    """Three prepared claims on a disk that is full; "next" requests the device of the first."""
    disk = on_disk(rig, small_disk)
    for uid, device in (("u1", "gpu-0"), ("u2", "gpu-1"), ("u3", "mig-0")):
        rig.allocate(uid, device)
        rig.prepare(uid)
    rig.allocate("next", "gpu-0")
    disk.fill()
    return disk


def refuse(rig: Rig, uid: str) -> None:
    before = rig.files(), rig.states()
    with pytest.raises(DriverError) as caught:
        rig.prepare(uid, 1)
    assert caught.value.code in {"ledger.full", "ledger.input-output"}
    assert (rig.files(), rig.states()) == before


def test_claims_are_undone_and_answered_on_a_full_disk(full: Disk) -> None:
    rig = full.rig
    rig.unprepare("u1")
    rig.unprepare("u2")
    assert list(rig.files()) == [rig.file_of("u3")]
    assert rig.states() == {"u3": "prepared"}
    rig.unprepare("u1")
    rig.unprepare("unknown")


def test_prepare_is_refused_on_a_full_disk_and_works_at_once_when_there_is_space(full: Disk) -> None:
    rig = full.rig
    rig.unprepare("u1")
    for _ in range(3):
        refuse(rig, "next")
    full.free()
    assert rig.prepare("next")[0].device == "gpu-0"
    assert rig.states() == {"next": "prepared", "u2": "prepared", "u3": "prepared"}
    assert ("gpu-0", "next") in rig.holders()
    for uid in ("next", "u2", "u3"):
        rig.unprepare(uid)
    rig.assert_empty()


def test_the_reaper_updates_the_ledger_if_no_call_comes(full: Disk) -> None:
    rig = full.rig
    rig.unprepare("u1")
    with pytest.raises(LedgerError):
        rig.repair.run()
    full.free()
    assert rig.repair.run() == 1
    assert not rig.ledger._unprepared.uids()
    assert {uid for _, uid in rig.holders()} == {"u2", "u3"}


@pytest.mark.parametrize("is_killed", [False, True])
def test_an_agent_that_starts_on_a_full_disk_unprepares_and_keeps_the_list(full: Disk, is_killed: bool) -> None:
    rig = full.rig
    rig.unprepare("u1")
    full.restart(is_killed=is_killed)
    full.fill()  # what the restart freed
    full.restart(is_killed=is_killed)
    assert rig.states() == {"u2": "prepared", "u3": "prepared"}
    rig.unprepare("u2")
    assert rig.repair.refresh_cdi() == 0
    assert list(rig.files()) == [rig.file_of("u3")]
    refuse(rig, "next")
    full.restart(is_killed=is_killed)
    assert rig.states() == {"u3": "prepared"}
    for path in full.disk.glob("ballast*"):
        path.unlink()
    full.restart(is_killed=is_killed)
    assert rig.prepare("next")
    assert {uid for _, uid in rig.holders()} == {"next", "u3"}


def test_the_same_claim_is_prepared_again_once_there_is_space(full: Disk) -> None:
    rig = full.rig
    rig.unprepare("u1")
    refuse(rig, "u1")
    full.free()
    assert rig.prepare("u1")
    assert rig.states()["u1"] == "prepared"
    full.restart()
    assert rig.states()["u1"] == "prepared", "it does not count as undone any more"
    with pytest.raises(DriverError, match="claim-u1"):
        rig.prepare("next", 0.3)


def test_the_other_agent_sees_what_was_undone(full: Disk, tmp_path: Path) -> None:
    other = Rig(tmp_path)
    other.api = full.rig.api
    other.restart()
    full.rig.unprepare("u1")
    assert set(other.states()) == {"u2", "u3"}
    full.free()
    assert other.prepare("next")
    assert set(full.rig.states()) == {"next", "u2", "u3"}
    assert not full.rig.ledger._unprepared.uids()
    other.close()


def test_a_claim_that_an_older_agent_prepared_again_meanwhile_keeps_its_device(full: Disk) -> None:
    """Agents up to 0.1.0 do not read the list: they find the row, and write the file again."""
    rig = full.rig
    file = (rig.cdi / rig.file_of("u1")).read_bytes()
    rig.unprepare("u1")
    (rig.cdi / rig.file_of("u1")).write_bytes(file)
    full.free()
    with pytest.raises(DriverError, match="claim-u1"):
        rig.prepare("next", 0.3)
    rig.unprepare("u1")
    assert rig.prepare("next")


def test_devices_whose_containers_still_run_stay_unreleased_after_a_full_disk(
    rig: Rig,
    small_disk: Path,
) -> None:
    machine = Machine(rig.root)
    disk = on_disk(rig, small_disk)
    machine.run(7, "container", CONTAINER, OLD)
    rig.api.put(claim_wire("old", result("gpu-0"), pods=(OLD,)))
    rig.prepare("old")
    rig.allocate("next", "gpu-0")
    disk.fill()
    rig.unprepare("old")
    disk.free()
    with pytest.raises(DriverError, match=f"containers of pod {OLD}"):
        rig.prepare("next", 0.5)
    machine.end(7)
    assert rig.prepare("next")


def test_partitions_and_modes_are_undone_on_a_full_disk(tmp_path: Path, small_disk: Path) -> None:
    rig = MigRig(tmp_path)
    rig.ledger.close()
    for path in list(rig.data.iterdir()):
        path.unlink()
    rig.data.rmdir()
    rig.data.symlink_to(small_disk)
    rig.restart()
    rig.now_prepare("u1", small(1), small(2, OTHER))
    rig.now_prepare("u2", small(3))
    ballast = fill(small_disk)
    rig.unprepare("u1")
    assert rig.partitions_made() == [(0, "1g.10gb", 3)]
    rig.unprepare("u2")
    assert rig.partitions_made() == []
    assert rig.modes() == [False, False]
    assert rig.files() == {}
    ballast.unlink()
    assert rig.now_prepare("whole", WHOLE)
    rig.unprepare("whole")
    rig.repair.run()
    rig.repair.settle_modes()
    rig.assert_untouched()
    rig.close()


def test_an_agent_without_a_ledger_on_a_full_disk_starts_one_in_memory(rig: Rig, small_disk: Path) -> None:
    disk = on_disk(rig, small_disk)
    rig.allocate("u1", "gpu-0")
    rig.prepare("u1")
    rig.ledger.close()
    for path in small_disk.glob("ledger.db*"):
        path.unlink()
    disk.fill()
    rig.restart()
    assert rig.states() == {"u1": "recovered"}
    rig.unprepare("u1")
    rig.unprepare("unknown")
    assert rig.files() == {}
    assert rig.states() == {}
    disk.free()
    rig.restart()
    rig.assert_empty()


def test_a_database_that_cannot_grow_counts_as_a_full_disk(rig: Rig) -> None:
    """SQLite reports a database that has reached its maximum size as it does a full disk."""
    rig.allocate("u1", "gpu-0")
    rig.prepare("u1")
    writer = rig.ledger._file._database._writer
    writer.execute("PRAGMA max_page_count=1")
    assert json.loads((rig.cdi / rig.file_of("u1")).read_text())
    rig.unprepare("u1")
    rig.assert_empty()


def test_the_list_holds_as_many_claims_as_it_has_slots_and_the_others_stay_in_memory(tmp_path: Path) -> None:
    first, second = (UnpreparedClaims(tmp_path / "list", files=NoClaimFiles()) for _ in range(2))
    first.make()
    uids = {f"u{number}" for number in range(SLOTS + 2)}
    for uid in sorted(uids):
        first.add(uid)
    assert first.uids() == uids
    assert len(second.uids()) == SLOTS
    first.remove(uids)
    assert first.uids() == second.uids() == frozenset()
    second.add("again")
    assert first.uids() == {"again"}
    (tmp_path / "list").write_bytes(b"\xff" * (tmp_path / "list").stat().st_size)
    assert UnpreparedClaims(tmp_path / "list", files=NoClaimFiles()).uids() == frozenset()


def test_a_full_cdi_folder_keeps_no_claim_from_being_unprepared(rig: Rig, small_disk: Path) -> None:
    rig.cdi.symlink_to(small_disk)
    rig.store = CdiStore(rig.cdi)
    rig.allocate("u1", "gpu-0")
    rig.prepare("u1")
    fill(small_disk)
    rig.unprepare("u1")
    assert rig.states() == {}
    assert mount("-o", "remount,size=512k", str(small_disk))
    assert rig.prepare("u1")
