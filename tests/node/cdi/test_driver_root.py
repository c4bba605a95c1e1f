"""The tree of a driver root: links stay inside, and every change that matters is seen."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dra_driver.hardware.nvidia.driver_root import DriverRoot


@pytest.fixture
def mount(tmp_path) -> Path:
    root = tmp_path / "mount"
    (root / "usr/lib").mkdir(parents=True)
    (root / "usr/lib/libx.so.1").write_text("x")
    (tmp_path / "outside").write_text("secret")
    return root


def test_a_path_is_given_as_it_is_mounted_here_and_as_it_is_on_the_host(mount):
    tree = DriverRoot(f"{mount}/", "/run/nvidia/driver/")
    assert tree.here("/usr/lib") == f"{mount}/usr/lib"
    assert tree.on_host("/usr/lib") == "/run/nvidia/driver/usr/lib"
    assert DriverRoot("/", "/").on_host("/usr/lib") == "/usr/lib"


@pytest.mark.parametrize(
    ("link", "target", "found"),
    [
        ("usr/lib/libx.so", "libx.so.1", "/usr/lib/libx.so.1"),
        ("usr/lib/libx.so", "/usr/lib/libx.so.1", "/usr/lib/libx.so.1"),
        ("usr/lib/libx.so", "../../../../../usr/lib/libx.so.1", "/usr/lib/libx.so.1"),
        ("usr/lib/libx.so", "/usr/../usr/lib/./libx.so.1", "/usr/lib/libx.so.1"),
        ("usr/lib/libx.so", "libx.so", None),  # a loop
        ("usr/lib/libx.so", "libx.so.1/y", None),
        ("usr/lib/libx.so", "none", None),
        ("usr/lib/libx.so", "../../../outside", None),
        ("usr/lib/libx.so", "/outside", None),
    ],
)
def test_links_are_followed_only_inside_the_root(mount, link, target, found):
    (mount / link).symlink_to(target)
    assert DriverRoot(str(mount), "/").resolve(f"/{link}") == found


def test_a_linked_folder_is_listed_once_under_both_names(mount):
    (mount / "lib").symlink_to("usr/lib")
    tree = DriverRoot(str(mount), "/")
    assert tree.names("/lib") == tree.names("/usr/lib") == {"libx.so.1"}
    assert tree.names("/usr/lib/libx.so.1") == tree.names("/nowhere") == frozenset()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=60)
@given(st.lists(st.sampled_from(["usr", "lib", "..", ".", "loop", "up", "abs", "libx.so.1", "outside"]), max_size=8))
def test_no_path_leads_outside(mount, parts):
    for name, target in (("loop", "loop"), ("up", "../../.."), ("abs", "/")):
        if not (mount / "usr" / name).is_symlink():
            (mount / "usr" / name).symlink_to(target)
    resolved = DriverRoot(str(mount), "/").resolve("/" + "/".join(parts))
    if resolved is not None:
        real = os.path.realpath(f"{mount}{resolved}")
        assert real == f"{mount}{resolved}".rstrip("/")


def settle(tree_of):
    """Look until all that was seen is old enough for the next change to show."""
    deadline = time.monotonic() + 60
    while True:
        tree = tree_of()
        if tree.is_settled():
            return tree
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "usr/lib/liby.so.1").write_text("y"),
        lambda root: (root / "usr/lib/libx.so.1").unlink(),
        lambda root: (root / "etc").mkdir(),
        lambda root: ((root / "link").unlink(), (root / "link").symlink_to("usr")),
        lambda root: (root / "usr/lib").rename(root / "usr/lib2"),
        lambda root: (root / "run/socket").write_text(""),
    ],
    ids=["file added", "file removed", "missing folder made", "link moved", "folder gone", "socket made"],
)
def test_a_change_of_anything_looked_at_is_seen(mount, change):
    (mount / "link").symlink_to("usr/lib")
    (mount / "run").mkdir()

    def look():
        tree = DriverRoot(str(mount), "/")
        assert tree.names("/usr/lib") == tree.names("/link") == {"libx.so.1"}
        assert tree.names("/etc/glvnd") == frozenset()
        assert tree.find("/run/socket") is None
        return tree

    tree = settle(look)
    assert tree.is_unchanged()
    change(mount)
    assert not tree.is_unchanged()


def test_a_change_elsewhere_does_not_matter(mount):
    tree = settle(lambda: (t := DriverRoot(str(mount), "/"), t.names("/usr/lib"))[0])
    (mount / "usr/other").mkdir()
    (mount / "var").mkdir()
    assert tree.is_unchanged()


def test_a_look_at_a_folder_that_has_just_changed_is_not_settled(mount):
    tree = DriverRoot(str(mount), "/")
    tree.names("/usr/lib")
    (mount / "usr/lib/new").write_text("")
    late = DriverRoot(str(mount), "/")
    late.names("/usr/lib")
    assert not late.is_settled()
