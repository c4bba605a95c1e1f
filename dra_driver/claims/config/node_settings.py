"""The `sharing` section of the agent's configuration, read by the code that also reads it in a claim.

In: a section at a path. Out: settings, or faults with their paths. The same words mean the same in a claim, in a device
class and in the agent's file, with one exception: here MPS serves several users unless the file says otherwise. These
devices serve several claims whose pods may run as any user, and in single-user mode a pod of another user would wait
without any message.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dra_driver.claims.config.device_config import API_VERSION, ConfigFault
from dra_driver.claims.config.reading import read_config
from dra_driver.inventory.sharing.rules import SharingRules
from dra_driver.inventory.sharing.rules_file import read_rules
from dra_driver.model.sharing import MpsSettings, SharingSettings, Tenants


def read_settings(section: object, path: str, faults: list[str]) -> SharingSettings | None:
    """Read one section; add each fault to `faults` as `path: message`."""
    found: list[ConfigFault] = []
    parameters = {"apiVersion": API_VERSION, "kind": "GpuConfig", "sharing": section}
    config = read_config(parameters, path.removesuffix(".sharing"), found)
    faults.extend(map(str, found))
    settings = config.settings if config else None
    if isinstance(settings, MpsSettings) and _given(section, "mpsConfig", "multiUser") is None:
        return replace(settings, multi_user=True)
    return settings


def _given(section: object, *path: str) -> object:
    """Return the value at a path of a section that was found valid, or None if there is none."""
    for name in path:
        section = section.get(name) if isinstance(section, dict) else None
    return section


def read_sharing_config(path: Path, tenants: Tenants = Tenants.ANY) -> SharingRules:
    """Read the agent's sharing configuration. Raises: InputError with every fault, its line and its path."""
    return read_rules(path, read_settings, tenants)
