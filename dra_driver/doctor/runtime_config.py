"""Container runtime: whether it uses CDI files, and from which folders, according to its configuration files.

In: the root of the host's file system. Out: one `RuntimeConfig` for each runtime that is configured there. A default
that depends on the runtime's version is reported as unknown. No command is run.
Source: containerd, CDI support (enable_cdi: off by default in 1.7, on since 2.0); CRI-O, crio.conf(5).
"""

from __future__ import annotations

import glob
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEFAULT_FOLDERS = ("/etc/cdi", "/var/run/cdi")
# Kubernetes distributions that ship their own containerd have its configuration in other places.
_CONTAINERD = (
    "etc/containerd/config.toml",
    "var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "var/lib/rancher/rke2/agent/etc/containerd/config.toml",
    "etc/k0s/containerd.toml",
    "var/snap/microk8s/current/args/containerd.toml",
)
_CRIO = ("etc/crio/crio.conf", "etc/crio/crio.conf.d/*")
# The CRI plugin's table in config version 2 (containerd 1.x) and in version 3 (2.x).
_TABLES = ("io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime")


@dataclass(frozen=True, slots=True)
class RuntimeConfig:
    """The configuration of one runtime. `is_cdi_on` is None if it leaves CDI to the default of its version."""

    runtime: str
    file: str
    is_cdi_on: bool | None
    folders: tuple[str, ...]
    fault: str = ""


def read_runtimes(host: Path) -> tuple[RuntimeConfig, ...]:
    """Return the configuration of every runtime that is configured below `host`.

    A file with an error in it is reported in `fault`. Raises: PermissionError if a file may not be read.
    """
    files = [host / name for name in _CONTAINERD]
    crio = _crio(host)
    return (*(_containerd(path, host) for path in files if path.is_file()), *((crio,) if crio else ()))


def _containerd(path: Path, host: Path) -> RuntimeConfig:
    is_on: bool | None = None
    folders = DEFAULT_FOLDERS
    try:
        for document in _with_imports(path, host):
            plugins = document.get("plugins") or {}
            for table in (plugins.get(name) or {} for name in _TABLES):
                is_on = table.get("enable_cdi", is_on)
                folders = tuple(table.get("cdi_spec_dirs") or folders)
    except PermissionError:
        raise
    except (OSError, ValueError, AttributeError) as fault:
        return RuntimeConfig("containerd", _host_name(path, host), None, folders, str(fault))
    return RuntimeConfig("containerd", _host_name(path, host), is_on, folders)


def _with_imports(path: Path, host: Path) -> Iterator[dict[str, Any]]:
    """Yield the file, and then the files that it imports, each of which overrides the ones before it."""
    document = tomllib.loads(path.read_text("utf-8"))
    yield document
    for pattern in document.get("imports") or ():
        absolute = host / str(pattern).lstrip("/") if str(pattern).startswith("/") else path.parent / str(pattern)
        for name in sorted(glob.glob(str(absolute))):  # noqa: PTH207 - the pattern may be absolute
            yield tomllib.loads(Path(name).read_text("utf-8"))


def _crio(host: Path) -> RuntimeConfig | None:
    files = [path for pattern in _CRIO for path in sorted(host.glob(pattern)) if path.is_file()]
    if not files:
        return None
    folders = DEFAULT_FOLDERS
    try:
        for path in files:
            runtime = (tomllib.loads(path.read_text("utf-8")).get("crio") or {}).get("runtime") or {}
            folders = tuple(runtime.get("cdi_spec_dirs") or folders)
    except PermissionError:
        raise
    except (OSError, ValueError, AttributeError) as fault:
        return RuntimeConfig("CRI-O", _host_name(files[0], host), None, folders, str(fault))
    return RuntimeConfig("CRI-O", _host_name(files[0], host), is_cdi_on=True, folders=folders)


def _host_name(path: Path, host: Path) -> str:
    return f"/{path.relative_to(host)}"
