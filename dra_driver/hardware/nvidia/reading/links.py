"""NVLink: how many links a GPU has, and which GPUs are linked with each other.

In: the library's answers for one GPU; then, over all GPUs, pure graph work. Out: link counts and one stable id per
connected component.

The id is derived from the topology alone: it is the smallest switch address in the component or, where there is no
switch, the smallest GPU address. Links are remembered as long as the process lives, so a GPU that is lost (or whose
links are hidden by MIG mode) does not change the id of those that stay. After a restart without that GPU the id is the
same wherever a switch connects the others; it may differ only for bridged GPUs without a switch.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass

from dra_driver.hardware.nvidia.nvml.fault import Handle, NvmlFault
from dra_driver.hardware.nvidia.nvml.links import FABRIC_COMPLETED, MAX_LINKS
from dra_driver.hardware.nvidia.nvml.nvml import Nvml
from dra_driver.model.names import normal_pci_address

Edge = tuple[str, str]
_GPU, _NPU, _SWITCH = 0, 1, 2  # values of NVML_NVLINK_DEVICE_TYPE_*
_SWITCH_MARK = "switch/"
_HIDDEN_SWITCH = f"{_SWITCH_MARK}hidden"  # a switch whose address is hidden from a virtual machine


@dataclass(frozen=True, slots=True)
class LinkReading:
    """One GPU's links. `count` is None where the GPU has no NVLink; `fabric` is `<clusterUUID>.<cliqueId>`.

    `is_fabric_unknown` is true while the GPU is still joining its fabric, or fails to report it, so that its domain is
    not known.
    """

    count: int | None = None
    edges: frozenset[Edge] = frozenset()
    fabric: str | None = None
    is_fabric_unknown: bool = False


def read_links(nvml: Nvml, gpu: Handle, address: str) -> tuple[int | None, frozenset[Edge]]:
    """Return the number of a GPU's active links, and the edges to what they lead to.

    Raises: NvmlFault when a link that exists can't be read.
    """
    count: int | None = None
    edges: set[Edge] = set()
    for link in range(MAX_LINKS):
        try:
            is_active = nvml.link_is_active(gpu, link)
        except NvmlFault as fault:
            if fault.name == "INVALID_ARGUMENT":
                break
            if fault.is_absent:
                continue
            raise
        count = (count or 0) + is_active
        if is_active and (far_end := _read_far_end(nvml, gpu, link)):
            edges.add((address, far_end))
    return count, frozenset(edges)


def _read_far_end(nvml: Nvml, gpu: Handle, link: int) -> str | None:
    """Return what a link leads to, or None when it is no peer or the library does not report it."""
    try:
        kind = nvml.link_remote_type(gpu, link)
    except NvmlFault as fault:
        if not fault.is_absent:
            raise
        kind = _GPU  # an older library: a switch then counts as a peer outside this node, which connects GPUs as well
    try:
        address = normal_pci_address(nvml.link_remote_address(gpu, link))
    except (NvmlFault, ValueError) as fault:
        if isinstance(fault, NvmlFault) and fault.is_lost:
            raise
        address = ""
    if kind == _SWITCH:
        return f"{_SWITCH_MARK}{address}" if _is_real(address) else _HIDDEN_SWITCH
    return address if kind == _GPU and _is_real(address) else None


def _is_real(address: str) -> bool:
    return bool(address.strip("0:.")) and not address.startswith("ffff")


def read_fabric(nvml: Nvml, gpu: Handle) -> tuple[str | None, bool]:
    """Return the fabric that the GPU has joined, and whether it is still joining one.

    A completed registration with a cluster of zeros is a single machine's NVSwitch fabric, which has no name.
    Source: GPU feature discovery's label nvidia.com/gpu.clique.
    """
    fabric = nvml.fabric(gpu)
    if fabric.state == 0:  # the state "not supported"
        return None, False
    if fabric.state != FABRIC_COMPLETED:
        return None, True
    if fabric.status != 0:
        raise NvmlFault("nvmlDeviceGetGpuFabricInfo", f"registration failed with {fabric.status}")
    if not any(fabric.cluster_uuid):
        return None, False
    return f"{uuid.UUID(bytes=fabric.cluster_uuid)}.{fabric.clique_id}", False


def domains(edges: Iterable[Edge]) -> dict[str, str]:
    """Return, for each GPU that has a peer, the id of its connected component.

    >>> domains([("0000:65:00.0", "0000:01:00.0")])["0000:65:00.0"]
    'nvlink-0000-01-00-0'
    """
    parents: dict[str, str] = {}

    def root(vertex: str) -> str:
        parents.setdefault(vertex, vertex)
        while parents[vertex] != vertex:
            parents[vertex] = parents[parents[vertex]]
            vertex = parents[vertex]
        return vertex

    for one, other in edges:
        first, second = sorted((root(one), root(other)), key=_rank)
        parents[second] = first  # the root of a component is its smallest vertex, and switches sort first
    return {v: _domain_id(root(v)) for v in list(parents) if not v.startswith(_SWITCH_MARK)}


def _rank(vertex: str) -> tuple[bool, str]:
    return (not vertex.startswith(_SWITCH_MARK), vertex)


def _domain_id(vertex: str) -> str:
    kind = "nvswitch" if vertex.startswith(_SWITCH_MARK) else "nvlink"
    return f"{kind}-{vertex.removeprefix(_SWITCH_MARK).replace(':', '-').replace('.', '-')}"
