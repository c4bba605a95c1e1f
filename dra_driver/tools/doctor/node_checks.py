"""Checks of one node: kernel driver, hardware, container runtime, registration, ledger and CDI folder.

Pure. In: `NodeEvidence`. Out: findings.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from dra_driver.allocation.usage import taint_text
from dra_driver.base.names import gpu_name, gpu_of_device
from dra_driver.base.wire import Wire
from dra_driver.hardware.facts import hangs_with_mixed_mig
from dra_driver.hardware.pci import is_vfio
from dra_driver.node.devices.offering import Inventory
from dra_driver.node.health.cases import RemediationCase, Stage
from dra_driver.node.health.faults import Fault
from dra_driver.node.ledger.record import UNFINISHED, ClaimState
from dra_driver.tools.doctor.evidence import ClusterEvidence, agents
from dra_driver.tools.doctor.finding import Finding
from dra_driver.tools.doctor.node_evidence import NodeEvidence, PluginSocket
from dra_driver.tools.doctor.slice_checks import ours_by_pool
from dra_driver.tools.world.pod_status import PATIENCE_SECONDS, seconds_since

_MIXED = "hardware.mixed-mig-driver"
# These problems are reported by `check_kernel_driver`, and as `driver-not-answering`.
_REPORTED_ELSEWHERE = ("hardware.gpu-not-driven", "hardware.library-missing")
CDI_BY_DEFAULT = (2, 0)  # the first version of containerd that uses CDI by default
_LOAD = {"nvidia": "install NVIDIA's driver, or load it: modprobe nvidia"}
_LOAD_IT = "load its kernel driver, or find in the kernel's log why the driver does not bind to the GPU"
_UPGRADE = "upgrade the driver to 580.65.06 or newer"


def check_kernel_driver(node: NodeEvidence) -> Iterator[Finding]:
    """Check which kernel driver the GPUs on the PCI bus have, and that it matches the library.

    A GPU that the library answers for has its driver, even if sysfs lacks the link.
    """
    kernel = node.kernel
    if node.vendor == "simulated":
        return
    answering = {gpu.pci_address for gpu in node.facts.gpus} if node.facts else set()
    unbound = {address for address, bound in kernel.bound.items() if bound is None} - answering
    for address, bound in kernel.bound.items():
        yield from _binding(f"GPU {address}", bound, _LOAD.get(node.vendor, _LOAD_IT), has_none=address in unbound)
    if unbound and kernel.sources and not kernel.has_headers:
        yield Finding(
            "driver-no-headers", f"kernel {kernel.kernel}",
            f"has no headers, so {kernel.sources[-1]} can't be built",
            f"/usr/src/{kernel.sources[-1]} is there, /lib/modules/{kernel.kernel}/build is not",
            f"install the headers of {kernel.kernel}, then build the driver again (dkms autoinstall)",
        )  # fmt: skip
    if kernel.module_version and kernel.library_version and kernel.module_version != kernel.library_version:
        yield Finding(
            "driver-version-skew", "GPU driver",
            f"the kernel module is {kernel.module_version}, the library is {kernel.library_version}",
            f"/sys/module/nvidia/version beside {kernel.library_file}",
            "drain the node and reload the module (or reboot): the driver was upgraded under a running kernel",
        )  # fmt: skip


def _binding(subject: str, bound: str | None, load: str, *, has_none: bool) -> Iterator[Finding]:
    """Yield what is wrong with the kernel driver that a GPU is bound to."""
    how = "the driver link of its PCI function in sysfs"
    if bound == "nouveau":
        yield Finding(
            "driver-nouveau", subject, "is bound to nouveau", how,
            "blacklist nouveau (a file in /etc/modprobe.d, then a new initramfs) and reboot",
        )  # fmt: skip
    elif bound and is_vfio(bound):
        yield Finding("driver-vfio", subject, f"is bound to {bound}: virtual machines use it", how, "none is needed")
    elif has_none:
        yield Finding("driver-not-loaded", subject, "has no driver", how, load)


def check_hardware(node: NodeEvidence) -> Iterator[Finding]:
    """Check the answers of the hardware's own library."""
    facts, inventory = node.facts, node.inventory
    if facts is None or inventory is None:
        return
    is_all_vfio = _is_all_vfio(node)  # if so, the GPU driver is not supposed to answer
    if inventory.waiting_for and not is_all_vfio:
        yield Finding(
            "driver-not-answering", "GPU driver", f"waiting for {inventory.waiting_for}",
            "discovery, as the agent does it", "nvidia-smi should report the same; dmesg | grep NVRM shows why",
        )  # fmt: skip
    yield from _problems(inventory, is_all_vfio=is_all_vfio)
    if hangs_with_mixed_mig(facts.driver_version) and not any(problem.code == _MIXED for problem in inventory.problems):
        yield Finding(
            "driver-risky-version", f"driver {facts.driver_version}",
            "workloads hang once some GPUs of a node are in MIG mode and others are not", "the driver's version",
            f"{_UPGRADE} before MIG is used on part of the GPUs",
        )  # fmt: skip
    for gpu in facts.gpus:
        if gpu.mig_enabled and not gpu.partitions:
            yield Finding(
                "hardware-mig-mode", f"GPU {gpu.pci_address}", "is in MIG mode, but has no partition", "its MIG mode",
                "let the agent partition it (docs/mig.md), run nvidia-smi mig, or switch MIG off",
            )  # fmt: skip
    for text in node.left_out if node.vendor != "simulated" else ():
        yield Finding(
            "toolkit-missing", "containers", text, "what lies below the driver root", "install the container toolkit"
        )


