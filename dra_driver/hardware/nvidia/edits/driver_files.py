"""The files of a driver root that a container needs, and the hooks of the container toolkit.

In: one reading of the root. Out: files and links, by kind, and OCI hooks, where the node has the toolkit's program.
Only names and links are read, never the content of a library. What does not exist is not listed. Nothing is guessed
except the driver's version, which is part of libcuda's file name. Folders and names are those of NVIDIA's installers.

At a container's creation, the program does inside it what edits can't: links, the loader's cache, CUDA forward
compatibility, a read-only view of the driver's parameters. We refer to the program and never run it.
Source: the driver's README, "Installed Components"; NVIDIA Container Toolkit for which of them containers get,
nvidia-cdi-hook and `nvidia-ctk hook`; tried with 1.17.8, which exits 3 on a command that was added later, and with
1.20.1.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dra_driver.hardware.facts import Hook
from dra_driver.hardware.nvidia.driver_root import (
    BINARIES,
    BINARY_FOLDERS,
    CONFIG_FOLDERS,
    CONFIGS,
    ETC_CONFIGS,
    FIRMWARE,
    LIBRARY_FOLDERS,
    OPENED_WITHOUT_NUMBER,
    OWN_VERSION,
    SOCKETS,
    SONAME_NUMBERS,
    XORG_FOLDERS,
    DriverRoot,
    find_driver,
)


@dataclass(frozen=True, slots=True)
class DriverFile:
    """One file: its path in the container, and the path by which the container runtime finds it."""

    path: str
    host_path: str

    @property
    def name(self) -> str:
        """Return the file's name without folders."""
        return self.path.rpartition("/")[2]

    @property
    def folder(self) -> str:
        """Return the file's folder in the container."""
        return self.path.rpartition("/")[0]


@dataclass(frozen=True, slots=True)
class Link:
    """One symlink that programs expect: `path`, its `target` as written, and the library to which it leads."""

    path: str
    target: str
    library: DriverFile


@dataclass(frozen=True, slots=True)
class DriverFiles:
    """What was found. `version` is spelled as in file names ("580.65.06"); `aliases` are other names of a library."""

    folder: str = ""  # the folder of libcuda
    version: str = ""
    libraries: tuple[DriverFile, ...] = ()
    aliases: tuple[tuple[DriverFile, tuple[str, ...]], ...] = ()
    links: tuple[Link, ...] = ()
    others: tuple[DriverFile, ...] = ()  # X.org modules, configs, firmware, binaries
    sockets: tuple[DriverFile, ...] = ()


def find_driver_files(root: DriverRoot, loaded: str | None, *, sys: str, proc: str) -> DriverFiles:
    """Look through a driver root for the files of the `loaded` driver version (None: not known)."""
    folder, version = find_driver(root, loaded)
    libraries = tuple(_libraries(root, folder, version)) if version else ()
    xorg = tuple(_xorg(root, folder, version)) if version else ()
    firmware = tuple(_firmware(root, version, sys, proc)) if version else ()
    return DriverFiles(
        folder=folder,
        version=version,
        libraries=libraries,
        aliases=tuple((library, _aliases(root, library)) for library in libraries),
        links=tuple(_links(libraries, xorg)),
        others=(*xorg, *_configs(root), *firmware, *_binaries(root)),
        sockets=tuple(_file(root, path, path) for path in SOCKETS if root.find(path)),
    )


def _file(root: DriverRoot, path: str, container_path: str) -> DriverFile:
    return DriverFile(container_path, root.on_host(root.resolve(path) or path))


def _existing(root: DriverRoot, folder: str, names: Iterable[str]) -> Iterator[DriverFile]:
    for name in names:
        if root.resolve(f"{folder}/{name}"):
            yield _file(root, f"{folder}/{name}", f"{folder}/{name}")


def _libraries(root: DriverRoot, folder: str, version: str) -> Iterator[DriverFile]:
    """Yield the libraries of the version, each once: those beside libcuda first, then those of every other folder."""
    seen: set[str] = set()
    for base in dict.fromkeys((folder, *LIBRARY_FOLDERS)):
        for place in (base, f"{base}/vdpau"):
            names = sorted(
                name
                for name in root.names(place)
                if (name.endswith(f".so.{version}") or OWN_VERSION.fullmatch(name)) and name not in seen
            )
            seen.update(names)
            yield from _existing(root, place, names)


