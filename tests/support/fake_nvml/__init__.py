"""A fake libnvidia-ml.so.1: built from `nvml.c`, driven by a state file, used by environment alone.

    library = build(folder)                          # folder/libnvidia-ml.so.1, or skips the test without a compiler
    state = State(gpus=[h100("0000:65:00.0", 0)])
    state.write(path)
    environment = {"LD_LIBRARY_PATH": str(folder), "FAKE_NVML_STATE": str(path)}

Change `state` and write it again: the library reads the file anew at its next call, in every process that uses it. MIG
mode and instances that the library makes go into the same file: `state.read()` takes them over, `with state.change():`
does so and writes what the test changes, with nothing lost in between.
"""

from tests.support.fake_nvml.library import build, environment
from tests.support.fake_nvml.machines import a100_40, gb200, h100, hgx_h100, l40s, nvl72_tray, t4
from tests.support.fake_nvml.state import MIG_STEPS, Code, Gpu, Profile, State

__all__ = [
    "MIG_STEPS",
    "Code",
    "Gpu",
    "Profile",
    "State",
    "a100_40",
    "build",
    "environment",
    "gb200",
    "h100",
    "hgx_h100",
    "l40s",
    "nvl72_tray",
    "t4",
]