def _is_all_vfio(node: NodeEvidence) -> bool:
    """Return whether every GPU of the node is bound to a VFIO driver, for virtual machines."""
    bound = node.kernel.bound.values()
    return bool(bound) and all(one is not None and is_vfio(one) for one in bound)


def _problems(inventory: Inventory, *, is_all_vfio: bool) -> Iterator[Finding]:
    for problem in inventory.problems:
        if problem.code in _REPORTED_ELSEWHERE or (is_all_vfio and problem.subject == "node"):
            continue
        code = "driver-bad-version" if problem.code == _MIXED else "hardware-problem"
        yield Finding(
            code, problem.subject, f"{problem.message} [{problem.code}]", "discovery, as the agent does it",
            _UPGRADE if problem.code == _MIXED else "docs/error-codes.md explains the code",
        )  # fmt: skip


def check_runtime(node: NodeEvidence, version: tuple[int, int] | None = None) -> Iterator[Finding]:
    """Check the container runtime's configuration; if it does not set CDI, `version` decides by its default."""
    for runtime in node.runtimes:
        subject, how = f"{runtime.runtime} ({runtime.file})", f"{runtime.file} and what it imports"
        if runtime.fault:
            yield Finding("runtime-cdi-unknown", subject, f"can't be read: {runtime.fault}", how, "correct the file")
        elif runtime.is_cdi_on is False:
            yield Finding(
                "runtime-cdi-off", subject, "enable_cdi is false", how, "set enable_cdi = true and restart the runtime"
            )
        elif runtime.is_cdi_on is None and version is not None:
            if version < CDI_BY_DEFAULT:
                yield Finding(
                    "runtime-cdi-off", subject, "does not set enable_cdi, which is off before 2.0",
                    f"{how}, and the version that the node reports", "set enable_cdi = true and restart the runtime",
                )  # fmt: skip
        elif runtime.is_cdi_on is None:
            yield Finding(
                "runtime-cdi-unknown", subject, "does not set enable_cdi: on since containerd 2.0, off in 1.7", how,
                "with containerd 1.7 set enable_cdi = true and restart it",
            )  # fmt: skip
        if _same_folder(str(node.folders.cdi)) not in map(_same_folder, runtime.folders):
            yield Finding(
                "runtime-cdi-folder", subject, f"reads {', '.join(runtime.folders)}, but not {node.folders.cdi}", how,
                f"add {node.folders.cdi} to cdi_spec_dirs, or start the agent with --cdi-root={runtime.folders[-1]}",
            )  # fmt: skip


def check_registration(node: NodeEvidence) -> Iterator[Finding]:
    """Check which plugins serve the driver's name, and whether anything else serves the GPUs."""
    for path in node.device_plugins:
        yield Finding(
            "node-device-plugin", f"node {node.node}",
            "a device plugin serves these GPUs: the agent publishes none", path,
            "remove the device plugin from this node (docs/moving.md)",
        )  # fmt: skip
    if node.sockets is None:
        return
    yield from _serving(node, [socket for socket in node.sockets if socket.serves(node.driver)])
    for socket in node.sockets:
        if socket.is_dead:
            yield Finding(
                "node-dead-socket", socket.path, "no process listens", "connecting is refused",
                "each such socket delays registrations by seconds; remove it if its driver is gone",
            )  # fmt: skip


