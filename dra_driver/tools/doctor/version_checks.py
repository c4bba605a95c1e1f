"""Checks of NVLink fabrics that span nodes: whether a driver hands out the channels for sharing memory between nodes.

Pure. In: `ClusterEvidence`, `NodeEvidence`. Out: findings. Programs on several nodes of a fabric reach each other's
memory by IMEX channels. NVIDIA's ComputeDomain plugin hands them out, under a driver name of its own beside this
driver, or this driver does (`--imex-channel`) if the host runs the daemons; a node has one IMEX session.
Source: NVIDIA, k8s-dra-driver-gpu, ComputeDomains; NVIDIA, IMEX guide.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from dra_driver.base.errors import UsageError
from dra_driver.base.wire import ClaimWire, DeviceType, Wire
from dra_driver.node.neighbours.device_plugin import allocatable_gpus
from dra_driver.tools.doctor.evidence import ClusterEvidence
from dra_driver.tools.doctor.finding import Finding
from dra_driver.tools.doctor.node_evidence import NodeEvidence
from dra_driver.tools.doctor.slice_checks import devices_of, identities

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
    cliques: defaultdict[str, set[str]] = defaultdict(set)
    for slice_ in _slices_of(cluster, cluster.driver):
        for device in slice_["spec"].get("devices") or ():
            domain = ((device.get("attributes") or {}).get(_LINK_DOMAIN) or {}).get("string") or ""
            if _FABRIC_CLIQUE.fullmatch(domain):
                cliques[domain].add(str(slice_["spec"].get("nodeName") or ""))
    return cliques


def _nodes_with_devices(cluster: ClusterEvidence, driver: str) -> set[str]:
    slices = _slices_of(cluster, driver)
    nodes = {str(slice_["spec"].get("nodeName") or "") for slice_ in slices}
    return {node for node in nodes if node and devices_of(slices, node)}


def _nodes_with_channel(cluster: ClusterEvidence) -> set[str]:
    """Return the nodes on which this driver offers the host's channel."""
    kind = {"string": str(DeviceType.IMEX_CHANNEL)}
    return {
        str(slice_["spec"].get("nodeName") or "")
        for slice_ in _slices_of(cluster, cluster.driver)
        if any((device.get("attributes") or {}).get("type") == kind for device in slice_["spec"].get("devices") or ())
    }


def _slices_of(cluster: ClusterEvidence, driver: str) -> list[Wire]:
    return [slice_ for slice_ in cluster.of("slices") if slice_["spec"].get("driver") == driver]


# Older releases: what each of them can read, keep and undo of what this release records.


@dataclass(frozen=True, slots=True)
class OlderRelease:
    """What an older release can read and undo.

    `drivers` are the DRA drivers that it serves, `step_kinds` the kinds of recorded steps that it can undo.
    `keeps_health`: whether it avoids handing out faulty and cordoned devices.
    """

    name: str
    drivers: frozenset[str]
    step_kinds: frozenset[str]
    keeps_health: bool


RELEASES = Path(__file__).with_name("releases.yaml")


def older_release(name: str) -> OlderRelease:
    """Return what is known of a release. Raises: UsageError("usage.release")."""
    rows = {row["version"]: row for row in yaml.safe_load(RELEASES.read_text())}
    row = rows.get(name.removeprefix("v"))
    if row is None:
        hint = f"releases that are known: {', '.join(rows)}"
        raise UsageError("release", f"a downgrade to {name} can't be checked", hint=hint)
    return OlderRelease(row["version"], frozenset(row["drivers"]), frozenset(row["steps"]), row["keeps_health"])


# Checks before a downgrade: what the older release could not undo, would not keep, or does not serve.

_END = "end the pods that use it before you go back"


