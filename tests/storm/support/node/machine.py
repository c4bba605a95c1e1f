"""The machine under a storm's agents: four simulated GPUs, the files that people change, and the hardware's own state.

In: faults, cordons, geometries, rules. Out: files as an administrator or a fault would change them, and what the
hardware says of itself: which partitions exist, which driver has a GPU, when each GPU was reset. A GPU's time slice
and its partitions are read from the files of the simulated hardware, as a person would ask nvidia-smi.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dra_driver.base.machine import read_boot_id
from dra_driver.hardware.simulated.kernel import SimulatedKernel
from dra_driver.hardware.simulated.profile import load_profile
from dra_driver.hardware.simulated.profile_facts import facts_of
from dra_driver.hardware.simulated.state_file import StateFile
from tests.storm.support.node.agent_program import DRIVER_ROOT
from tests.storm.support.node.devices import (
    ADDRESSES,
    CUT,
    FIRST_MINOR,
    HOT,
    MAJOR,
    PASSED,
    SHARED,
    Partition,
    gpu_name,
    group_of,
)

_MODELS = {HOT: "h100-sxm5-80gb", CUT: "h100-sxm5-80gb", SHARED: "l40s", PASSED: "h100-sxm5-80gb"}
_VALUES = {"gpuPercent": 60, "powerW": "300", "graphicsRatio": "0.5", "instance": {"graphicsRatio": "0.4"}}
_H100 = 0x233010DE
NODE = "node-1"
# How long a partition takes, on demand and declared. A real one takes some tenths of a second; no call waits for those
# that are declared.
MIG_DELAY_MS, DECLARED_DELAY_MS = 20, 150
# What an administrator declares in turn: for each GPU that can be partitioned. GPU 3 is never partitioned.
_WHOLE = {"mig-enabled": False}
_GEOMETRIES: tuple[Mapping[str, int], ...] = (
    {"1g.10gb": 7},
    {"3g.40gb": 2},
    {"2g.20gb": 3},
    {"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1},
    {},
)


def _renamed(path: Path, text: str) -> None:
    """Replace a file as a whole, as people are told to."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


