"""The cgroup of a test under cgroup v2: on files that follow the kernel's rules, and on a real one if there is one."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dra_driver.node.health.validation_child import AGENT, RESERVE_BYTES, TEST, make_cgroup, room_below
from tests.support.waiting import until

LIMIT = 64 << 20
HERE = "kubepods/pod1/container"


class Tree:
    """Files of a cgroup v2 that refuse what the kernel refuses: controllers below a cgroup that has processes."""

    def __init__(self, folder, monkeypatch):
        self.root, self.proc = folder / "cgroup", folder / "proc"
        self.own = self.cgroup(HERE)
        self.enter(self.own, os.getpid())
        self.write = Path.write_text

        def write_text(path, text, *more, **how):
            return self.written(path, text, *more, **how)

        monkeypatch.setattr(Path, "write_text", write_text)

    def cgroup(self, path):
        folder = self.root / path
        folder.mkdir(parents=True)
        for name in ("cgroup.procs", "cgroup.subtree_control"):
            (folder / name).touch()
        return folder

    def enter(self, cgroup, pid):
        for file in self.root.rglob("cgroup.procs"):
            file.write_bytes(b"".join(f"{one}\n".encode() for one in file.read_text().split() if one != str(pid)))
        procs = cgroup / "cgroup.procs"
        procs.write_bytes(procs.read_bytes() + f"{pid}\n".encode())
        (self.proc / "self").mkdir(parents=True, exist_ok=True)
        if pid == os.getpid():
            (self.proc / "self/cgroup").write_bytes(f"0::/{cgroup.relative_to(self.root)}\n".encode())

    def written(self, path, text, *more, **how):
        if path.name == "cgroup.subtree_control" and (path.parent / "cgroup.procs").read_text().split():
            raise OSError(errno.EBUSY, "Device or resource busy")
        if path.name == "cgroup.procs":
            self.enter(path.parent, os.getpid() if text == "0" else int(text))
            return len(text)
        return self.write(path, text.lstrip("+"), *more, **how)

    def make(self):
        return make_cgroup(LIMIT, root=self.root, proc=self.proc)

    def pids(self, path):
        return [int(pid) for pid in (self.root / path / "cgroup.procs").read_text().split()]


@pytest.fixture
def tree(tmp_path, monkeypatch):
    made = Path.mkdir

    def mkdir(path, *more, **how):  # as the kernel fills a new cgroup with its files
        made(path, *more, **how)
        if tmp_path / "cgroup" in path.parents and path.name.startswith((AGENT, TEST)):
            for name in ("cgroup.procs", "cgroup.subtree_control"):
                (path / name).touch()

    monkeypatch.setattr(Path, "mkdir", mkdir)
    return Tree(tmp_path, monkeypatch)


def test_the_agent_moves_aside_so_that_a_test_can_be_limited(tree):
    found = tree.make()
    assert found.path == tree.own / f"{TEST}-{os.getpid()}"
    assert (found.path / "memory.max").read_text() == str(LIMIT)
    assert (found.path / "memory.swap.max").read_text() == "0"
    assert (found.path / "memory.oom.group").read_text() == "1"
    assert (tree.own / "cgroup.subtree_control").read_text() == "memory"
    assert tree.pids(f"{HERE}/{AGENT}") == [os.getpid()]
    assert tree.pids(HERE) == []


def test_a_second_test_gets_the_same_cgroup_and_the_agent_does_not_move_again(tree):
    first = tree.make()
    assert tree.make().path == first.path
    assert tree.pids(f"{HERE}/{AGENT}") == [os.getpid()]
    assert not list(tree.root.rglob(f"{AGENT}/{AGENT}"))


def test_where_another_process_is_in_the_container_s_cgroup_nothing_is_changed(tree):
    tree.enter(tree.own, 4242)
    assert tree.make() is None
    assert sorted(tree.pids(HERE)) == sorted([4242, os.getpid()])


def test_a_test_that_the_limit_ended_is_recognized_by_the_events_of_its_cgroup(tree):
    found = tree.make()
    assert not found.was_exhausted
    (found.path / "memory.events").write_bytes(b"low 0\nhigh 0\nmax 3\noom 1\noom_kill 1\n")
    assert found.was_exhausted


def test_a_test_gets_no_more_than_the_container_has_left(tree):
    assert room_below(LIMIT, root=tree.root, proc=tree.proc) == LIMIT
    (tree.own / "memory.max").write_bytes(str(256 << 20).encode())
    (tree.own / "memory.current").write_bytes(str(240 << 20).encode())
    (tree.own / "memory.stat").write_bytes(f"anon 1\ninactive_file {40 << 20}\n".encode())
    assert room_below(LIMIT, root=tree.root, proc=tree.proc) == (56 << 20) - RESERVE_BYTES
    (tree.own / "memory.max").write_bytes(b"max")
    assert room_below(LIMIT, root=tree.root, proc=tree.proc) == LIMIT


IN_CGROUP = """
import os, pathlib, subprocess, sys
from dra_driver.node.health.validation_child import make_cgroup
root, own = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
(own / "cgroup.procs").write_text("0")
found = make_cgroup(64 << 20, root=root)
print("none" if found is None else found.path, flush=True)
if found is not None:
    eat = f"import os; open('{found.path}/cgroup.procs', 'w').write('0'); bytearray(1 << 30)"
    print(subprocess.run([sys.executable, "-c", eat]).returncode, found.was_exhausted, flush=True)
    found.remove()
print(pathlib.Path("/proc/self/cgroup").read_text().splitlines()[-1].partition("::")[2], flush=True)
"""


@pytest.fixture
def own():
    """Make a cgroup v2 on this machine that only the test uses."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    root = next((Path(one[1]) for one in mounts if one[2] == "cgroup2" and os.access(one[1], os.W_OK)), None)
    if root is None or os.geteuid() != 0:
        pytest.skip("no cgroup v2 that can be written")
    folder = root / f"dra-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup v2 that can be written: {error}")
    yield root, folder
    until(lambda: not (folder / "cgroup.procs").read_text(), what="the process ended")
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir():
            path.rmdir()
    folder.rmdir()


def test_on_a_real_cgroup_v2_a_process_is_limited_or_everything_is_as_before(own):
    root, folder = own
    has_history = "memory" in (root / "cgroup.controllers").read_text().split()
    if has_history:
        (root / "cgroup.subtree_control").write_text("+memory")
    command = [sys.executable, "-c", IN_CGROUP, str(root), str(folder)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout.splitlines()
    if has_history:
        assert printed[1] == f"{-signal.SIGKILL} True"
        assert printed[2].endswith(f"{folder.name}/{AGENT}")
    else:  # this machine counts memory elsewhere: nothing is limited, and the process is back where it was
        assert printed == ["none", f"/{folder.name}"]
        assert [path.name for path in folder.iterdir() if path.is_dir()] == []
