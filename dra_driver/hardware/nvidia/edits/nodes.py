"""Device nodes of NVIDIA GPUs and IMEX channels: roots and numbers come in, `DeviceNode`s go out.

A node is looked up below the dev root, then in the driver root's own /dev. Its major and minor are what stat returns
now. If the kernel's tables list a node that does not exist yet, it is written with the numbers from there: a runtime
creates it in the container. Nothing here creates a node, loads a module or calls a library.

A node can hand out IMEX channel 0 only if its GPUs are in a fabric; the daemons' own program below the driver root says
whether the domain is ready. The daemons are the host's (nvidia-imex.service); nothing here starts or configures them.
Source: NVIDIA MIG user guide, "Device Nodes and Capabilities"; the kernel module's /proc/driver/nvidia; NVIDIA IMEX
guide: the nodes below /dev/nvidia-caps-imex-channels, `nvidia-imex-ctl -q`.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from dra_driver.base.errors import HardwareError, Retry
from dra_driver.hardware.facts import ChannelFacts, DeviceNode, Edits, Facts, Problem
from dra_driver.hardware.nvidia.driver_root import BINARY_FOLDERS, DriverRoot
from dra_driver.hardware.nvidia.library import read_majors
from dra_driver.hardware.pci import read_at_once
from dra_driver.hardware.port import Roots

_ANYBODY = 0o666
_CAPABILITY_MODE = 0o444
_DRM_NODE = re.compile(r"(?:card|renderD)\d+")
_STORAGE_NODE = re.compile(r"nvidia-fs\d*")
_FILE_MINOR = re.compile(rb"^DeviceFileMinor:[ \t]*(\d{1,9})[ \t]*$", re.MULTILINE)
_FILE_MODE = re.compile(rb"^DeviceFileMode:[ \t]*(\d{1,9})[ \t]*$", re.MULTILINE)
_WORLD_READ_WRITE = 0o006

# Node, names of its major in /proc/devices, minor. Only what CUDA needs, because a freshly booted host has the modules
# before it has the nodes.
_FROM_TABLES = (
    ("nvidiactl", ("nvidia-frontend", "nvidia", "nvidiactl"), 255),
    ("nvidia-uvm", ("nvidia-uvm",), 0),
    ("nvidia-uvm-tools", ("nvidia-uvm",), 1),
)


_CONTROL = (*(name for name, _, _ in _FROM_TABLES), "nvidia-modeset")


def find_node(roots: Roots, name: str) -> DeviceNode | None:
    """Return the character device `/dev/<name>`, or None where there is none.

    The dev root takes precedence over the driver root's /dev. `host_path` is set only where it differs from the path.
    """
    for here, on_host in _places(roots):
        try:
            status = os.stat(f"{here}/{name}")  # noqa: PTH116 - a hot path
        except OSError:
            continue
        if stat.S_ISCHR(status.st_mode):
            return _node(name, on_host, status.st_mode, status.st_rdev, status.st_gid)
    return None


def _node(name: str, on_host: str, mode: int, number: int, gid: int) -> DeviceNode:
    path, host_path = f"/dev/{name}", f"{on_host}/{name}"
    return DeviceNode(
        path=path,
        host_path="" if host_path == path else host_path,
        major=os.major(number),
        minor=os.minor(number),
        file_mode=stat.S_IMODE(mode),
        gid=gid,
    )


def is_missing(roots: Roots, name: str) -> bool:
    """Return whether nothing at all exists in the places where the node `/dev/<name>` is looked up."""
    return not any(Path(here, name).exists() for here, _ in _places(roots))


def _places(roots: Roots) -> tuple[tuple[str, str], ...]:
    """Return the folders that hold nodes, each as this process and as the host sees it."""
    places: tuple[tuple[str, str], ...] = ((roots.dev.rstrip("/"), roots.dev.rstrip("/")),)
    if roots.driver_mount.rstrip("/"):
        places += ((f"{roots.driver_mount.rstrip('/')}/dev", f"{roots.driver.rstrip('/')}/dev"),)
    return places


def control_nodes(roots: Roots) -> tuple[DeviceNode, ...]:
    """Return the nodes that every container with a GPU needs.

    These are nvidiactl, nvidia-uvm, nvidia-uvm-tools and nvidia-modeset, as far as they exist.
    """
    nodes = {name: find_node(roots, name) for name in _CONTROL}
    if any(nodes[name] is None for name, _, _ in _FROM_TABLES):
        majors = character_majors(roots.proc)
        for name, drivers, minor in _FROM_TABLES:
            major = next((majors[d] for d in drivers if d in majors), None)
            if nodes[name] is None and major is not None:
                nodes[name] = DeviceNode(path=f"/dev/{name}", major=major, minor=minor, file_mode=_ANYBODY)
    return tuple(node for node in nodes.values() if node is not None)


def storage_nodes(roots: Roots) -> tuple[DeviceNode, ...]:
    """Return the nodes of GPUDirect Storage, /dev/nvidia-fs*, that the dev root has."""
    try:
        names = sorted(name for name in os.listdir(roots.dev) if _STORAGE_NODE.fullmatch(name))  # noqa: PTH208
    except OSError:
        return ()
    return tuple(node for name in names if (node := find_node(roots, name)) is not None)


def gpu_node(roots: Roots, minor: int) -> DeviceNode:
    """Return `/dev/nvidia<minor>`. Raises: HardwareError("hardware.node-missing", LATER)."""
    node = find_node(roots, f"nvidia{minor}")
    if node is None:
        raise _missing(roots, f"/dev/nvidia{minor}", f"run nvidia-modprobe -c {minor} (or nvidia-smi) on the host")
    return node


def capability_nodes(roots: Roots, gpu_minor: int, gi_id: int, ci_id: int) -> tuple[DeviceNode, DeviceNode]:
    """Return the two nodes that open a MIG partition: those of its GPU instance and of its compute instance.

    The numbers come from the kernel module, so the host needs no node: type c with major, minor and mode.
    Raises: HardwareError("hardware.node-missing", LATER) when the kernel module does not know the instance.
    """
    instance = f"gi{gi_id}"
    return (
        _capability_node(roots, gpu_minor, f"{instance}/access"),
        _capability_node(roots, gpu_minor, f"{instance}/ci{ci_id}/access"),
    )


def drm_nodes(roots: Roots, pci_address: str) -> tuple[DeviceNode, ...]:
    """Return the card and render nodes of a GPU, whose names sysfs lists; none where no DRM driver is bound."""
    try:
        names = sorted(os.listdir(f"{roots.sys}/bus/pci/devices/{pci_address}/drm"))  # noqa: PTH208 - a hot path
    except OSError:
        return ()
    found = (find_node(roots, f"dri/{name}") for name in names if _DRM_NODE.fullmatch(name))
    return tuple(node for node in found if node is not None)


def groups_needed(nodes: tuple[DeviceNode, ...]) -> tuple[int, ...]:
    """Return the groups that a process without root needs to open the nodes; none where all users may open them."""
    gids = {n.gid for n in nodes if n.gid and (n.file_mode or 0) & _WORLD_READ_WRITE != _WORLD_READ_WRITE}
    return tuple(sorted(gids))


def character_majors(proc: str) -> dict[str, int]:
    """Read the majors of character devices, by driver name, from /proc/devices; empty when it can't be read."""
    try:
        text = Path(proc, "devices").read_text(encoding="ascii", errors="replace")
    except OSError:
        return {}
    pairs = (line.split() for line in text.partition("Block devices:")[0].splitlines())
    return {pair[1]: int(pair[0]) for pair in pairs if len(pair) == 2 and pair[0].isdigit()}


