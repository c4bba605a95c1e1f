"""Labels of a node as GPU feature discovery writes them: those that apply to the whole node, whatever claims do.

In: the facts of a node's GPUs, and where its trees are. Out: labels. Where GPUs differ, only what they have in common
becomes a label. How GPUs are shared or partitioned is left to the published devices, because it changes with claims.
Source: NVIDIA/k8s-device-plugin v0.20, GPU feature discovery: names and values of labels.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from dra_driver.hardware.facts import Facts
from dra_driver.hardware.nvidia.facts import NvidiaGpu
from dra_driver.hardware.nvidia.published.family import family
from dra_driver.hardware.port import Roots
from dra_driver.model.names import label_product

DOMAIN = "nvidia.com"
_CLIQUE = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\.\d+")
_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_MIB = 1 << 20
_READ_BYTES = 256


def feature_labels(facts: Facts, roots: Roots) -> dict[str, str]:
    """Return the labels of a node with these GPUs; none where no GPU answers."""
    gpus = [gpu for gpu in facts.gpus if isinstance(gpu, NvidiaGpu) and not gpu.is_lost]
    if not gpus:
        return {}
    found = {
        "mig.capable": str(any(gpu.mig_capable for gpu in gpus)).lower(),
        "gpu.product": _common(gpus, lambda gpu: label_product(gpu.product_name)),
        "gpu.memory": _common(gpus, lambda gpu: str(gpu.memory_bytes // _MIB) if gpu.memory_bytes else None),
        "gpu.family": _common(gpus, family),
        "gpu.clique": _common(gpus, _clique),
        "gpu.machine": label_product(_line(Path(roots.sys) / "class/dmi/id/product_name")),
        **_capability(gpus),
        **_driver(_line(Path(roots.sys) / "module/nvidia/version") or facts.driver_version),
        **_runtime(facts.runtime_version),
    }
    if found["gpu.product"]:
        found["gpu.count"] = str(len(gpus))
    good = {name: value for name, value in found.items() if value is not None and _VALUE.fullmatch(value)}
    return {f"{DOMAIN}/{name}": good[name] for name in sorted(good)}


def _common(gpus: Iterable[NvidiaGpu], value_of: Callable[[NvidiaGpu], str | None]) -> str | None:
    """Return the value that all GPUs have, None where they differ or one has none."""
    values = {value_of(gpu) or None for gpu in gpus}
    return values.pop() if len(values) == 1 else None


def _clique(gpu: NvidiaGpu) -> str | None:
    """Return the GPU's clique within a fabric, `<clusterUUID>.<cliqueId>`; other link domains are this node's own."""
    return gpu.link_domain if gpu.link_domain and _CLIQUE.fullmatch(gpu.link_domain) else None


def _capability(gpus: Iterable[NvidiaGpu]) -> Mapping[str, str | None]:
    words = (_common(gpus, lambda gpu: gpu.compute_capability) or "").split(".")
    if len(words) < 2:
        return {}
    return {"gpu.compute.major": words[0], "gpu.compute.minor": words[1]}


def _driver(version: str | None) -> Mapping[str, str | None]:
    """Return the labels of the kernel driver's version, and the older names of the same."""
    if not version:
        return {}
    major, minor, revision = (*version.split("."), "", "")[:3]
    new = {"major": major, "minor": minor, "revision": revision, "full": version}
    old = {"major": major, "minor": minor, "rev": revision}
    return {f"cuda.driver-version.{k}": v for k, v in new.items()} | {f"cuda.driver.{k}": v for k, v in old.items()}


def _runtime(version: str | None) -> Mapping[str, str | None]:
    if not version:
        return {}
    major, minor = (*version.split("."), "")[:2]
    new = {"major": major, "minor": minor, "full": f"{major}.{minor}"}
    old = {"major": major, "minor": minor}
    return {f"cuda.runtime-version.{k}": v for k, v in new.items()} | {f"cuda.runtime.{k}": v for k, v in old.items()}


def _line(path: Path) -> str | None:
    """Return the first line of a file of the kernel, None where it can't be read."""
    try:
        with path.open("rb") as file:
            return file.read(_READ_BYTES).decode(errors="replace").partition("\n")[0].strip() or None
    except OSError:
        return None
