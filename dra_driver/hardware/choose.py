"""Which vendor implements the port on this node."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from dra_driver.base.errors import UsageError
from dra_driver.base.flags import DEFAULT_VENDOR, VENDORS, RegisteredVendor, registered
from dra_driver.hardware.port import Hardware, Roots
from dra_driver.hardware.vendors import load_vendor

AUTO = "auto"


def roots_of(values: Mapping[str, str]) -> Roots:
    """Return the roots that the flags name. `nvidia_driver_root_mount` defaults to the driver root itself."""
    mount = values["nvidia_driver_root_mount"] or values["nvidia_driver_root"]
    return Roots(
        sys=_absolute(values["sysfs_root"]),
        proc=_absolute(values["proc_root"]),
        dev=_absolute(values["dev_root"]),
        driver=_absolute(values["nvidia_driver_root"]),
        driver_mount=_absolute(mount),
        host=_absolute(values["host_root_mount"]),
        gpudirect_storage=values["gpudirect_storage"] == "on",
    )


def _absolute(path: str) -> str:
    """Make a path absolute, because it is passed to a container runtime; an absolute path stays as it is written."""
    return os.fspath(Path(path).absolute())


def vendors_here(roots: Roots) -> tuple[RegisteredVendor, ...]:
    """Return the vendors of the registry whose hardware is on this node, in the order of the registry.

    Asks every vendor itself, and so loads all of them: for commands, not for the agent.
    """
    return tuple(one for one in VENDORS if load_vendor(one.name).open(roots).is_present())


def vendors_listed(choice: str) -> tuple[RegisteredVendor, ...]:
    """Return the vendors of a list such as "nvidia,amd". Raises: UsageError("usage.hardware")."""
    vendors = [vendor for name in choice.split(",") if (vendor := registered(name)) is not None]
    if len(vendors) < choice.count(",") + 1 or len(set(vendors)) < len(vendors):
        known = ", ".join(one.name for one in VENDORS)
        raise UsageError(
            "hardware", f"--hardware={choice!r} is not a list of different vendors", hint=f"known: {known}"
        )
    return tuple(vendors)


def choose(choice: str, roots: Roots, *, node_name: str, state_dir: Path | None = None) -> Hardware:
    """Return the hardware that `--hardware` names; "auto" means NVIDIA's.

    `state_dir` is where simulated hardware stores its changing state; with None the state is kept in memory.

    Raises: UsageError("usage.hardware") for an unknown choice, InputError for a bad profile.
    """
    kind, _, profile = choice.partition(":")
    if kind == "simulated" and profile:
        from dra_driver.hardware.simulated import SimulatedHardware, profile_names  # noqa: PLC0415

        name, _, count = profile.rpartition("=")
        if name in profile_names() and count.isdigit():
            raise UsageError(
                "hardware",
                f"--hardware={choice!r}: the hardware is that of one node",
                hint=f"--hardware simulated:{name}; where a command has --fleet, --fleet {profile} simulates nodes",
            )

        return SimulatedHardware(profile, roots, node_name=node_name, state_dir=state_dir)
    vendor = DEFAULT_VENDOR if choice == AUTO else registered(choice)
    if vendor is not None:
        return load_vendor(vendor.name).open(roots)
    names = ", ".join(one.name for one in VENDORS)
    raise UsageError(
        "hardware",
        f"--hardware={choice!r} is not one of {AUTO}, {names}, simulated:PROFILE-OR-FILE",
        hint="for a node without GPUs try --hardware simulated:dgx-h100",
    )