def _aliases(root: DriverRoot, library: DriverFile) -> tuple[str, ...]:
    """Return the names by which programs ask for a library: its links in the same folder, and those it should have.

    The links are missing from a driver root in which ldconfig was never run.
    """
    stem = library.name.partition(".so.")[0]
    target = root.resolve(library.path)
    links = {
        name
        for name in root.names(library.folder)
        if name.partition(".so")[0] == stem
        and name != library.name
        and root.resolve(f"{library.folder}/{name}") == target
    }
    if number := SONAME_NUMBERS.get(stem, "1"):
        links.add(f"{stem}.so.{number}")
    return tuple(sorted(links | ({f"{stem}.so"} if stem in OPENED_WITHOUT_NUMBER else set())))


def _xorg(root: DriverRoot, folder: str, version: str) -> Iterator[DriverFile]:
    wanted = {"nvidia_drv.so", f"libglxserver_nvidia.so.{version}"}
    for place in dict.fromkeys((f"{folder}/nvidia/xorg", *XORG_FOLDERS)):
        names = sorted(wanted & root.names(place))
        wanted.difference_update(names)
        yield from _existing(root, place, names)


def _links(libraries: tuple[DriverFile, ...], xorg: tuple[DriverFile, ...]) -> Iterator[Link]:
    """Yield the links that the driver's installer makes and ldconfig does not."""
    for library in (*libraries, *xorg):
        match library.name.partition(".so.")[0]:
            case "libcuda":  # programs open it with dlopen by its name without a number
                yield Link(f"{library.folder}/libcuda.so", "libcuda.so.1", library)
            case "libnvidia-ml":
                yield Link(f"{library.folder}/libnvidia-ml.so", "libnvidia-ml.so.1", library)
            case "libnvidia-opticalflow":
                yield Link(f"{library.folder}/libnvidia-opticalflow.so", "libnvidia-opticalflow.so.1", library)
            case "libGLX_nvidia":
                yield Link(f"{library.folder}/libGLX_indirect.so.0", library.name, library)
            case "libnvidia-allocator":
                yield Link(f"{library.folder}/gbm/nvidia-drm_gbm.so", "../libnvidia-allocator.so.1", library)
            case "libnvidia-vulkan-producer" | "libglxserver_nvidia" as stem:
                yield Link(f"{library.folder}/{stem}.so", library.name, library)


def _configs(root: DriverRoot) -> Iterator[DriverFile]:
    for name in (*CONFIGS, *ETC_CONFIGS):
        for folder in (*CONFIG_FOLDERS, ""):
            if root.find(f"{folder}/{name}"):
                yield _file(root, f"{folder}/{name}", f"/etc/{name}" if name in ETC_CONFIGS else f"/usr/share/{name}")
                break


def _firmware(root: DriverRoot, version: str, sys: str, proc: str) -> Iterator[DriverFile]:
    """Yield the GSP firmware of the version from the first folder that has it.

    Source: Linux, Documentation/driver-api/firmware/fw_search_path.rst.
    """
    release = _line(f"{proc}/sys/kernel/osrelease") or os.uname().release
    own = _line(f"{sys}/module/firmware_class/parameters/path")
    own = own.removeprefix(root.on_host("")) if own else ""
    folders = (own, f"/lib/firmware/updates/{release}", "/lib/firmware/updates", f"/lib/firmware/{release}")
    for folder in (*filter(None, folders), "/lib/firmware"):
        place = f"{folder.rstrip('/')}/nvidia/{version}"
        if names := sorted(name for name in root.names(place) if FIRMWARE.fullmatch(name)):
            yield from _existing(root, place, names)
            return


