"""Driver roots as they were last read: which files, links and hooks a container gets of one, kept until it changes.

In: the roots of a node, and the version of the driver that is loaded. Out: a `KnownRoot`, with its edits and remarks.
If the node has the toolkit's hook program, the container gets libraries at their own paths, and hooks do the rest.
Without it, libraries are also mounted under the names that programs load, in the folders that every loader searches.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from dra_driver.hardware.nvidia.edits.driver_files import DriverFile, DriverFiles, find_driver_files
from dra_driver.hardware.nvidia.edits.driver_root import DriverRoot
from dra_driver.hardware.nvidia.edits.hooks import HookProgram, driver_hooks, find_hook_program
from dra_driver.hardware.nvidia.edits.installed_driver import is_same_version
from dra_driver.hardware.nvidia.edits.installed_names import TRIPLETS
from dra_driver.hardware.port import Roots
from dra_driver.model.edits import Edits, Mount
from dra_driver.telemetry.logs import fields

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
    root, host = DriverRoot(roots.driver_mount, roots.driver), DriverRoot("/", "/")
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
