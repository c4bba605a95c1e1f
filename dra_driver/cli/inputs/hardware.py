"""The flags and environment variables that commands on this node's hardware share with the agent.

In: click's parameters and the environment. Out: the chosen settings of the node.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from dra_driver.hardware.choose import AUTO, choose, roots_of, vendors_here, vendors_listed
from dra_driver.model.errors import UsageError
from dra_driver.model.flag import resolve
from dra_driver.model.flags import FLAGS
from dra_driver.model.names import check_driver_name, check_node_name
from dra_driver.model.sharing import Tenants
from dra_driver.model.vendors import DEFAULT_VENDOR
from dra_driver.views.node.settings import Chosen

_PLACES = {"driver_name", "cdi_root", "kubelet_registrar_directory_path", "kubelet_plugins_directory_path"}
_SYSFS = ("bus", "class", "devices")
SHARED = tuple(flag for flag in FLAGS if flag.is_hardware or flag.field in _PLACES)


def hardware_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the shared flags to a command."""
    for flag in reversed(SHARED):
        default = "this host's name" if flag.field == "node_name" else flag.default
        text = f"{flag.meaning}{f' [default: {default}]' if default else ''} [env {flag.twin}]"
        function = click.option(flag.name, flag.field, metavar=flag.metavar, default=None, help=text)(function)
    return function


def chosen(given: Mapping[str, str | None]) -> Chosen:
    """Return the settings of one driver; of several vendors on this node, those of the first.

    Raises: UsageError, InputError for a bad profile.
    """
    return chosen_of_each(given)[0]


def chosen_of_each(given: Mapping[str, str | None]) -> tuple[Chosen, ...]:
    """Resolve the flags, and return the settings of each driver that they name.

    "auto" means the vendors whose hardware is here, and the default one if there is none; with a driver's name it
    means that driver alone, as for the agent. Raises: UsageError, InputError for a bad profile.
    """
    values = resolve(given, os.environ, SHARED)
    choice = values["hardware"]
    is_named = bool(given.get("driver_name") or os.environ.get("DRIVER_NAME"))
    if choice == AUTO and not is_named:
        vendors = vendors_here(roots_of(values)) or (DEFAULT_VENDOR,)
    elif "," in choice and not choice.startswith("simulated:"):
        vendors = vendors_listed(choice)
        if given.get("driver_name"):
            text = f"--driver-name names one driver, and --hardware={choice} has several"
            raise UsageError("driver-name", text, hint="leave --driver-name out: each vendor has its own")
    else:
        return (_chosen(values),)
    return tuple(_chosen({**values, "hardware": one.name, "driver_name": one.driver}) for one in vendors)


def check_sysfs(given: Mapping[str, str | None]) -> None:
    """Refuse a folder that was given as a copy of /sys and can't be one. Raises: UsageError("usage.sysfs-root").

    A machine without hardware and a mistyped path would otherwise look the same.
    """
    root = given.get("sysfs_root")
    if root is None or any(Path(root, name).is_dir() for name in _SYSFS):
        return
    below = Path(root, "sys")
    hint = f"try {below}" if any((below / name).is_dir() for name in _SYSFS) else "give the folder that was /sys"
    raise UsageError("sysfs-root", f"--sysfs-root={root} has none of the folders {', '.join(_SYSFS)}", hint=hint)


def _chosen(values: Mapping[str, str]) -> Chosen:
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
