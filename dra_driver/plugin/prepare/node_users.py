"""Node users: the containers of this node's pods that have a device node, and their processes that have it open.

In: numbers of device nodes, and procfs. Out: `NodeUser`s, and whether everything could be seen. Nodes are recognized by
number, because a container may have them under any path. Every process of a pod is looked at for open files and
mappings of files, and so is each thread with open files of its own; one process of each mount namespace for the nodes
in its /dev. A process belongs to a pod by its cgroup, which it can't leave, or by mounts from the pod's own folder. An
open file that is only a path (O_PATH) is no use of the device: every pod may make a node, but the kernel lets only
those open it that were given the device.

Source: proc(5), /proc/pid/fd, fdinfo, map_files, mountinfo; cgroups(7); Kubernetes names a pod's cgroup by its UID.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from dra_driver.plugin.prepare.open_files import character_device, file_system, have_same_files
from dra_driver.plugin.prepare.process_files import (
    file_of,
    link_of,
    may_administer,
    opened_process,
    pods_of_cgroup,
)
from dra_driver.plugin.prepare.running_pods import ENDED, PROC, pods_of_mounts

LOOK_SECONDS = 5.0  # how long one look may take; what it has not seen by then counts as not seen
_NODES_MOST = 4096  # in one container's /dev
_FLAGS = re.compile(rb"^flags:\s*([0-7]+)$", re.MULTILINE)
_MEMORY = "tmpfs"  # of a container's own /dev; only this is listed, because a file server may never answer


@dataclass(frozen=True, slots=True, order=True)
class NodeUser:
    """A container with a device node; `pid` is a process that has the node open, 0 if none was seen.

    `is_of_host` for a container that has all devices of the host, because it is privileged or sees the host's /dev.
    """

    number: int
    pod: str
    pid: int = 0
    program: str = ""
    is_of_host: bool = False

    def __str__(self) -> str:
        """Return the process in words."""
        device = f"{os.major(self.number)}:{os.minor(self.number)}"
        return f"process {self.pid} ({self.program or 'unknown'}) of pod {self.pod}, device {device}"


@dataclass(slots=True)
class NodeLook:
    """The users of device nodes that were found, and why that may not be all; "" if it is. `is_blind`: no right to."""

    users: set[NodeUser] = field(default_factory=set)
    problem: str = ""
    is_blind: bool = False

    def fail(self, error: OSError) -> None:
        """Record why something was not seen."""
        self.problem = str(error)
        self.is_blind |= error.errno in {errno.EACCES, errno.EPERM}


@dataclass(frozen=True, slots=True)
class _Container:
    """What the mounts of a mount namespace show: its pods, and which file system its /dev is."""

    pods: frozenset[str]
    sees_host: bool
    own_dev: frozenset[tuple[int, int]]


def look_at_nodes(numbers: Collection[int], proc: Path = PROC, seconds: float = LOOK_SECONDS) -> NodeLook:
    """Return the containers that have nodes with these numbers, and the processes that have one open."""
    return _Looking(frozenset(numbers), proc, time.monotonic() + seconds).run()


class _Looking:
    """One look at all processes."""

    def __init__(self, numbers: frozenset[int], proc: Path, until: float) -> None:
        self._numbers, self._proc, self._until = numbers, proc, until
        self._look = NodeLook()
        self._containers: dict[str, _Container] = {}
        self._listed: set[str] = set()  # mount namespaces whose /dev was listed

    def run(self) -> NodeLook:
        seen: set[str] = set()
        try:
            while self._numbers and (new := {name for name in os.listdir(self._proc) if name.isdigit()} - seen):  # noqa: PTH208
                seen |= new  # until there are no more: a process may hand its files to a new one and end
                for name in new:
                    self._try(f"{self._proc}/{name}", int(name))
                if self._look.problem:
                    break
        except OSError as error:
            self._look.fail(error)
            return self._look
        if self._is_in_a_pod():
            self._look.problem, self._look.is_blind = "only the agent's own pod is seen (hostPID is off)", True
        return self._look

    def _is_in_a_pod(self) -> bool:
        """Return whether the first process belongs to a pod: then this procfs shows the processes of that pod only."""
        try:
            with opened_process(f"{self._proc}/1") as process:
                mounts = file_of(process, "mountinfo")
                return bool(pods_of_cgroup(process) or pods_of_mounts(mounts))
        except OSError as error:
            self._look.fail(error)
            return error.errno == errno.ENOENT  # processes of other users are hidden

    def _try(self, path: str, pid: int) -> None:
        if time.monotonic() > self._until:
            self._look.problem = f"there are too many processes and open files to look at in {LOOK_SECONDS:.0f} s"
            return
        try:
            with opened_process(path) as process:
                if not self._look_at(process, pid):
                    return
            for thread in os.listdir(f"{path}/task"):  # noqa: PTH208 - the first thread may have ended before others
                if int(thread) != pid and not have_same_files(pid, int(thread)):
                    with opened_process(f"{path}/task/{thread}") as process:
                        self._look_at(process, pid)
        except OSError as error:
            if error.errno not in ENDED:
                self._look.fail(error)

    def _look_at(self, process: int, pid: int) -> bool:
        """Look at one thread of a process, and return whether its other threads may belong to a pod, too."""
        link = link_of(process, "ns/mnt")
        namespace = link or ""
        container = self._containers.get(namespace) or _container(file_of(process, "mountinfo"))
        if namespace:
            self._containers[namespace] = container
        pods = pods_of_cgroup(process) or container.pods
        if not pods:
            return link is None  # it has ended, and others may run
        is_of_host = container.sees_host or may_administer(process)
        for number in self._open(process):
            program = file_of(process, "comm").decode("utf-8", "replace").strip()
            program = "".join(one if one.isprintable() else "?" for one in program)[:16]
            self._look.users.update(NodeUser(number, pod, pid, program, is_of_host) for pod in pods)
        if namespace in self._listed or is_of_host:
            return True
        if namespace:
            self._listed.add(namespace)
        for number in self._in_dev(process, container):
            self._look.users.update(NodeUser(number, pod) for pod in pods)
        return True

    def _open(self, process: int) -> Iterator[int]:
        """Yield those of the numbers of which a process has an open file or a mapping."""
        for folder in ("fd", "map_files"):
            try:
                names = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=process)
            except OSError as error:
                if error.errno not in ENDED:
                    raise
                continue
            try:
                yield from self._numbers_in(names, process if folder == "fd" else -1)
            finally:
                os.close(names)

    def _numbers_in(self, folder: int, process: int) -> Iterator[int]:
        """Yield those of the numbers to which the links in a folder of procfs lead."""
        found: set[int] = set()
        for name in os.listdir(folder):
            if time.monotonic() > self._until:
                raise OSError(errno.ETIME, "a process has too many open files to look at")
            number = _number(name, folder)
            if number in self._numbers and number not in found and (process < 0 or not _is_path_only(name, process)):
                found.add(number)
                yield number

    def _in_dev(self, process: int, container: _Container) -> Iterator[int]:
        """Yield those of the numbers that nodes in a container's own /dev have, and in the folders there."""
        if not container.own_dev:
            return
        folder = os.open("root/dev", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=process)
        try:
            if file_system(folder) in container.own_dev:
                yield from self._nodes_below(folder, 2)
        finally:
            os.close(folder)

    def _nodes_below(self, folder: int, depth: int) -> Iterator[int]:
        listing = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=folder)
        try:
            with os.scandir(listing) as entries:
                for _, entry in zip(range(_NODES_MOST), entries, strict=False):
                    with suppress(OSError):  # the container removed or replaced it meanwhile
                        if entry.is_dir(follow_symlinks=False):
                            if depth > 1:
                                yield from self._below(entry.name, listing, depth)
                        elif (number := character_device(entry.name, listing, follows=False)) in self._numbers:
                            yield number
        finally:
            os.close(listing)

    def _below(self, name: str, listing: int, depth: int) -> Iterator[int]:
        folder = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=listing)
        try:
            if file_system(folder) == file_system(listing):  # no other mount
                yield from self._nodes_below(folder, depth - 1)
        finally:
            os.close(folder)


