"""Edits that make an NVIDIA GPU work in a container: roots and facts come in, `Edits` and remarks go out.

Files of the driver root are looked up once, and again whenever anything that was looked at has changed (a driver or a
toolkit was installed, removed or upgraded); device nodes are looked up in each call. No library is called and nothing
is created. LD_LIBRARY_PATH is never set, because the image's own setting and ours would replace each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from dra_driver.hardware.facts import GpuFacts, PartitionFacts
from dra_driver.hardware.nvidia import sysfs
from dra_driver.hardware.nvidia.edits import nodes
from dra_driver.hardware.nvidia.edits.known_roots import KnownRoot, Seen, kept_root, known_root_of, unchanged_root
from dra_driver.hardware.port import Roots
from dra_driver.model.edits import DeviceNode, Edits, Hook
from dra_driver.model.fifo_cache import FifoCache


class _Common(NamedTuple):
    """The last answer, and the number of comparisons of the trees for which it holds."""

    known_root: KnownRoot
    comparisons: int
    edits: Edits
    remarks: tuple[str, ...]


# By PCI address with the minor number, or with both instances; a root is one of certain roots.
_whole: FifoCache[tuple[str, int], tuple[Seen, Edits]] = FifoCache(64)
_parts: FifoCache[tuple[str, int, int], tuple[Seen, PartitionFacts, Edits]] = FifoCache(128)
_last: _Common | None = None


def common_edits(roots: Roots, driver_version: str | None) -> tuple[Edits, tuple[str, ...]]:
    """Return what every container with one of these GPUs needs, and remarks on what had to be left out.

    As long as nothing changes, the same object is returned, which spares the rendering of its many mounts.

    `driver_version` is the version that the library reports as loaded (semver or as the driver spells it), None if it
    reports none.
    """
    global _last  # noqa: PLW0603 - one tuple, replaced as a whole, so that threads see either
    known_root = known_root_of(roots, driver_version or sysfs.read_driver_version(roots))
    last, comparisons = _last, known_root.trees.comparisons  # before the nodes are looked at
    if last is not None and last.known_root is known_root and last.comparisons == comparisons:
        return last.edits, last.remarks
    control = nodes.control_nodes(roots)
    if last is not None and last.known_root is known_root and last.edits.device_nodes == control:
        _last = last = last._replace(comparisons=comparisons)
    else:
        edits = known_root.edits._replace(device_nodes=control, additional_gids=nodes.groups_needed(control))
        _last = last = _Common(known_root, comparisons, edits, (*known_root.remarks, *_missing_nodes(control)))
    return last.edits, last.remarks


def whole_gpu_edits(roots: Roots, gpu: GpuFacts) -> Edits:
    """Return what a whole GPU needs, as `device_edits` does, with the minor number that the kernel reports now.

    They are kept while nothing happens at the watched nodes and the GPU has the facts that it had, but no longer than
    until the next comparison: what sysfs and procfs report of a GPU can't be watched.
    Raises: HardwareError("hardware.node-missing", LATER).
    """
    seen, key = unchanged_root(roots, gpu.minor), (gpu.pci_address, gpu.minor)
    kept = _whole.get(key)
    if kept is not None and kept[0] == seen:
        return kept[1]
    edits = device_edits(roots, _with_minor_now(roots, gpu), None)
    if seen is not None:
        _whole.keep(key, (seen, edits))
    return edits


def partition_edits(roots: Roots, gpu: GpuFacts, partition: PartitionFacts) -> Edits:
    """Return the edits for a partition, as `device_edits` does, with the GPU's current minor number.

    They are kept, as those of a whole GPU are, while the kernel lists the partition; the facts of one that was made
    anew are another object. Raises: HardwareError("hardware.node-missing", LATER).
    """
    seen, key = unchanged_root(roots, gpu.minor), (gpu.pci_address, partition.gi_id, partition.ci_id)
    kept = _parts.get(key)
    if kept is not None and kept[0] == seen and kept[1] is partition and nodes.is_listed(roots, gpu.minor, partition):
        return kept[2]
    edits = device_edits(roots, _with_minor_now(roots, gpu), partition)
    if seen is not None:
        _parts.keep(key, (seen, partition, edits))
    return edits


def _with_minor_now(roots: Roots, gpu: GpuFacts) -> GpuFacts:
    """Return a GPU with its minor number as it is now, which a change of MIG mode may have changed."""
    minor = sysfs.read_minor(roots, gpu.pci_address)
    return gpu if minor in (None, gpu.minor) else replace(gpu, minor=minor)


def device_edits(roots: Roots, gpu: GpuFacts, partition: PartitionFacts | None) -> Edits:
    """Return what one GPU, or one MIG partition of it, needs beside the common edits.

    A partition gets the GPU's node and its own two capability nodes, and DRM nodes only if its profile has graphics.
    Raises: HardwareError("hardware.node-missing", LATER), naming the node.
    """
    found: tuple[DeviceNode, ...] = (nodes.gpu_node(roots, gpu.minor),)
    if partition is not None:
        found += nodes.capability_nodes(roots, gpu.minor, partition.gi_id, partition.ci_id)
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
