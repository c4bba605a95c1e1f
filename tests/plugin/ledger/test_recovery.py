"""A ledger that is damaged or gone is rebuilt from the CDI files, and its claims from the API server."""

import os
from pathlib import Path

import pytest

from dra_driver.model.errors import ClaimError
from dra_driver.plugin.deadline import Deadline
from tests.plugin.support.ledger_file import sql
from tests.support.plugin.parts import Rig, claim_wire, result


def damage(path: Path) -> None:
    path.with_name(path.name + "-wal").unlink(missing_ok=True)
    with path.open("r+b") as file:
        file.seek(0)
        file.write(os.urandom(path.stat().st_size))


@pytest.mark.parametrize("how", ["random", "empty", "half", "other database"])
def test_a_corrupt_ledger_is_moved_aside_and_rebuilt_from_cdi_files(
    two: Rig, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = two.ledger.path
    if how == "random":
        damage(path)
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "half":
        os.truncate(path, path.stat().st_size // 2 - 100)
    else:
        path.unlink()
        sql(path, "CREATE TABLE shopping (item TEXT)")
    two.restart()
    if how != "empty":
        assert [p.name for p in path.parent.glob("*.corrupt-*")]
        assert any(r.levelname == "ERROR" and "moved aside" in r.message for r in caplog.records)
    assert two.states() == {"u1": "recovered", "u2": "recovered"}
    assert two.holders() == {("gpu-0", "u1"), ("gpu-1", "u2")}
    two.unprepare("u1")
    assert two.prepare("u2")
    assert two.states() == {"u2": "prepared"}
    assert two.ledger.get("u2").name == "claim-u2"


def test_a_removed_ledger_is_rebuilt_while_the_agent_runs(rig: Rig) -> None:
    rig.allocate("u1", "gpu-0")
    rig.prepare("u1")
    for suffix in ("", "-wal", "-shm"):
        (rig.data / f"ledger.db{suffix}").unlink(missing_ok=True)
    assert rig.states() == {"u1": "recovered"}
    rig.unprepare("u1")
    rig.assert_empty()


def test_a_ledger_that_breaks_while_the_agent_runs_is_replaced(rig: Rig) -> None:
    rig.allocate("u1", "gpu-0")
    rig.prepare("u1")
    rig.ledger._file.current(Deadline.after(5))._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    damage(rig.ledger.path)
    rig.unprepare("u1")
    assert rig.files() == {}
    assert list(rig.data.glob("ledger.db.corrupt-*"))


def test_a_recovered_claim_keeps_its_device_until_the_api_server_has_been_asked(two: Rig) -> None:
    two.api.put(claim_wire("monitor", result("gpu-2", adminAccess=True)))
    two.restart()
    two.prepare("monitor")
    two.ledger.close()
    damage(two.ledger.path)
    two.restart()
    assert ("gpu-2", "monitor") in two.holders()
    two.allocate("u3", "gpu-2")
    assert two.prepare("u3")  # the API says that the monitor has admin access
    two.allocate("u4", "gpu-0")
    with pytest.raises(ClaimError, match="ns/claim-u1"):
        two.prepare("u4", 0.5)


def test_a_recovered_claim_that_was_allocated_again_keeps_the_devices_that_its_file_names(rig: Rig) -> None:
    rig.allocate("u1", "gpu-0", "gpu-1")
    rig.prepare("u1")
    rig.ledger.close()
    damage(rig.ledger.path)
    rig.allocate("u1", "gpu-0")  # under the same UID, and not unprepared
    rig.restart()
    for uid, device in (("u2", "gpu-0"), ("u3", "gpu-1")):
        rig.allocate(uid, device)
        with pytest.raises(ClaimError, match="u1"):
            rig.prepare(uid, 0.2)
    assert rig.holders() == {("gpu-0", "u1"), ("gpu-1", "u1")}
    rig.unprepare("u1")
    assert rig.prepare("u3")


def test_a_recovered_claim_that_does_not_exist_is_evicted_after_five_minutes(two: Rig) -> None:
    damage(two.ledger.path)
    two.api.delete("u1")
    two.restart()
    assert not two.repair.evict("u1")
    two.clock.seconds += 300
    assert two.repair.evict("u1")
    assert set(two.states()) == {"u2"}


def test_a_recovered_share_is_not_taken_for_a_whole_device(rig: Rig) -> None:
    share = "11111111-2222-3333-4444-555555555555"
    rig.api.put(claim_wire("u1", result("gpu-0", shareID=share)))
    answer = rig.prepare("u1")
    rig.ledger.close()
    damage(rig.ledger.path)
    rig.restart()
    assert rig.ledger.get("u1").allocation["devices"] == [
        {"request": "", "pool": "", "device": "gpu-0", "shareID": share}
    ]
    assert rig.prepare("u1") == answer
    assert rig.states() == {"u1": "prepared"}


def test_a_claim_with_an_unreadable_cdi_file_is_recovered_and_can_be_unprepared(two: Rig) -> None:
    (two.cdi / two.file_of("u1")).write_text("half a docu")
    damage(two.ledger.path)
    two.restart()
    assert two.states() == {"u1": "recovered", "u2": "recovered"}
    two.unprepare("u1")
    assert list(two.files()) == [two.file_of("u2")]


def test_a_recovered_claim_of_other_devices_is_prepared_again(two: Rig) -> None:
    damage(two.ledger.path)
    two.allocate("u1", "gpu-3")
    two.restart()
    assert two.prepare("u1")
    assert ("gpu-3", "u1") in two.holders()
    assert ("gpu-0", "u1") not in two.holders()
