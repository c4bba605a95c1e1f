"""The flags and environment variables that commands on this node's hardware share with the agent.

In: click's parameters and the environment. Out: the chosen hardware, and how it is shared.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from dra_driver.hardware.choose import choose, roots_of
from dra_driver.hardware.port import Hardware, Roots
from dra_driver.inventory.sharing.rules import NOTHING_SHARED, SharingRules
from dra_driver.model.flags import FLAGS, resolve
from dra_driver.model.names import check_driver_name, check_node_name
from dra_driver.model.sharing import Tenants

_PLACES = {"driver_name", "cdi_root", "kubelet_registrar_directory_path", "kubelet_plugins_directory_path"}
SHARED = tuple(flag for flag in FLAGS if flag.is_hardware or flag.field in _PLACES)


@dataclass(frozen=True, slots=True)
class Chosen:
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
        """Read the sharing rules; the node's labels are not known here. Raises: InputError with every fault."""
        if self.sharing_config is None:
            return NOTHING_SHARED
        from dra_driver.claims.node_settings import read_sharing_config

        rules = read_sharing_config(self.sharing_config, self.mps_tenants)
        return replace(rules, node=self.node, labels=None if rules.need_labels else {})


def hardware_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the shared flags to a command."""
    for flag in reversed(SHARED):
        default = "this host's name" if flag.field == "node_name" else flag.default
        text = f"{flag.meaning}{f' [default: {default}]' if default else ''} [env {flag.twin}]"
        function = click.option(flag.name, flag.field, metavar=flag.metavar, default=None, help=text)(function)
    return function


def chosen(given: Mapping[str, str | None]) -> Chosen:
    """Resolve the flags and choose the hardware. Raises: UsageError, InputError for a bad profile."""
    values = resolve(given, os.environ, SHARED)
    node = check_node_name(values["node_name"] or socket.gethostname().lower())
    driver = check_driver_name(values["driver_name"])
    plugins = Path(values["device_plugins_directory_path"]) if values["device_plugin"] == "yield" else None
    registrar = Path(values["kubelet_registrar_directory_path"]).absolute()
    data = Path(values["kubelet_plugins_directory_path"]).absolute() / driver
    roots = roots_of(values)
    # An agent's changes to simulated hardware; empty if this user may not read them.
    state = data if os.access(data / "ledger.db", os.F_OK) else None
    return Chosen(
        node=node,
        driver=driver,
        hardware=choose(values["hardware"], roots, node_name=node, state_dir=state),
        device_plugins=plugins,
        registrar=registrar,
        data=data,
        cdi=Path(values["cdi_root"]),
        roots=roots,
        is_mig_dynamic=values["mig"] == "dynamic",
        has_all_profiles=values["mig_profiles"] == "all",
        sharing_config=Path(values["sharing_config"]) if values["sharing_config"] else None,
        mps_tenants=Tenants(values["mps_tenants"]),
    )
