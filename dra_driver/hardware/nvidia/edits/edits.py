"""Edits that make an NVIDIA GPU work in a container: roots and facts come in, `Edits` and remarks go out.

What a container gets of a driver root (files, links, hooks) is looked up once, and again whenever anything that was
looked at has changed (a driver or a toolkit was installed, removed or upgraded); device nodes are looked up in each
call. No library is called and nothing is created. LD_LIBRARY_PATH is never set, because the image's own setting and
ours would replace each other. If the node has the toolkit's hook program, the container gets libraries at their own
paths, and hooks do the rest. Without it, libraries are also mounted under the names that programs load, in the folders
that every loader searches.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from dra_driver.base.telemetry.logs import fields
from dra_driver.hardware.facts import DeviceNode, Edits, GpuFacts, Hook, Mount, PartitionFacts
from dra_driver.hardware.nvidia import library as sysfs
from dra_driver.hardware.nvidia.driver_root import STORAGE_FILES, TRIPLETS, DriverRoot, is_same_version
from dra_driver.hardware.nvidia.edits import nodes
from dra_driver.hardware.nvidia.edits.driver_files import (
    DriverFile,
    DriverFiles,
    HookProgram,
    driver_hooks,
    find_driver_files,
    find_hook_program,
)
from dra_driver.hardware.port import Roots

log = logging.getLogger(__name__)
SOCKET_BIND = ("nosuid", "nodev", "rbind", "rprivate", "noexec")
_VOID = "NVIDIA_VISIBLE_DEVICES=void"  # keeps the legacy runtime hook from adding GPUs on its own
_ROOTS_KEPT = 4  # an agent has one driver root, but tests have several


@dataclass(frozen=True, slots=True, eq=False)
class KnownRoot:
    """What one reading of a driver root found, and what can check whether it is still true."""

    trees: tuple[DriverRoot, ...]
    is_settled: bool
    loaded: str | None
    hook: HookProgram | None
    edits: Edits  # everything but device nodes
    storage: tuple[Mount, ...]  # what GPUDirect Storage needs beside its nodes
    remarks: tuple[str, ...]

    def holds(self, loaded: str | None) -> bool:
        """Return whether another reading would find the same."""
        return self.is_settled and self.loaded == loaded and all(tree.is_unchanged() for tree in self.trees)


_known_roots: OrderedDict[Roots, KnownRoot] = OrderedDict()

_lock = threading.Lock()


def known_root_of(roots: Roots, loaded: str | None) -> KnownRoot:
    """Return what is known of the driver root if it is still true, else look again."""
    known_root = _known_roots.get(roots)
    if known_root is not None and known_root.holds(loaded):
        return known_root
    with _lock:
        known_root = _known_roots.get(roots)
        if known_root is not None and known_root.holds(loaded):
            return known_root
        new = _read_root(roots, loaded)
        if new.remarks and (known_root is None or known_root.remarks != new.remarks):
            log.warning(
                "some parts of the driver are left out of containers", extra=fields(reason="; ".join(new.remarks))
            )
        _known_roots[roots] = new
        _known_roots.move_to_end(roots)
        while len(_known_roots) > _ROOTS_KEPT:
            _known_roots.popitem(last=False)
        return new


def kept_root(roots: Roots) -> KnownRoot | None:
    """Return what was read of a driver root, whether it is still true or not; None if it was never read."""
    return _known_roots.get(roots)


def _read_root(roots: Roots, loaded: str | None) -> KnownRoot:
    root, host = DriverRoot(roots.driver_mount, roots.driver), DriverRoot(roots.host, "/")
    files = find_driver_files(root, loaded, sys=roots.sys, proc=roots.proc)
    hook = find_hook_program(root, host)
    return KnownRoot(
        trees=(root, host),
        is_settled=root.is_settled() and host.is_settled(),
        loaded=loaded,
        hook=hook,
        edits=Edits(
            mounts=tuple(_mounts(files, with_hook=hook is not None)),
            env=(_VOID,),
            hooks=driver_hooks(hook, files, tuple(_loader_links(files))) if hook else (),
        ),
        storage=tuple(Mount(root.on_host(found), path) for path in STORAGE_FILES if (found := root.find(path))),
        remarks=tuple(_remarks(roots, files, hook, loaded)),
    )


def _mounts(files: DriverFiles, *, with_hook: bool) -> list[Mount]:
    """Return mounts in a stable order, one for each path in the container."""
    places = {library.path: library.host_path for library in files.libraries}
    if not with_hook:
        for library, aliases in files.aliases:
            for folder in _folders_of(library, files):
                for name in (library.name, *aliases):
                    places.setdefault(f"{folder}/{name}", library.host_path)
    for file in files.others:
        places.setdefault(file.path, file.host_path)
    if not with_hook:
        for link in files.links:
            inside = link.path.removeprefix(link.library.folder)
            for folder in _folders_of(link.library, files):
                places.setdefault(folder + inside, link.library.host_path)
    mounts = [Mount(host_path, path) for path, host_path in places.items()]
    return mounts + [Mount(socket.host_path, socket.path, SOCKET_BIND) for socket in files.sockets]


def _loader_links(files: DriverFiles) -> Iterator[tuple[str, str]]:
    """Yield path and target of the links by which every loader finds the libraries, with a cache or without."""
    for library, aliases in files.aliases:
        for folder in dict.fromkeys((library.folder, *_folders_of(library, files))):
            is_here = folder == library.folder
            for name in aliases if is_here else (library.name, *aliases):
                yield f"{folder}/{name}", library.name if is_here else library.path


def _folders_of(library: DriverFile, files: DriverFiles) -> tuple[str, ...]:
    """Return the folders in which programs find a library without a loader cache.

    Modules are loaded from their own folder.
    """
    is_module = library.folder.endswith("/vdpau") or library not in files.libraries
    return (library.folder,) if is_module else _loader_folders(files)


def _loader_folders(files: DriverFiles) -> tuple[str, str]:
    """Return the default loader folders of Debian-like and of Red Hat-like images, since an image may be either."""
    triplet = next((t for t in TRIPLETS if t in files.folder), f"{os.uname().machine}-linux-gnu")
    return f"/usr/lib/{triplet}", "/usr/lib64"


def _remarks(roots: Roots, files: DriverFiles, hook: HookProgram | None, loaded: str | None) -> Iterator[str]:
    where = f"driver root {roots.driver}" + (f" (seen at {roots.driver_mount})" * (roots.driver != roots.driver_mount))
    if not files.version:
        yield f"no libcuda.so.<version> below {where}: driver libraries are left out"
    elif loaded and not is_same_version(files.version, loaded):
        yield f"driver {loaded} is loaded, but {where} only has libraries of {files.version}"
    if hook is None:
        text = (
            f"neither nvidia-cdi-hook nor nvidia-ctk found below {where}: CUDA forward compatibility, the container's "
            "loader cache, read-only driver parameters and /dev/dri/by-path links are left out"
        )
        if files.libraries:
            text += (
                f"; libraries are mounted under the names that programs load in {' and '.join(_loader_folders(files))}"
            )
        yield text
    elif missing := hook.missing_commands():
        yield f"{hook.path} is too old for {', '.join(missing)}, which is left out"


def common_edits(roots: Roots, driver_version: str | None) -> tuple[Edits, tuple[str, ...]]:
    """Return what every container with one of these GPUs needs, and remarks on what had to be left out.

    `driver_version` is the version that the library reports as loaded (semver or as the driver spells it), None if it
    reports none.
    """
    known_root = known_root_of(roots, driver_version or sysfs.read_driver_version(roots))
    control = nodes.control_nodes(roots)
    storage = nodes.storage_nodes(roots) if roots.gpudirect_storage else ()
    every = control + storage
    edits = known_root.edits._replace(device_nodes=every, additional_gids=nodes.groups_needed(every))
    remarks = (*known_root.remarks, *_missing_nodes(control))
    if storage:
        edits = edits._replace(mounts=edits.mounts + known_root.storage)
    elif roots.gpudirect_storage:
        remarks += ("no /dev/nvidia-fs* exists, so GPUDirect Storage is left out: is the module nvidia-fs loaded?",)
    return edits, remarks


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
