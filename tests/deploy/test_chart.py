"""The rendered chart: recorded renderings, and what holds for all values. Skipped where there is no helm."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from dra_driver.tools.doctor import evidence
from dra_driver.tools.fleet.slices import HelmRelease
from dra_driver.tools.world import access, world
from tests.support.chart import CASES, CHART, ROOT, objects, render

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("case", CASES)
def test_the_rendering_equals_the_recorded_one(helm: str, case: str) -> None:
    """To record it again, delete the file and run the test twice."""
    golden = GOLDEN / f"{case}.yaml"
    text = render(helm, *CASES[case])
    if not golden.exists():
        golden.write_text(text)
        pytest.fail(f"{golden.name} was missing and is recorded now: check it")
    assert text == golden.read_text()


def test_the_chart_passes_helms_own_linter(helm: str) -> None:
    done = subprocess.run([helm, "lint", "--strict", str(CHART)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_helm_renders_the_chart_without_any_option_and_without_a_warning(helm: str) -> None:
    done = subprocess.run([helm, "template", "x", str(CHART)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert objects(done.stdout)


def test_the_chart_says_who_maintains_it_and_how_to_use_it() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert [one["name"] for one in chart["maintainers"]] == ["dra-driver contributors"]
    text = (CHART / "README.md").read_text()
    for command in ("helm install", "helm test", "helm uninstall"):
        assert command in text


@pytest.mark.parametrize("folder", ["/var/lib/kubelet", "/var/snap/kubelet/"])
def test_the_kubelets_folder_may_have_a_slash_at_its_end(helm: str, folder: str) -> None:
    text = render(helm, f"agent.kubeletDir={folder}", "mps.enabled=true")
    assert f"value: {folder.rstrip('/')}/plugins}}" in text
    assert "//" not in re.sub(r"https?://", "", text)


def test_the_agents_serviceaccount_has_the_annotations_that_are_given(helm: str) -> None:
    found = objects(render(helm, r"serviceAccount.annotations.iam\.example\.com/role=gpus"))
    accounts = {
        one["metadata"]["name"]: one["metadata"].get("annotations") for one in found if "ServiceAccount" in one["kind"]
    }
    assert accounts["dra-driver-agent"] == {"iam.example.com/role": "gpus"}


def test_the_example_of_a_node_selector_keeps_agents_to_nodes_with_that_label(helm: str, tmp_path: Path) -> None:
    (example,) = re.findall(r"^  #   (\{feature\.node.*\})$", (CHART / "values.yaml").read_text(), re.MULTILINE)
    selector = yaml.safe_load(example)
    values = tmp_path / "values.json"
    values.write_text(json.dumps({"agent": {"nodeSelector": selector}}))
    found = objects(render(helm, values_file=values))
    (agent,) = (one for one in found if one["kind"] == "DaemonSet")
    assert selector.items() <= agent["spec"]["template"]["spec"]["nodeSelector"].items()


def test_helm_test_runs_the_doctor_with_rights_to_read_what_it_looks_at_and_nothing_is_left(helm: str) -> None:
    found = [
        one for one in objects(render(helm)) if one["metadata"].get("annotations", {}).get("helm.sh/hook") == "test"
    ]
    assert sorted(one["kind"] for one in found) == ["ClusterRole", "ClusterRoleBinding", "Pod", "ServiceAccount"]
    assert all("hook-succeeded" in one["metadata"]["annotations"]["helm.sh/hook-delete-policy"] for one in found)
    (pod,) = (one for one in found if one["kind"] == "Pod")
    (container,) = pod["spec"]["containers"]
    assert container["args"] == ["doctor", "--only", "cluster"]
    # What a program prints that the doctor starts goes into a temporary file; everything else is read-only.
    assert container["volumeMounts"] == [{"name": "tmp", "mountPath": "/tmp"}]
    (role,) = (one for one in found if one["kind"] == "ClusterRole")
    allowed = {(group, name) for rule in role["rules"] for group in rule["apiGroups"] for name in rule["resources"]}
    parts = [path.strip("/").split("/") for path in evidence.KINDS.values()]
    read = {(part[1] if part[0] == "apis" else "", part[-1]) for part in parts}
    assert allowed == read | {("authorization.k8s.io", "subjectaccessreviews")}


def test_the_check_of_an_uninstall_may_set_back_the_records_of_its_release_and_no_other_secret(helm: str) -> None:
    found = objects(render(helm, release="mine", namespace="gpus"))
    (role,) = (one for one in found if one["kind"] == "Role" and "uninstall-check" in one["metadata"]["name"])
    (rule,) = role["rules"]
    assert (role["metadata"]["namespace"], rule["resources"], rule["verbs"]) == ("gpus", ["secrets"], ["get", "update"])
    assert rule["resourceNames"] == list(HelmRelease("gpus", "mine", 1).records())
    (job,) = (one for one in found if one["kind"] == "Job" and "uninstall-check" in one["metadata"]["name"])
    words = job["spec"]["template"]["spec"]["containers"][0]["args"]
    assert words[1:4] == ["--namespace=gpus", "--release=mine", "--revision=1"]


def test_the_manifests_equal_the_rendered_chart(helm: str) -> None:
    command = [sys.executable, str(ROOT / "deploy/manifests/generate.py"), "--check", "--helm", helm]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("namespace", "values", "is_there"),
    [("gpus", [], True), ("default", [], False), ("gpus", ["namespace.label=false"], False)],
)
def test_a_namespace_other_than_default_is_labelled_by_a_job_that_may_do_nothing_else(
    helm: str, namespace: str, values: list[str], is_there: bool
) -> None:
    found = [c for c in objects(render(helm, *values, namespace=namespace)) if "pod-security" in c["metadata"]["name"]]
    assert bool(found) is is_there
    for role in (content for content in found if content["kind"] == "Role"):
        (rule,) = role["rules"]
        assert (rule["resources"], rule["resourceNames"], rule["verbs"]) == (["namespaces"], ["gpus"], ["get", "patch"])
        assert role["metadata"]["namespace"] == "gpus"


def test_the_agent_may_list_claims_only_if_that_is_enabled(helm: str) -> None:
    """The verb list on claims, or any verb on pods, would let a stolen token of one node read those of all tenants."""
    for values, verbs in (((), ["get"]), (("takeover.listClaims=true", "agent.mig.geometry=label"), ["get", "list"])):
        found = objects(render(helm, *values))
        (role,) = (o for o in found if o["kind"] == "ClusterRole" and o["metadata"]["name"] == "dra-driver-agent")
        (claims,) = (rule for rule in role["rules"] if "resourceclaims" in rule["resources"])
        assert claims["verbs"] == verbs
        assert not [rule for rule in role["rules"] if {"pods", "nodes/proxy", "*"} & set(rule["resources"])]
        (agent,) = (o for o in found if o["kind"] == "DaemonSet" and o["metadata"]["name"] == "dra-driver-agent")
        env = {e["name"]: e.get("value") for e in agent["spec"]["template"]["spec"]["containers"][0]["env"]}
        assert env.get("TAKEOVER_LIST_CLAIMS") == ("true" if values else None)


def test_only_the_agent_without_a_runtime_class_and_the_supervisor_of_mps_are_privileged(helm: str) -> None:
    for case, values in CASES.items():
        for content in objects(render(helm, *values)):
            if content["kind"] in {"DaemonSet", "Deployment", "Job"}:
                part = content["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"]
                (container,) = content["spec"]["template"]["spec"]["containers"]
                context = container["securityContext"]
                is_root = part in {"agent", "mps"}
                assert context.get("privileged", False) is (part == "mps" or (is_root and case != "runtime-class"))
                assert context["readOnlyRootFilesystem"] is True
                assert context.get("runAsNonRoot", False) is not is_root


def test_all_objects_of_a_release_have_its_label(helm: str) -> None:
    for content in objects(render(helm, *CASES["everything"], release="mine")):
        assert content["metadata"]["labels"]["app.kubernetes.io/instance"] == "mine", content["kind"]


def test_the_roles_for_viewers_allow_to_read_all_that_the_commands_read() -> None:
    documents = yaml.safe_load_all((ROOT / "deploy/manifests/rbac.yaml").read_text())
    (role,) = (it for it in documents if it["kind"] == "ClusterRole" and it["metadata"]["name"].endswith("-view"))
    # Allowed by Kubernetes' own role `view`:
    allowed = {("", "pods"), ("", "namespaces"), ("", "events"), ("apps", "daemonsets")}
    for rule in role["rules"]:
        assert rule["verbs"] == ["get", "list", "watch"]
        allowed |= {(group, resource) for group in rule["apiGroups"] for resource in rule["resources"]}
    read = {path.removeprefix("/") for path in (*world.PATHS.values(), *evidence.KINDS.values())}
    needed = {(parts[1] if parts[0] == "apis" else "", parts[-1]) for parts in (path.split("/") for path in read)}
    assert needed <= allowed, needed - allowed


def test_the_chart_asks_for_the_image_that_is_built() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    named = re.search(r'^REPOSITORY_NAME = "(.+?)"', (ROOT / "deploy/image/contents.py").read_text(), re.MULTILINE)
    assert named
    assert values["image"]["repository"] == named[1]


def test_pods_run_on_architectures_of_the_image_unless_an_affinity_is_given(helm: str) -> None:
    terms = "nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
    mine = f"agent.affinity.{terms}[0].matchExpressions[0]"
    for values in ([], ["mps.enabled=true", f"{mine}.key=pool", f"{mine}.operator=Exists"]):
        for content in objects(render(helm, "webhook.enabled=true", *values)):
            if content["kind"] in {"DaemonSet", "Deployment", "Job"}:
                pod = content["spec"]["template"]["spec"]
                affinity = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
                (term,) = affinity["nodeSelectorTerms"]
                is_mine = content["kind"] == "DaemonSet" and values
                key, among = ("pool", None) if is_mine else ("kubernetes.io/arch", ["amd64", "arm64"])
                assert [(one["key"], one.get("values")) for one in term["matchExpressions"]] == [(key, among)]


@pytest.mark.parametrize("key", ["nvidia.com/gpu", "amd.com/gpu", "sku", "dedicated", "node.kubernetes.io/unreachable"])
def test_no_taint_keeps_an_agent_away_or_ends_it(helm: str, key: str) -> None:
    """A pod whose node has lost its agent can't end: its claims can't be unprepared."""
    for content in objects(render(helm, "mps.enabled=true")):
        if content["kind"] == "DaemonSet":
            tolerations = content["spec"]["template"]["spec"]["tolerations"]
            assert any(one["operator"] == "Exists" and one.get("key") in {None, key} for one in tolerations)
            assert all("effect" not in one and "tolerationSeconds" not in one for one in tolerations)


def test_example_classes_are_installed_only_if_enabled(helm: str) -> None:
    def names(*values: str) -> set[str]:
        return {c["metadata"]["name"] for c in objects(render(helm, *values)) if c["kind"] == "DeviceClass"}

    shipped = {path.name.removesuffix(".yaml") for path in (ROOT / "deviceclasses").glob("*.nvidia.com.yaml")}
    shipped -= {"vfio.gpu.nvidia.com", "imex-channel.nvidia.com"}  # come with their options (test_rights)
    examples = {"gpu-hopper.nvidia.com", "gpu-at-least-40gi.nvidia.com"}
    assert names() == shipped - examples
    assert names("deviceClasses.examples=true") == shipped
    assert examples & names("deviceClasses.create=false", "deviceClasses.examples=true") == set()


AMD = ("agent.hardware=amd", "driverName=gpu.amd.com")


def test_a_release_for_amd_has_amds_class_driver_and_policy_and_nothing_of_nvidias_classes(helm: str) -> None:
    rendered = objects(render(helm, *AMD, "deviceClasses.extendedResources.enabled=true", release="amd"))
    shown = {one["metadata"]["name"]: one["spec"] for one in rendered if one["kind"] == "DeviceClass"}
    assert shown.keys() == {"gpu.amd.com", "gpu.amd.com-spx", "gpu-share.amd.com"}
    assert shown["gpu.amd.com"]["extendedResourceName"] == "amd.com/gpu"
    assert not any("extendedResourceName" in shown[name] for name in ("gpu.amd.com-spx", "gpu-share.amd.com"))
    (agent,) = [content for content in rendered if content["kind"] == "DaemonSet"]
    (container,) = agent["spec"]["template"]["spec"]["containers"]
    environment = {one["name"]: one.get("value") for one in container["env"]}
    assert (environment["HARDWARE"], environment["DRIVER_NAME"]) == ("amd", "gpu.amd.com")
    policies = [content for content in rendered if content["kind"] == "ValidatingAdmissionPolicy"]
    assert any('spec.driver == "gpu.amd.com"' in yaml.safe_dump(policy, width=1000) for policy in policies)


@pytest.mark.parametrize(
    "values",
    [
        ("agent.hardware=amd",),
        (*AMD, "agent.mig.geometry=all-balanced"),
    ],
)
def test_a_release_for_amd_with_settings_of_nvidia_is_refused(helm: str, values: tuple[str, ...]) -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        render(helm, *values)
    assert "docs/amd.md" in caught.value.stderr


def test_configs_of_amds_own_group_are_left_to_the_node(helm: str) -> None:
    rendered = objects(render(helm, *AMD, "configPolicy.enabled=true", release="amd"))
    policies = [one for one in rendered if one["metadata"]["name"].endswith("-configs")]
    assert any("gpu.resource.amd.com/v1alpha1" in yaml.safe_dump(policy, width=1000) for policy in policies)


@pytest.mark.parametrize(
    ("values", "drivers"),
    [
        (AMD, ["gpu.amd.com"]),
        (("agent.hardware=amd", "driverName=amd.example.com"), ["amd.example.com"]),
        (("agent.hardware=nvidia\\,amd\\,intel",), ["gpu.amd.com", "gpu.intel.com"]),
        ((), []),
    ],
)
def test_the_policy_refuses_mps_for_each_driver_of_another_vendor(
    helm: str, values: tuple[str, ...], drivers: list[str]
) -> None:
    rendered = objects(render(helm, *values, "configPolicy.enabled=true"))
    [policy] = [one for one in rendered if one["kind"] == "ValidatingAdmissionPolicy" and "-configs" in str(one)]
    rules = [one["expression"] for one in policy["spec"]["validations"] if "MPS is for NVIDIA" in one["message"]]
    assert [rule.split("in ")[1].split("]")[0] + "]" for rule in rules] == [
        json.dumps(drivers, separators=(",", ":"))
    ] * bool(drivers)


def test_memory_limits_of_amds_shares_change_neither_rights_nor_mounts_of_the_host(helm: str) -> None:
    def of_agent(*values: str) -> tuple[list[object], list[object]]:
        rendered = objects(render(helm, *AMD, *values, release="amd"))
        (agent,) = [one for one in rendered if one["kind"] == "DaemonSet"]
        volumes = agent["spec"]["template"]["spec"]["volumes"]
        rights = [one.get("rules") for one in rendered if one["kind"] in {"ClusterRole", "Role"}]
        return rights, [one for one in volumes if "hostPath" in one]

    hard = "sharing.config.rules[0].match.vendors={amd}", "sharing.config.rules[0].replicas=4"
    limited = of_agent("sharing.config.version=rules/v1", *hard, "sharing.config.rules[0].enforcement=hard")
    assert limited == of_agent()
    assert "sys/fs/cgroup" not in str(limited)


def test_a_release_for_several_vendors_has_the_classes_and_policies_of_each(helm: str) -> None:
    values = (
        "agent.hardware=nvidia\\,amd\\,intel\\,gaudi",
        "deviceClasses.extendedResources.enabled=true",
        "claimStatus=true",
    )
    rendered = objects(render(helm, *values))
    classes = {one["metadata"]["name"]: one["spec"] for one in rendered if one["kind"] == "DeviceClass"}
    for vendor in ("nvidia", "amd", "intel"):
        assert classes[f"gpu.{vendor}.com"]["extendedResourceName"] == f"{vendor}.com/gpu"
    assert classes["gaudi.intel.com"]["extendedResourceName"] == "intel.com/gaudi"
    own = (*(classes[f"gpu.{vendor}.com"] for vendor in ("nvidia", "amd", "intel")), classes["gaudi.intel.com"])
    ((selector,),) = [classes["any-accelerator"]["selectors"]]
    assert selector["cel"]["expression"] == " || ".join(f"({one['selectors'][0]['cel']['expression']})" for one in own)
    (agent,) = [one for one in rendered if one["kind"] == "DaemonSet" and one["metadata"]["name"].endswith("agent")]
    environment = {one["name"]: one.get("value") for one in agent["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert environment["HARDWARE"] == "nvidia,amd,intel,gaudi"
    assert "DRIVER_NAME" not in environment
    drivers = '["gpu.nvidia.com","gpu.amd.com","gpu.intel.com","gaudi.intel.com"]'
    (check,) = [one for one in rendered if one["kind"] == "Job" and one["metadata"]["name"].endswith("uninstall-check")]
    named = check["spec"]["template"]["spec"]["containers"][0]["args"]
    assert named[0] == "uninstall-check"
    assert named[-len(yaml.safe_load(drivers)) :] == [f"--driver-name={one}" for one in yaml.safe_load(drivers)]
    policies = [yaml.safe_dump(one, width=1000) for one in rendered if one["kind"] == "ValidatingAdmissionPolicy"]
    assert any(f"spec.driver in {drivers}" in policy for policy in policies)


@pytest.mark.parametrize(("vendor", "driver"), [("intel", "gpu.intel.com"), ("gaudi", "gaudi.intel.com")])
def test_a_release_for_one_of_intels_drivers_has_that_drivers_class_alone(helm: str, vendor: str, driver: str) -> None:
    rendered = objects(render(helm, f"agent.hardware={vendor}", f"driverName={driver}"))
    assert [one["metadata"]["name"] for one in rendered if one["kind"] == "DeviceClass"] == [driver]
    with pytest.raises(subprocess.CalledProcessError) as caught:
        render(helm, f"agent.hardware={vendor}")
    assert f"driverName={driver}" in caught.value.stderr


@pytest.mark.parametrize("hardware", ["nvdia", "amd\\,intle"])
def test_an_unknown_vendor_is_refused_with_a_list_of_the_known_ones(helm: str, hardware: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        render(helm, f"agent.hardware={hardware}")
    assert "is no vendor. Take auto, vendors out of amd, gaudi, intel, nvidia" in caught.value.stderr


def test_several_vendors_under_one_drivers_name_are_refused(helm: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        render(helm, "agent.hardware=nvidia\\,amd", "driverName=gpu.example.com")
    assert "leave driverName" in caught.value.stderr


def test_the_chart_and_the_package_have_one_version() -> None:
    from dra_driver import __version__

    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == __version__


def test_the_notes_name_files_that_exist() -> None:
    text = (CHART / "templates" / "NOTES.txt").read_text() + (CHART / "values.yaml").read_text()
    for name in re.findall(r"(?:docs|examples)/[\w/.-]+\w", text):
        assert (ROOT / name).exists(), name


def test_the_viewer_role_reads_only_objects_without_a_namespace_and_changes_nothing() -> None:
    documents = [it for it in yaml.safe_load_all((ROOT / "deploy/manifests/rbac.yaml").read_text()) if it]
    (role,) = (it for it in documents if it["kind"] == "ClusterRole" and it["metadata"]["name"] == access.VIEWER)
    read = {resource for rule in role["rules"] for resource in rule["resources"]}
    assert read == {"deviceclasses", "resourceslices", "nodes"}
    assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"get", "list", "watch"}
