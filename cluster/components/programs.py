"""Programs: the paths of what a cluster, the chart and the lane of rules start, built or of this machine.

No ready-made binary is downloaded. What Debian packages well (runc, the CNI plugins, busybox) is taken from the
machine; when it is missing, the error says which package to install.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from cluster.components.parts import CONTAINERD, ETCD, HELM, PROMETHEUS, BinariesMissing, kubernetes

DEBIAN = {
    "runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "busybox": "busybox-static",
    "ip": "iproute2",
    "openssl": "openssl",
    "nsenter": "util-linux",
}


def require(version: str) -> dict[str, Path]:
    """Return the path of every program that the cluster starts, by name.

    Raises: BinariesMissing when one does not exist, with the command that builds it.
    """
    paths: dict[str, Path] = {}
    for part in (kubernetes(version), ETCD, CONTAINERD):
        if not part.built():
            raise BinariesMissing(
                f"{part.folder} {part.version} is not built: run `make cluster-binaries K8S={version}`"
            )
        paths |= {name: part.path / name for name in part.binaries}
    for program, package in DEBIAN.items():
        found = which(program)
        if found is None:
            raise BinariesMissing(f"{program} is missing: apt-get install {package}")
        paths[Path(program).name] = Path(found)
    return paths


def helm() -> Path:
    """Return helm, which only the chart's tests need.

    Raises: BinariesMissing when it is not built.
    """
    if not HELM.built():
        raise BinariesMissing(f"helm {HELM.version} is not built: run `make cluster-binaries`")
    return HELM.path / "helm"


def prometheus() -> dict[str, Path]:
    """Return the paths of `prometheus` and `promtool`, which only the lane of rules and dashboards needs.

    Raises: BinariesMissing when they are not built.
    """
    if not PROMETHEUS.built():
        raise BinariesMissing(f"prometheus {PROMETHEUS.version} is not built: run `python -m cluster prometheus`")
    return {name: PROMETHEUS.path / name for name in PROMETHEUS.binaries}


def which(program: str) -> str | None:
    """Return the path of a program of this machine."""
    return shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
