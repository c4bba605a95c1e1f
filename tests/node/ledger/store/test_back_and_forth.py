"""An upgrade and back, with kills: this version and an older agent's files never forget what was written last."""

import fcntl
import json
import os
import signal
import sqlite3

import pytest

from dra_driver.base.errors import InputError, LedgerError
from dra_driver.node.daemon.passthrough_memory import RememberedGpus, ReturningGpu
from dra_driver.node.health.cases import ActionRow, RemediationAction, RemediationCase, RemediationJournal, Stage
from dra_driver.node.health.cordons import Cordon, CordonFile
from dra_driver.node.health.faults import FaultKey
from dra_driver.node.health.stored_health import HealthStore
from tests.support.kept_files import leave_hot_journal, without_descriptors
from tests.support.small_disk import fill, full_soon

ROUNDS, WRITES = 12, 7


class Health:
    """The record of faults, as this version and an older one write and read it."""

    def write(self, folder, number):
        HealthStore(folder).write({"record": number, "gpus": ["x" * 200] * 20})

    def read(self, folder):
        return HealthStore(folder).read().get("record", 0)

    def older_write(self, folder, number):
        with sqlite3.connect(folder / "health.db") as older:
            older.execute("INSERT OR REPLACE INTO documents VALUES ('record', ?)", (json.dumps(number),))
        older.close()

    def older_read(self, folder):
        older = sqlite3.connect(folder / "health.db")
        (row,) = older.execute("SELECT body FROM documents WHERE name = 'record'")
        older.close()
        return json.loads(row[0])


class Remediation:
    """A GPU that is escalated again and again; `tries` is the number."""

    @staticmethod
    def case(number):
        stage, action = Stage.ESCALATED, RemediationAction.RESET
        return RemediationCase("0000:1b:00.0", "GPU-1", FaultKey.NEEDS_RESET, "", 1.0, 1.0, stage, 1.0, action, number)

    def write(self, folder, number):
        RemediationJournal(folder).write(self.case(number))

    def read(self, folder):
        return next((case.tries for case in RemediationJournal(folder).cases()), 0)

    def older_write(self, folder, number):
        with sqlite3.connect(folder / "remediation.db") as older:
            body = json.dumps({**self.case(number).to_wire(), "offset": 0.0})
            older.execute("INSERT OR REPLACE INTO cases VALUES ('0000:1b:00.0', ?)", (body,))
        older.close()

    def older_read(self, folder):
        older = sqlite3.connect(folder / "remediation.db")
        (row,) = older.execute("SELECT body FROM cases")
        older.close()
        return json.loads(row[0])["tries"]


class Passthrough:
    """A GPU that comes back from a virtual machine; the number is in its UUID."""

    def write(self, folder, number):
        kept = RememberedGpus(folder, "b")
        kept.begin_return("0000:1b:00.0", ReturningGpu(f"GPU-{number}"))
        if kept._waiting:
            raise LedgerError("passthrough", "not recorded")

    def read(self, folder):
        gpu = RememberedGpus(folder, "b").returning.get("0000:1b:00.0")
        return int(gpu.uuid.partition("-")[2]) if gpu else 0

    def older_write(self, folder, number):
        path = folder / "passthrough.json"
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            document = json.loads(path.read_text())
            document["returning"]["0000:1b:00.0"]["uuid"] = f"GPU-{number}"
            new = folder / ".passthrough.json"
            new.write_text(json.dumps(document))
            new.replace(path)

    def older_read(self, folder):
        document = json.loads((folder / "passthrough.json").read_text())
        return int(document["returning"]["0000:1b:00.0"]["uuid"].partition("-")[2])


class Cordons:
    """A cordoned GPU; the number is in its reason."""

    def write(self, folder, number):
        try:
            CordonFile(folder).add(Cordon("gpu-one", str(number), 1.0))
        except InputError as error:
            raise LedgerError("cordons", str(error)) from error

    def read(self, folder):
        return next((int(one.reason) for one in CordonFile(folder).read()), 0)

    def older_write(self, folder, number):
        path = folder / "cordons.json"
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            document = json.loads(path.read_text())
            document["cordons"][0]["reason"] = str(number)
            new = path.with_suffix(".new")
            new.write_text(json.dumps(document, indent=1) + "\n")
            new.replace(path)

    def older_read(self, folder):
        return int(json.loads((folder / "cordons.json").read_text())["cordons"][0]["reason"])


