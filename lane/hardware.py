"""The machine under an agent, twice: the demo machine simulated, and one like it over a fake NVIDIA library.

In: the kind, a folder. Out: what `Agent` is started with. Never: hardware of this machine.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml

from lane.cluster import REPOSITORY
from lane.nvml_machine import PROFILE, STARTS, NvmlMachine

PROFILES = REPOSITORY / "dra_driver/hardware/simulated/profiles"
SIMULATED, NVML = KINDS = ("simulated", "nvml")


def machine(
    kind: str, folder: Path, *, cut: Collection[int] | None = None, cuda: tuple[int, int] = (13, 0)
) -> dict[str, Any]:
    """Make a machine with eight H100 in `folder`; return the agent's options that put it in place.

    `cut` are the GPUs that are cut in seven parts each (two are cut, unless told otherwise); `cuda` is an attribute
    that tells two otherwise equal machines apart.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if kind == NVML:
        made = NvmlMachine(folder, cut=cut, cuda=cuda)
        return {"hardware": "nvidia", "flags": made.flags, "environment": made.environment}
    content = yaml.safe_load((PROFILES / "demo-h100.yaml").read_text())
    content["cudaDriverVersion"] = f"{cuda[0]}.{cuda[1]}"
    if cut is not None:
        parts = [{"profile": PROFILE, "start": start} for start in STARTS]
        whole = [{key: value for key, value in gpu.items() if key != "mig"} for gpu in content["gpus"]]
        content["gpus"] = [gpu | ({"mig": parts} if place in cut else {}) for place, gpu in enumerate(whole)]
    path = folder / "machine.yaml"
    path.write_text(yaml.safe_dump(content))
    return {"hardware": f"simulated:{path}"}
