"""The ledger file: versions, corruption, loss, two processes; group commit."""

import os
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from dra_driver.base.errors import LedgerError, PrepareError
from dra_driver.base.machine import Deadline
from dra_driver.base.wire import SharedDevice, TimeSlicingSettings
from dra_driver.node.ledger.database import WAL_PAGES, Database, has_claims
from dra_driver.node.ledger.ledger import Ledger
from dra_driver.node.ledger.ledger_file import MAJOR, MINOR
from dra_driver.node.ledger.record import ClaimState
from dra_driver.node.ledger.recorded_steps import (
    GpuReference,
    RecordedFile,
    RecordedMode,
    RecordedPartition,
    RecordedSharing,
    UnknownStep,
    ends_with_power,
    is_only_file,
)
from dra_driver.node.prepare.repair import Reaper
from tests.node.support.ledger_file import sql
from tests.support.plugin.parts import DRIVER, Rig, claim_wire, result
from tests.support.waiting import until

VERSION = MAJOR * 1000 + MINOR
FILE, PARTITION = RecordedFile("f"), RecordedPartition("p", None)


def test_a_ledger_is_durable_and_written_ahead(rig: Rig) -> None:
    writer = rig.ledger._file.current(Deadline.after(5))._writer
    assert writer.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    assert writer.execute("PRAGMA synchronous").fetchone()[0] == 2
    assert writer.execute("PRAGMA user_version").fetchone()[0] == VERSION


def test_claims_are_found_by_their_devices_and_no_other_claim_is_decoded(rig: Rig) -> None:
    rig.allocate("u1", "gpu-0")
    rig.allocate("u2", "gpu-1")
    rig.api.put(claim_wire("u3", result("gpu-0", adminAccess=True)))
    for uid in ("u1", "u2", "u3"):
        rig.prepare(uid)
    sql(rig.ledger.path, "UPDATE claims SET steps = 'no JSON' WHERE uid = 'u2'")
    assert [record.uid for record in rig.ledger.with_device(["gpu-0", "gpu-7"])] == ["u1", "u3"]
    assert rig.ledger.with_device([]) == ()
    assert rig.ledger.with_device(["gpu-"]) == (), "a part of a name is another name"


def test_an_older_agent_works_on_a_newer_minor_and_keeps_what_it_does_not_know(prepared: Rig) -> None:
    sql(
        prepared.ledger.path,
        "ALTER TABLE claims ADD COLUMN colour TEXT NOT NULL DEFAULT 'red'",
        "CREATE TABLE shared_effects (device TEXT PRIMARY KEY, what TEXT)",
        "INSERT INTO shared_effects VALUES ('gpu-0', 'slice')",
        "UPDATE claims SET colour = 'blue' WHERE uid = 'u1'",
        f"PRAGMA user_version={VERSION + 7}",
    )
    prepared.restart()
    assert prepared.prepare("u1")
    prepared.allocate("u3", "gpu-2")
    prepared.prepare("u3")
    prepared.unprepare("u2")
    prepared.ledger.close()
    assert sql(prepared.ledger.path, "SELECT uid, colour FROM claims ORDER BY uid") == [("u1", "blue"), ("u3", "red")]
    assert sql(prepared.ledger.path, "SELECT * FROM shared_effects") == [("gpu-0", "slice")]
    assert sql(prepared.ledger.path, "PRAGMA user_version") == [(VERSION + 7,)]


def test_a_ledger_of_an_older_minor_version_gets_the_missing_tables(prepared: Rig) -> None:
    """A ledger of 0.1.0 has no table for unreleased devices; 0.1.0 also works with a ledger that has one."""
    sql(prepared.ledger.path, "DROP TABLE kept_back", "PRAGMA user_version=1002")
    prepared.restart()
    assert prepared.prepare("u1")
    prepared.unprepare("u2")
    assert sql(prepared.ledger.path, "PRAGMA user_version") == [(VERSION,)]
    # Until it is seen that nothing uses the device, there is a row.
    until(lambda: sql(prepared.ledger.path, "SELECT count(*) FROM kept_back") == [(0,)])


def test_a_step_of_a_newer_minor_is_kept_and_named_by_the_error_of_unprepare(prepared: Rig) -> None:
    steps = f'[{{"kind":"cdi-file","file":"{prepared.file_of("u1")}"}},{{"kind":"mps-daemon","pid":1}}]'
    sql(prepared.ledger.path, f"UPDATE claims SET steps = '{steps}' WHERE uid = 'u1'")
    prepared.restart()
    with pytest.raises(PrepareError, match="mps-daemon"):
        prepared.unprepare("u1")
    assert prepared.file_of("u1") not in prepared.files()
    assert prepared.states() == {"u1": "unpreparing", "u2": "prepared"}
    assert len(prepared.ledger.get("u1").steps) == 2
    assert ("gpu-0", "u1") in prepared.holders()