def _line(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _binaries(root: DriverRoot) -> Iterator[DriverFile]:
    for name in BINARIES:
        path = root.find_program(name, BINARY_FOLDERS)
        if path:
            yield _file(root, path, path)


# Folders of the driver root and of the host; the GPU Operator puts its toolkit into the last two of the host.
_FOLDERS = (
    "/usr/bin",
    "/usr/local/bin",
    "/usr/sbin",
    "/opt/bin",
    "/usr/local/nvidia/toolkit",
    "/usr/local/nvidia/container-toolkit",
)
CREATE_SYMLINKS = "create-symlinks"
ENABLE_CUDA_COMPAT = "enable-cuda-compat"
UPDATE_LDCACHE = "update-ldcache"
DISABLE_NODE_MODIFICATION = "disable-device-node-modification"
_COMMANDS = frozenset({CREATE_SYMLINKS, ENABLE_CUDA_COMPAT, UPDATE_LDCACHE, DISABLE_NODE_MODIFICATION})


@dataclass(frozen=True, slots=True)
class HookProgram:
    """A hook program: its `path` for the container runtime, `argv` before the command, and its commands."""

    path: str
    argv: tuple[str, ...]
    commands: frozenset[str]

    def hook(self, command: str, *arguments: str) -> Hook | None:
        """Return the hook that runs a command, or None when this program is too old to know it."""
        if command not in self.commands:
            return None
        return Hook(self.path, (*self.argv, command, *arguments), env=("NVIDIA_CTK_DEBUG=false",))

    def missing_commands(self) -> tuple[str, ...]:
        """Return the commands that this program is too old to know."""
        return tuple(sorted(_COMMANDS - self.commands))

    def links(self, links: Iterable[tuple[str, str]]) -> Hook | None:
        """Return the hook that makes symlinks from (path, target) pairs, or None if there are no pairs."""
        arguments = [word for path, target in links for word in ("--link", f"{target}::{path}")]
        return self.hook(CREATE_SYMLINKS, *arguments) if arguments else None


def find_hook_program(root: DriverRoot, host: DriverRoot) -> HookProgram | None:
    """Look for nvidia-cdi-hook, then nvidia-ctk, in the driver root, then on the host."""
    for name, argv in (("nvidia-cdi-hook", ("nvidia-cdi-hook",)), ("nvidia-ctk", ("nvidia-ctk", "hook"))):
        for tree in (root, host):
            path = tree.find_program(name, _FOLDERS)
            resolved = tree.resolve(path) if path else None
            if resolved:
                return HookProgram(tree.on_host(resolved), argv, _commands_of(Path(tree.here(resolved))))
    return None


def driver_hooks(
    program: HookProgram, files: DriverFiles, loader_links: Iterable[tuple[str, str]] = ()
) -> tuple[Hook, ...]:
    """Return the hooks for what all devices share, in the order in which they have to run.

    `loader_links`, pairs of path and target, are for images whose loader has no cache or does not search the folder of
    the libraries: some versions of the program update no cache where there is none, and then make no links either.
    """
    folders = dict.fromkeys(library.folder for library in files.libraries)
    # A program from before 1.17 fails if the image has something in a link's place.
    own = loader_links if ENABLE_CUDA_COMPAT in program.commands else ()
    links = dict(own) | {link.path: link.target for link in files.links}
    hooks = (
        program.links(links.items()),
        program.hook(ENABLE_CUDA_COMPAT, f"--host-driver-version={files.version}") if files.version else None,
        program.hook(UPDATE_LDCACHE, *(word for f in folders for word in ("--folder", f))) if folders else None,
        program.hook(DISABLE_NODE_MODIFICATION),
    )
    return tuple(hook for hook in hooks if hook is not None)


def _commands_of(program: Path) -> frozenset[str]:
    """Find out from its bytes which commands a program supports, since an unknown one would make every container fail.

    A wrapper script names the real program by the suffix `.real`. A program whose commands can't be determined is
    assumed to know all of them.
    """
    real = program.with_name(f"{program.name}.real")
    try:
        with (
            (real if real.is_file() else program).open("rb") as file,
            mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as text,
        ):
            if text[:4] != b"\x7fELF" or text.find(CREATE_SYMLINKS.encode()) < 0:
                return _COMMANDS
            return frozenset(command for command in _COMMANDS if text.find(command.encode()) >= 0)
    except (OSError, ValueError):
        return _COMMANDS
