"""Driver: one driver of the run, its process, and what was measured of it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from dra_driver.base.wire import Wire
from dra_driver.simulator.kubelet import EmbeddedPodResources
from dra_driver.simulator.plugin_watcher import Plugin

OURS, THEIRS = "gpu.nvidia.com", "floor.example.com"


@dataclass
class Driver:
    """One driver of the run: how it is started, which devices are claimed, and what was measured (seconds)."""

    name: str
    driver: str
    argv: list[str]
    folder: Path
    devices: Callable[[list[Wire]], list[str]]
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    plugin: Plugin | None = None
    names: list[str] = field(default_factory=list)
    started: float = 0.0
    figures: dict[str, list[float]] = field(default_factory=dict)
    rss: list[float] = field(default_factory=list)
    cpu: float = 0.0
    cycles: int = 0
    kubelet: EmbeddedPodResources | None = None

    @property
    def node(self) -> str:
        return self.folder.name

    def cpu_seconds(self) -> float:
        assert self.process is not None
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_mib(self) -> float:
        assert self.process is not None
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise RuntimeError("no VmRSS")

    def stop(self) -> None:
        """End the driver and its kubelet, as far as they were started."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait(20)
        if self.kubelet is not None:
            self.kubelet.stop()