def test_a_state_of_a_newer_minor_counts_as_prepared(prepared: Rig) -> None:
    sql(prepared.ledger.path, "UPDATE claims SET state = 'hibernating' WHERE uid = 'u1'")
    prepared.restart()
    assert prepared.repair.run() == 0
    assert prepared.prepare("u1")
    prepared.unprepare("u1")
    assert set(prepared.states()) == {"u2"}


def test_a_ledger_of_a_newer_major_is_read_only_and_its_known_steps_can_be_undone(prepared: Rig) -> None:
    sql(prepared.ledger.path, f"PRAGMA user_version={(MAJOR + 1) * 1000}")
    before = sql(prepared.ledger.path, "SELECT * FROM claims")
    prepared.restart()
    assert prepared.ledger.is_read_only
    assert "newer major" in prepared.ledger.problem
    with pytest.raises(LedgerError, match="newer major") as caught:
        prepared.prepare("u1")
    assert caught.value.code == "ledger.newer"
    prepared.unprepare("u1")
    prepared.unprepare("u1")
    prepared.unprepare("unknown")
    assert list(prepared.files()) == [prepared.file_of("u2")]
    assert prepared.repair.run() == 0
    assert prepared.repair.refresh_cdi() == 0
    assert Reaper(prepared.repair, prepared.store, driver=DRIVER).reap() == 0
    prepared.ledger.close()
    assert sql(prepared.ledger.path, "SELECT * FROM claims") == before


def test_a_step_of_a_newer_major_is_not_taken_for_done(prepared: Rig) -> None:
    sql(
        prepared.ledger.path,
        """UPDATE claims SET steps = '[{"kind":"teleport"}]' WHERE uid = 'u1'""",
        f"PRAGMA user_version={(MAJOR + 1) * 1000}",
    )
    prepared.restart()
    with pytest.raises(PrepareError, match="teleport"):
        prepared.unprepare("u1")


def test_has_claims_is_answered_without_an_open_ledger(rig: Rig, tmp_path: Path) -> None:
    assert not has_claims(tmp_path / "nowhere" / "ledger.db")
    assert not has_claims(rig.ledger.path)
    rig.allocate("u1", "gpu-0")
    rig.prepare("u1")
    assert has_claims(rig.ledger.path)
    (tmp_path / "broken.db").write_text("not a database at all, but long enough to look like something")
    assert has_claims(tmp_path / "broken.db")


