"""The container edits of an MPS client: its daemon's channel and its limits come in, edits go out. Pure.

The limits are environment variables of the client, which makes them cooperative: a client that changes its environment
gets the daemon's defaults. MPS is no security boundary. All these names are the same for each daemon, because CUDA
knows no others: a container has one daemon, and nothing but a claim under MPS may use the names.
Source: NVIDIA, "Multi-Process Service" (environment variables, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT's form).
"""

from __future__ import annotations

from dra_driver.model.edits import Edits, Mount
from dra_driver.model.sharing import ClientLimits
from dra_driver.mps.settings import MpsChannel

PIPE_FOLDER = "/tmp/nvidia-mps"  # noqa: S108 - where CUDA looks for the daemon by default
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - where client and server share files
_BIND = ("rw", "nosuid", "nodev", "noexec", "rbind", "rprivate")
_MIB = 1 << 20


def client_edits(channel: MpsChannel, limits: ClientLimits) -> Edits:
    """Return the container edits of one client. A client sees a single device, so the device's ordinal is 0."""
    env = [f"CUDA_MPS_PIPE_DIRECTORY={PIPE_FOLDER}"]
    if limits.active_thread_percentage is not None:
        env.append(f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={limits.active_thread_percentage}")
    if limits.pinned_memory_limit is not None:
        env.append(f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0={limits.pinned_memory_limit // _MIB}M")
    mounts = (Mount(channel.pipe_dir, PIPE_FOLDER, _BIND), Mount(channel.shm_dir, SHARED_MEMORY, _BIND))
    return Edits(mounts=mounts, env=tuple(env))
