"""Driver roots that are watched: every change counts at once, and where nothing happens nothing is compared."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from dra_driver.hardware.nvidia.edits import path_watch, watched_trees
from dra_driver.hardware.nvidia.edits.driver_root import DriverRoot
from dra_driver.hardware.nvidia.edits.watched_trees import WatchedTrees

LIBRARIES, CONFIG, PROGRAM = "/usr/lib64", "/etc/nvidia/app.json", "/usr/bin/nvidia-smi"


class CountedRoot(DriverRoot):
    """A root that counts how often all its paths were compared."""

    compared = 0

    def is_unchanged(self) -> bool:
        self.compared += 1
        return super().is_unchanged()


def looked_at(mount: Path) -> tuple[WatchedTrees, CountedRoot]:
    """Look at a folder, a file, a link and paths that are missing; the first call compares all of them."""
    root = CountedRoot(str(mount), "/")
    root.names(LIBRARIES)
    for path in (CONFIG, PROGRAM, "/opt/bin/nvidia-smi", "/run/socket"):
        root.find(path)
    trees = WatchedTrees(root)
    assert trees.is_unchanged()
    root.compared = 0
    return trees, root


@pytest.fixture(autouse=True)
def undisturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep other tests' mounts and a busy machine from causing comparisons."""
    monkeypatch.setattr(path_watch, "_MOUNTS", "/proc/sys/kernel/hostname")
    monkeypatch.setattr(watched_trees, "COMPARED_SECONDS", 600.0)


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.fixture
def mount(tmp_path):
    mount = tmp_path / "root"
    for path in ("usr/lib64/libcuda.so.1", "etc/nvidia/app.json", "usr/bin/real-smi"):
        (mount / path).parent.mkdir(parents=True, exist_ok=True)
        (mount / path).write_text(path)
    (mount / "usr/bin/nvidia-smi").symlink_to("real-smi")
    (mount / "run").mkdir()
    return mount


def test_a_root_in_which_nothing_happens_is_not_compared(mount):
    trees, root = looked_at(mount)
    assert all(trees.is_unchanged() for _ in range(50))
    assert root.compared == 0


def renamed(mount: Path) -> None:
    (mount / "usr").rename(mount / "usr.old")


def replaced_file(mount: Path) -> None:
    new = mount / "etc/nvidia/new"
    new.write_text("other")
    new.rename(mount / CONFIG.lstrip("/"))


def replaced_link(mount: Path) -> None:
    link = mount / "usr/bin/link"
    link.symlink_to("other-smi")
    link.rename(mount / PROGRAM.lstrip("/"))


@pytest.mark.parametrize(
    "change",
    [
        lambda mount: (mount / "usr/lib64/libnew.so").touch(),
        lambda mount: (mount / "usr/lib64/libcuda.so.1").unlink(),
        lambda mount: (mount / "etc/nvidia/app.json").write_text("rewritten in place"),
        lambda mount: (mount / "etc/nvidia/app.json").unlink(),
        lambda mount: (mount / "opt/bin").mkdir(parents=True),
        lambda mount: (mount / "run/socket").touch(),
        replaced_file,
        replaced_link,
        renamed,
    ],
)
def test_each_change_counts_in_the_next_call(mount, change):
    trees, _ = looked_at(mount)
    change(mount)
    assert not trees.is_unchanged()
    assert not trees.is_unchanged()


def test_changes_beside_the_paths_cause_no_comparison(mount):
    trees, root = looked_at(mount)
    for folder in (mount.parent, mount, mount / "run", mount / "etc"):
        (folder / "beside").write_text("x")
        (folder / "beside").unlink()
        assert trees.is_unchanged()
    assert root.compared == 0


def test_a_folder_that_came_back_the_same_is_watched_again(mount):
    trees, root = looked_at(mount)
    kept = mount / "kept"
    (mount / "usr").rename(kept)
    kept.rename(mount / "usr")
    assert trees.is_unchanged()
    assert root.compared == 1
    (mount / "usr/lib64/libnew.so").touch()
    assert not trees.is_unchanged()


def test_where_nothing_can_be_watched_each_call_compares(mount, monkeypatch):
    def refused(_paths):
        raise OSError(24, "no more watches")

    monkeypatch.setattr(watched_trees, "PathWatch", refused)
    trees, root = looked_at(mount)
    assert trees.is_unchanged()
    assert root.compared == 1
    (mount / "usr/lib64/libnew.so").touch()
    assert not trees.is_unchanged()


def test_a_comparison_is_made_again_after_some_time(mount, monkeypatch):
    trees, root = looked_at(mount)
    now = time.monotonic() + watched_trees.COMPARED_SECONDS
    monkeypatch.setattr(watched_trees.time, "monotonic", lambda: now)
    assert trees.is_unchanged()
    assert root.compared == 1


def test_a_closed_watch_leaves_nothing_open(mount):
    before = open_files()
    trees, _ = looked_at(mount)
    assert open_files() > before
    trees.close()
    assert open_files() == before
    (mount / "usr/lib64/libnew.so").touch()
    assert not trees.is_unchanged()


MOUNTED = """
import subprocess, sys
from pathlib import Path
from tests.cdi.test_watched_trees import looked_at, watched_trees
watched_trees.COMPARED_SECONDS = 600.0
trees, root = looked_at(Path(sys.argv[1]))
assert trees.is_unchanged() and not root.compared
subprocess.run(["mount", "-t", "tmpfs", "none", sys.argv[1] + "/usr/lib64"], check=True)
assert not trees.is_unchanged()
print("noticed")
"""


MOUNTED_BESIDE = """
import subprocess, sys
from pathlib import Path
from tests.cdi.test_watched_trees import looked_at, watched_trees
watched_trees.COMPARED_SECONDS = 600.0
trees, root = looked_at(Path(sys.argv[1]))
watch = trees._watch
for _ in range(3):
    subprocess.run(["mount", "-t", "tmpfs", "none", sys.argv[1] + "/run"], check=True)
    subprocess.run(["umount", sys.argv[1] + "/run"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", sys.argv[2]], check=True)
    compared = root.compared
    assert trees.is_unchanged() and trees.is_unchanged() and root.compared == compared + 1
assert trees._watch is watch
subprocess.run(["mount", "-t", "tmpfs", "none", sys.argv[1] + "/run"], check=True)
assert trees.is_unchanged() and trees._watch is not watch
Path(sys.argv[1], "run/socket").touch()
assert not trees.is_unchanged()
print("kept")
"""


def test_mounts_elsewhere_keep_the_watch_and_one_above_a_missing_path_renews_it(mount, tmp_path):
    (tmp_path / "pods").mkdir()
    own = ["unshare", "--mount", "--propagation", "private"]
    if subprocess.run([*own, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this needs the right to mount")
    command = [*own, sys.executable, "-c", MOUNTED_BESIDE, mount, tmp_path / "pods"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "kept\n", done.stderr


def test_a_mount_over_a_folder_counts_in_the_next_call(mount):
    own = ["unshare", "--mount", "--propagation", "private"]
    if subprocess.run([*own, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this needs the right to mount")
    done = subprocess.run([*own, sys.executable, "-c", MOUNTED, mount], capture_output=True, text=True, check=False)
    assert done.stdout == "noticed\n", done.stderr
