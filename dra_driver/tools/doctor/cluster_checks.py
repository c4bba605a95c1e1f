"""Checks of Kubernetes itself: versions, the resource API, gates, container runtimes as nodes report them, access.

Pure. In: `ClusterEvidence`. Out: findings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from dra_driver.base.versions import NEWEST_MINOR, OLDEST_MINOR
from dra_driver.base.wire import DeviceWire, Wire
from dra_driver.tools.doctor.evidence import ClusterEvidence
from dra_driver.tools.doctor.finding import Finding
from dra_driver.tools.doctor.node_checks import CDI_BY_DEFAULT
from dra_driver.tools.doctor.slice_checks import devices_of, has_gpus, matching_devices
from dra_driver.tools.world.access import PROBES

ADMIN_LABEL = "resource.kubernetes.io/admin-access"
OLD_ADMIN_LABEL = "resource.k8s.io/admin-access"
_VERSION = re.compile(r"v?(\d+)\.(\d+)")
CONTAINERD_WITH_CDI = (1, 7)
CRIO_WITH_CDI = (1, 23)


def check_versions(cluster: ClusterEvidence) -> Iterator[Finding]:
    """Compare the versions of the API server and the kubelets with those that the driver supports."""
    minor = cluster.version.minor
    if 0 < minor < OLDEST_MINOR:
        yield Finding(
            "kubernetes-too-old", "API server", f"is {cluster.version.git or f'1.{minor}'}", "GET /version",
            f"upgrade to Kubernetes 1.{OLDEST_MINOR} or newer: resource.k8s.io/v1 is on by default from there on",
        )  # fmt: skip
    elif minor > NEWEST_MINOR:
        yield Finding(
            "kubernetes-unknown-version", "API server", f"is {cluster.version.git}", "GET /version",
            f"look for a newer release of this driver: it was tested with 1.{OLDEST_MINOR} to 1.{NEWEST_MINOR}",
        )  # fmt: skip
    if not cluster.has("slices") and any(one.what == "slices" and "404" in one.why for one in cluster.unseen):
        yield Finding(
            "kubernetes-no-resource-api", "API server", "does not serve resource.k8s.io/v1", "GET resourceslices: 404",
            "switch the feature gate DynamicResourceAllocation and the API resource.k8s.io/v1 on",
        )  # fmt: skip
    for node in cluster.of("nodes"):
        found = _numbers(_info(node, "kubeletVersion"))
        if found and found < (1, OLDEST_MINOR):
            yield Finding(
                "kubernetes-too-old", f"node {_name(node)}", f"its kubelet is {_info(node, 'kubeletVersion')}",
                "status.nodeInfo.kubeletVersion", f"upgrade the kubelet to 1.{OLDEST_MINOR} or newer",
            )  # fmt: skip


def check_gates(cluster: ClusterEvidence) -> Iterator[Finding]:
    """Yield a finding for each gate whose field the API server drops."""
    for gate, is_kept in cluster.kept.items():
        if not is_kept:
            yield Finding(
                "kubernetes-gate-off", gate, f"missing without it: {PROBES[gate].without}",
                "the API server dropped the field from a dry run",
                f"switch the gate on in API server, scheduler, controller-manager and kubelets, or do without ({gate})",
            )  # fmt: skip


def check_reported_runtimes(cluster: ClusterEvidence) -> Iterator[Finding]:
    """Check the container runtimes that are reported by nodes with slices of this driver."""
    ours = {_spec(one).get("nodeName") for one in cluster.of("slices") if _spec(one).get("driver") == cluster.driver}
    for node in cluster.of("nodes"):
        runtime, _, version = _info(node, "containerRuntimeVersion").partition("://")
        numbers = _numbers(version)
        if _name(node) not in ours or numbers is None:
            continue
        subject, how = f"node {_name(node)}", "status.nodeInfo.containerRuntimeVersion"
        needed = {"containerd": CONTAINERD_WITH_CDI, "cri-o": CRIO_WITH_CDI}.get(runtime)
        if needed and numbers < needed:
            yield Finding(
                "runtime-no-cdi", subject, f"{runtime} {version} does not support CDI", how,
                f"upgrade to {runtime} {needed[0]}.{needed[1]} or newer",
            )  # fmt: skip
        elif runtime == "containerd" and numbers < CDI_BY_DEFAULT:
            yield Finding(
                "runtime-cdi-unknown", subject, f"containerd {version} uses CDI only if enable_cdi is set", how,
                "run `dra-driver doctor` on that node, or look for enable_cdi = true in /etc/containerd/config.toml",
            )  # fmt: skip


def containerd_version(cluster: ClusterEvidence, node: str) -> tuple[int, int] | None:
    """Return the containerd version that a node reports; None if its runtime is another one or unknown."""
    for one in cluster.of("nodes"):
        runtime, _, version = _info(one, "containerRuntimeVersion").partition("://")
        if _name(one) == node and runtime == "containerd":
            return _numbers(version)
    return None


def check_admin_access(cluster: ClusterEvidence) -> Iterator[Finding]:
    """Check the labels of namespaces, and the templates in them that ask for admin access."""
    labels = {_name(one): one["metadata"].get("labels") or {} for one in cluster.of("namespaces")}
    for name, found in labels.items():
        if OLD_ADMIN_LABEL in found and found.get(ADMIN_LABEL) != "true":
            yield Finding(
                "access-old-label", f"namespace {name}", f"has {OLD_ADMIN_LABEL}, which 1.34 renamed",
                "metadata.labels", f"kubectl label namespace {name} {ADMIN_LABEL}=true {OLD_ADMIN_LABEL}-",
            )  # fmt: skip
    for kind, wire in [*(("template", template) for template in cluster.of("templates"))]:
        namespace = wire["metadata"].get("namespace", "")
        if namespace in labels and labels[namespace].get(ADMIN_LABEL) != "true" and _asks_for_admin(wire):
            yield Finding(
                "access-admin-refused", f"{kind} {namespace}/{_name(wire)}", "asks for admin access",
                f"namespace {namespace} lacks the label {ADMIN_LABEL}: true",
                f"kubectl label namespace {namespace} {ADMIN_LABEL}=true, or take adminAccess out",
            )  # fmt: skip


def check_policy(cluster: ClusterEvidence) -> Iterator[Finding]:
    """Check that a policy restricts each agent to its own node, and that agents lack no right."""
    for account, lacking in cluster.rights.items():
        if lacking:
            yield Finding(
                "access-missing-right", account, f"may not {', '.join(lacking)}", "SubjectAccessReview",
                "apply the RBAC of the chart, or of deploy/manifests/rbac.yaml",
            )  # fmt: skip
    if not cluster.has("policies", "bindings") or not cluster.of("slices"):
        return
    policies = [_name(policy) for policy in cluster.of("policies") if _guards_slices(policy)]
    if not policies:
        yield Finding(
            "access-no-policy", "cluster", "an agent could write the slices of another node",
            "no ValidatingAdmissionPolicy covers resourceslices",
            "apply the chart's policy, or deploy/manifests/admission-policy.yaml",
        )  # fmt: skip
        return
    bound = [binding for binding in cluster.of("bindings") if _spec(binding).get("policyName") in policies]
    if not any("Deny" in (_spec(one).get("validationActions") or ()) for one in bound):
        yield Finding(
            "access-policy-off", f"policy {policies[0]}", "has no binding that denies",
            "spec.validationActions of its bindings", "bind it with validationActions: [Deny]",
        )  # fmt: skip


def _guards_slices(policy: Wire) -> bool:
    rules = (_spec(policy).get("matchConstraints") or {}).get("resourceRules") or ()
    return any("resourceslices" in (rule.get("resources") or ()) for rule in rules)


def _asks_for_admin(template: Wire) -> bool:
    requests = ((_spec(template).get("spec") or {}).get("devices") or {}).get("requests") or ()
    return any((request.get("exactly") or {}).get("adminAccess") for request in requests)


def _numbers(version: str) -> tuple[int, int] | None:
    found = _VERSION.match(version)
    return (int(found[1]), int(found[2])) if found else None


def _info(node: Wire, field: str) -> str:
    return str(((node.get("status") or {}).get("nodeInfo") or {}).get(field) or "")


def _name(wire: Wire) -> str:
    return str(wire["metadata"]["name"])


def _spec(wire: Wire) -> Wire:
    spec: Wire = wire.get("spec") or {}
    return spec


# Checks of pods that can't be scheduled, because something that they name does not exist or is not served.

_OURS = "nvidia.com/"
_GATE = "DRAExtendedResource"
_KINDS = {"resourceClaimTemplateName": ("templates", "template"), "resourceClaimName": ("claims", "claim")}


def check_references(cluster: ClusterEvidence) -> Iterator[Finding]:
    """Yield a finding for each waiting pod whose claim or template does not exist."""
    for pod in _waiting(cluster):
        namespace = pod["metadata"].get("namespace")
        made = {status.get("name") for status in (pod.get("status") or {}).get("resourceClaimStatuses") or ()}
        for entry in (pod.get("spec") or {}).get("resourceClaims") or ():
            for key, (kind, word) in _KINDS.items():
                name = entry.get(key)
                if not name or entry["name"] in made or not cluster.has(kind):
                    continue
                here = [o["metadata"]["name"] for o in cluster.of(kind) if o["metadata"].get("namespace") == namespace]
                if name not in here:
                    near = get_close_matches(name, here, n=1)
                    yield Finding(
                        "pod-reference-missing", _subject(pod),
                        f"names {word} {namespace}/{name}, which does not exist", f"spec.resourceClaims, GET {kind}",
                        f"did you mean {near[0]}? Else create it" if near else f"create the {word} in {namespace}",
                    )  # fmt: skip


def check_resources(cluster: ClusterEvidence) -> Iterator[Finding]:
    """Yield a finding for each waiting pod that asks for an nvidia.com/* that no class and no device plugin serves."""
    if not cluster.has("classes", "nodes"):
        return
    is_on = cluster.kept.get(_GATE, True)
    classes = cluster.of("classes")
    served = {(one.get("spec") or {}).get("extendedResourceName"): one["metadata"]["name"] for one in classes}
    offered = [((node.get("status") or {}).get("allocatable") or {}) for node in cluster.of("nodes")]
    for pod in _waiting(cluster):
        for name in _resources(pod):
            if any(str(one.get(name, "0")) != "0" for one in offered) or (is_on and name in served):
                continue
            if name in served:
                why = f"class {served[name]} would serve it, but the API server's gate {_GATE} is off"
                remedy = f"ask by a claim of class {served[name]}, or switch {_GATE} on in all components"
            else:
                why = "no class has it as extendedResourceName, and no node's device plugin offers it"
                remedy = "set the chart's deviceClasses.extendedResources, or ask for the device by a claim"
            yield Finding(
                "pod-resource-unserved", _subject(pod), f"waits for {name}: {why}",
                "resources of its containers beside GET deviceclasses and nodes", remedy,
            )  # fmt: skip


def _waiting(cluster: ClusterEvidence) -> Iterator[Wire]:
    for pod in cluster.of("pods"):
        if (pod.get("status") or {}).get("phase") == "Pending" and not (pod.get("spec") or {}).get("nodeName"):
            yield pod


def _resources(pod: Wire) -> list[str]:
    containers = [container for key in ("initContainers", "containers") for container in pod["spec"].get(key) or ()]
    names = [name for container in containers for name in ((container.get("resources") or {}).get("limits") or {})]
    return [name for name in dict.fromkeys(names) if name.startswith(_OURS)]


def _subject(pod: Wire) -> str:
    return f"pod {pod['metadata'].get('namespace')}/{pod['metadata']['name']}"


# Checks of shares that are offered to one namespace: whether others can get them, and whether a policy prevents it.

_REQUESTS, _ALLOCATIONS = "resourceclaims", "resourceclaims/status"


def check_tenants(cluster: ClusterEvidence) -> Iterator[Finding]:
    """Check every class, and the policies for claims and their allocations."""
    if not cluster.has("slices"):
        return
    ours = [slice_ for slice_ in cluster.of("slices") if slice_["spec"]["driver"] == cluster.driver]
    devices = [device for device in devices_of(ours).values() if _tenant(device)]
    if not devices:
        return
    for device_class in cluster.of("classes"):
        yield from _of_class(cluster, device_class, devices)
    if cluster.has("policies", "bindings"):
        yield from _of_policies(cluster)


def _of_class(cluster: ClusterEvidence, one: Wire, devices: Sequence[DeviceWire]) -> Iterator[Finding]:
    """Yield a finding if a class matches devices that are offered to single namespaces."""
    name = one["metadata"]["name"]
    tenants = {_tenant(device) for device in matching_devices(cluster, one, devices)}
    if others := sorted(tenant for tenant in tenants if not name.startswith(f"{tenant}.")):
        yield Finding(
            "tenants-class", f"class {name}", f"gives every namespace access to shares for {', '.join(others)} only",
            "its selectors, evaluated on every published device",
            f'add && !has(device.attributes["{cluster.driver}"].tenant) to its expression',
        )  # fmt: skip


def _of_policies(cluster: ClusterEvidence) -> Iterator[Finding]:
    denying = {
        (binding.get("spec") or {}).get("policyName")
        for binding in cluster.of("bindings")
        if "Deny" in ((binding.get("spec") or {}).get("validationActions") or ())
    }
    checked = {
        resource
        for policy in cluster.of("policies")
        if policy["metadata"]["name"] in denying and "-share-mps" in str((policy.get("spec") or {}).get("variables"))
        for rule in ((policy.get("spec") or {}).get("matchConstraints") or {}).get("resourceRules") or ()
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


# Checks of what runs on GPU nodes: nodes without a taint that keeps other pods away, and pods there that use no
# GPU.

_KEEPS_AWAY = frozenset({"NoSchedule", "NoExecute"})
_OVER = frozenset({"Succeeded", "Failed"})
_MIRROR = "kubernetes.io/config.mirror"  # the annotation of a static pod's copy in the API server
_GPU_RESOURCE = "nvidia.com/"
_MAX_NAMED = 5


def check_taints(cluster: ClusterEvidence) -> Iterator[Finding]:
    """Yield a finding for each GPU node without a taint, with its pods that use no GPU, if other nodes have no GPUs."""
    if not cluster.has("nodes", "slices"):
        return
    with_gpus = {slice_["spec"].get("nodeName") for slice_ in cluster.of("slices") if _is_ours(slice_, cluster.driver)}
    nodes = {node["metadata"]["name"]: node for node in cluster.of("nodes")}
    if all(name in with_gpus or has_gpus(node) for name, node in nodes.items()):
        return
    for name in sorted(with_gpus & nodes.keys()):
        if any(taint.get("effect") in _KEEPS_AWAY for taint in (nodes[name].get("spec") or {}).get("taints") or ()):
            continue
        pods = sorted(_pod_name(pod) for pod in cluster.of("pods") if _could_run_elsewhere(pod, name))
        more = f" and {len(pods) - _MAX_NAMED} more" if len(pods) > _MAX_NAMED else ""
        running = f"; pods without a GPU run there: {', '.join(pods[:_MAX_NAMED])}{more}" if pods else ""
        yield Finding(
            "node-untainted", f"node {name}", f"has GPUs and no taint that keeps other pods away{running}",
            "spec.taints of the node beside GET resourceslices and pods",
            f"kubectl taint nodes {name} nvidia.com/gpu=present:NoSchedule; pods with claims then need a toleration",
        )  # fmt: skip


def _is_ours(wire: Wire, driver: str) -> bool:
    return wire["spec"].get("driver") == driver and bool(wire["spec"].get("devices"))


def _could_run_elsewhere(pod: Wire, node: str) -> bool:
    """Return whether a pod runs on a node without using a GPU, and could run elsewhere."""
    spec, metadata = pod.get("spec") or {}, pod["metadata"]
    if spec.get("nodeName") != node or (pod.get("status") or {}).get("phase") in _OVER or spec.get("resourceClaims"):
        return False
    owners = [one.get("kind") for one in metadata.get("ownerReferences") or () if one.get("controller")]
    if "DaemonSet" in owners or "Node" in owners or _MIRROR in (metadata.get("annotations") or {}):
        return False
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    limits = [name for container in containers for name in ((container.get("resources") or {}).get("limits") or {})]
    return not any(name.startswith(_GPU_RESOURCE) for name in limits)


def _pod_name(pod: Wire) -> str:
    return f"{pod['metadata'].get('namespace')}/{pod['metadata']['name']}"
