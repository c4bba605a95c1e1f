"""Checks of health: devices that are tainted in slices, and what the agent of this node has recorded.

Pure. In: `ClusterEvidence`, `NodeEvidence`. Out: findings. For a faulty device that a claim holds, the remedy has a
DeviceTaintRule with the effect None, which deletes nothing and whose status counts the pods that NoExecute would end.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime

from dra_driver.allocation.pools.taints import taint_text
from dra_driver.doctor.checks.slice_checks import ours_by_pool
from dra_driver.doctor.cluster_evidence import ClusterEvidence
from dra_driver.doctor.finding import Finding
from dra_driver.doctor.node_evidence import NodeEvidence
from dra_driver.health.fault import Fault
from dra_driver.model.names import gpu_name
from dra_driver.model.wire import Wire
from dra_driver.remediation.case import RemediationCase, Stage

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
            yield _tainted(cluster, pool, text, names, [name for name in names if (pool, name) in held])


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


def _tainted(cluster: ClusterEvidence, pool: str, text: str, names: list[str], held: list[str]) -> Finding:
    others = f" and {len(names) - 1} others" if len(names) > 1 else ""
    used = f"; claims hold {', '.join(held[:4])}{', …' if len(held) > 4 else ''}" if held else "; no claim holds it"
    kind = "health-cordoned" if f"{cluster.driver}/cordoned:" in text else "health-tainted"
    remedy = "docs/health.md says what ends it"
    rule = _dry_run(cluster.rules_api, cluster.driver, pool, held[0]) if held else ""
    if rule:
        remedy += f"; to count the pods that would have to go, without deleting any: kubectl create -f - <<< '{rule}'"
    deletes = _DELETES if ":NoExecute" in text and held else ""
    return Finding(kind, f"{pool}: {names[0]}{others}", f"tainted {text}{used}{deletes}", "GET resourceslices", remedy)


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


def _held(cluster: ClusterEvidence) -> frozenset[tuple[str, str]]:
    """Return the pool and name of each device of this driver that is allocated."""
    found: list[Wire] = []
    for claim in cluster.of("claims"):
        allocation = (claim.get("status") or {}).get("allocation") or {}
        found += (allocation.get("devices") or {}).get("results") or ()
    return frozenset((str(one["pool"]), str(one["device"])) for one in found if one.get("driver") == cluster.driver)


def _subject(fault: Fault) -> str:
    at = fault.subject.partition
    return gpu_name(fault.subject.gpu) + (f" (profile {at[0]}, slice {at[1]})" if at else "")


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
