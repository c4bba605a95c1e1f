"""The rights and mounts of an install, compared with the release before health: by default there are no more."""

from __future__ import annotations

import pytest

from tests.support.chart import objects, render

# As rendered by release 0.1.1, the last one without health: verbs of the agent's ClusterRole, folders of its host.
VERBS_BEFORE = {
    ("resource.k8s.io", "resourceclaims"): {"get"},
    ("resource.k8s.io", "resourceslices"): {"get", "list", "watch", "create", "update", "delete"},
    ("", "nodes"): {"get"},
    ("", "events"): {"create"},
}
MOUNTS_BEFORE = {
    "/var/lib/kubelet/plugins_registry": True,  # writable
    "/var/lib/kubelet/plugins": True,
    "/var/lib/kubelet/pod-resources": False,
    "/var/lib/kubelet/device-plugins": False,
    "/var/run/cdi": True,
    "/": False,
    "/dev": True,
}
REMEDYING = ("remediation.mode=on", "remediation.policy.version=remediation/v1")
EVICTING = ("health.policy.version=health/v1", "health.policy.faults.gpu-lost.effect=NoExecute")


def verbs(found: list[dict], kind: str) -> dict[tuple[str, str], set[str]]:
    """Return the verbs that all roles of a kind allow the agent, with the names of objects if they are restricted."""
    bound = {
        one["roleRef"]["name"]
        for one in found
        if one["kind"] == f"{kind}Binding" and any(s["name"] == "dra-driver-agent" for s in one["subjects"])
    }
    allowed: dict[tuple[str, str], set[str]] = {}
    for role in (one for one in found if one["kind"] == kind and one["metadata"]["name"] in bound):
        for rule in role["rules"]:
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    where = "/".join([resource, *rule.get("resourceNames", ())])
                    allowed.setdefault((group, where), set()).update(rule["verbs"])
    return allowed


def mounts(found: list[dict]) -> dict[str, bool]:
    """Return the host's folders that the agent mounts, each with whether it may write there."""
    (agent,) = (one for one in found if one["kind"] == "DaemonSet" and one["metadata"]["name"] == "dra-driver-agent")
    pod = agent["spec"]["template"]["spec"]
    paths = {one["name"]: one["hostPath"]["path"] for one in pod["volumes"] if "hostPath" in one}
    (container,) = pod["containers"]
    return {
        paths[one["name"]]: not one.get("readOnly", False) for one in container["volumeMounts"] if one["name"] in paths
    }


