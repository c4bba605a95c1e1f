"""Simulated hardware: a full vendor whose "hardware" is a YAML profile on disk.

Enters: a profile (shipped, or anybody's file) and a node name. Leaves: `Facts` and edits through `hardware.port`, like
any vendor's. What is edited in the file happens to the hardware: a GPU is lost or added, MIG is cut anew, the driver
changes its version. The format is in docs/profiles.md. Imported, with yaml, only when simulated hardware was chosen.
"""

from __future__ import annotations

from dra_driver.hardware.simulated.hardware import SimulatedHardware
from dra_driver.hardware.simulated.profile import Profile, load_profile, profile_names

__all__ = ["Profile", "SimulatedHardware", "load_profile", "profile_names"]
