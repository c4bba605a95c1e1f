"""A tree of cgroups with the controller for device memory, as the kernel shows it: files, and the effects of writes.

A cgroup has a file of limits while its parent passes the controller on; it loses the file, and with it the limits, when
the parent stops doing so. Writes go through `write`, which stands in for the kernel's side of write(2).
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from dra_driver.hardware import sysfs

VRAM = "drm/0000:05:00.0/vram"


class DmemTree:
    """The cgroups below `<sys>/fs/cgroup`. `regions` are sizes in bytes, by name."""

    def __init__(self, sys: Path, regions: dict[str, int], *, has_dmem: bool = True) -> None:
        self.root, self.regions = sys / "fs/cgroup", regions
        self.controllers = ["cpu", "memory", "dmem"] if has_dmem else ["cpu", "memory"]
        self.make(self.root)
        if has_dmem:
            lines = [f"{name} {size}\n" for name, size in regions.items()]
            (self.root / "dmem.capacity").write_text("".join(lines))

    def make(self, folder: Path) -> Path:
        """Make a cgroup, with those above it."""
        if folder != self.root and not folder.parent.exists():
            self.make(folder.parent)
        folder.mkdir(parents=True, exist_ok=True)
        passed = self.controllers if folder == self.root else self._words(folder.parent)
        (folder / "cgroup.controllers").write_text(" ".join(passed) + "\n")
        if not (folder / "cgroup.subtree_control").exists():
            (folder / "cgroup.subtree_control").write_text("cpu memory\n")
        self._give_limits(folder)
        return folder

    def pod(self, uid: str) -> Path:
        """Make the cgroup of a pod, as the kubelet does with systemd."""
        slice_ = "kubepods-besteffort"
        below = f"kubepods.slice/{slice_}.slice/{slice_}-pod{uid.replace('-', '_')}.slice"
        return self.make(self.root / below)

    def limits(self, cgroup: Path) -> dict[str, str]:
        """Return the limits of a cgroup, by region."""
        return dict(line.split() for line in (cgroup / "dmem.max").read_text().splitlines())

    def write(self, path: Path, text: str) -> None:
        """Do what the kernel does with a write. Raises: OSError."""
        if not path.exists():
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        if path.name == "cgroup.subtree_control":
            self._pass_on(path.parent, text.strip())
        else:
            region, amount = text.split()
            if region not in self.regions:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            self._put(path.parent, {**self.limits(path.parent), region: amount})

    def _pass_on(self, folder: Path, word: str) -> None:
        controllers = set(self._words(folder))
        if word[1:] not in (folder / "cgroup.controllers").read_text().split():
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        controllers = controllers | {word[1:]} if word[0] == "+" else controllers - {word[1:]}
        (folder / "cgroup.subtree_control").write_text(" ".join(sorted(controllers)) + "\n")
        for child in (path for path in folder.iterdir() if path.is_dir()):
            self.make(child)

    def _give_limits(self, folder: Path) -> None:
        has_own = folder != self.root and "dmem" in self._words(folder.parent)
        if not has_own:
            (folder / "dmem.max").unlink(missing_ok=True)
        elif not (folder / "dmem.max").exists():
            self._put(folder, dict.fromkeys(self.regions, "max"))

    @staticmethod
    def _put(folder: Path, limits: dict[str, str]) -> None:
        (folder / "dmem.max").write_text("".join(f"{name} {amount}\n" for name, amount in limits.items()))

    @staticmethod
    def _words(folder: Path) -> list[str]:
        return (folder / "cgroup.subtree_control").read_text().split()


def serve(tree: DmemTree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Redirect the writes of this process to the kernel's files to a tree."""
    monkeypatch.setattr(sysfs, "write_kernel_file", tree.write)
