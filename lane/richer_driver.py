"""The driver with devices that need feature gates: `python richer_driver.py agent …`.

It shows what a server keeps of them.

In: the agent's command line. Out: this tree's agent; its first GPU has a taint that keeps pods away, its second GPU one
that only informs.
"""

from __future__ import annotations

import sys
from typing import Any

from dra_driver.__main__ import main
from dra_driver.controller import publisher

BLOCKED, NOTED = "gpu-0000-1b-00-0", "gpu-0000-43-00-0"
TAINT = "gpu.nvidia.com/lane"


def with_taint(device: dict[str, Any], effect: str) -> None:
    device["taints"] = [{"key": TAINT, "value": "yes", "effect": effect}]


RICHER = {
    BLOCKED: lambda device: with_taint(device, "NoSchedule"),
    NOTED: lambda device: with_taint(device, "None"),
}


def enrich() -> None:
    """Change what is passed to the publisher."""
    true = publisher.device_wire

    def device_wire(device: Any) -> Any:
        wire = true(device)
        RICHER.get(wire["name"], lambda _: None)(wire)
        return wire

    publisher.device_wire = device_wire


if __name__ == "__main__":
    enrich()
    sys.exit(main())