def test_importing_the_ledger_does_not_import_grpc() -> None:
    code = (
        "import sys, dra_driver.node.ledger.ledger;"
        "print([m for m in sys.modules if m.split('.')[0] in ('grpc', 'google')])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_ledger_that_cannot_be_opened_gives_errors_until_it_can(tmp_path: Path) -> None:
    blocker = tmp_path / "data"
    blocker.write_text("a file where the folder should be")
    ledger = Ledger(blocker / "ledger.db")
    assert ledger.problem
    with pytest.raises(LedgerError):
        ledger.get("u1")
    blocker.unlink()
    assert ledger.get("u1") is None
    assert not ledger.problem
    ledger.close()


def test_jobs_of_many_threads_share_commits_and_keep_their_own_faults(tmp_path: Path) -> None:
    database = Database(tmp_path / "db")
    database.write(lambda c: c.execute("CREATE TABLE t (n INTEGER PRIMARY KEY)"))
    commits: list[str] = []
    database._writer.set_trace_callback(lambda line: commits.append(line) if line == "COMMIT" else None)
    outcomes: list[object] = []

    def job(number: int) -> None:
        def insert(connection: sqlite3.Connection) -> int:
            connection.execute("INSERT INTO t VALUES (?)", (number // 2,))
            if number % 10 == 0:
                raise KeyError(number)
            return number

        try:
            outcomes.append(database.write(insert))
        except (KeyError, LedgerError) as error:
            outcomes.append(type(error))

    with database._write_mutex:  # all of them are waiting before the first can commit
        threads = [threading.Thread(target=job, args=(number,)) for number in range(40)]
        for thread in threads:
            thread.start()
        while len(database._queue) < 40:
            pass
    for thread in threads:
        thread.join(60)
    stored = {row["n"] for row in database.read("SELECT n FROM t")}
    assert stored == set(range(20))
    assert outcomes.count(KeyError) + outcomes.count(LedgerError) == 20
    assert len(commits) == 1
    database.close()


def test_a_commit_waits_for_the_disk_if_one_of_its_jobs_does(tmp_path: Path) -> None:
    database = Database(tmp_path / "db")
    normal, full = 1, 2

    def synchronous(connection: sqlite3.Connection) -> int:
        return int(connection.execute("PRAGMA synchronous").fetchone()[0])

    assert database.write(synchronous) == full
    assert database.write(synchronous, is_synced=False) == normal
    assert database.write(synchronous) == full
    outcomes: list[int] = []
    with database._write_mutex:
        threads = [
            threading.Thread(target=lambda w=wanted: outcomes.append(database.write(synchronous, is_synced=w)))
            for wanted in (False, True, False)
        ]
        for thread in threads:
            thread.start()
        while len(database._queue) < 3:
            pass
    for thread in threads:
        thread.join(60)
    assert outcomes == [full] * 3
    database.close()


def test_commits_that_wait_for_the_disk_and_others_follow_each_other_in_one_log(tmp_path: Path) -> None:
    database = Database(tmp_path / "db")
    database.write(lambda connection: connection.execute("CREATE TABLE t (n INTEGER PRIMARY KEY, text TEXT)"))
    insert, most = (
        "INSERT INTO t VALUES (?, ?)",
        3 * WAL_PAGES,
    )  # the log is begun again several times meanwhile, by commits of both kinds
    for n in range(most):
        row, is_synced = (n, "x" * 4096), n % 2 == 0
        database.write(lambda connection, row=row: connection.execute(insert, row), is_synced=is_synced)
        assert database.read("SELECT max(n) AS n FROM t")[0]["n"] == n
    with closing(sqlite3.connect(tmp_path / "db")) as other:
        assert other.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert other.execute("SELECT count(*), max(n) FROM t").fetchone() == (most, most - 1)
    database.close()


def test_a_claim_that_needs_only_a_file_is_recorded_in_one_synced_transaction(rig: Rig) -> None:
    database = rig.ledger._file.current(Deadline.after(5))
    lines: list[str] = []
    database._writer.set_trace_callback(lines.append)
    rig.allocate("u1", "gpu-0")
    rig.prepare("u1")
    database._writer.set_trace_callback(None)
    assert lines.count("COMMIT") == 1
    assert not any("synchronous=NORMAL" in line for line in lines)
    assert rig.states() == {"u1": "prepared"}
    assert is_only_file([FILE])
    assert not is_only_file([FILE, PARTITION])


def test_an_intent_whose_effects_end_with_the_power_is_not_synced() -> None:
    assert ends_with_power([FILE, PARTITION])
    assert not ends_with_power([FILE, RecordedSharing(SharedDevice("d", "GPU-1", 0), TimeSlicingSettings())])
    assert not ends_with_power([FILE, RecordedMode(GpuReference("GPU-1", "0000:01:00.0", 0))])
    assert not ends_with_power([UnknownStep("teleport")])


def test_a_full_database_fails_the_job_and_nothing_else(rig: Rig) -> None:
    rig.allocate("u1", "gpu-0")
    rig.prepare("u1")
    writer = rig.ledger._file.current(Deadline.after(5))._writer
    writer.execute(f"PRAGMA max_page_count={writer.execute('PRAGMA page_count').fetchone()[0]}")
    rig.allocate("big", *(f"gpu-{i}" for i in (1, 2, 3)), configs=())
    pods = [{"resource": "pods", "uid": f"{number:0128}"} for number in range(256)]
    rig.api.claims["ns", "claim-big"]["status"]["reservedFor"] = pods
    with pytest.raises(LedgerError) as caught:
        rig.prepare("big")
    assert caught.value.code == "ledger.full"
    assert rig.states() == {"u1": "prepared"}
    rig.unprepare("u1")
    rig.assert_empty()


def test_states_are_written_as_plain_words(rig: Rig) -> None:
    assert {str(s) for s in ClaimState} == {"preparing", "prepared", "unpreparing", "recovered"}


@pytest.mark.parametrize("what", ["folder", "fifo", "loop"])
def test_something_else_in_the_place_of_the_ledgers_file_is_logged_in_one_line(
    tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "ledger.db"
    {"folder": path.mkdir, "fifo": lambda: os.mkfifo(path), "loop": lambda: path.symlink_to(path)}[what]()
    ledger = Ledger(path)
    [record] = [one for one in caplog.records if "can't be opened" in one.getMessage()]
    assert record.exc_info is None
    assert record.dra_fields["code"].startswith("ledger.")
    with pytest.raises(LedgerError):
        ledger.records()
    ledger.close()
