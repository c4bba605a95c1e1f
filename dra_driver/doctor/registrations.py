"""Registrations: the plugins that answer on the sockets in which the kubelet looks for plugins.

In: the kubelet's registry folder. Out: one `PluginSocket` for each socket. Each plugin is asked for its identity, as
the kubelet does, and for nothing else.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from dra_driver.plugin.kubelet.methods import PLUGIN_TYPE
from dra_driver.plugin.kubelet.same_name_drivers import RegisteredPlugin, ask
from dra_driver.plugin.kubelet.sockets import is_refused


@dataclass(frozen=True, slots=True)
class PluginSocket:
    """One registration socket. `plugin` is None if no plugin answered; `is_dead` means that no process listens."""

    path: str
    plugin: RegisteredPlugin | None = None
    is_dead: bool = False

    def serves(self, driver: str) -> bool:
        """Return whether a DRA plugin of this driver name answered."""
        return self.plugin is not None and self.plugin.kind == PLUGIN_TYPE and self.plugin.name == driver


def read_registrations(folder: Path) -> tuple[PluginSocket, ...]:
    """Ask the plugin on every socket for its identity.

    Raises: FileNotFoundError if there is no such folder, PermissionError if this user may not use it or a socket in it.
    """
    return tuple(_ask(path) for path in sorted(folder.iterdir()) if path.is_socket())


def _ask(path: Path) -> PluginSocket:
    if not os.access(path, os.W_OK):
        raise PermissionError(path)  # a plugin may answer there, but this user can't find out
    if is_refused(path):
        return PluginSocket(str(path), is_dead=True)
    return PluginSocket(str(path), ask(path))
