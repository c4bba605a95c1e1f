"""A whole plugin over simulated GPUs that are really partitioned: partitions are in a file and outlive the agent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dra_driver.base.machine import Deadline
from dra_driver.hardware.facts import PartitionFacts
from dra_driver.hardware.port import Roots
from dra_driver.hardware.simulated import SimulatedHardware
from dra_driver.node.devices.build import build_inventory
from dra_driver.node.devices.partitions import MigPolicy
from dra_driver.node.prepare.steps.standing_partitions import PartitionOwners
from tests.support.plugin.parts import Rig

WHOLE = "gpu-0000-01-00-0"
OTHER = "gpu-0000-02-00-0"


def small(start: int, gpu: str = WHOLE) -> str:
    """Return the name of a 1g.10gb partition."""
    return f"{gpu}-mig-1g10gb-19-{start}"


def large(start: int, gpu: str = WHOLE) -> str:
    """Return the name of a 3g.40gb partition."""
    return f"{gpu}-mig-3g40gb-9-{start}"


class MigRig(Rig):
    """H100 that Prepare may partition, two of them.

    `profile_fields` are those of the first one's entry in the profile.
    """

    def __init__(self, root: Path, model: str = "h100-sxm5-80gb", *, count: int = 2, **profile_fields: Any) -> None:
        self.model, self.fields, self.count = model, profile_fields, count
        self.proc = root / "proc"
        (self.proc / "sys/kernel/random").mkdir(parents=True, exist_ok=True)
        super().__init__(root)

    every: dict[str, Any] = {}  # noqa: RUF012 - fields of all GPUs, set by a test before `write_profile`

    def restart(self):
        (self.proc / "sys/kernel/random/boot_id").write_text(self.boot_id)
        self.write_profile()
        self.data.mkdir(parents=True, exist_ok=True)
        self.hardware = SimulatedHardware(
            str(self.root / "profile.yaml"), Roots(proc=str(self.proc)), node_name="n1", state_dir=self.data
        )
        preparer = super().restart()
        self.owners = PartitionOwners(self.hardware, self.ledger, self.locks, self.boot_id)
        self.scan()
        return preparer

    def write_profile(self) -> None:
        first = {"pci": "0000:01:00.0", **self.fields}
        gpus = [first, *({"pci": f"0000:{index:02x}:00.0"} for index in range(2, self.count + 1))]
        document = {
            "about": "two GPUs to cut",
            "nodeName": "n1",
            "lookedUp": "2026-11-21",
            "sources": ["made up"],
            "driverVersion": "580.126.20",
            "cudaDriverVersion": "13.0",
            "gpuDefaults": {"model": self.model, **self.every},
            "gpus": gpus,
        }
        (self.root / "profile.yaml").write_text(json.dumps(document))

    def scan(self) -> None:
        """Scan, as the agent's scanner does."""
        facts, ownership = self.owners.determine(self.hardware.discover())
        self.inventory = build_inventory(facts, MigPolicy(is_dynamic=True, ownership=ownership))

    def gpu(self, index: int = 0):
        return self.hardware.discover().gpus[index]

    def partitions(self, index: int = 0) -> list[PartitionFacts]:
        return list(self.gpu(index).partitions)

    def partitions_made(self) -> list[tuple[int, str, int]]:
        """Return every partition there is: GPU, profile, start."""
        return [(i, p.profile, p.start) for i in range(self.count) for p in self.partitions(i)]

    def modes(self) -> list[bool]:
        return [g.mig_enabled for g in self.hardware.discover().gpus]

    def by_hand(self, name: str, start: int, index: int = 0) -> PartitionFacts:
        """Make a partition as an administrator does."""
        gpu = self.gpu(index)
        self.hardware.set_mig_mode(gpu, True, 5)
        profile = next(p for p in gpu.mig_profiles if p.name == name)
        return self.hardware.create_partition(self.gpu(index), profile, start, 5).facts

    def names(self, gpu: str = WHOLE) -> list[str]:
        self.scan()
        return [d.name for d in self.inventory.devices if d.name.startswith(gpu)]

    def now_prepare(self, uid: str, *devices: str, seconds: float | None = None, **more: Any):
        self.allocate(uid, *devices, **more)
        return self.prepare(uid, seconds)

    def assert_untouched(self) -> None:
        """Check that nothing of this driver is left: no partition, no mode, no file, no record."""
        self.assert_empty()
        assert self.partitions_made() == []
        assert not any(self.modes())
        assert self.ledger.modes(self.boot_id) == frozenset()

    def soon(self, seconds: float = 5.0) -> Deadline:
        return Deadline.after(seconds)
