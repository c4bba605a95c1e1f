"""The driver with devices that need feature gates: `python richer_driver.py agent …`.

It shows what a server keeps of them.

In: the agent's command line. Out: this tree's agent; its first GPU has a taint that keeps pods away, its second GPU one
that only informs.
"""

from __future__ import annotations

import sys
from typing import Any

from dra_driver.__main__ import main
from dra_driver.base.wire import DeviceTaint, TaintEffect
from dra_driver.node.daemon.offer import NodeOffer

BLOCKED, NOTED = "gpu-0000-1b-00-0", "gpu-0000-43-00-0"
TAINT = "gpu.nvidia.com/lane"


TAINTS = {
    BLOCKED: (DeviceTaint(TAINT, "yes", TaintEffect.NO_SCHEDULE),),
    NOTED: (DeviceTaint(TAINT, "yes", TaintEffect.NONE),),
}


def enrich() -> None:
    """Taint the devices from the start, as health does when it finds a fault; health itself is off."""
    true = NodeOffer.__init__

    def made(self: NodeOffer, *arguments: Any, **options: Any) -> None:
        true(self, *arguments, **options)
        self.taint(TAINTS)

    NodeOffer.__init__ = made  # type: ignore[method-assign]


if __name__ == "__main__":
    enrich()
    sys.argv += ["--health", "off"]
    sys.exit(main())
