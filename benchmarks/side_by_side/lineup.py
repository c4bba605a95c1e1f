"""Lineup: the drivers of a run, each on a simulated node of its own."""

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.side_by_side.driver import OURS, THEIRS, Driver
from cluster.components.parts import FLOOR
from cluster.machines.nvml_machine import NvmlMachine
from dra_driver.base.wire import Wire
from dra_driver.simulator.kubelet import EmbeddedPodResources

SHARING = """version: rules/v1
rules:
  - name: replicas
    match: {types: [gpu]}
    replicas: 4
"""


def whole(devices: list[Wire]) -> list[str]:
    return [d["name"] for d in devices if d.get("attributes", {}).get("type", {}).get("string") != "mig"]


def standing(devices: list[Wire]) -> list[str]:
    return [d["name"] for d in devices if d["attributes"]["type"]["string"] == "mig"][:8]


def on_demand(devices: list[Wire]) -> list[str]:
    """Return the names of a placement of one profile on each GPU."""
    names = sorted(d["name"] for d in devices if d["name"].endswith("-mig-1g10gb-19-0"))
    return names[:8]


def drivers(folder: Path, kubeconfig: Path, only: Sequence[str]) -> list[Driver]:
    """Return the drivers of a run, the Go plugin first."""
    profile = folder / "cut.yaml"
    _write_cut_profile(profile)
    sharing = folder / "sharing.yaml"
    sharing.write_text(SHARING)
    place = _Places(folder, kubeconfig)
    made = [place.floor()]
    ours = {
        "whole": ("simulated:dgx-h100", ["--mig", "static"], whole),
        "static partitions": (f"simulated:{profile}", ["--mig", "static"], standing),
        "partitions on demand": ("simulated:dgx-h100", ["--mig", "dynamic"], on_demand),
        "shares": ("simulated:dgx-h100", ["--mig", "static", "--sharing-config", str(sharing)], whole),
    }
    for name, (hardware, flags, devices) in ours.items():
        made.append(place.ours(f"ours {name}", hardware, flags, devices))
    for name, flags, devices in (
        ("whole, fake NVML", ["--mig", "static"], whole),
        ("on demand, fake NVML", ["--mig", "dynamic"], on_demand),
    ):
        driver = place.ours(f"ours {name}", "nvidia", flags, devices)
        machine = _unpartitioned_machine(_in_memory(driver.folder / "machine"))
        driver.argv += machine.flags
        driver.environment = machine.environment
        made.append(driver)
    return [driver for driver in made if not only or driver is made[0] or any(word in driver.name for word in only)]


def _in_memory(place: Path) -> Path:
    """Make a folder in memory, with a link at `place`. What a GPU does costs no write to a disk."""
    place.symlink_to(Path(tempfile.mkdtemp(prefix="drab", dir="/dev/shm")))
    return place


def _unpartitioned_machine(folder: Path) -> NvmlMachine:
    """Return eight whole GPUs over the fake library; the kernel lists every GPU instance that may be made of them."""
    machine = NvmlMachine(folder, partitioned=())
    for gpu in machine.state.gpus:
        for instance in range(1, 15):
            capability = 100 * (gpu.minor + 1) + 2 * instance
            machine.node.add_mig_capability(gpu.minor, instance, capability, {0: capability + 1})
    return machine


def _write_cut_profile(path: Path) -> None:
    gpus = [
        {
            "pci": f"0000:{index + 1:02x}:00.0",
            "pcieRoot": "pci0000:00",
            "numaNode": 0,
            "mig": [{"profile": "1g.10gb", "start": start} for start in range(7)],
        }
        for index in range(2)
    ]
    document = {
        "about": "two GPUs in seven partitions each for a measurement",
        "nodeName": "bench",
        "lookedUp": "2026-11-21",
        "sources": ["made up"],
        "driverVersion": "580.126.20",
        "cudaDriverVersion": "13.0",
        "gpuDefaults": {"model": "h100-sxm5-80gb", "nvlinkGroup": "nvswitch"},
        "gpus": gpus,
    }
    path.write_text(json.dumps(document))


@dataclass(frozen=True)
class _Places:
    """The separate node of each driver: its folders below one root, and the shared kubeconfig."""

    folder: Path
    kubeconfig: Path

    def _make(self, name: str) -> Path:
        place = self.folder / name.replace(",", "").replace(" ", "-").lower()
        for part in ("registry", "plugins"):
            (place / part).mkdir(parents=True)
        _in_memory(place / "cdi")  # /var/run/cdi is a tmpfs on a node
        return place

    def floor(self) -> Driver:
        place = self._make("floor")
        argv = [str(FLOOR.path / "floor"), "--node-name", place.name, "--kubeconfig", str(self.kubeconfig)]
        argv += ["--registry", f"{place}/registry", "--plugins", f"{place}/plugins", "--cdi", f"{place}/cdi"]
        return Driver("floor (Go)", THEIRS, argv, place, whole)

    def ours(self, name: str, hardware: str, flags: list[str], devices: Callable[[list[Wire]], list[str]]) -> Driver:
        place = self._make(name)
        argv = [sys.executable, "-m", "dra_driver", "agent", "--node-name", place.name, "--hardware", hardware]
        argv += ["--kubeconfig", str(self.kubeconfig), "--cdi-root", f"{place}/cdi"]
        argv += ["--metrics-address", "127.0.0.1:0", "--kubelet-registrar-directory-path", f"{place}/registry"]
        argv += ["--kubelet-plugins-directory-path", f"{place}/plugins", *flags]
        return Driver(name, OURS, argv, place, devices, kubelet=_kubelet(place))


def _kubelet(folder: Path) -> EmbeddedPodResources:
    """Answer as a kubelet without pods: this driver asks it at the start which claims are held."""
    made = EmbeddedPodResources(folder / "pod-resources/kubelet.sock", pods=list, allocatable=dict)
    made.start()
    return made
