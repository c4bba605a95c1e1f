"""Families of NVIDIA's GPUs, as GPU feature discovery names them."""

from __future__ import annotations

from dra_driver.hardware.nvidia.facts import NvidiaGpu

_FAMILIES = {
    "kepler",
    "maxwell",
    "pascal",
    "volta",
    "turing",
    "ampere",
    "ada-lovelace",
    "hopper",
    "blackwell",
    "rubin",
}


def family(gpu: NvidiaGpu) -> str | None:
    """Return the GPU's family as GPU feature discovery names it, or None where it has no name for it.

    Source: label nvidia.com/gpu.family, which is derived from the compute capability; the architecture determines the
    same families and more.
    """
    word = (gpu.architecture or "").lower().replace(" ", "-")
    if word in _FAMILIES:
        return word
    major, _, rest = (gpu.compute_capability or "").partition(".")
    minor = rest.partition(".")[0]
    if not (major.isdecimal() and minor.isdecimal()):
        return None
    if int(major) == 7:
        return "volta" if int(minor) < 5 else "turing"
    if int(major) == 8:
        return "ampere" if int(minor) < 9 else "ada-lovelace"
    return {3: "kepler", 5: "maxwell", 6: "pascal", 9: "hopper", 10: "blackwell", 12: "blackwell"}.get(int(major))
