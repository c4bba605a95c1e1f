"""Facts of NVIDIA GPUs for tests."""

from __future__ import annotations

from dra_driver.hardware.nvidia.published import NvidiaGpu


def nvidia_gpu(address: str, *, minor: int) -> NvidiaGpu:
    """Return the facts of a GPU, whose UUID has its address."""
    return NvidiaGpu(f"GPU-{address}", address, minor, 80 << 30)
