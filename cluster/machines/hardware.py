"""The machine under an agent, of two kinds: the simulated demo machine, and one like it over a fake NVIDIA library.

In: the kind, a folder. Out: what `Agent` is started with. This machine's own hardware is never used.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml

from cluster.cluster import REPOSITORY
from cluster.machines.nvml_machine import PROFILE, STARTS, NvmlMachine

PROFILES = REPOSITORY / "dra_driver/hardware/simulated/profiles"
SIMULATED, NVML = KINDS = ("simulated", "nvml")


def machine(
    kind: str, folder: Path, *, partitioned: Collection[int] | None = None, cuda: tuple[int, int] = (13, 0)
) -> dict[str, Any]:
    """Make a machine with eight H100 in `folder`; return the agent's options that select it.

    `partitioned` are the GPUs that are divided into seven partitions each (two by default); `cuda` is an attribute that
    distinguishes two otherwise equal machines.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if kind == NVML:
        made = NvmlMachine(folder, partitioned=partitioned, cuda=cuda)
        return {"hardware": "nvidia", "flags": made.flags, "environment": made.environment}
    content = yaml.safe_load((PROFILES / "demo-h100.yaml").read_text())
    content["cudaDriverVersion"] = f"{cuda[0]}.{cuda[1]}"
    if partitioned is not None:
        parts = [{"profile": PROFILE, "start": start} for start in STARTS]
        whole = [{key: value for key, value in gpu.items() if key != "mig"} for gpu in content["gpus"]]
        content["gpus"] = [gpu | ({"mig": parts} if place in partitioned else {}) for place, gpu in enumerate(whole)]
    path = folder / "machine.yaml"
    path.write_text(yaml.safe_dump(content))
    return {"hardware": f"simulated:{path}"}
