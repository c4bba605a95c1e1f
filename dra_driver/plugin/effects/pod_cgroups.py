"""Pod cgroups: the cgroup of each pod on this node, found by its name below the kubelet's own cgroup.

In: the root folder of all cgroups, UIDs of pods. Out: folders. The kubelet makes a pod's cgroup before it calls Prepare
for the pod's claims, and all containers of the pod are below it. Nothing is changed here.
Source: Kubernetes kubelet, cm/pod_container_manager_linux.go, cm/cgroup_manager_linux.go (names with either driver).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

_ROOT = re.compile(r"(.*-)?kubepods(\.slice)?")
_QOS = re.compile(r"(.*-)?(kubepods-)?(burstable|besteffort)(\.slice)?")
_POD = re.compile(r"(?:.*-)?pod(?P<uid>[0-9a-fA-F]{8}([-_][0-9a-fA-F]{4}){3}[-_][0-9a-fA-F]{12})(\.slice)?")
_DEPTH = 4  # how many levels below the root are searched for the kubelet's cgroup, whose place is configurable


class PodCgroups:
    """The cgroups below `root`, which are read again in each call."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._kubepods: tuple[Path, ...] = ()

    def of(self, uids: Iterable[str]) -> dict[str, str]:
        """Return the folders of those pods that have one, by UID."""
        found = self.all()
        return {uid: found[uid] for uid in uids if uid in found}

    def all(self) -> dict[str, str]:
        """Return the folders of all pods, by UID."""
        if not self._kubepods or not all(path.is_dir() for path in self._kubepods):
            self._kubepods = tuple(_roots(self._root, _DEPTH))
        folders = [
            one for root in self._kubepods for one in (root, *(p for p in _below(root) if _QOS.fullmatch(p.name)))
        ]
        named = ((_POD.fullmatch(path.name), path) for folder in folders for path in _below(folder))
        return {match["uid"].replace("_", "-"): str(path) for match, path in named if match}


def _roots(folder: Path, depth: int) -> Iterator[Path]:
    """Yield the kubelet's cgroups: normally one, but more if a kubelet in a container runs beside the node's own."""
    for path in _below(folder):
        if _ROOT.fullmatch(path.name):
            yield path
        elif depth > 1:
            yield from _roots(path, depth - 1)


def _below(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [Path(entry) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:  # the cgroup was removed while it was being read
        return []