def _number(name: str, folder: int) -> int:
    """Return the number of the character device to which a link of procfs leads; 0 for none. Raises: OSError."""
    try:
        if not os.readlink(name, dir_fd=folder).startswith("/"):  # a socket, a pipe
            return 0
        return character_device(name, folder, follows=True)
    except OSError as error:
        if error.errno not in ENDED:
            raise
        return 0


def _is_path_only(name: str, process: int) -> bool:
    flags = _FLAGS.search(file_of(process, f"fdinfo/{name}"))
    return flags is not None and bool(int(flags[1], 8) & os.O_PATH)


def _container(mounts: bytes) -> _Container:
    dev = root = ""
    systems: set[tuple[int, int]] = set()
    for line in mounts.decode(errors="replace").splitlines():
        columns, _, after = line.partition(" - ")
        places, kind = columns.split(" "), after.split(" ")[0]
        if len(places) > 4 and places[4] == "/":
            root = kind
        if len(places) > 4 and places[4] == "/dev":  # the last one counts, which covers the others
            dev, (major, _, minor) = kind, places[2].partition(":")
            systems = {(int(major), int(minor))} if major.isdigit() and minor.isdigit() else set()
    is_known = dev == _MEMORY and not root.startswith(("fuse", "nfs", "9p", "cifs", "smb"))
    return _Container(pods_of_mounts(mounts), dev == "devtmpfs", frozenset(systems if is_known else ()))
