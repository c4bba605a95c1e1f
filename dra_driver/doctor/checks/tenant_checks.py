"""Checks of shares that are offered to one namespace: whether others can get them, and whether a policy prevents it.

Pure. In: `ClusterEvidence`. Out: findings; none if no published device has a tenant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dra_driver.doctor.checks.class_checks import matching_devices
from dra_driver.doctor.checks.slice_checks import devices_of
from dra_driver.doctor.cluster_evidence import ClusterEvidence
from dra_driver.doctor.finding import Finding
from dra_driver.model.wire import DeviceWire, Wire

_REQUESTS, _ALLOCATIONS = "resourceclaims", "resourceclaims/status"


def check_tenants(cluster: ClusterEvidence) -> Iterator[Finding]:
    """Check every class, and the policies for claims and their allocations."""
    if not cluster.has("slices"):
        return
    ours = [one for one in cluster.of("slices") if one["spec"]["driver"] == cluster.driver]
    tenants = {name: tenant for name, device in devices_of(ours).items() if (tenant := _tenant(device))}
    if not tenants:
        return
    for one in cluster.of("classes"):
        yield from _of_class(cluster, one, devices_of(ours), tenants)
    if cluster.has("policies", "bindings"):
        yield from _of_policies(cluster)


def _of_class(
    cluster: ClusterEvidence, one: Wire, devices: Mapping[str, DeviceWire], tenants: Mapping[str, str]
) -> Iterator[Finding]:
    name = one["metadata"]["name"]
    found = {tenants[device] for device in matching_devices(cluster, one, devices) if device in tenants}
    if others := sorted(tenant for tenant in found if not name.startswith(f"{tenant}.")):
        yield Finding(
            "tenants-class", f"class {name}", f"gives every namespace access to shares for {', '.join(others)} only",
            "its selectors, evaluated on every published device",
            f'add && !has(device.attributes["{cluster.driver}"].tenant) to its expression',
        )  # fmt: skip


def _of_policies(cluster: ClusterEvidence) -> Iterator[Finding]:
    denying = {
        (one.get("spec") or {}).get("policyName")
        for one in cluster.of("bindings")
        if "Deny" in ((one.get("spec") or {}).get("validationActions") or ())
    }
    checked = {
        resource
        for one in cluster.of("policies")
        if one["metadata"]["name"] in denying and "-share-mps" in str((one.get("spec") or {}).get("variables"))
        for rule in ((one.get("spec") or {}).get("matchConstraints") or {}).get("resourceRules") or ()
        for resource in rule.get("resources") or ()
    }
    if missing := " and ".join(resource for resource in (_REQUESTS, _ALLOCATIONS) if resource not in checked):
        yield Finding(
            "tenants-no-policy", "cluster", f"shares are for single namespaces, but no policy checks {missing}",
            "validatingadmissionpolicies and their bindings",
            "set mps.tenants=namespace in the chart, or apply deploy/manifests/options/mps-tenants.yaml",
        )  # fmt: skip


def _tenant(device: DeviceWire) -> str:
    """Return the namespace to which a device is offered; "" if it is offered to all."""
    attributes = device.get("attributes") or {}
    return str((attributes.get("tenant") or {}).get("string") or "")