EVERY = [Health(), Remediation(), Passthrough(), Cordons()]
PARTS = pytest.mark.parametrize("part", EVERY, ids=lambda part: type(part).__name__)


@pytest.fixture
def small_disk(tmp_path):
    with full_soon(tmp_path / "small") as folder:
        yield folder


def killed_after(acknowledged, write, folder, first):
    """Kill a process that writes one number after another once it has acknowledged some; return the last of these."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            for number in range(first, first + 1000):
                write(folder, number)
                os.write(writing, b".")
        finally:
            os._exit(1)
    for _ in range(acknowledged):
        assert os.read(reading, 1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(writing)
    while more := os.read(reading, 1024):
        acknowledged += len(more)
    os.close(reading)
    return first + acknowledged - 1


@PARTS
def test_nothing_that_was_written_is_lost_between_the_versions_whoever_is_killed(tmp_path, part):
    part.write(tmp_path, 1)
    last = 1
    for number in range(ROUNDS):
        is_older = number % 3 == 2
        write = part.older_write if is_older else part.write
        acknowledged = killed_after(number % WRITES + 1, write, tmp_path, last + 1)
        last = part.read(tmp_path)
        assert last in (acknowledged, acknowledged + 1)
        assert part.older_read(tmp_path) == last, "who goes back does not find what is known"


@PARTS
def test_what_an_older_agent_wrote_is_read_at_once_and_taken_over_by_the_next_write(tmp_path, part):
    part.write(tmp_path, 1)
    part.older_write(tmp_path, 5)
    before = (tmp_path / "state.db").read_bytes()
    assert part.read(tmp_path) == 5
    assert (tmp_path / "state.db").read_bytes() == before, "reading has changed the state"
    part.write(tmp_path, 6)
    assert (part.read(tmp_path), part.older_read(tmp_path)) == (6, 6)


@PARTS
def test_the_first_start_of_this_version_reads_what_an_older_agent_left(tmp_path, part):
    part.write(tmp_path, 7)
    (tmp_path / "state.db").unlink()
    assert part.read(tmp_path) == 7


@PARTS
def test_an_older_file_that_was_removed_is_written_again_and_nothing_is_forgotten(tmp_path, part):
    part.write(tmp_path, 3)
    for name in ("health.db", "remediation.db", "passthrough.json", "cordons.json"):
        (tmp_path / name).unlink(missing_ok=True)
    assert part.read(tmp_path) == 3
    part.write(tmp_path, 4)
    assert part.older_read(tmp_path) == 4


@PARTS
def test_a_full_disk_loses_nothing_and_the_change_is_made_once_there_is_room(small_disk, part):
    part.write(small_disk, 3)
    ballast = fill(small_disk)
    with pytest.raises(LedgerError):
        part.write(small_disk, 4)
    ballast.unlink()
    assert part.read(small_disk) in (3, 4)
    part.write(small_disk, 5)
    assert (part.read(small_disk), part.older_read(small_disk)) == (5, 5)


@PARTS
@pytest.mark.parametrize("is_killed", [False, True], ids=["at rest", "killed in a change"])
def test_the_state_is_read_on_a_full_disk(small_disk, part, is_killed):
    part.write(small_disk, 3)
    if is_killed:
        leave_hot_journal(small_disk / "state.db", "older_files", rows=20)
    fill(small_disk)
    assert part.read(small_disk) == 3


def test_two_processes_that_write_at_once_lose_nothing(tmp_path):
    case = Remediation.case(1)

    def act(folder, number):
        RemediationJournal(folder).write(case, began=ActionRow(float(number), "GPU-1", "reset"))

    act(tmp_path, 0)
    children = []
    for first in (100, 200):
        pid = os.fork()
        if not pid:
            try:
                for number in range(first, first + 25):
                    act(tmp_path, number)
            finally:
                os._exit(0)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)
    times = [row.at for row in RemediationJournal(tmp_path).actions()]
    assert times == [0.0, *map(float, range(100, 125)), *map(float, range(200, 225))]


@PARTS
def test_a_change_that_failed_leaves_both_files_as_they_were(tmp_path, part):
    part.write(tmp_path, 3)
    with without_descriptors(), pytest.raises(LedgerError):
        part.write(tmp_path, 4)
    assert (part.read(tmp_path), part.older_read(tmp_path)) == (3, 3)
