"""What a container gets: device nodes, mounts, environment, hooks.

A vendor's hardware folder describes in these types what a device needs, and `cdi` writes them as a CDI document;
neither knows the other. Field names follow the CDI specification's containerEdits.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

READ_ONLY_BIND = ("ro", "nosuid", "nodev", "rbind", "rprivate")


class DeviceNode(NamedTuple):
    """One device node as the container sees it.

    `path` is the path in the container; `host_path` is set only where it differs. `major` and `minor` are always set,
    so that a runtime can create the node without reading the host's. `gid` is set only where it is not 0.
    `file_mode` is the permission bits of the host's node (octal); None leaves them to the runtime's default.
    """

    path: str
    major: int
    minor: int
    host_path: str = ""
    type: str = "c"
    permissions: str = "rw"
    file_mode: int | None = None
    gid: int = 0


class Mount(NamedTuple):
    """One bind mount. `host_path` is the path that the container runtime (not the agent) sees."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = READ_ONLY_BIND


class Hook(NamedTuple):
    """One OCI hook. `path` is the path that the runtime sees; `args` includes argv[0]."""

    path: str
    args: tuple[str, ...]
    name: str = "createContainer"
    env: tuple[str, ...] = ()


class Edits(NamedTuple):
    """Everything that one device, or all devices of a claim, add to a container. `env` has entries `NAME=value`."""

    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    env: tuple[str, ...] = ()
    hooks: tuple[Hook, ...] = ()
    additional_gids: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.device_nodes or self.mounts or self.env or self.hooks or self.additional_gids)


def merge(parts: Iterable[Edits]) -> Edits:
    """Join edits in order and keep each distinct entry once, since two devices of a claim may need the same node."""
    parts = tuple(parts)
    return Edits(
        device_nodes=tuple(dict.fromkeys(n for p in parts for n in p.device_nodes)),
        mounts=tuple(dict.fromkeys(m for p in parts for m in p.mounts)),
        env=tuple(dict.fromkeys(e for p in parts for e in p.env)),
        hooks=tuple(dict.fromkeys(h for p in parts for h in p.hooks)),
        additional_gids=tuple(sorted({g for p in parts for g in p.additional_gids})),
    )
