"""A node with GPUs of three vendors in one tree: 1 NVIDIA (behind the fake library), 2 AMD, 1 Intel."""

from __future__ import annotations

import ctypes
import os
from dataclasses import replace
from pathlib import Path

from dra_driver.hardware.port import Roots
from tests.support.fake_nvml import State, build
from tests.support.fake_nvml.machines import h100
from tests.support.nodes.amd_tree import AmdCard, AmdTree
from tests.support.nodes.fake_node import FakeNode
from tests.support.nodes.intel_tree import IntelCard, IntelTree

NVIDIA_PCI = "0000:65:00.0"
INTEL_CARD = IntelCard("0000:03:00.0", 0)
AMD_CARDS = (
    AmdCard("0000:05:00.0", number=1, render_minor=129, unique_id=0xA1, files={"gpu_busy_percent": "97"}),
    AmdCard("0000:06:00.0", number=2, render_minor=130, unique_id=0xA2),
)


class MixedNode:
    """The trees of one node below a folder: NVIDIA's GPU is at 0000:65:00.0, AMD's at 05 and 06, Intel's at 03."""

    def __init__(self, folder: Path, *, has_amd: bool = True) -> None:
        self.folder, self._state_file = folder / "node", folder / "state"
        self.nvidia = FakeNode(self.folder, null_nodes=True)
        self.amd, self.intel = AmdTree(self.folder), IntelTree(self.folder)
        build(folder / "lib")
        self.environment = {"LD_LIBRARY_PATH": str(folder / "lib"), "FAKE_NVML_STATE": str(self._state_file)}
        self.nvidia.load_driver()
        self.nvidia.add_gpu(NVIDIA_PCI, 0)
        self._gpu = h100(NVIDIA_PCI, 0)
        self._write_state()
        self.intel.add(INTEL_CARD)
        if has_amd:
            self.add_amd()

    @property
    def roots(self) -> Roots:
        return self.nvidia.roots

    def add_amd(self) -> None:
        """Add AMD's GPUs."""
        self.amd.add(*AMD_CARDS)

    def divide_amd(self) -> None:
        """Switch AMD's second GPU to two partitions, with the render nodes 130 and 131."""
        self.amd.exchange(AMD_CARDS[0], replace(AMD_CARDS[1], modes=("DPX", "NPS1"), partitions=(130, 131)))

    def undivide_amd(self) -> None:
        """Switch AMD's second GPU back."""
        self.amd.exchange(*AMD_CARDS)

    def hang_nvidia(self) -> None:
        """Let no further call of NVIDIA's library about the GPU return."""
        for call in ("nvmlDeviceGetName", "nvmlDeviceGetSerial", "nvmlDeviceGetMemoryInfo_v2"):
            self._gpu.hang(call)
        self._write_state()

    def _write_state(self) -> None:
        state = State()
        state.gpus.append(self._gpu)
        state.write(self._state_file)


class UnansweredFolder:
    """A folder from which no read returns, as from the files of a device whose driver hangs: a FUSE file system without
    a server, for as long as the context lasts. Raises: OSError where such a file system can't be mounted.
    """

    def __init__(self, path: Path) -> None:
        self._path = os.fspath(path).encode()
        self._libc = ctypes.CDLL(None, use_errno=True)

    def __enter__(self) -> UnansweredFolder:
        self._server = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self._server},rootmode=40000,user_id=0,group_id=0".encode()
        if self._libc.mount(b"unanswered", self._path, b"fuse", 0, options):
            os.close(self._server)
            raise OSError(ctypes.get_errno(), "can't mount a FUSE file system")
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._server)  # reads fail from now on
        self._libc.umount2(self._path, 2)
