"""The program that tests an NVIDIA device, with the libraries of the driver root.

libcuda is found in the same way as NVML. The libraries that it loads by name later are loaded before it from the same
folder, because LD_LIBRARY_PATH would mix the driver root's C library with this process's own.
"""

from __future__ import annotations

import os
from pathlib import Path

from dra_driver.hardware.compute.program import ComputeProgram
from dra_driver.hardware.facts import GpuFacts, PartitionFacts
from dra_driver.hardware.nvidia import library
from dra_driver.hardware.port import Roots

SONAME = "libcuda.so.1"
# Source: the driver's README, "Installed Components": what compiles PTX.
_HELPERS = ("libnvidia-gpucomp.so.*", "libnvidia-nvvm.so.4", "libnvidia-ptxjitcompiler.so.1")
_NO_MPS = "/nonexistent"  # otherwise the test would become a client of an MPS daemon that runs on the host


def cuda_program(roots: Roots, gpu: GpuFacts, partition: PartitionFacts | None, *, is_thorough: bool) -> ComputeProgram:
    """Return the program that tests a device."""
    found = list(library.candidates(roots, SONAME))
    request = {
        "candidates": found,
        "helpers": _helpers(found[0]),
        "pci": gpu.pci_address,
        "is_thorough": is_thorough,
    }
    return ComputeProgram("dra_driver.hardware.compute.cuda_child", request, _environment((partition or gpu).uuid))


def _helpers(path: str) -> list[str]:
    folder = Path(path).parent
    return [str(one) for name in _HELPERS for one in sorted(folder.glob(name))] if "/" in path else []


def _environment(uuid: str) -> dict[str, str]:
    inherited = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    return {
        "CUDA_VISIBLE_DEVICES": uuid,
        "CUDA_CACHE_DISABLE": "1",
        "CUDA_MODULE_LOADING": "LAZY",
        "CUDA_MPS_PIPE_DIRECTORY": _NO_MPS,
        "LC_ALL": "C.UTF-8",
        **inherited,
    }
