"""The settings of a node that decide what it offers, under the names of the agent's flags.

In: the values of the agent's flags. Out: `NodeSettings`, which read the file of sharing rules on demand.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from dra_driver.hardware.port import Hardware, Roots
from dra_driver.inventory.sharing.rules import NOTHING_SHARED, SharingRules
from dra_driver.model.sharing import Tenants


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """The settings chosen by the flags."""

    node: str
    driver: str
    hardware: Hardware
    device_plugins: Path | None  # the kubelet's folder of device plugins; None to ignore them
    registrar: Path  # the kubelet's folder of registration sockets
    data: Path  # the agent's own folder
    cdi: Path
    roots: Roots
    is_mig_dynamic: bool
    has_all_profiles: bool
    sharing_config: Path | None = None
    mps_tenants: Tenants = Tenants.ANY

    def rules(self) -> SharingRules:
        """Read the sharing rules; the node's labels stay unknown. Raises: InputError with every fault."""
        if self.sharing_config is None:
            return NOTHING_SHARED
        from dra_driver.claims.config.node_settings import read_sharing_config

        rules = read_sharing_config(self.sharing_config, self.mps_tenants)
        return replace(rules, node=self.node, labels=None if rules.need_labels else {})
