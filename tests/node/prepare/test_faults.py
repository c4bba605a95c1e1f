"""Disks that are full or read-only: each claim gets an error that names the cause, nothing is left behind, and it works
again once there is space.
"""

from pathlib import Path

import pytest

from dra_driver.base.errors import DriverError
from tests.support.plugin.parts import Rig
from tests.support.small_disk import (
    fill,
    mount,
)


def test_a_full_data_folder_gives_each_claim_an_error(small_disk: Path) -> None:
    rig = Rig(small_disk)
    rig.allocate("u1", "gpu-0")
    rig.prepare("u1")
    ballast = fill(small_disk)
    codes = set()
    for number in range(30):
        uid = rig.allocate(f"more-{number}", "gpu-1")
        try:
            rig.prepare(uid)
            rig.unprepare(uid)
        except DriverError as error:
            codes.add(error.code)
    assert codes <= {"ledger.full", "ledger.input-output", "prepare.cdi-write"}
    assert codes
    ballast.unlink()
    rig.repair.run()
    assert rig.states() == {"u1": "prepared"}
    assert list(rig.files()) == [rig.file_of("u1")]
    rig.unprepare("u1")
    rig.assert_empty()
    rig.close()


def test_a_full_cdi_folder_gives_each_claim_an_error(tmp_path: Path, small_disk: Path) -> None:
    rig = Rig(tmp_path)
    rig.cdi.symlink_to(small_disk)
    rig.allocate("u1", "gpu-0")
    rig.prepare("u1")
    ballast = fill(small_disk)
    rig.allocate("u2", "gpu-1")
    with pytest.raises(DriverError, match="space") as caught:
        rig.prepare("u2")
    assert caught.value.code == "prepare.cdi-write"
    assert rig.states() == {"u1": "prepared"}
    rig.unprepare("u1")
    ballast.unlink()
    assert rig.prepare("u2")
    rig.close()


def test_a_read_only_cdi_folder_gives_each_claim_an_error(tmp_path: Path, small_disk: Path) -> None:
    rig = Rig(tmp_path)
    rig.cdi.symlink_to(small_disk)
    rig.allocate("u1", "gpu-0")
    rig.prepare("u1")
    assert mount("-o", "remount,ro", str(small_disk))
    rig.allocate("u2", "gpu-1")
    with pytest.raises(DriverError, match="ead-only") as caught:
        rig.prepare("u2")
    assert caught.value.code == "prepare.cdi-write"
    assert rig.prepare("u1")  # its file is there as it should be
    rig.unprepare("unknown")
    with pytest.raises(DriverError) as caught:
        rig.unprepare("u1")
    assert caught.value.code == "prepare.cdi-remove"
    assert mount("-o", "remount,rw", str(small_disk))
    rig.unprepare("u1")
    assert rig.prepare("u2")
    rig.close()


def test_a_cdi_folder_that_is_a_file_gives_an_error_and_leaves_no_intent(rig: Rig) -> None:
    rig.cdi.write_text("in the way")
    rig.allocate("u1", "gpu-0")
    with pytest.raises(DriverError) as caught:
        rig.prepare("u1")
    assert caught.value.code == "prepare.cdi-write"
    assert rig.states() == {}


def test_a_read_only_data_folder_gives_each_claim_an_error(small_disk: Path, tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.ledger.close()
    locks = rig.locks  # they need no space, and stay where they are
    rig.data.parent.rename(tmp_path / "unused")
    (tmp_path / "plugins").symlink_to(small_disk)
    rig.restart()
    rig.locks.close()
    rig.preparer._locks = rig.preparer._undo._locks = rig.locks = locks
    rig.allocate("u1", "gpu-0")
    rig.prepare("u1")
    for ledger in rig.ledgers:
        ledger.close()
    assert mount("-o", "remount,ro", str(small_disk))
    with pytest.raises(DriverError) as caught:
        rig.unprepare("u1")
    assert caught.value.code.startswith("ledger.")
    assert rig.ledger.problem
    assert mount("-o", "remount,rw", str(small_disk))
    rig.unprepare("u1")
    assert not rig.ledger.problem
    rig.close()