def _capability_node(roots: Roots, gpu_minor: int, access: str) -> DeviceNode:
    """Return the node of a MIG capability such as "gi3/ci0/access"."""
    path = f"{_capabilities(roots, gpu_minor)}/{access}"
    text = read_at_once(path)
    listed = _FILE_MINOR.search(text)
    minor = int(listed[1]) if listed else _minor_in_table(roots, f"gpu{gpu_minor}/{access}", path)
    name = f"nvidia-caps/nvidia-cap{minor}"
    if node := find_node(roots, name):
        return node
    major = character_majors(roots.proc).get("nvidia-caps")
    if major is None:
        raise _missing(roots, f"/dev/{name}", f"{roots.proc}/devices has no nvidia-caps; is the driver loaded?")
    mode = _FILE_MODE.search(text) if listed else None
    file_mode = (int(mode[1]) if mode else _CAPABILITY_MODE) & 0o777
    return DeviceNode(path=f"/dev/{name}", major=major, minor=minor, file_mode=file_mode)


def _minor_in_table(roots: Roots, capability: str, path: str) -> int:
    """Return the minor of a MIG capability whose file at `path` has none.

    Older kernel modules, and nodes made by nvidia-modprobe, have only the flat table.
    """
    try:
        table = Path(roots.proc, "driver/nvidia-caps/mig-minors").read_text(encoding="ascii")
    except OSError:
        table = ""
    for line in table.splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == capability and words[1].isdigit():
            return int(words[1])
    raise _missing(roots, f"MIG capability {capability}", f"{path} can't be read; does the instance exist?")


def _capabilities(roots: Roots, gpu_minor: int) -> str:
    return f"{roots.proc}/driver/nvidia/capabilities/gpu{gpu_minor}/mig"


def _missing(roots: Roots, what: str, hint: str) -> HardwareError:
    places = roots.dev
    if roots.driver_mount.rstrip("/"):
        places += f" and {roots.driver_mount.rstrip('/')}/dev"
    return HardwareError("node-missing", f"{what} does not exist (looked in {places})", hint=hint, retry=Retry.LATER)


PROGRAM, MAJOR_NAME = "nvidia-imex-ctl", "nvidia-caps-imex-channels"
READY = "READY"
ASK_SECONDS = 5.0
_CLIQUE = re.compile(r"(?!0{8}-0{4}-0{4}-0{4}-0{12})[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.[0-9]+")
_NODE = f"/dev/{MAJOR_NAME}/channel0"


def read_channel(roots: Roots, facts: Facts) -> ChannelFacts | Problem | None:
    """Return the channel of a node, why it has none, or None if no GPU is in a fabric of several nodes."""
    domains = {gpu.link_domain for gpu in facts.gpus if not gpu.is_lost}
    cliques = {domain for domain in domains if domain and _CLIQUE.fullmatch(domain)}
    if not cliques:
        return None
    if len(domains) > 1:
        text = f"GPUs are in different cliques or in none: {', '.join(sorted(str(domain) for domain in domains))}"
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
    from dra_driver.hardware.programs import run_program  # noqa: PLC0415 - only for IMEX domains

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