def _serving(node: NodeEvidence, serving: Sequence[PluginSocket]) -> Iterator[Finding]:
    """Yield a finding if nothing, or something other than this driver, serves its name."""
    if not serving and (node.kernel.bound or node.rows or (node.facts and node.facts.gpus)):
        yield Finding(
            "node-not-registered", f"node {node.node}", f"no plugin answers as {node.driver}",
            f"GetInfo on every socket in {node.folders.registrar}",
            "is the agent running on this node? kubectl get pods -o wide; its log shows what it is waiting for",
        )  # fmt: skip
    data = node.folders.plugins / node.driver
    for one in serving:
        if one.plugin and not (one.plugin.is_marked and one.plugin.endpoint.startswith(f"{data}/")):
            yield Finding(
                "node-second-driver", f"node {node.node}", f"another driver answers as {node.driver}",
                f"GetInfo on {one.path}",
                "remove the other driver from this node (docs/moving.md)",
            )  # fmt: skip


def check_prepared(node: NodeEvidence) -> Iterator[Finding]:
    """Compare the ledger with the CDI folder."""
    if node.ledger_fault:
        yield Finding(
            "node-ledger", f"node {node.node}", node.ledger_fault, "reading it",
            "the agent sets a damaged ledger aside and rebuilds it; look at its log",
        )  # fmt: skip
    if node.rows is None:
        return
    for row in node.rows:
        if row.state in UNFINISHED:
            yield Finding(
                "node-half-done", f"claim {row.name}", f"is {row.state}", "its row in the ledger",
                "the agent finishes or undoes it at its next start or call; look at its log if it stays",
            )  # fmt: skip
        is_due = row.state == ClaimState.PREPARED and row.boot_id == node.boot_id and row.has_file
        if is_due and node.cdi_uids is not None and row.uid not in node.cdi_uids:
            yield Finding(
                "node-cdi-missing", f"claim {row.name}", f"is prepared, but has no file in {node.folders.cdi}",
                "the ledger beside the CDI folder", "restart the agent: it writes the file again",
            )  # fmt: skip
    for claim in node.unreleased:
        yield Finding(
            "node-unreleased", ", ".join(claim.names),
            f"no claim gets it: claim {claim.namespace}/{claim.name} has ended, but {claim.reason}",
            "the ledger's list of devices that are not released", "end that container; dra-driver release lists all",
        )  # fmt: skip
    for uid in sorted((node.cdi_uids or frozenset()) - {row.uid for row in node.rows}):
        yield Finding(
            "node-cdi-orphan", f"claim UID {uid}", "has a CDI file, but no row in the ledger",
            "the CDI folder beside the ledger", "the agent removes it within minutes; is it running?",
        )  # fmt: skip


def _same_folder(path: str) -> str:
    """Return the same path for /var/run and /run, since one is a link to the other on every distribution."""
    clean = os.path.normpath(path)
    return clean.removeprefix("/var") if clean.startswith("/var/run/") else clean


# Checks of health: devices that are tainted in slices, and what the agent of this node has recorded.

STALE_SECONDS = 180.0  # the agent writes once a minute
_BLOCKING = ("NoSchedule", "NoExecute")
_DELETES = (
    "; Kubernetes deletes their pods, also those with admin access, unless they tolerate NoExecute by name, and checks "
    "no PodDisruptionBudget; pods that got the device as an extended resource stay"
)


def check_taints(cluster: ClusterEvidence) -> Iterator[Finding]:
    """Yield a finding for each group of devices of a pool that are tainted for the same reason."""
    held = _held(cluster)
    for pool, devices in ours_by_pool(cluster).items():
        groups: dict[str, list[str]] = {}
        for name, device in sorted(devices.items()):
            for taint in device.get("taints") or ():
                if taint.get("effect") in _BLOCKING and str(taint.get("key", "")).startswith(f"{cluster.driver}/"):
                    groups.setdefault(taint_text(taint), []).append(name)
        for text, names in groups.items():
            pods = {name: held[pool, name] for name in names if (pool, name) in held}
            yield _tainted(cluster, pool, text, names, pods)


