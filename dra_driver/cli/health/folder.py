"""The agent's data folder on this node, and the devices that the agent has seen in this boot.

In: flags. Out: paths and names. Commands that write into the folder are run on the node, or in the agent's pod.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from dra_driver.hardware.facts import GpuFacts
from dra_driver.health.known_gpus import read_gpus
from dra_driver.health.store import GPUS, HealthStore
from dra_driver.model.errors import InputError
from dra_driver.model.flags import FLAGS
from dra_driver.model.names import check_driver_name, gpu_name, is_dns_label, normal_pci_address

_FIELDS = ("driver_name", "kubelet_plugins_directory_path")


def folder_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the flags that locate the agent's data folder."""
    for flag in (flag for flag in FLAGS if flag.field in _FIELDS):
        text = f"{flag.meaning} [default: {flag.default}] [env {flag.variable}]"
        option = click.option(
            flag.name, flag.field, metavar=flag.metavar, default=flag.default, envvar=flag.variable, help=text
        )
        function = option(function)
    return function


def data_folder(driver_name: str, kubelet_plugins_directory_path: str) -> Path:
    """Return the agent's data folder. Raises: InputError("input.no-agent") if it does not exist."""
    folder = Path(kubelet_plugins_directory_path).absolute() / check_driver_name(driver_name)
    if not folder.is_dir():
        raise InputError(
            "no-agent", f"there is no folder {folder}", hint="run this on the node, or in the pod of its agent"
        )
    return folder


def known_gpus(folder: Path) -> tuple[GpuFacts, ...]:
    """Return the GPUs that the agent has seen in this boot; none if it has not written them yet."""
    return read_gpus(HealthStore(folder).read().get(GPUS))


def device_name(text: str, folder: Path) -> str:
    """Return the name of a device that the user names by its name, or by its GPU's PCI address or UUID.

    Raises: InputError("input.device") for a text that can't mean a device of this node.
    """
    gpus = known_gpus(folder)
    for gpu in gpus:
        if text == gpu.uuid:
            return gpu_name(gpu.pci_address)
    try:
        return gpu_name(normal_pci_address(text))
    except ValueError:
        pass
    names = sorted(gpu_name(gpu.pci_address) for gpu in gpus)
    is_here = any(text == name or text.startswith(f"{name}-") for name in names)
    if not is_dns_label(text) or (names and not is_here):
        known = f"the GPUs here are {', '.join(names)}" if names else "see dra-driver devices"
        raise InputError("device", f"{text!r} is not a device of this node", hint=known)
    return text
