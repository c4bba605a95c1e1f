"""The flags and environment variables of the agent that commands about this node's hardware have as well.

In: click's parameters and the environment. Out: the settings of the node.
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
from dra_driver.views.node.settings import NodeSettings

_PLACES = {"driver_name", "cdi_root", "kubelet_registrar_directory_path", "kubelet_plugins_directory_path"}
_SYSFS = ("bus", "class", "devices")
SHARED = tuple(flag for flag in FLAGS if flag.is_hardware or flag.field in _PLACES)


def hardware_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the shared flags to a command."""
    for flag in reversed(SHARED):
        default = "this host's name" if flag.field == "node_name" else flag.default
        text = f"{flag.meaning}{f' [default: {default}]' if default else ''} [env {flag.variable}]"
        function = click.option(flag.name, flag.field, metavar=flag.metavar, default=None, help=text)(function)
    return function


def settings_of_node(given: Mapping[str, str | None]) -> NodeSettings:
    """Return the settings of one driver; if the node has GPUs of several vendors, those of the first.

    Raises: UsageError, InputError for a bad profile.
    """
    return settings_of_each(given)[0]


def settings_of_each(given: Mapping[str, str | None]) -> tuple[NodeSettings, ...]:
    """Resolve the flags, and return the settings of each driver that they name.

    "auto" stands for the vendors whose hardware is on this node, or for the default vendor if there is none; together
    with a driver's name it stands for that driver alone, as for the agent. Raises: UsageError, InputError for a bad
    profile.
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
        return (_settings(values),)
    return tuple(_settings({**values, "hardware": one.name, "driver_name": one.driver}) for one in vendors)


def check_sysfs(given: Mapping[str, str | None]) -> None:
    """Refuse a folder that can't be a copy of /sys. Raises: UsageError("usage.sysfs-root").

    Otherwise a mistyped path would look like a machine without hardware.
    """
    root = given.get("sysfs_root")
    if root is None or any(Path(root, name).is_dir() for name in _SYSFS):
        return
    below = Path(root, "sys")
    hint = f"try {below}" if any((below / name).is_dir() for name in _SYSFS) else "name the folder that was /sys"
    raise UsageError("sysfs-root", f"--sysfs-root={root} has none of the folders {', '.join(_SYSFS)}", hint=hint)


def _settings(values: Mapping[str, str]) -> NodeSettings:
    node = check_node_name(values["node_name"] or socket.gethostname().lower())
    driver = check_driver_name(values["driver_name"])
    plugins = Path(values["device_plugins_directory_path"]) if values["device_plugin"] == "yield" else None
    registrar = Path(values["kubelet_registrar_directory_path"]).absolute()
    data = Path(values["kubelet_plugins_directory_path"]).absolute() / driver
    roots = roots_of(values)
    # An agent's changes to simulated hardware; empty if this user may not read them.
    state = data if os.access(data / "ledger.db", os.F_OK) else None
    return NodeSettings(
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
