"""A GPU whose claims may keep to a part of its compute units, on a whole plugin; what their containers get."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from dra_driver.hardware.amd.hardware import compute_unit_edits
from dra_driver.node.ledger.recorded_steps import RecordedComputeUnits
from tests.support.plugin.sharing_parts import SharingRig

DRIVER_GROUP = "gpu.resource.amd.com/v1alpha1"
TOTAL = 20


class UnitsRig(SharingRig):
    """A GPU of 20 compute units in four replicas. `architecture` decides whether it takes them in pairs."""

    architecture = "gfx942"
    driver = "gpu.amd.com"

    def restart(self):
        preparer = super().restart()
        self.hardware.compute_unit_edits = compute_unit_edits
        return preparer

    def scan(self) -> None:
        super().scan()
        more = {
            "capacity": {"memory": 1 << 30, "computeUnits": TOTAL},
            "attributes": {"architecture": self.architecture},
        }
        hidden = tuple(replace(device, **more) for device in self.inventory.hidden)  # type: ignore[arg-type]
        self.inventory = replace(self.inventory, hidden=hidden)

    def ask(self, uid: str, device: str, count: int) -> None:
        parameters = {"apiVersion": DRIVER_GROUP, "kind": "GpuConfig", "computeUnits": {"count": count}}
        opaque = {"driver": self.driver, "parameters": parameters}
        self.allocate(uid, device, configs=({"source": "FromClaim", "requests": [], "opaque": opaque},))

    def masks(self) -> dict[str, str]:
        """Return the variable of each claim's file, "" where there is none."""
        found = {}
        for path in self.cdi.glob("*.json"):
            document: dict[str, Any] = json.loads(path.read_text())
            env = [line for one in document["devices"] for line in one["containerEdits"].get("env", ())]
            mask = next((line for line in env if line.startswith("HSA_CU_MASK=")), "")
            found[path.stem.rpartition("_")[2]] = mask.removeprefix("HSA_CU_MASK=")
        return found

    def units(self) -> dict[str, set[int]]:
        records = self.ledger.with_step(RecordedComputeUnits)
        return {one.uid: {unit for s in one.steps_of(RecordedComputeUnits) for unit in s.units} for one in records}
