"""Which vendor stands behind the port on this node: `--hardware auto|nvidia|simulated:PROFILE-OR-FILE`.

A vendor's folder is imported only when it is chosen.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dra_driver.hardware.port import Hardware, Roots
from dra_driver.model.errors import UsageError


def roots_of(values: Mapping[str, str]) -> Roots:
    """Give the roots that the flags name; `nvidia_driver_root_mount` is the driver root itself unless it is given."""
    return Roots(
        sys=values["sysfs_root"],
        proc=values["proc_root"],
        dev=values["dev_root"],
        driver=values["nvidia_driver_root"],
        driver_mount=values["nvidia_driver_root_mount"] or values["nvidia_driver_root"],
    )


def choose(choice: str, roots: Roots, *, node_name: str, state_dir: Path | None = None) -> Hardware:
    """Give the vendor named by `--hardware`. "auto" is the real hardware of this node.

    `state_dir` is where simulated hardware keeps what was made of it; None: in memory.

    Raises: UsageError("usage.hardware") for an unknown choice, InputError for a bad profile.
    """
    kind, _, profile = choice.partition(":")
    if kind == "simulated" and profile:
        from dra_driver.hardware.simulated import SimulatedHardware  # noqa: PLC0415

        return SimulatedHardware(profile, roots, node_name=node_name, state_dir=state_dir)
    if choice in {"auto", "nvidia"}:
        from dra_driver.hardware.nvidia import NvidiaHardware  # noqa: PLC0415

        return NvidiaHardware(roots)
    raise UsageError(
        "hardware",
        f"--hardware={choice!r} is none of auto, nvidia, simulated:PROFILE-OR-FILE",
        hint="for a node without GPUs try --hardware simulated:dgx-h100",
    )
