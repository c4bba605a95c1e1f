"""Cordons on a full or faulty disk, and after damage: what was cordoned stays so, and people are told what to do."""

import errno
import os

import pytest

from dra_driver.base.errors import InputError
from dra_driver.node.health.cordons import Cordon, CordonFile, KnownCordons
from tests.support.small_disk import fill, full_soon

FIRST, SECOND = Cordon("gpu-one", "noise", 100.0), Cordon("gpu-two", "smoke", 100.0)


@pytest.fixture
def small_disk(tmp_path):
    with full_soon(tmp_path / "small") as folder:
        yield folder


def test_a_cordon_that_a_full_disk_refuses_says_so_and_those_of_before_stay(small_disk):
    CordonFile(small_disk).add(FIRST)
    known = KnownCordons(CordonFile(small_disk))
    known.refresh()
    ballast = fill(small_disk)
    with pytest.raises(InputError, match="disk room"):
        CordonFile(small_disk).add(SECOND)
    known.refresh()
    assert FIRST in known.in_force(200.0)
    ballast.unlink()
    CordonFile(small_disk).add(SECOND)
    known.refresh()
    assert set(known.in_force(200.0)) == {FIRST, SECOND}
    assert known.problem == ""


def test_a_cordon_that_a_faulty_disk_refuses_says_so_and_those_of_before_stay(tmp_path, monkeypatch):
    CordonFile(tmp_path).add(FIRST)

    def fail(_fd):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as faulty:
        faulty.setattr(os, "fsync", fail)
        with pytest.raises(InputError, match="Input/output error"):
            CordonFile(tmp_path).add(SECOND)
    assert CordonFile(tmp_path).read() == (FIRST,)
    CordonFile(tmp_path).add(SECOND)
    assert CordonFile(tmp_path).read() == (FIRST, SECOND)


def test_a_damaged_older_file_is_left_to_people_who_are_told_what_to_do(tmp_path):
    CordonFile(tmp_path).add(FIRST)
    (tmp_path / "cordons.json").write_text("{")
    known = KnownCordons(CordonFile(tmp_path))
    known.refresh()
    assert known.last == (FIRST,)
    assert "mend cordons.json, or remove it" in known.problem
    with pytest.raises(InputError, match=r"mend cordons\.json, or remove it"):
        CordonFile(tmp_path).add(SECOND)
    (tmp_path / "cordons.json").unlink()
    CordonFile(tmp_path).add(SECOND)
    assert CordonFile(tmp_path).read() == (FIRST, SECOND)


def test_a_damaged_state_forgets_no_cordon(tmp_path):
    CordonFile(tmp_path).add(FIRST)
    (tmp_path / "state.db").write_bytes(b"garbage" * 999)
    known = KnownCordons(CordonFile(tmp_path))
    known.refresh()
    CordonFile(tmp_path).add(SECOND)
    known.refresh()
    assert known.last == (FIRST, SECOND)


def test_a_cordon_that_people_add_to_the_older_file_is_in_force_and_taken_over(tmp_path):
    CordonFile(tmp_path).add(FIRST)
    path = tmp_path / "cordons.json"
    path.write_text(path.read_text().replace("gpu-one", "gpu-two"))
    known = KnownCordons(CordonFile(tmp_path))
    known.refresh()
    path.write_text("{")
    again = KnownCordons(CordonFile(tmp_path))
    again.refresh()
    assert [one.device for one in known.last] == [one.device for one in again.last] == ["gpu-two"]


def test_a_cordon_of_an_older_agent_is_in_force_on_a_full_disk_and_taken_over_once_there_is_room(small_disk):
    CordonFile(small_disk).add(FIRST)
    (small_disk / "state.db").unlink()
    ballast = fill(small_disk)
    known = KnownCordons(CordonFile(small_disk))
    known.refresh()
    assert known.in_force(200.0) == (FIRST,)
    assert "can't be written" in known.problem
    ballast.unlink()
    known.refresh()
    assert known.problem == ""
    (small_disk / "cordons.json").unlink()
    assert CordonFile(small_disk).read() == (FIRST,)


def test_to_look_for_cordons_writes_nothing_while_nobody_has_changed_them(tmp_path):
    CordonFile(tmp_path).add(FIRST)
    known = KnownCordons(CordonFile(tmp_path))
    before = (tmp_path / "state.db").stat()
    for _ in range(3):
        known.refresh()
    after = (tmp_path / "state.db").stat()
    assert (after.st_mtime_ns, after.st_ino) == (before.st_mtime_ns, before.st_ino)
    assert known.last == (FIRST,)
