"""IMEX channels: whether a node can hand out channel 0, and whether its daemons report that the domain is ready.

In: the facts of the GPUs, /proc/devices, the daemons' own program below the driver root. Out: the channel, or why there
is none. The daemons are the host's (nvidia-imex.service); nothing here starts or configures them.
Source: NVIDIA IMEX guide: the nodes below /dev/nvidia-caps-imex-channels, `nvidia-imex-ctl -q`.
"""

from __future__ import annotations

import re

from dra_driver.hardware.facts import ChannelFacts, Facts, Problem
from dra_driver.hardware.nvidia.edits.driver_root import DriverRoot
from dra_driver.hardware.nvidia.edits.installed_names import BINARY_FOLDERS
from dra_driver.hardware.nvidia.sysfs import read_majors
from dra_driver.hardware.port import Roots
from dra_driver.hardware.programs import run_program
from dra_driver.model.edits import DeviceNode, Edits
from dra_driver.model.errors import HardwareError, Retry

PROGRAM, MAJOR_NAME = "nvidia-imex-ctl", "nvidia-caps-imex-channels"
READY = "READY"
ASK_SECONDS = 5.0
_CLIQUE = re.compile(r"(?!0{8}-0{4}-0{4}-0{4}-0{12})[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.[0-9]+")
_NODE = f"/dev/{MAJOR_NAME}/channel0"


def read_channel(roots: Roots, facts: Facts) -> ChannelFacts | Problem | None:
    """Return the channel of a node, why it has none, or None if no GPU is in a fabric of several nodes."""
    domains = {gpu.link_domain for gpu in facts.gpus if not gpu.is_lost}
    cliques = {one for one in domains if one and _CLIQUE.fullmatch(one)}
    if not cliques:
        return None
    if len(domains) > 1:
        text = f"GPUs are in different cliques or in none: {', '.join(sorted(str(one) for one in domains))}"
        return Problem("hardware.no-channel", "node", f"no IMEX channel is offered: {text}")
    major = channel_major(roots)
    if major is None:
        text = f"the kernel has no device numbers for {MAJOR_NAME}, so no IMEX channel is offered"
        return Problem("hardware.no-channel", "node", text)
    return ChannelFacts(cliques.pop(), major)


def channel_major(roots: Roots) -> int | None:
    """Return the major of channels, or None where the loaded driver has none."""
    for line in read_majors(roots):
        number, _, name = line.partition(" ")
        if name.strip() == MAJOR_NAME and number.isdecimal():
            return int(number)
    return None


def channel_edits(roots: Roots) -> Edits:
    """Return the node of channel 0, which the runtime makes; nothing has to exist below /dev.

    Raises: HardwareError("hardware.no-channel", LATER), ("hardware.imex-not-ready", LATER).
    """
    major = channel_major(roots)
    if major is None:
        raise HardwareError("no-channel", f"the kernel has no device numbers for {MAJOR_NAME}", retry=Retry.LATER)
    state = domain_state(roots)
    if state is not None and state != READY:
        raise HardwareError(
            "imex-not-ready",
            f"{PROGRAM} reports for this node's IMEX domain: {state or 'nothing'}, not {READY}",
            hint="the daemons of the host (nvidia-imex.service) and their nodes_config.cfg (docs/multi-node-nvlink.md)",
            retry=Retry.LATER,
        )
    return Edits(device_nodes=(DeviceNode(_NODE, major, 0, file_mode=0o666),))


def domain_state(roots: Roots) -> str | None:
    """Return the state that the host's daemon reports for its domain, or None where the daemon's program is missing."""
    root = DriverRoot(roots.driver_mount, roots.driver)
    path = root.find_program(PROGRAM, BINARY_FOLDERS)
    if path is None:
        return None
    try:
        end = run_program((path, "-q"), ASK_SECONDS, root=roots.driver_mount)
    except OSError as error:
        return f"it can't be run: {error.strerror}"
    if end.status is None:
        return f"no answer within {ASK_SECONDS:.0f} s"
    return end.output.strip() if end.status == 0 else f"{end.output} (exit status {end.status})".strip()
