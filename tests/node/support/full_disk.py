"""A plugin on a disk that is full."""

from pathlib import Path

import pytest

from tests.support.plugin.parts import Rig
from tests.support.small_disk import fill


class Disk:
    """The plugin's data folder on a small file system of its own; everything else is elsewhere."""

    def __init__(self, rig: Rig, disk: Path) -> None:
        self.rig, self.disk = rig, disk
        self.ballast: Path | None = None

    def fill(self) -> None:
        self.ballast = fill(self.disk)
        with pytest.raises(OSError, match="space"):
            (self.disk / "one-more").write_bytes(b"x" * 5000)
        (self.disk / "one-more").unlink()

    def free(self) -> None:
        assert self.ballast is not None
        self.ballast.unlink()

    def restart(self, *, is_killed: bool = False) -> None:
        if not is_killed:
            self.rig.ledger.close()
        self.rig.restart()


def on_disk(rig: Rig, disk: Path) -> Disk:
    rig.ledger.close()
    for path in rig.data.iterdir():
        path.unlink()
    rig.data.rmdir()
    rig.data.symlink_to(disk)
    rig.restart()
    return Disk(rig, disk)