class Machine:
    """The hardware and its files. `data` is the plugin's folder, where the simulated hardware keeps its state."""

    def __init__(self, folder: Path, data: Path, *, is_static: bool) -> None:
        self.data, self.is_static = data, is_static
        self._profile, self._rules, self._geometry = (folder / f"{n}.yaml" for n in ("profile", "rules", "geometry"))
        self._passthrough, self._remediation = folder / "passthrough.yaml", folder / "remediation.yaml"
        self._lost: set[str] = set()
        self._returned: dict[str, float] = {}  # when a lost GPU came back, by its address, in monotonic time
        self._unique = itertools.count(30)
        self._boot_id = read_boot_id("/proc")
        self.set_health({})
        self.uuids = {gpu.pci_address: gpu.uuid for gpu in facts_of(load_profile(self._profile), NODE).gpus}
        self.set_rules(4, "Long")
        self.set_geometry(0, 1)
        _renamed(self._passthrough, f"version: passthrough/v1\ngpus:\n- devices: ['{HOT}', '{PASSED}']\n")
        # A lost GPU would wait for a reboot, which does not come, and other GPUs for it.
        policy = "weekly: {gpu: 100, node: 100}\ntries: 1\nactions: {gpu-lost: none}\n"
        _renamed(self._remediation, f"version: remediation/v1\n{policy}")
        self._make_bus()
        self._driver_root = folder / "driver"
        self._install_driver()

    def flags(self) -> list[str]:
        """Return the agent's flags that name the files."""
        words = ["--hardware", f"simulated:{self._profile}", "--sharing-config", str(self._rules)]
        words += ["--passthrough", str(self._passthrough), "--remediation-policy", str(self._remediation)]
        if self.is_static:
            words += ["--mig", "static", "--mig-geometry", "storm", "--mig-config", str(self._geometry)]
        return words

    def environment(self) -> Mapping[str, str]:
        """Return the variables that agents need."""
        return {DRIVER_ROOT: str(self._driver_root)}

    # -- what people and faults change

    def set_health(self, faults: Mapping[str, Mapping[str, Any]]) -> None:
        """Make GPUs report these sections; `lost` in one makes the GPU lost.

        A GPU comes back from that as a real one does, which needs a reset: with nothing that was set or made before.
        """
        lost = {address for address, section in faults.items() if section.get("lost")}
        for address in self._lost - lost:
            self._returned[address] = time.monotonic()
            self._forget(address)
        self._lost = lost
        gpus = []
        for minor, address in enumerate(ADDRESSES, FIRST_MINOR):
            section = dict(faults.get(address, {}))
            gpu: dict[str, Any] = {"pci": address, "minor": minor, "model": _MODELS[address]}
            gpu |= {"metering": _VALUES, "migDelayMs": DECLARED_DELAY_MS if self.is_static else MIG_DELAY_MS}
            gpu["lost"] = bool(section.pop("lost", False))
            gpu["health"] = {"recoveryAction": 0, **section}
            gpus.append(gpu)
        profile = {"about": "GPUs for a storm", "nodeName": NODE, "nodeMajor": MAJOR, "gpus": gpus}
        profile |= {"driverVersion": "580.126.20", "cudaDriverVersion": "13.0"}
        _renamed(self._profile, json.dumps(profile))

    def _forget(self, address: str) -> None:
        """Make a GPU have no partitions, no time slice and the default compute mode."""
        partitions, modes = (StateFile(self.data / f"simulated-{n}.json", self._boot_id) for n in ("mig", "modes"))
        partitions.change(address, lambda _: {})
        modes.change(self.uuids[address], lambda _: {})

    def has_returned(self, address: str, since: float) -> bool:
        """Return whether a GPU was lost and has come back since then: it has nothing that it had before."""
        return self._returned.get(address, 0.0) > since

    def may_miss(self, address: str, since: float, *, is_prepared: bool) -> bool:
        """Return whether a claim that was asked for since then may be told that its partition does not exist.

        The GPU was lost, or the claim is not prepared and the geometry declared meanwhile has no such partition.
        """
        is_declared = self.is_static and not is_prepared
        return is_declared or address in self._lost or self.has_returned(address, since)

    def unique_margin(self) -> int:
        """Return a thermal margin that no section before had, so that each fault differs from all others."""
        return 40 + next(self._unique) % 900

    def set_rules(self, replicas: int, interval: str) -> None:
        """Declare how the shared GPU is shared."""
        sharing = f"{{strategy: TimeSlicing, timeSlicingConfig: {{interval: {interval}}}}}"
        match = f'{{devices: ["{gpu_name(SHARED)}"]}}'
        rule = f"  - match: {match}\n    replicas: {replicas}\n    sharing: {sharing}\n"
        _renamed(self._rules, f"version: rules/v1\nrules:\n{rule}")

    def set_geometry(self, of_hot: int, of_cut: int) -> None:
        """Declare how the two GPUs that can be partitioned are to be partitioned."""
        entries: list[dict[str, Any]] = []
        for index, number in ((0, of_hot), (1, of_cut), (3, len(_GEOMETRIES) - 1)):
            parts = _GEOMETRIES[number % len(_GEOMETRIES)]
            wanted = {"mig-enabled": True, "mig-devices": dict(parts)} if parts else _WHOLE
            entries.append({"devices": [index], **wanted})
        _renamed(self._geometry, json.dumps({"version": "v1", "mig-configs": {"storm": entries}}))

    # -- what the hardware says

    def partitions(self) -> set[Partition]:
        """Return the partitions that exist."""
        states = self._states("simulated-mig.json")
        return {(gpu, str(name), int(start)) for gpu, state in states.items() for name, start in state.get("made", ())}

    def time_slices(self) -> int:
        """Return how many GPUs have a time slice that is not the default one."""
        return len(self._states("simulated-modes.json"))

    def resets(self) -> dict[str, str]:
        """Return for each GPU the section with which it was reset last."""
        return {gpu: str(mark["health"]) for gpu, mark in self._states("simulated-resets.json").items()}

    def driver_of(self, address: str) -> str:
        """Return the kernel driver that has a GPU, "" for none."""
        try:
            return (self._bus / "sys/bus/pci/devices" / address / "driver").readlink().name
        except OSError:
            return ""

    @property
    def _bus(self) -> Path:
        return self.data / "simulated-bus" / self._boot_id

    def _make_bus(self) -> None:
        """Put the GPUs on a bus before an agent does: a kernel has its bus before anybody asks."""
        kernel = SimulatedKernel(self._bus, MAJOR)
        kernel.add_driver("vfio-pci")
        for address in ADDRESSES:
            kernel.add_function(address, "nvidia", group_of(address), pci_id=_H100)

    def _install_driver(self) -> None:
        """Make a driver root: a library, a socket, and the folder of an MPS daemon that the host runs itself."""
        for name in ("usr/lib64/libcuda.so.580.126.20", "run/nvidia-persistenced/socket"):
            path = self._driver_root / name
            path.parent.mkdir(parents=True)
            path.touch()
        (self._driver_root / "tmp/nvidia-mps").mkdir(parents=True)

    def _states(self, name: str) -> dict[str, Any]:
        """Return the states of GPUs in a file of the simulated hardware, which is written in place under a lock."""
        path = self.data / name
        try:
            with path.with_suffix(".lock").open() as lock:
                fcntl.flock(lock, fcntl.LOCK_SH)
                text = path.read_text()
        except FileNotFoundError:
            return {}
        # A killed writer leaves the end of an earlier, longer text.
        states: dict[str, Any] = json.JSONDecoder().raw_decode(text)[0]["gpus"] if text else {}
        return states
