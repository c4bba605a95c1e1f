"""Names for NVML's numbers, as NVIDIA's DRA driver publishes them, and MIG profile names.

Pure. Claims written for NVIDIA's driver compare with these names, so they are that driver's and not those of nvml.h.
"""

from __future__ import annotations

import math
import re

from dra_driver.model.semver import Semver, SemverError, normalize

UNKNOWN = "Unknown"

BRANDS = {
    0: UNKNOWN,
    1: "Quadro",
    2: "Tesla",
    3: "NVS",
    4: "Grid",
    5: "GeForce",
    6: "Titan",
    7: "NvidiaVApps",
    8: "NvidiaVPC",
    9: "NvidiaVCS",
    10: "NvidiaVWS",
    11: "NvidiaCloudGaming",
    12: "QuadroRTX",
    13: "NvidiaRTX",
    14: "Nvidia",
    15: "GeForceRTX",
    16: "TitanRTX",
}

ARCHITECTURES = {
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada Lovelace",
    9: "Hopper",
    10: "Blackwell",
    13: "Rubin",
}

ADDRESSING_MODES = {0: "None", 1: "HMM", 2: "ATS"}

# Those NVML_GPU_INSTANCE_PROFILE_* whose instances differ from the plain profile of the same size.
PROFILE_SUFFIXES = {
    7: "+me",  # 1_SLICE_REV1
    8: "+me",  # 2_SLICE_REV1
    10: "+gfx",  # 1_SLICE_GFX
    11: "+gfx",  # 2_SLICE_GFX
    12: "+gfx",  # 4_SLICE_GFX
    13: "-me",  # 1_SLICE_NO_ME
    14: "-me",  # 2_SLICE_NO_ME
    15: "+me.all",  # 1_SLICE_ALL_ME
    16: "+me.all",  # 2_SLICE_ALL_ME
    17: "+gfx",  # 3_SLICE_GFX
}

_PROFILE = re.compile(r"MIG ((?:\d+c\.)?\d+g\.\d+gb(?:[+-][a-z.]+)?)$")
_EIGHTHS = 8
_GIB = 2**30
_MIB = 2**20


def strict_version(text: str) -> str | None:
    """Return a driver's version as strict semver, or None when it can't be read as one.

    >>> strict_version("580.65.06")
    '580.65.6'
    """
    try:
        return str(Semver.parse(normalize(text.strip())))
    except SemverError:
        return None


def cuda_version(number: int) -> str:
    """Return CUDA's version number as strict semver.

    >>> cuda_version(12040)
    '12.4.0'
    """
    return f"{number // 1000}.{number % 1000 // 10}.0"


def profile_name(
    *, gi_slices: int, ci_slices: int, constant: int, memory_mib: int, gpu_memory_bytes: int
) -> str | None:
    """Return the name of a MIG profile, `[Cc.]Gg.Mgb[suffix]`, or None when the numbers allow no name.

    The memory figure is the instance's share of the GPU in eighths, rounded up, of the GPU's whole GiB.
    Source: the name as NVIDIA's tools print it; the rounding is that of NVIDIA's Go library.

    >>> profile_name(gi_slices=1, ci_slices=1, constant=7, memory_mib=9984, gpu_memory_bytes=81559 * 2**20)
    '1g.10gb+me'
    """
    if min(gi_slices, ci_slices, memory_mib, gpu_memory_bytes) <= 0:
        return None
    share = math.ceil(memory_mib * _MIB / gpu_memory_bytes * _EIGHTHS) / _EIGHTHS
    gigabytes = math.floor(share * -(-gpu_memory_bytes // _GIB) + 0.5)
    compute = f"{ci_slices}c." if ci_slices != gi_slices else ""
    return f"{compute}{gi_slices}g.{gigabytes}gb{PROFILE_SUFFIXES.get(constant, '')}"


def profile_in_name(device_name: str) -> str | None:
    """Return the profile at the end of a MIG device's product name.

    >>> profile_in_name("NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb")
    '1c.3g.20gb'
    """
    match = _PROFILE.search(device_name)
    return match.group(1) if match else None
