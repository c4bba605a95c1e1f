"""Names for completion: of shipped profiles, and of objects in a cluster.

In: a kind, a kubeconfig, a namespace. Out: names; none if the cluster is unknown, refuses, or does not answer within
the deadline. At most one page of objects is read.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

_SECONDS = 2.0  # a person who has pressed the Tab key is waiting
_PAGE = "250"


def profiles() -> tuple[str, ...]:
    """Return the names of the shipped profiles."""
    from dra_driver.hardware.simulated.profile import profile_names

    return profile_names()


def node_gpus() -> Sequence[str]:
    """Return the names of the GPUs that this node's agent has seen; none if anything fails."""
    from dra_driver.health.known_gpus import read_gpus
    from dra_driver.health.store import GPUS, HealthStore
    from dra_driver.model.flag import resolve
    from dra_driver.model.flags import FLAGS
    from dra_driver.model.names import gpu_name

    with suppress(Exception):
        values = resolve({}, os.environ, FLAGS)
        folder = Path(values["kubelet_plugins_directory_path"], values["driver_name"])
        return sorted(gpu_name(gpu.pci_address) for gpu in read_gpus(HealthStore(folder).read().get(GPUS)))
    return ()


def names(kind: str, kubeconfig: str | None, namespace: str | None = None, context: str = "") -> Sequence[str]:
    """Return the names of nodes, namespaces, devices, claims, pods or workloads in a cluster; none if anything fails.

    `kind` is in the singular (`claim`). Namespaced objects are those of `namespace` or, if it is not set, of the
    context's namespace.
    """
    found: list[str] = []

    def ask() -> None:
        with suppress(Exception):  # the command itself reports what is wrong when it is run
            found.extend(_read(kind, kubeconfig, namespace, context))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(_SECONDS)
    return () if asking.is_alive() else sorted(set(found))


def _read(kind: str, kubeconfig: str | None, namespace: str | None, context: str) -> Sequence[str]:
    """Read one page of a kind. Raises: DriverError."""
    from dra_driver.kube import paths
    from dra_driver.kube.api import KubeApi
    from dra_driver.kube.credentials.kubeconfig import read_namespace
    from dra_driver.kube.credentials.loading import load_credentials

    home = namespace or (read_namespace(kubeconfig, context) if kubeconfig else "default")
    kinds = {"node": paths.NODES, "namespace": paths.NAMESPACES, "device": paths.SLICES}
    kinds |= {
        name: paths.within(path, home)
        for name, path in (("claim", paths.CLAIMS), ("pod", paths.PODS), *paths.WORKLOADS.items())
    }
    path = kinds.get(kind)
    if path is None:
        return ()
    api = KubeApi(load_credentials(kubeconfig, context=context))
    try:
        answer: dict[str, Any] = api.request("GET", path, query={"limit": _PAGE}, timeout_s=_SECONDS)
    finally:
        api.close()
    items = answer.get("items") or []
    if kind == "device":
        return [device["name"] for one in items for device in one["spec"].get("devices") or ()]
    return [one["metadata"]["name"] for one in items]
