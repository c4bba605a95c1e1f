"""The `sharing` section of the agent's configuration, read by the code that also reads it in a claim.

In: a section. Out: settings, or a ValidationError with all faults and their paths. The same words mean the same in a
claim, in a device class and in the agent's file, with one exception: here MPS serves several users unless the file says
otherwise. These devices serve several claims whose pods may run as any user, and in single-user mode a pod of another
user would wait without any message.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dra_driver.claims.config.nvidia_config import settings_of
from dra_driver.claims.config.schema import GpuSharing
from dra_driver.inventory.sharing.rules import SharingRules
from dra_driver.inventory.sharing.rules_file import read_rules
from dra_driver.model.sharing import MpsSettings, SharingSettings, Tenants


def read_settings(section: object) -> SharingSettings:
    """Read one section. Raises: ValidationError."""
    sharing = GpuSharing.model_validate(section)
    settings = settings_of(sharing)
    if isinstance(settings, MpsSettings) and (sharing.mpsConfig is None or sharing.mpsConfig.multiUser is None):
        return replace(settings, multi_user=True)
    return settings


def read_sharing_config(path: Path, tenants: Tenants = Tenants.ANY) -> SharingRules:
    """Read the agent's sharing configuration. Raises: InputError with every fault, its line and its path."""
    return read_rules(path, read_settings, tenants)
