"""Checks of NVLink fabrics that span nodes: whether a driver hands out the channels for sharing memory between nodes.

Pure. In: `ClusterEvidence`, `NodeEvidence`. Out: findings. Programs on several nodes of a fabric reach each other's
memory by IMEX channels. NVIDIA's ComputeDomain plugin hands them out, under a driver name of its own beside this
driver, or this driver does (`--imex-channel`) if the host runs the daemons; a node has one IMEX session.
Source: NVIDIA, k8s-dra-driver-gpu, ComputeDomains; NVIDIA, IMEX guide.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from dra_driver.doctor.checks.slice_checks import devices_of
from dra_driver.doctor.cluster_evidence import ClusterEvidence
from dra_driver.doctor.finding import Finding
from dra_driver.doctor.node_evidence import NodeEvidence
from dra_driver.model.shares import DeviceType
from dra_driver.model.wire import Wire

CHANNEL_DRIVER = "compute-domain.nvidia.com"
_LINK_DOMAIN = "nvlinkDomain"
_READY = "READY"  # the word that nvidia-imex-ctl prints
# The clique of a fabric of several machines; a machine's own links have names of another form.
_FABRIC_CLIQUE = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.[0-9]+")


def check_channels(cluster: ClusterEvidence) -> Iterator[Finding]:
    """Yield a finding for each clique of several nodes of which some have no channels."""
    if not cluster.has("slices"):
        return
    of_plugin, of_driver = _nodes_with_devices(cluster, CHANNEL_DRIVER), _nodes_with_channel(cluster)
    for node in sorted(of_plugin & of_driver):
        yield Finding(
            "fabric-two-channels", f"node {node}",
            f"gets IMEX channels from {CHANNEL_DRIVER} and from {cluster.driver}, and a node has one IMEX session",
            "GET resourceslices",
            "set imexChannel=off for this node, or leave its domains to the host's daemons only",
        )  # fmt: skip
    served = of_plugin | of_driver
    for clique, nodes in sorted(_cliques(cluster).items()):
        lacking = sorted(nodes - served)
        if len(nodes) < 2 or not lacking:
            continue
        shown = ", ".join(lacking[:3]) + (f" and {len(lacking) - 3} more" if len(lacking) > 3 else "")
        yield Finding(
            "fabric-no-channels", f"NVLink clique {clique}",
            f"spans {len(nodes)} nodes, and no driver publishes an IMEX channel on {shown}: programs there can't share "
            "memory between nodes, unless the nodes were set up for this manually",
            "nvlinkDomain of the published GPUs, and GET resourceslices",
            "if programs span nodes, run NVIDIA's ComputeDomain plugin beside this driver, or set imexChannel=auto "
            "if the host runs the IMEX daemons",
        )  # fmt: skip


def check_daemon(cluster: ClusterEvidence, node: NodeEvidence) -> Iterator[Finding]:
    """Yield a finding if this node offers the host's channel, and the daemon behind it reports that it is not ready."""
    if node.channel_state in {None, _READY} or node.node not in _nodes_with_channel(cluster):
        return
    yield Finding(
        "fabric-not-ready", f"node {node.node}",
        f"offers an IMEX channel, but its daemon reports {(node.channel_state or 'nothing')[:200]}, not {_READY}; "
        "claims of the channel wait",
        "nvidia-imex-ctl -q below the driver root",
        "look at nvidia-imex.service on this node and on those that its nodes_config.cfg lists",
    )  # fmt: skip


def _cliques(cluster: ClusterEvidence) -> dict[str, set[str]]:
    """Return the nodes of each clique."""
    cliques: defaultdict[str, set[str]] = defaultdict(set)
    for one in _slices_of(cluster, cluster.driver):
        for device in one["spec"].get("devices") or ():
            domain = ((device.get("attributes") or {}).get(_LINK_DOMAIN) or {}).get("string") or ""
            if _FABRIC_CLIQUE.fullmatch(domain):
                cliques[domain].add(str(one["spec"].get("nodeName") or ""))
    return cliques


def _nodes_with_devices(cluster: ClusterEvidence, driver: str) -> set[str]:
    slices = _slices_of(cluster, driver)
    nodes = {str(one["spec"].get("nodeName") or "") for one in slices}
    return {node for node in nodes if node and devices_of(slices, node)}


def _nodes_with_channel(cluster: ClusterEvidence) -> set[str]:
    """Return the nodes on which this driver offers the host's channel."""
    kind = {"string": str(DeviceType.IMEX_CHANNEL)}
    return {
        str(one["spec"].get("nodeName") or "")
        for one in _slices_of(cluster, cluster.driver)
        if any((device.get("attributes") or {}).get("type") == kind for device in one["spec"].get("devices") or ())
    }


def _slices_of(cluster: ClusterEvidence, driver: str) -> list[Wire]:
    return [one for one in cluster.of("slices") if one["spec"].get("driver") == driver]
