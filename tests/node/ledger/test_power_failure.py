"""What a power failure leaves of the commits in the write-ahead log."""

import shutil
from pathlib import Path

from dra_driver.node.ledger.ledger import Ledger
from tests.support.plugin.parts import Rig


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