def privileges(found: list[dict]) -> dict[str, object]:
    """Return the other privileges of the agent's pod on its host: namespaces, user, capabilities."""
    (agent,) = (one for one in found if one["kind"] == "DaemonSet" and one["metadata"]["name"] == "dra-driver-agent")
    pod = agent["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    shared = {name: pod.get(name) for name in ("hostPID", "hostNetwork", "hostIPC", "securityContext")}
    return {**shared, "container": container["securityContext"]}


@pytest.mark.parametrize(
    "values",
    [
        (),
        ("health.policy.version=health/v1",),
        ("health.enabled=false",),
        ("deviceMetadata=true",),
        ("health.validate=2",),
    ],
)
def test_health_and_metadata_add_no_verb_and_no_mount(helm: str, values: tuple[str, ...]) -> None:
    found = objects(render(helm, *values))
    assert verbs(found, "ClusterRole") == VERBS_BEFORE
    assert verbs(found, "Role") == {}
    assert mounts(found) == MOUNTS_BEFORE


def test_only_authorized_metrics_readers_add_verbs_and_just_those_of_reviews(helm: str) -> None:
    reviews = {
        ("authentication.k8s.io", "tokenreviews"): {"create"},
        ("authorization.k8s.io", "subjectaccessreviews"): {"create"},
    }
    tls = "metrics.tls.secret=metrics"
    assert verbs(objects(render(helm, tls)), "ClusterRole") == VERBS_BEFORE
    assert verbs(objects(render(helm, tls, "metrics.readers=authorized")), "ClusterRole") == VERBS_BEFORE | reviews


def test_evictions_add_the_leases_of_their_budget_by_name_and_nothing_else(helm: str) -> None:
    found = objects(render(helm, *EVICTING, "health.policy.evictions.devices=2"))
    names = ["dra-driver-eviction-0", "dra-driver-eviction-1"]
    assert verbs(found, "ClusterRole") == VERBS_BEFORE
    assert verbs(found, "Role") == {("coordination.k8s.io", "/".join(["leases", *names])): {"get", "update"}}
    assert mounts(found) == MOUNTS_BEFORE
    assert [one["metadata"]["name"] for one in found if one["kind"] == "Lease"] == names
    assert sum(one["kind"] == "Lease" for one in objects(render(helm, *EVICTING))) == 5


def test_labels_of_the_node_in_a_file_add_the_folder_of_features_and_no_verb(helm: str) -> None:
    found = objects(render(helm, "nodeLabels=file"))
    assert verbs(found, "ClusterRole") == VERBS_BEFORE
    assert verbs(found, "Role") == {}
    assert mounts(found) == {**MOUNTS_BEFORE, "/etc/kubernetes/node-feature-discovery/features.d": True}


def test_labels_in_an_object_add_the_patch_of_such_objects_in_one_namespace_and_a_policy(helm: str) -> None:
    found = objects(render(helm, "nodeLabels=object"))
    assert verbs(found, "ClusterRole") == VERBS_BEFORE
    assert verbs(found, "Role") == {("nfd.k8s-sigs.io", "nodefeatures"): {"create", "patch"}}
    assert mounts(found) == MOUNTS_BEFORE
    kinds = [one["kind"] for one in found if one["metadata"]["name"] == "dra-driver-agent-node-features"]
    assert {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"} <= set(kinds)


def test_gpus_for_virtual_machines_add_no_verb_and_no_mount_but_a_class_for_labelled_namespaces(helm: str) -> None:
    found = objects(
        render(helm, "passthrough.config.version=passthrough/v1", "passthrough.config.gpus[0].devices[0]=0000:41:00.0")
    )
    assert verbs(found, "ClusterRole") == VERBS_BEFORE
    assert verbs(found, "Role") == {}
    assert mounts(found) == MOUNTS_BEFORE
    names = {(one["kind"], one["metadata"]["name"]) for one in found}
    assert ("DeviceClass", "vfio.gpu.nvidia.com") in names
    for policy in ("requests", "allocations"):
        assert ("ValidatingAdmissionPolicy", f"dra-driver-agent-passthrough-{policy}") in names or (
            "ValidatingAdmissionPolicy",
            f"dra-driver-passthrough-{policy}",
        ) in names


NAMED = ("passthrough.config.version=passthrough/v1", "passthrough.config.gpus[0].devices[0]=0000:41:00.0")
PASSED_CLASSES = {
    "nvidia": ("vfio.gpu.nvidia.com", "gpu.nvidia.com", "passthrough"),
    "amd": ("vfio.gpu.amd.com", "gpu.amd.com", "passthrough-amd"),
    "intel": ("gpu-vfio.intel.com", "gpu.intel.com", "passthrough-intel"),
    "gaudi": ("gaudi-vfio.intel.com", "gaudi.intel.com", "passthrough-gaudi"),
}


def test_each_vendor_that_is_served_has_a_class_for_machines_and_policies_about_its_own_devices(helm: str) -> None:
    found = objects(render(helm, *NAMED, r"agent.hardware=nvidia\,amd\,intel\,gaudi"))
    names = {(one["kind"], one["metadata"]["name"]): one for one in found}
    for device_class, driver, policy in PASSED_CLASSES.values():
        assert ("DeviceClass", device_class) in names
        (judged,) = [
            one["spec"]
            for (kind, name), one in names.items()
            if kind == "ValidatingAdmissionPolicy" and name.endswith(f"-{policy}-allocations")
        ]
        assert f'r.driver == "{driver}"' in judged["variables"][0]["expression"]
        assert f"{driver}/passthrough" in judged["validations"][0]["expression"]


@pytest.mark.parametrize("vendor", ["amd", "intel", "gaudi"])
def test_a_release_of_one_vendor_has_that_vendors_class_for_machines_alone(helm: str, vendor: str) -> None:
    device_class, driver, _ = PASSED_CLASSES[vendor]
    found = objects(render(helm, *NAMED, f"agent.hardware={vendor}", f"driverName={driver}"))
    classes = {one["metadata"]["name"]: one for one in found if one["kind"] == "DeviceClass"}
    assert set(classes) - {"gpu-share.amd.com", "gpu.amd.com-spx"} == {driver, device_class}
    expressions = {name: one["spec"]["selectors"][0]["cel"]["expression"] for name, one in classes.items()}
    assert '.type == "vfio"' in expressions[device_class]
    assert '.type != "vfio"' in expressions[driver]


def test_an_imex_channel_adds_no_verb_and_no_mount_but_a_class_for_labelled_namespaces(helm: str) -> None:
    found = objects(render(helm, "imexChannel=auto"))
    assert verbs(found, "ClusterRole") == VERBS_BEFORE
    assert verbs(found, "Role") == {}
    assert mounts(found) == MOUNTS_BEFORE
    names = {(one["kind"], one["metadata"]["name"]) for one in found}
    assert ("DeviceClass", "imex-channel.nvidia.com") in names
    assert sum("imex-channel-" in name for kind, name in names if kind == "ValidatingAdmissionPolicy") == 2


def test_classes_of_options_are_not_installed_without_them(helm: str) -> None:
    names = {one["metadata"]["name"] for one in objects(render(helm))}
    assert not names & {"vfio.gpu.nvidia.com", "imex-channel.nvidia.com"}
    others = {one["metadata"]["name"] for one in objects(render(helm, r"agent.hardware=nvidia\,amd\,intel\,gaudi"))}
    assert not others & {one for one, *_ in PASSED_CLASSES.values()}


def test_the_status_of_claims_adds_the_patch_of_statuses_and_a_policy(helm: str) -> None:
    found = objects(render(helm, "claimStatus=true"))
    assert verbs(found, "ClusterRole") == {
        **VERBS_BEFORE,
        ("resource.k8s.io", "resourceclaims/status"): {"patch"},
        ("resource.k8s.io", "resourceclaims/driver/gpu.nvidia.com"): {"associated-node:patch"},
    }
    assert mounts(found) == MOUNTS_BEFORE
    kinds = [one["kind"] for one in found if one["metadata"]["name"] == "dra-driver-agent-claim-status"]
    assert {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"} <= set(kinds)


@pytest.mark.parametrize(
    "value",
    [
        "deviceMetadata=true",
        "claimStatus=true",
        "nodeLabels=file",
        "nodeLabels=object",
        "imexChannel=auto",
        "passthrough.config.version=passthrough/v1,passthrough.config.gpus[0].devices[0]=0000:41:00.0",
    ],
)
def test_no_option_gives_the_agents_pod_more_privileges_on_its_host(helm: str, value: str) -> None:
    assert privileges(objects(render(helm, value))) == privileges(objects(render(helm)))


def test_the_condition_of_the_node_adds_the_patch_of_its_status_and_a_policy(helm: str) -> None:
    found = objects(render(helm, "health.nodeCondition=true"))
    assert verbs(found, "ClusterRole") == {**VERBS_BEFORE, ("", "nodes/status"): {"patch"}}
    assert verbs(found, "Role") == {}
    assert mounts(found) == MOUNTS_BEFORE
    kinds = [one["kind"] for one in found if one["metadata"]["name"] == "dra-driver-agent-node-condition"]
    assert {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"} <= set(kinds)
    off = objects(render(helm, "health.nodeCondition=true", "health.enabled=false"))
    assert verbs(off, "ClusterRole") == VERBS_BEFORE


def test_remediation_adds_the_leases_of_its_nodes_by_name_and_nothing_else(helm: str) -> None:
    found = objects(render(helm, *REMEDYING, "remediation.policy.nodes=2"))
    names = ["dra-driver-remediation-0", "dra-driver-remediation-1"]
    assert verbs(found, "ClusterRole") == VERBS_BEFORE
    assert verbs(found, "Role") == {("coordination.k8s.io", "/".join(["leases", *names])): {"get", "update"}}
    assert mounts(found) == MOUNTS_BEFORE
    assert [one["metadata"]["name"] for one in found if one["kind"] == "Lease"] == names
    assert sum(one["kind"] == "Lease" for one in objects(render(helm, *REMEDYING))) == 1


@pytest.mark.parametrize("mode", ["off", "dry-run"])
def test_a_dry_run_of_remediation_adds_no_right(helm: str, mode: str) -> None:
    found = objects(render(helm, f"remediation.mode={mode}", "remediation.policy.version=remediation/v1"))
    assert verbs(found, "ClusterRole") == VERBS_BEFORE
    assert verbs(found, "Role") == {}
    assert mounts(found) == MOUNTS_BEFORE
    assert not any(one["kind"] == "Lease" for one in found)
