"""Simulated hardware: a full vendor whose "hardware" is a YAML profile on disk.

In: a profile (a shipped one, or the user's own file) and a node name. Out: `Facts` and edits through `hardware.port`,
like any vendor's. An edit of the file is a change of the hardware: a GPU is lost or added, a GPU is partitioned in
another way, the driver changes its version. The format is described in docs/profiles.md. This room, and yaml with
it, is imported only if simulated hardware was chosen.
"""

from __future__ import annotations

from dra_driver.hardware.simulated.hardware import SimulatedHardware
from dra_driver.hardware.simulated.profile import Profile, load_profile, profile_names

__all__ = ["Profile", "SimulatedHardware", "load_profile", "profile_names"]
