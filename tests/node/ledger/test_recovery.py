"""A ledger that is damaged or gone is rebuilt from the CDI files, and its claims from the API server."""

import os
from pathlib import Path

import pytest

from dra_driver.base.errors import ClaimError
from dra_driver.base.machine import Deadline
from tests.node.support.ledger_file import sql
from tests.support.plugin.parts import Rig, claim_wire, result


def damage(path: Path) -> None:
    path.with_name(path.name + "-wal").unlink(missing_ok=True)
    with path.open("r+b") as file:
        file.seek(0)
        file.write(os.urandom(path.stat().st_size))


@pytest.mark.parametrize("how", ["random", "empty", "half", "other database"])
def test_a_corrupt_ledger_is_moved_aside_and_rebuilt_from_cdi_files(
    prepared: Rig, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = prepared.ledger.path
    if how == "random":
        damage(path)
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "half":
        os.truncate(path, path.stat().st_size // 2 - 100)
    else:
        path.unlink()
        sql(path, "CREATE TABLE shopping (item TEXT)")
    prepared.restart()
    if how != "empty":
        assert [p.name for p in path.parent.glob("*.corrupt-*")]
        assert any(r.levelname == "ERROR" and "moved aside" in r.message for r in caplog.records)
    assert prepared.states() == {"u1": "recovered", "u2": "recovered"}
    assert prepared.holders() == {("gpu-0", "u1"), ("gpu-1", "u2")}
    prepared.unprepare("u1")
    assert prepared.prepare("u2")
    assert prepared.states() == {"u2": "prepared"}
    assert prepared.ledger.get("u2").name == "claim-u2"


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


def test_a_recovered_claim_keeps_its_device_until_the_api_server_has_been_asked(prepared: Rig) -> None:
    prepared.api.put(claim_wire("monitor", result("gpu-2", adminAccess=True)))
    prepared.restart()
    prepared.prepare("monitor")
    prepared.ledger.close()
    damage(prepared.ledger.path)
    prepared.restart()
    assert ("gpu-2", "monitor") in prepared.holders()
    prepared.allocate("u3", "gpu-2")
    assert prepared.prepare("u3")  # the API says that the monitor has admin access
    prepared.allocate("u4", "gpu-0")
    with pytest.raises(ClaimError, match="ns/claim-u1"):
        prepared.prepare("u4", 0.5)


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


def test_a_recovered_claim_that_does_not_exist_is_evicted_after_five_minutes(prepared: Rig) -> None:
    damage(prepared.ledger.path)
    prepared.api.delete("u1")
    prepared.restart()
    assert not prepared.repair.evict("u1")
    prepared.clock.seconds += 300
    assert prepared.repair.evict("u1")
    assert set(prepared.states()) == {"u2"}


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


def test_a_claim_with_an_unreadable_cdi_file_is_recovered_and_can_be_unprepared(prepared: Rig) -> None:
    (prepared.cdi / prepared.file_of("u1")).write_text("half a docu")
    damage(prepared.ledger.path)
    prepared.restart()
    assert prepared.states() == {"u1": "recovered", "u2": "recovered"}
    prepared.unprepare("u1")
    assert list(prepared.files()) == [prepared.file_of("u2")]


def test_a_recovered_claim_of_other_devices_is_prepared_again(prepared: Rig) -> None:
    damage(prepared.ledger.path)
    prepared.allocate("u1", "gpu-3")
    prepared.restart()
    assert prepared.prepare("u1")
    assert ("gpu-3", "u1") in prepared.holders()
    assert ("gpu-0", "u1") not in prepared.holders()