def check_recorded(node: NodeEvidence) -> Iterator[Finding]:
    """Yield a finding for each fault and cordon of this node, and one if its monitor has stopped."""
    found = node.health
    if found is None:
        return
    how = "state.db in the agent's folder"
    for fault in found.faults:
        message = f"{fault.sentence}, since {_time(fault.since)}"
        yield Finding("health-fault", _subject(fault), message, how, "docs/health.md says what ends it")
    for cordon in found.cordons:
        until = f" until {_time(cordon.until)}" if cordon.until else ""
        message = f"cordoned since {_time(cordon.since)}{until}: {cordon.reason}"
        yield Finding(
            "health-cordoned", cordon.device, message, "state.db in the agent's folder",
            f"dra-driver uncordon {cordon.device}",
        )  # fmt: skip
    for case in found.remediations:
        yield _treated(case)
    for one in found.untested:
        tried = f"{one.tries} times, the last time at {_time(one.at)}"
        message = f"its test could not run ({one.reason}: {one.detail}), tried {tried}; it is offered untested"
        remedy = f"docs/health.md says what the reason means; to try again: dra-driver validate {one.device}"
        yield Finding("validation-could-not-run", one.device, message, how, remedy)
    if found.silent_s >= STALE_SECONDS:
        minutes = int(found.silent_s // 60)
        yield Finding(
            "health-stale", f"node {node.node}", f"nothing was recorded about health for {minutes} minutes", how,
            "look at the agent's log; the file also gets old if no agent runs, or one with --health=off",
        )  # fmt: skip


def _treated(case: RemediationCase) -> Finding:
    name, how = gpu_name(case.gpu), "state.db in the agent's folder"
    text = f"{case.key} {case.value}".rstrip()
    waits = f": {case.waits_for}" if case.waits_for else ""
    if case.stage is Stage.ESCALATED:
        message = f"{text}; escalated at {_time(case.stage_at)} after {case.tries} tries{waits}"
        done, retry = f"dra-driver remediation done {name}", f"dra-driver remediation retry {name}"
        remedy = f"once it is repaired: {done}; to try again: {retry}"
        return Finding("remediation-escalated", name, message, how, remedy)
    message = f"{text}; {case.stage} since {_time(case.stage_at)}{waits}"
    return Finding("remediation-under-way", name, message, how, "dra-driver remediation show; docs/health.md")


def _tainted(
    cluster: ClusterEvidence, pool: str, text: str, names: list[str], held: Mapping[str, list[str]]
) -> Finding:
    """Return the finding about devices with equal taints; `held` has the pods of those that claims hold."""
    gpus = list(dict.fromkeys(map(gpu_of_device, names)))
    parts = f" ({len(names)} devices)" if len(names) > len(gpus) else ""
    others = f" and {len(gpus) - 1} other GPUs" if len(gpus) > 1 else ""
    pods = list(dict.fromkeys(pod for found in held.values() for pod in found))
    used = f"; claims hold {_first(list(held))}" if held else "; no claim holds it"
    used += f", used by {'pod' if len(pods) == 1 else 'pods'} {_first(pods)}" if pods else ""
    kind = "health-cordoned" if f"{cluster.driver}/cordoned:" in text else "health-tainted"
    remedy = "docs/health.md says what ends it"
    if pods:
        remedy = f"end {_first(pods)}, which get other devices if they come again; {remedy}"
    rule = _dry_run(cluster.rules_api, cluster.driver, pool, next(iter(held))) if held else ""
    if rule:
        remedy += f"; to count the pods that would have to go, without deleting any: kubectl create -f - <<< '{rule}'"
    deletes = _DELETES if ":NoExecute" in text and held else ""
    return Finding(
        kind,
        f"{pool}: {gpus[0] if parts else names[0]}{parts}{others}",
        f"tainted {text}{used}{deletes}",
        "GET resourceslices",
        remedy,
    )


def _first(names: list[str]) -> str:
    return f"{', '.join(names[:4])}{', …' if len(names) > 4 else ''}"


def _dry_run(api: str, driver: str, pool: str, device: str) -> str:
    """Return a DeviceTaintRule that deletes nothing, as JSON; "" if the server does not serve such rules."""
    if not api:
        return ""
    rule = {
        "apiVersion": f"resource.k8s.io/{api}",
        "kind": "DeviceTaintRule",
        "metadata": {"generateName": "would-go-"},
        "spec": {
            "deviceSelector": {"driver": driver, "pool": pool, "device": device},
            "taint": {"key": f"{driver}/would-go", "effect": "None"},
        },
    }
    return json.dumps(rule)


def _held(cluster: ClusterEvidence) -> dict[tuple[str, str], list[str]]:
    """Return the pods that use each allocated device of this driver, by its pool and name."""
    held: dict[tuple[str, str], list[str]] = {}
    for claim in cluster.of("claims"):
        status, namespace = claim.get("status") or {}, claim["metadata"].get("namespace")
        users = [consumer for consumer in status.get("reservedFor") or () if consumer.get("resource") == "pods"]
        pods = [f"{namespace}/{user['name']}" for user in users]
        for result in ((status.get("allocation") or {}).get("devices") or {}).get("results") or ():
            if result.get("driver") == cluster.driver:
                held.setdefault((str(result["pool"]), str(result["device"])), []).extend(pods)
    return held


def _subject(fault: Fault) -> str:
    at = fault.subject.partition
    return gpu_name(fault.subject.gpu) + (f" (profile {at[0]}, slice {at[1]})" if at else "")


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# Checks of the agent's pods, and of what runs beside them, as the API server shows them.

_EXPORTER = "dcgm-exporter"


def check_agents(cluster: ClusterEvidence, now: datetime) -> Iterator[Finding]:
    """Yield a finding for each pod of this driver that is still not ready after it had the time to start."""
    for pod in cluster.of("pods"):
        labels = pod["metadata"].get("labels") or {}
        if labels.get("app.kubernetes.io/name") != "dra-driver" or _is_ready(pod) or _is_starting(pod, now):
            continue
        namespace, name = pod["metadata"].get("namespace"), pod["metadata"]["name"]
        node = (pod.get("spec") or {}).get("nodeName") or "no node"
        yield Finding(
            "agent-not-ready", f"pod {namespace}/{name}", f"on {node}: {_why(pod)}", "status.conditions",
            f"kubectl logs -n {namespace} {name}; its /readyz shows what it is waiting for",
        )  # fmt: skip


def check_metric_sources(cluster: ClusterEvidence) -> Iterator[Finding]:
    """Yield a finding for each exporter that publishes the metrics that our agents publish under the same names."""
    daemonsets = cluster.of("daemonsets")
    if not any(_publishes_common_names(agent) for agent in agents(daemonsets)):
        return
    for other in daemonsets:
        if _EXPORTER in " ".join(str(container.get("image") or "") for container in _containers(other)):
            name = f"{other['metadata'].get('namespace')}/{other['metadata']['name']}"
            yield Finding(
                "metrics-twice", f"DaemonSet {name}", "it and the agents both publish DCGM_FI_*: sums count twice",
                "image and variables of the DaemonSets", "set telemetry.dcgmNames=false, or remove the exporter",
            )  # fmt: skip


def _publishes_common_names(daemonset: Wire) -> bool:
    for container in _containers(daemonset):
        env = {entry.get("name"): entry.get("value") for entry in container.get("env") or ()}
        is_on = env.get("TELEMETRY", "basic") != "off" and env.get("DCGM_NAMES", "true") != "false"
        if env.get("METRICS_ADDRESS") and is_on:
            return True
    return False


def _containers(daemonset: Wire) -> list[Wire]:
    return ((daemonset.get("spec") or {}).get("template") or {}).get("spec", {}).get("containers") or []


def _is_ready(pod: Wire) -> bool:
    status = pod.get("status") or {}
    conditions = status.get("conditions") or ()
    is_ready = any(condition.get("type") == "Ready" and condition.get("status") == "True" for condition in conditions)
    return is_ready or status.get("phase") == "Succeeded" or "deletionTimestamp" in pod["metadata"]


def _is_starting(pod: Wire, now: datetime) -> bool:
    """Return whether a pod is new and none of its containers has restarted: a rollout is not a fault."""
    states = (pod.get("status") or {}).get("containerStatuses") or ()
    age = seconds_since(str(pod["metadata"].get("creationTimestamp") or ""), now)
    return 0 < age < PATIENCE_SECONDS and not any(state.get("restartCount") for state in states)


def _why(pod: Wire) -> str:
    status = pod.get("status") or {}
    for container in status.get("containerStatuses") or ():
        waiting = (container.get("state") or {}).get("waiting")
        if waiting:
            return f"{waiting.get('reason')}, {container.get('restartCount', 0)} restarts"
    unready = [condition for condition in status.get("conditions") or () if condition.get("status") == "False"]
    return next((str(one.get("message") or one.get("reason")) for one in unready), "not ready")
