"""Hardware for a node's agent: the real NVIDIA vendor over a fake library, with eight H100, two of them in MIG mode.

In: a folder. Out: flags and environment for the agent, and the machine's state, which scenarios change while it runs.
Every device node is the null device, so that containers can open it.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from tests.support.fake_nvml import Gpu, State, build, environment, hgx_h100
from tests.support.nodes.driver_root import FakeDriverRoot
from tests.support.nodes.fake_node import FakeNode

PARTITIONED = (0, 1)
PROFILE, STARTS = "1g.10gb", range(7)


class NvmlMachine:
    """A fake node, driver root and library in `folder`; change `state` or `node`, then `write`."""

    def __init__(
        self, folder: Path, *, partitioned: Collection[int] | None = None, cuda: tuple[int, int] = (13, 0)
    ) -> None:
        self.folder = folder
        # In a folder of its own: a change of a GPU changes no folder above the driver root.
        self._state_file = folder / "gpus" / "state"
        self._state_file.parent.mkdir(parents=True, exist_ok=True)
        self.driver_root = FakeDriverRoot(folder / "driver")
        self.node = FakeNode(folder / "machine", null_nodes=True)
        self.node.load_driver()
        self.library = build(folder / "lib")
        self.state = State(gpus=hgx_h100(8), cuda_version=1000 * cuda[0] + 10 * cuda[1])
        for gpu in self.state.gpus:
            self.node.add_gpu(gpu.pci, gpu.minor)
        for index in PARTITIONED if partitioned is None else partitioned:
            self._cut(self.state.gpus[index])
        self.write()

    @property
    def flags(self) -> list[str]:
        """Return the agent's flags that select this machine instead of the real one."""
        roots = self.node.roots
        return [
            *("--sysfs-root", roots.sys, "--proc-root", roots.proc, "--dev-root", roots.dev),
            *("--nvidia-driver-root", str(self.driver_root.mount)),
        ]

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment in which the agent loads the fake library."""
        return environment(self.library, self._state_file)

    def write(self) -> None:
        """Write the state, so that the library sees it."""
        self.state.write(self._state_file)

    def heal(self) -> None:
        """Remove every fault."""
        self.state.faults.clear()
        for gpu in self.state.gpus:
            gpu.heal()
        self.write()

    def _cut(self, gpu: Gpu) -> None:
        for start in STARTS:
            (made,) = gpu.partition(PROFILE, start)
            capability = 100 * (gpu.minor + 1) + 2 * made.gi
            self.node.add_mig_capability(gpu.minor, made.gi, capability, {made.id: capability + 1})
