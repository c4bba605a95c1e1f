"""Space for the write-ahead log: commits that do not lengthen it, and what a power failure leaves of them."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from dra_driver.plugin.ledger import wal_space
from dra_driver.plugin.ledger.ledger import Ledger
from dra_driver.plugin.ledger.wal_space import WAL_BYTES
from tests.support.plugin.parts import Rig

ROUNDS = 80  # each commits twice and writes some seven pages, so that the log is begun again several times


def log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def after_a_power_failure(ledger: Path, to: Path, *, keep: int | None = None) -> Ledger:
    """Open a copy of the ledger as it is on the disk now, of whose log only the first `keep` bytes were written."""
    to.mkdir()
    shutil.copy(ledger, to / ledger.name)
    log = log_of(ledger).read_bytes()
    kept = log if keep is None else log[:keep] + bytes(len(log) - keep)
    log_of(to / ledger.name).write_bytes(kept)
    return Ledger(to / ledger.name, boot_id="boot")


def last_frame_end(log: bytes) -> int:
    return len(log.rstrip(b"\0"))


def test_commits_do_not_lengthen_the_log(rig: Rig) -> None:
    lengths = {log_of(rig.ledger.path).stat().st_size}
    for _ in range(ROUNDS):
        rig.allocate("u1", "gpu-0")
        rig.prepare("u1")
        rig.unprepare("u1")
        lengths.add(log_of(rig.ledger.path).stat().st_size)
    assert lengths == {WAL_BYTES}


def test_after_a_power_failure_the_log_holds_what_was_committed(rig: Rig, tmp_path: Path) -> None:
    rig.allocate("u1", "gpu-0")
    rig.prepare("u1")
    whole = after_a_power_failure(rig.ledger.path, tmp_path / "whole")
    assert [record.uid for record in whole.records()] == ["u1"]
    whole.close()


def test_a_commit_that_a_power_failure_cut_off_is_lost_as_a_whole(rig: Rig, tmp_path: Path) -> None:
    rig.allocate("u1", "gpu-0")
    rig.prepare("u1")
    before = last_frame_end(log_of(rig.ledger.path).read_bytes())
    rig.allocate("u2", "gpu-1")
    rig.prepare("u2")
    after = last_frame_end(log_of(rig.ledger.path).read_bytes())
    assert after > before
    for number, keep in enumerate(range(before, after, 1000)):
        torn = after_a_power_failure(rig.ledger.path, tmp_path / str(number), keep=keep)
        assert [record.uid for record in torn.records()] == ["u1"], keep
        torn.close()


def test_two_agents_share_a_log_with_space(rig: Rig) -> None:
    rig.allocate("u1", "gpu-0")
    rig.prepare("u1")
    other = Ledger(rig.ledger.path, boot_id="boot")
    assert [record.uid for record in other.records()] == ["u1"]
    rig.unprepare("u1")
    assert other.records() == ()
    assert log_of(rig.ledger.path).stat().st_size == WAL_BYTES
    other.close()


def test_the_ledger_works_on_a_disk_without_space_for_the_whole_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(wal_space.os, "pwrite", refused)
    ledger = Ledger(tmp_path / "ledger.db", boot_id="boot")
    ledger.set_mode("0000:01:00.0", "boot")
    assert ledger.modes("boot") == {"0000:01:00.0"}
    ledger.close()
