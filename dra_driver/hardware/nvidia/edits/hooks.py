"""The container toolkit's hook program, where the node has one: a driver root comes in, OCI hooks go out.

At a container's creation, the program does inside it what edits can't: links, the loader's cache, CUDA forward
compatibility, a read-only view of the driver's parameters. We refer to the program and never run it.
Source: NVIDIA Container Toolkit, nvidia-cdi-hook and `nvidia-ctk hook`; tried with 1.17.8, which exits 3 on a command
that was added later, and with 1.20.1.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dra_driver.hardware.nvidia.edits.driver_files import DriverFiles
from dra_driver.hardware.nvidia.edits.driver_root import DriverRoot
from dra_driver.model.edits import Hook

# Folders on the host or in the driver container; the GPU operator puts its toolkit into the last two.
_FOLDERS = (
    "/usr/bin",
    "/usr/local/bin",
    "/usr/sbin",
    "/opt/bin",
    "/usr/local/nvidia/toolkit",
    "/usr/local/nvidia/container-toolkit",
)
OPERATOR_TOOLKIT = "/usr/local/nvidia/toolkit"  # a folder of the host, which the agent's pod mounts at the same path
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
    """Look for nvidia-cdi-hook, then nvidia-ctk, in the driver root, then in the operator's folder on the host."""
    for name, argv in (("nvidia-cdi-hook", ("nvidia-cdi-hook",)), ("nvidia-ctk", ("nvidia-ctk", "hook"))):
        for tree, folders in ((root, _FOLDERS), (host, (OPERATOR_TOOLKIT,))):
            path = tree.find_program(name, folders)
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
