"""Survivors: pods whose containers outlive the Unprepare of their claim, so that its devices wait for them.

The kubelet unprepares the claims of pods that it no longer knows once a minute, whether their containers still run or
not: a pod that was deleted by force may hold its device for as long as the runtime takes to kill it.

In: claims just unprepared, with the pods that they were reserved for when they were prepared. Out: the devices that
other claims must wait for. A pod lives while a process sees a mount that comes from the kubelet's folder of that
pod: /etc/hosts and the termination log of each container do. That is looked for beside the calls, at once and then four
times a second; after two minutes the device is given on, with a warning. Nothing is guarded for admin access or shares.
Source: Kubernetes kubelet, DRA manager's reconcile loop; proc(5), /proc/pid/mountinfo.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dra_driver.plugin.record import Record
from dra_driver.plugin.rivals import Rival
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

BOUND_SECONDS = 120.0  # a container that nobody can kill must not keep the device for ever
LOOK_SECONDS = 0.25
_MOUNTS_BYTES = 1 << 20
_POD = re.compile(r"/pods/([0-9A-Fa-f-]{32,36})/")
PROC = Path("/proc")  # processes are the kernel's own, whatever stands in for the rest of /proc


@dataclass(slots=True)
class _Left:
    """A claim that was unprepared; `until` is monotonic seconds."""

    record: Record
    names: frozenset[str]
    pods: tuple[str, ...]
    until: float
    is_known: bool = False  # somebody was found alive


class Survivors:
    """Keeps which devices are still used; `freed` is called when one no longer is. `pods` is the kubelet's folder."""

    def __init__(
        self, pods: Path, *, freed: Callable[[], None], proc: Path = PROC, bound_s: float = BOUND_SECONDS
    ) -> None:
        self._pods, self._proc, self._freed, self._bound_s = pods, proc, freed, bound_s
        self._left: dict[str, _Left] = {}  # by claim UID
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_over = False

    def note(self, record: Record, names: Callable[[Record], Iterable[str]]) -> None:
        """Guard what a claim has just held, as `names` tells, until its pods are known to be gone."""
        pods = tuple(self._may_live(record.allocation.get("pods") or ()))
        guarded = frozenset(names(record)) if pods else frozenset()
        if not guarded:
            return
        with self._changed:
            self._left[record.uid] = _Left(record, guarded, pods, time.monotonic() + self._bound_s)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="survivors", daemon=True)
                self._thread.start()
            self._changed.notify()

    def rivals(self, uid: str, names: Collection[str]) -> tuple[Rival, ...]:
        """Give the earlier claims whose pods may still use what this claim wants."""
        if not self._left:
            return ()
        with self._changed:
            now = time.monotonic()
            others = [left for left in self._left.values() if left.record.uid != uid and now < left.until]
        return tuple(
            Rival(name, left.record, left.pods) for left in others for name in sorted(left.names.intersection(names))
        )

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._is_over = True
            self._changed.notify()

    def _may_live(self, uids: Iterable[object]) -> Iterator[str]:
        """Give the pods that the kubelet still has a folder of; all of them where its folders can't be seen."""
        for uid in map(str, uids):
            if uid and "/" not in uid and ((self._pods / uid).exists() or not self._pods.is_dir()):
                yield uid

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._is_over:
                    return
                if not self._left:
                    self._changed.wait()
                    continue
                looked_at = list(self._left.values())
            try:
                living = pods_with_processes({uid for left in looked_at for uid in left.pods}, self._proc)
            except OSError as error:
                log.warning("can't tell whose containers still run", extra=fields(err=str(error)))
                living = frozenset()
            self._judge(looked_at, living)
            with self._changed:
                if any(left.is_known for left in self._left.values()) and not self._is_over:
                    self._changed.wait(LOOK_SECONDS)

    def _judge(self, looked_at: Iterable[_Left], living: frozenset[str]) -> None:
        for left in looked_at:
            alive = living.intersection(left.pods)
            record = {"claim": left.record.full_name, "claim_uid": left.record.uid}
            if alive and time.monotonic() < left.until:
                if not left.is_known:
                    left.is_known = True
                    log.warning("claim unprepared while its pod still runs", extra=fields(holder=min(alive), **record))
                continue
            if alive:
                log.warning("device given on although a pod still runs", extra=fields(holder=min(alive), **record))
            elif left.is_known:
                log.info("the pod of an unprepared claim has ended", extra=fields(**record))
            with self._changed:
                if self._left.get(left.record.uid) is left:
                    del self._left[left.record.uid]
            self._freed()


def pods_with_processes(uids: Collection[str], proc: Path = PROC) -> frozenset[str]:
    """Name the pods of which a process lives. One process of each mount namespace is looked at. Raises: OSError."""
    found: set[str] = set()
    seen: set[str] = set()
    for process in proc.iterdir():
        if not process.name.isdigit():
            continue
        try:
            namespace, mounts = _view(process, seen)
        except OSError:  # it has ended; a zombie has no mounts either
            continue
        if namespace in seen:
            continue
        if namespace and mounts:
            seen.add(namespace)
        if b"/pods/" in mounts:
            found.update(_sources(mounts, uids))
    return frozenset(found)


def _view(process: Path, seen: Collection[str]) -> tuple[str, bytes]:
    """Read the mount namespace of one process and the first of its mounts: a container may have made many more.

    Both are read through one descriptor, so that no other process under the same number comes between. Raises: OSError.
    """
    fd = os.open(process, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            namespace = os.readlink("ns/mnt", dir_fd=fd)
        except OSError:
            namespace = ""
        if namespace in seen:
            return namespace, b""
        with os.fdopen(os.open("mountinfo", os.O_RDONLY | os.O_CLOEXEC, dir_fd=fd), "rb") as file:
            return namespace, file.read(_MOUNTS_BYTES)
    finally:
        os.close(fd)


def _sources(mounts: bytes, uids: Collection[str]) -> Iterator[str]:
    """Return the pods from whose folder a mount comes.

    Where the mount point names the pod too, it is the kubelet's own view of its volumes, or that of somebody who has
    mounted the kubelet's folder. Only the first pod that the source names counts: what follows is a pod's own choice,
    in a volume of its own.
    """
    for line in mounts.decode(errors="replace").splitlines():
        columns = line.split(" ", 5)
        first = _POD.search(columns[3]) if len(columns) == 6 else None
        if first and first[1] in uids and first[1] not in columns[4]:
            yield first[1]
