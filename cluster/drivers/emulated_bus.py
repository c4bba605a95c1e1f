"""The driver on a PCI bus whose kernel is emulated: `python emulated_bus.py FOLDER agent …`.

In: the folder with the bus, and the agent's command line with the roots of that folder. Out: this tree's agent, whose
writes to the files of drivers have the effect that a kernel gives them: links move, and device nodes come and go.
"""

from __future__ import annotations

import sys
from pathlib import Path

from dra_driver.__main__ import main
from dra_driver.node.daemon import passthrough
from tests.support.nodes.vendor_buses import DrmKernel

if __name__ == "__main__":
    kernel = DrmKernel(Path(sys.argv.pop(1)))
    passthrough.ChildWriter = lambda: kernel  # type: ignore[assignment,misc]
    sys.exit(main())
