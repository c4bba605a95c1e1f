"""Stamps of files: each way in which a file becomes another one, and what leaves it the same."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import dra_driver
from dra_driver.base.machine import stamp_of

LATER_NS = 1_700_000_000_000_000_000
ROOT = Path(dra_driver.__file__).parent


def _rewrite_at_the_same_time(path: Path) -> None:
    before = path.stat().st_mtime_ns
    path.write_text("longer than before")
    os.utime(path, ns=(before, before))


def _rename_into_place(path: Path) -> None:
    before = path.stat()
    other = path.with_name("other")
    other.write_text(path.read_text())
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(path)


@pytest.mark.parametrize(
    "change",
    [
        _rewrite_at_the_same_time,
        _rename_into_place,
        lambda path: os.utime(path, ns=(LATER_NS, LATER_NS)),
        lambda path: path.unlink(),
    ],
    ids=["another size", "another inode", "another time", "gone"],
)
def test_another_file_has_another_stamp(change, tmp_path):
    path = tmp_path / "file"
    path.write_text("before")
    before = stamp_of(path)
    assert before is not None
    change(path)
    assert stamp_of(path) != before


def test_a_changed_mode_and_a_read_leave_the_stamp(tmp_path):
    path = tmp_path / "file"
    path.write_text("before")
    before = stamp_of(path)
    path.chmod(0o600)
    path.read_text()
    assert stamp_of(path) == before


def test_a_link_is_followed_unless_it_is_the_link_that_matters(tmp_path):
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_text("before")
    link.symlink_to(path)
    assert stamp_of(link) == stamp_of(path)
    assert stamp_of(link, follows_links=False) != stamp_of(path)
    path.unlink()
    assert stamp_of(link) is None
    assert stamp_of(link, follows_links=False) is not None


@pytest.mark.parametrize("spelt", ["st_mtime_ns", "random/boot_id"])
def test_stamps_and_the_boot_id_are_read_in_one_place(spelt):
    found = [path for path in ROOT.rglob("*.py") if re.search(spelt, path.read_text())]
    assert found == [ROOT / "base" / "machine.py"], found
