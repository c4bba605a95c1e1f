"""The profiles of a model, and the fraction of the GPU that each has; for advice, and for series without that fraction.

In: a model as NVML names it. Out: its profiles, from the data of the models that ship with the simulator; nothing for
any other model.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from dra_driver.hardware.simulated.models import Model, model_names, read_model

WHOLE = "gpu"
SHARE = "-share"


@dataclass(frozen=True, slots=True)
class ProfileSize:
    """What a device of a profile has: memory in bytes, and its fractions of the multiprocessors and of the GPU."""

    name: str
    memory_bytes: int
    sm_part: float
    gpu_part: float


@cache
def profiles_of(model: str) -> tuple[ProfileSize, ...]:
    """Return the sizes of a model's partitions, the smallest part of a GPU first and the whole GPU last."""
    known = _models().get(model)
    if known is None or known.memory_mib is None:
        return ()
    whole = ProfileSize(WHOLE, known.memory_mib << 20, 1.0, 1.0)
    return (*sorted(_of_table(known), key=lambda one: (one.gpu_part, one.memory_bytes, one.sm_part)), whole)


def size_of(model: str, profile: str) -> ProfileSize | None:
    """Return the size of a device of a profile; None if it is not known. Shares are as large as their device."""
    name = profile.removesuffix(SHARE)
    return next((one for one in profiles_of(model) if one.name == name), None)


def gpu_part_of(model: str, profile: str) -> float:
    """Return the fraction of a GPU that a device takes; 1 if that is not known."""
    size = size_of(model, profile)
    return size.gpu_part if size is not None else 1.0


def _of_table(model: Model) -> list[ProfileSize]:
    table = model.mig
    if table is None:
        return []
    found = []
    for one in table.profiles:
        # Profiles with other media engines or graphics are not proposed.
        if "+" in one.name or "-" in one.name or one.memory_mib is None:
            continue
        memory, compute = one.memory_slices / table.memory_slices, one.compute_slices / table.compute_slices
        sms = one.multiprocessors / model.multiprocessors if one.multiprocessors and model.multiprocessors else compute
        found.append(ProfileSize(one.name, one.memory_mib << 20, sms, max(memory, compute)))
    return found


@cache
def _models() -> dict[str, Model]:
    faults: list[str] = []
    models = (read_model(name, faults) for name in model_names())
    return {one.product_name: one for one in models}
