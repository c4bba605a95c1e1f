"""Remarks about a pod: what is reported without a change of the pod.

In: a pod and its place in the report. Out: losses with what to do about each.
"""

from __future__ import annotations

from typing import Any

from dra_driver.migrate.node_rules import gpu_rules
from dra_driver.migrate.pods import Container, PodShape
from dra_driver.migrate.report import ReportSubject
from dra_driver.migrate.resources import Known, kind_of, rows_of

_VISIBLE = "NVIDIA_VISIBLE_DEVICES"


def report_remaining(shape: PodShape, place: ReportSubject) -> None:
    """Report what stays in a migrated pod, and what no claim can replace."""
    place.lost(
        "topology-manager",
        "the kubelet's Topology Manager does not align devices of claims with CPUs",
        "nothing to do if its policy is none; a claim of several GPUs keeps them on one NUMA node with the"
        " constraint matchAttribute: resource.kubernetes.io/numaNode",
    )
    _report_scheduling(shape.spec, place)
    if shape.spec.get("runtimeClassName") == "nvidia":
        place.lost(
            "runtime-class",
            "runtimeClassName: nvidia stays but is not needed: devices are added by CDI",
            "take it out once no node serves this pod by the device plugin",
            "runtimeClassName",
        )
    for container in shape.containers:
        _report_visible_devices(container, place)


def _report_scheduling(spec: dict[str, Any], place: ReportSubject) -> None:
    if node := spec.get("nodeName"):
        place.lost(
            "node-name",
            f"nodeName: {node} bypasses the scheduler, which allocates claims: the pod would never start",
            f"take it out, and choose the node by nodeSelector kubernetes.io/hostname: {node}",
            "nodeName",
        )
    if (name := spec.get("schedulerName")) and name != "default-scheduler":
        place.lost(
            "scheduler-name",
            f"the scheduler {name} has to allocate the claims",
            "check that it supports Dynamic Resource Allocation and has it switched on",
            "schedulerName",
        )


def _report_visible_devices(container: Container, place: ReportSubject) -> None:
    for number, one in rows_of(container.wire.get("env")):
        if one.get("name") == _VISIBLE:
            path = (*container.path, "env", number)
            ReportSubject(place.name, place.report).lost(
                "visible-devices",
                f"container {container.name} sets {_VISIBLE}: with the nvidia runtime it may see GPUs that it has not"
                " claimed",
                "take it out: the claim decides which GPUs the container sees",
                *path,
            )


def report_monitors(resources: list[str], place: ReportSubject) -> None:
    """Report resources that showed all GPUs of a node, which only some namespaces may ask for in claims."""
    for resource in dict.fromkeys(resources):
        place.lost(
            "admin-access",
            f"{resource} became a claim with admin access: the API server refuses it in other namespaces",
            "label the namespace resource.kubernetes.io/admin-access=true, which only administrators should be able to",
        )


def report_ephemeral(spec: dict[str, Any], place: ReportSubject) -> None:
    """Report ephemeral containers that name resources."""
    for number, one in rows_of(spec.get("ephemeralContainers")):
        if one.get("resources"):
            place.lost(
                "ephemeral-container",
                f"ephemeral container {one.get('name')} names resources, which the API server refuses",
                "take them out; an ephemeral container sees the devices of no claim",
                "ephemeralContainers",
                number,
            )


def report_requests_alone(container: Container, place: ReportSubject, known: Known) -> None:
    """Report extended resources that a container requests without a limit."""
    resources = container.wire.get("resources")
    if not isinstance(resources, dict):
        return
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for name in requests if isinstance(requests, dict) else ():
        if kind_of(name, known) and not (isinstance(limits, dict) and name in limits):
            place.lost(
                "requests-alone",
                f"{name} was in requests only, which the API server refuses in a pod; its count was used",
                "nothing to do, if an operator fills in the limits",
                "resources",
                "requests",
            )


def report_rules_alone(spec: dict[str, Any], place: ReportSubject) -> None:
    """Report rules on the labels of GPUs in a pod that asks for none."""
    if rules := gpu_rules(spec):
        place.lost(
            "labels-alone",
            f"the pod asks for no device but chooses nodes by {', '.join(rule.words for rule in rules)}",
            "left unchanged: it needs GPU feature discovery (or the GPU Operator) to keep labelling nodes",
        )
