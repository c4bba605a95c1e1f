"""The driver with devices that need feature gates: `python richer_driver.py agent …`. What does a server make of them?

In: the agent's command line. Out: the tree's own agent; its first three GPUs have a taint that keeps pods away, a taint
that only informs, and a memory to be shared by several claims.
"""

from __future__ import annotations

import sys
from typing import Any

from dra_driver.__main__ import main
from dra_driver.controller import publisher

BLOCKED, NOTED, SHARED = "gpu-0000-1b-00-0", "gpu-0000-43-00-0", "gpu-0000-52-00-0"
TAINT = "gpu.nvidia.com/lane"


def with_taint(device: dict[str, Any], effect: str) -> None:
    device["taints"] = [{"key": TAINT, "value": "yes", "effect": effect}]


def shared(device: dict[str, Any]) -> None:
    device["allowMultipleAllocations"] = True
    device["capacity"]["memory"]["requestPolicy"] = {"default": "1Gi", "validRange": {"min": "1Gi", "step": "1Gi"}}


RICHER = {
    BLOCKED: lambda device: with_taint(device, "NoSchedule"),
    NOTED: lambda device: with_taint(device, "None"),
    SHARED: shared,
}


def enrich() -> None:
    """Change what the publisher is given."""
    true = publisher.device_wire

    def device_wire(device: Any) -> Any:
        wire = true(device)
        RICHER.get(wire["name"], lambda _: None)(wire)
        return wire

    publisher.device_wire = device_wire


if __name__ == "__main__":
    enrich()
    sys.exit(main())
