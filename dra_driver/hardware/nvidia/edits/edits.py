"""Edits that make an NVIDIA GPU work in a container: roots and facts come in, `Edits` and remarks go out.

Files of the driver root are looked up once, and again whenever anything that was looked at has changed (a driver or a
toolkit was installed, removed or upgraded); device nodes are looked up in each call. No library is called and nothing
is created. LD_LIBRARY_PATH is never set, because the image's own setting and ours would replace each other.
"""

from __future__ import annotations

from collections.abc import Iterator

from dra_driver.hardware.facts import GpuFacts, PartitionFacts
from dra_driver.hardware.nvidia import sysfs
from dra_driver.hardware.nvidia.edits import nodes
from dra_driver.hardware.nvidia.edits.known_roots import kept_root, known_root_of
from dra_driver.hardware.port import Roots
from dra_driver.model.edits import DeviceNode, Edits, Hook


def common_edits(roots: Roots, driver_version: str | None) -> tuple[Edits, tuple[str, ...]]:
    """Return what every container with one of these GPUs needs, and remarks on what had to be left out.

    `driver_version` is the version that the library reports as loaded (semver or as the driver spells it), None if it
    reports none.
    """
    known_root = known_root_of(roots, driver_version or sysfs.read_driver_version(roots))
    control = nodes.control_nodes(roots)
    edits = known_root.edits._replace(device_nodes=control, additional_gids=nodes.groups_needed(control))
    return edits, (*known_root.remarks, *_missing_nodes(control))


def device_edits(roots: Roots, gpu: GpuFacts, partition: PartitionFacts | None) -> Edits:
    """Return what one GPU, or one MIG partition of it, needs beside the common edits.

    A partition gets the GPU's node and its own two capability nodes, and DRM nodes only if its profile has graphics.
    The minor number is the one that the kernel reports now, which a change of MIG mode may have changed.
    Raises: HardwareError("hardware.node-missing", LATER), naming the node.
    """
    minor = sysfs.read_minor(roots, gpu.pci_address)
    minor = gpu.minor if minor is None else minor
    found: tuple[DeviceNode, ...] = (nodes.gpu_node(roots, minor),)
    if partition is not None:
        found += nodes.capability_nodes(roots, minor, partition.gi_id, partition.ci_id)
    drm = nodes.drm_nodes(roots, gpu.pci_address) if partition is None or "gfx" in partition.profile else ()
    every = found + drm
    hooks = _drm_hooks(roots, gpu.pci_address, drm) if drm else ()
    return Edits(device_nodes=every, hooks=hooks, additional_gids=nodes.groups_needed(every))


def _missing_nodes(control: tuple[DeviceNode, ...]) -> Iterator[str]:
    there = {node.path for node in control}
    for path in ("/dev/nvidiactl", "/dev/nvidia-uvm"):
        if path not in there:
            yield f"{path} does not exist and the kernel lists no driver for it: CUDA will not start in containers"


def _drm_hooks(roots: Roots, pci_address: str, drm: tuple[DeviceNode, ...]) -> tuple[Hook, ...]:
    known_root = kept_root(roots) or known_root_of(roots, sysfs.read_driver_version(roots))
    if known_root.hook is None:
        return ()
    names = [node.path.rpartition("/")[2] for node in drm]
    kinds = [(name, "card" if name.startswith("card") else "render") for name in names]
    hook = known_root.hook.links((f"/dev/dri/by-path/pci-{pci_address}-{kind}", f"../{name}") for name, kind in kinds)
    return (hook,) if hook else ()