def check_held(release: OlderRelease, cluster: ClusterEvidence) -> Iterator[Finding]:
    """Yield a finding for each claim on devices of a driver that the older release does not serve."""
    for claim in cluster.of("claims"):
        allocation = (claim.get("status") or {}).get("allocation") or {}
        results = (allocation.get("devices") or {}).get("results") or ()
        drivers = {one.get("driver") for one in results if one.get("driver") == cluster.driver} - release.drivers
        meta = claim["metadata"]
        for driver in sorted(map(str, drivers)):
            yield _claim(
                f"{meta.get('namespace', 'default')}/{meta['name']}",
                f"holds devices of {driver}, which {release.name} does not serve: its pod would stay Terminating",
                "status.allocation",
            )


def check_withheld(release: OlderRelease, cluster: ClusterEvidence) -> Iterator[Finding]:
    """Yield a finding for each node with devices that are tainted because of their health."""
    if release.keeps_health:
        return
    for slice_ in cluster.of("slices"):
        spec = slice_["spec"]
        if spec.get("driver") != cluster.driver:
            continue
        tainted = [device["name"] for device in spec.get("devices") or () if _is_ours(device, cluster.driver)]
        if tainted:
            yield _forgotten(release, f"node {spec.get('nodeName')}", tainted, "the taints in its slices")


def _is_ours(device: object, driver: str) -> bool:
    taints = device.get("taints") or () if isinstance(device, dict) else ()
    return any(str(taint.get("key", "")).startswith(f"{driver}/") for taint in taints)


def check_recorded(release: OlderRelease, node: NodeEvidence) -> Iterator[Finding]:
    """Yield a finding for each record of this node that the older release could not undo or would not keep."""
    for row in node.rows or ():
        unknown = sorted(set(row.kinds) - release.step_kinds)
        if unknown:
            yield _claim(
                row.name, f"was prepared in steps that {release.name} can't undo: {', '.join(unknown)}",
                "its row in the ledger",
            )  # fmt: skip
    health = node.health
    if health is not None and not release.keeps_health:
        faulty = sorted({f"GPU {one.subject.gpu}" for one in health.faults} | {one.device for one in health.cordons})
        if faulty:
            yield _forgotten(release, f"node {node.node}", faulty, "what the agent has recorded about health")


def _claim(name: str, message: str, how: str) -> Finding:
    return Finding("downgrade-claim", f"claim {name}", message, how, _END)


def _forgotten(release: OlderRelease, subject: str, devices: list[str], how: str) -> Finding:
    return Finding(
        "downgrade-health", subject,
        f"{release.name} knows nothing of health and would hand out {', '.join(devices[:8])} again", how,
        "cordon the node (kubectl cordon), or have the devices repaired first",
    )  # fmt: skip


# Checks of a node whose GPU driver is being replaced: which claims and processes still hold its devices.

_SHOWN = 8  # holders in one finding
_OPERANDS, _PAUSED = "/gpu.deploy.", "paused-for-"


def check_paused(cluster: ClusterEvidence) -> Iterator[Finding]:
    """Yield a finding for each node that is paused for another driver while claims hold devices there."""
    if not cluster.has("nodes", "claims"):
        return
    for node in cluster.of("nodes"):
        name, paused = node["metadata"]["name"], _paused(node)
        holders = [text for claim in cluster.of("claims") if (text := _holder(claim, name, cluster.driver))]
        if paused and holders:
            yield Finding(
                "driver-upgrade-held", f"node {name}",
                f"is {paused.partition('=')[2]}, and its devices are held by {_listed(holders)}",
                f"the label {paused} beside GET resourceclaims",
                "end these pods first and the agent last: without it their claims are not unprepared, and the pods "
                "stay Terminating; if the agent is gone already, set its label to true until they are gone",
            )  # fmt: skip


def _paused(node: Wire) -> str:
    """Return the label by which a node's users of GPUs are paused, as KEY=VALUE; "" if there is none."""
    labels = node["metadata"].get("labels") or {}
    paused = (f"{key}={value}" for key, value in sorted(labels.items()) if _OPERANDS in key and _PAUSED in value)
    return next(paused, "")


def _holder(claim: ClaimWire, node: str, driver: str) -> str:
    """Return the names of a claim and its pods if it holds devices of a node; otherwise an empty text."""
    status = claim.get("status") or {}
    results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()
    pools = {result["pool"].partition("/")[0] for result in results if result.get("driver") == driver}
    if node not in pools:
        return ""
    pods = [consumer["name"] for consumer in status.get("reservedFor") or () if consumer.get("resource") == "pods"]
    meta = claim["metadata"]
    users = f" ({'pod' if len(pods) == 1 else 'pods'} {', '.join(pods)})" if pods else ""
    return f"{meta.get('namespace', 'default')}/{meta['name']}{users}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def check_device_users(node: NodeEvidence) -> Iterator[Finding]:
    """Yield a finding if the loaded driver is to be replaced and processes keep it from being unloaded."""
    kernel = node.kernel
    is_skewed = bool(kernel.library_version) and kernel.module_version != kernel.library_version
    is_not_answering = node.inventory is not None and bool(node.inventory.waiting_for)
    if node.users and kernel.module_version and (is_skewed or is_not_answering):
        held = [row.name for row in node.rows or () if row.devices]
        claims = f"; claims that are still prepared: {_listed(held)}" if held else ""
        yield Finding(
            "driver-in-use", f"kernel module {kernel.module_version}",
            f"can't be unloaded: in use by {_listed([str(user) for user in node.users])}{claims}",
            "the device files that processes have open (/proc/PID/fd)",
            "end the pods with claims, then the agent (or send it SIGUSR1), then the other processes",
        )  # fmt: skip


# Checks for a device plugin or another DRA driver that serves the same GPUs, as the API server shows them.


def check_conflicts(cluster: ClusterEvidence) -> Iterator[Finding]:
    """Check every node on which this driver publishes devices or has an agent."""
    yield from _device_plugins(cluster)
    yield from _other_drivers(cluster)


def _device_plugins(cluster: ClusterEvidence) -> Iterator[Finding]:
    served = {_node(slice_) for slice_ in _slices(cluster, is_ours=True) if slice_["spec"].get("devices")}
    waiting = {(pod.get("spec") or {}).get("nodeName") for pod in cluster.of("pods") if _is_agent(pod)}
    for node in cluster.of("nodes"):
        name, offered = node["metadata"]["name"], allocatable_gpus(node)
        if not offered or name not in served | waiting:
            continue
        listed = ", ".join(f"{resource}: {count}" for resource, count in sorted(offered.items()))
        how = "beside slices of this driver" if name in served else "so that the agent there publishes none"
        yield Finding(
            "node-device-plugin", f"node {name}", f"a device plugin offers {listed}, {how}", "status.allocatable",
            "remove the device plugin from this node (docs/moving.md)",
        )  # fmt: skip


def _other_drivers(cluster: ClusterEvidence) -> Iterator[Finding]:
    ours = {(_node(slice_), gpu) for slice_ in _slices(cluster, is_ours=True) for gpu in _identities(slice_)}
    seen = set()
    for slice_ in _slices(cluster, is_ours=False):
        driver, node = slice_["spec"]["driver"], _node(slice_)
        if (driver, node) not in seen and any((node, gpu) in ours for gpu in _identities(slice_)):
            seen.add((driver, node))
            yield Finding(
                "slices-second-driver", f"node {node}", f"{driver} publishes GPUs that {cluster.driver} publishes too",
                "UUIDs and PCI addresses in the slices of both", "remove one of the two drivers from this node",
            )  # fmt: skip


def _slices(cluster: ClusterEvidence, *, is_ours: bool) -> list[Wire]:
    return [slice_ for slice_ in cluster.of("slices") if (slice_["spec"].get("driver") == cluster.driver) is is_ours]


def _identities(one: Wire) -> frozenset[str]:
    return frozenset().union(*(identities(device) for device in one["spec"].get("devices") or ()))


def _node(one: Wire) -> str:
    return str(one["spec"].get("nodeName") or "")


def _is_agent(pod: Wire) -> bool:
    labels = pod["metadata"].get("labels") or {}
    component = labels.get("app.kubernetes.io/component", "agent")
    return labels.get("app.kubernetes.io/name") == "dra-driver" and component == "agent"
