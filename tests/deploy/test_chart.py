"""The chart, rendered: goldens, schema, what holds whatever the values. Skipped where there is no helm."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from dra_driver.cli.main import run
from dra_driver.doctor import cluster_evidence
from dra_driver.model.errors import ExitCode
from dra_driver.model.flags import FLAGS
from dra_driver.selectors import compile_selector
from dra_driver.views import access
from dra_driver.views.worlds import world
from lane import binaries

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm"
GOLDEN = Path(__file__).parent / "golden"

OURS = ["sharing.config.version=rules/v1", "sharing.config.rules[0].replicas=4"]
PLUGINS = [
    "sharing.config.version=v1",
    "sharing.config.sharing.mps.resources[0].name=nvidia.com/gpu",
    "sharing.config.sharing.mps.resources[0].replicas=4",
]

CASES = {
    "defaults": [],
    "runtime-class": ["agent.runtimeClassName=nvidia", "seamlessUpgrade=false", "agent.metricsPort=0"],
    "everything": [
        "namespace.create=true",
        "deviceClasses.extendedResources.enabled=true",
        "deviceClasses.extendedResources.migProfiles={1g.10gb,1g.10gb+me}",
        "metrics.serviceMonitor.enabled=true",
        "networkPolicy.enabled=true",
        "driverManager.enabled=true",
        "agent.driverRoot=/run/nvidia/driver",
        "agent.publishBesideDevicePlugin=true",
        "agent.mig.mode=static",
        "agent.mig.geometry=gpu-*:all-balanced;label",
        "agent.mig.configMap=mig-configs",
        "sharing.config.version=rules/v1",
        "sharing.config.rules[0].replicas=4",
        "sharing.config.rules[0].sharing.strategy=MPS",
        "driverName=gpu.example.com",
    ],
    "tenants": [
        "mps.tenants=namespace",
        "mps.namespaces={team-b,team-c}",
        "mps.otherClasses={our-shares.example.com}",
        "sharing.config.version=rules/v1",
        "sharing.config.rules[0].replicas=4",
        "sharing.config.rules[0].sharing.strategy=MPS",
        "sharing.config.rules[0].namespaces={team-a,team-b}",
    ],
    "webhook": [
        "webhook.enabled=true",
        "webhook.failurePolicy=Fail",
        "webhook.callers.configMap=api-servers",
        "webhook.callers.names={kube-apiserver-1,kube-apiserver-2}",
        "webhook.callers.networks={10.0.0.0/28,fd00::/64}",
        "networkPolicy.enabled=true",
        "configPolicy.enabled=true",
    ],
}


@pytest.fixture(scope="module")
def helm() -> str:
    found = shutil.which("helm") or (str(binaries.HELM.path / "helm") if binaries.HELM.built() else "")
    if not found:
        pytest.skip("helm is neither on PATH nor built (make cluster-binaries)")
    return found


def render(helm: str, *values: str, release: str = "dra-driver", namespace: str = "dra-driver") -> str:
    sets = [word for value in values for word in ("--set", value)]
    command = [helm, "template", release, str(CHART), "-n", namespace, "--kube-version", "1.35.0", *sets]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def objects(text: str) -> list[dict]:
    return [content for content in yaml.safe_load_all(text) if content]


@pytest.mark.parametrize("case", CASES)
def test_the_rendering_is_the_recorded_one(helm: str, case: str) -> None:
    """Record anew: delete the file and run the test twice."""
    golden = GOLDEN / f"{case}.yaml"
    text = render(helm, *CASES[case])
    if not golden.exists():
        golden.write_text(text)
        pytest.fail(f"{golden.name} was missing and is recorded now: look at it")
    assert text == golden.read_text()


def test_the_chart_passes_helms_own_linter(helm: str) -> None:
    done = subprocess.run([helm, "lint", "--strict", str(CHART)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_manifests_are_what_the_chart_renders(helm: str) -> None:
    command = [sys.executable, str(ROOT / "deploy/manifests/generate.py"), "--check", "--helm", helm]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "wrong",
    [
        "agent.colour=red",
        "agent.mig.mode=often",
        "mps.enabled=perhaps",
        "agent.hardware=gaudi",
        "image.digest=sha256:12",
        "agent.metricsPort=70000",
        "driverName=Not_A_Name",
        "deviceClasses.extendedResources.migProfiles={big}",
        "agent.kubeletDir=relative",
        "webhook.failurePolicy=Perhaps",
        "webhook.callers.networks={everywhere}",
        "agent.kubeletDir=/var/lib: x",
        "driverManager.label=two words",
        "agent.mig=null",
        "mps.tenants=nobody",
        "mps.namespaces={Team A}",
        "agent.resources.limits.memory=lots",
        "agent.resources.limit=1Gi",
        "agent.tolerations[0].operator=Sometimes",
        "agent.tolerations[0].keys=nvidia.com/gpu",
        "agent.affinity.nodeAfinity=y",
        "agent.extraEnv[0].valeu=x",
        "agent.extraVolumeMounts[0].mountpath=/x",
        "webhook.certManager.issuerRef.nam=x",
        "webhook.resources.requests.cpu=true",
        "deviceClasses.examples=some",
        "sharing.config.rule=4",
        "sharing.config.version=rules/v2",
    ],
)
def test_a_value_that_makes_no_sense_is_refused_by_name(helm: str, wrong: str) -> None:
    command = [helm, "template", "x", str(CHART), "--set", wrong]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "schema" in done.stderr or "values" in done.stderr
    name = wrong.partition("=")[0].split(".")[-1]
    assert name in done.stderr


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (["agent.runtimeClassName=nvidia", "mps.enabled=true"], "no MPS daemon can be kept"),
        (
            ["agent.runtimeClassName=nvidia", *OURS, "sharing.config.rules[0].sharing.strategy=MPS"],
            "no MPS daemon can be kept",
        ),
        (["agent.runtimeClassName=nvidia", "agent.mig.mode=dynamic"], "no GPU can be cut on demand"),
        (["agent.runtimeClassName=nvidia", "agent.mig.geometry=all-balanced"], "no GPU can be cut"),
        ([*OURS, "sharing.configMap=mine"], "leave one empty"),
        (["metrics.serviceMonitor.enabled=true", "metrics.service=false"], "finds agents by the Service"),
        (["metrics.serviceMonitor.enabled=true", "agent.metricsPort=0"], "finds agents by the Service"),
        (["deviceClasses.extendedResources.enabled=true", "deviceClasses.create=false"], "makes none"),
        (["mps.tenants=namespace", "sharing.configMap=mine"], "Name the namespaces in mps.namespaces"),
        (["mps.tenants=namespace", *PLUGINS], "cannot name namespaces"),
        (["mps.tenants=namespace", *OURS, "sharing.config.rules[0].sharing.strategy=MPS"], "names no namespaces"),
        (
            [
                "mps.tenants=namespace",
                *OURS,
                "sharing.config.rules[0].acrossNamespaces=true",
                "sharing.config.rules[0].namespaces={a}",
            ],
            "choose one",
        ),
        ([*OURS, "sharing.config.rules[0].namespaces={a}"], "need mps.tenants=namespace"),
        (["deviceClasses.extendedResources.migProfiles={1g.10gb}"], "enabled=true"),
    ],
)
def test_values_that_do_not_go_together_are_refused_with_what_to_do(helm: str, values: list[str], said: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        render(helm, *values)
    assert said in refused.value.stderr
    assert all(".".join(value.split("=")[0].split(".")[:2]) in refused.value.stderr for value in values)


@pytest.mark.parametrize(
    ("namespace", "values", "is_there"),
    [("gpus", [], True), ("default", [], False), ("gpus", ["namespace.label=false"], False)],
)
def test_a_namespace_of_its_own_is_labelled_by_a_job_that_may_do_nothing_else(
    helm: str, namespace: str, values: list[str], is_there: bool
) -> None:
    found = [c for c in objects(render(helm, *values, namespace=namespace)) if "pod-security" in c["metadata"]["name"]]
    assert bool(found) is is_there
    for role in (content for content in found if content["kind"] == "Role"):
        (rule,) = role["rules"]
        assert (rule["resources"], rule["resourceNames"], rule["verbs"]) == (["namespaces"], ["gpus"], ["get", "patch"])
        assert role["metadata"]["namespace"] == "gpus"


def test_claims_are_listed_by_nobody_unless_that_is_asked_for(helm: str) -> None:
    """The verb list on claims, and any verb on pods, would let a stolen token of one node read every tenant's."""
    for values, verbs in (((), ["get"]), (("takeover.listClaims=true", "agent.mig.geometry=label"), ["get", "list"])):
        found = objects(render(helm, *values))
        (role,) = (o for o in found if o["kind"] == "ClusterRole" and o["metadata"]["name"] == "dra-driver-agent")
        (claims,) = (rule for rule in role["rules"] if "resourceclaims" in rule["resources"])
        assert claims["verbs"] == verbs
        assert not [rule for rule in role["rules"] if {"pods", "nodes/proxy", "*"} & set(rule["resources"])]
        (agent,) = (o for o in found if o["kind"] == "DaemonSet" and o["metadata"]["name"] == "dra-driver-agent")
        env = {e["name"]: e.get("value") for e in agent["spec"]["template"]["spec"]["containers"][0]["env"]}
        assert env.get("TAKEOVER_LIST_CLAIMS") == ("true" if values else None)


def test_values_of_a_release_before_this_one_still_render(helm: str) -> None:
    """`helm upgrade --reuse-values` brings the defaults of the chart before."""
    agent = next(o for o in objects(render(helm, "takeover=null", "rollout=null")) if o["kind"] == "DaemonSet")
    assert agent["spec"]["updateStrategy"]["rollingUpdate"] == {"maxSurge": "1%", "maxUnavailable": 0}


def test_a_label_or_node_label_that_the_chart_sets_itself_is_not_written_twice(helm: str) -> None:
    name, os = r"app\.kubernetes\.io/name=mine", r"kubernetes\.io/os=linux"
    values = [f"agent.podLabels.{name}", "agent.podLabels.team=a", f"agent.nodeSelector.{os}", "mps.enabled=true"]
    text = render(helm, *values, f"mps.nodeSelector.{os}", "mps.nodeSelector.fast=x", "driverManager.enabled=true")
    agent, mps = (content for content in objects(text) if content["kind"] == "DaemonSet")
    manager = {"kubernetes.io/os": "linux", "nvidia.com/gpu.deploy.dra-driver": "true"}
    assert agent["spec"]["template"]["spec"]["nodeSelector"] == manager
    assert mps["spec"]["template"]["spec"]["nodeSelector"] == manager | {"fast": "x"}
    labels = agent["spec"]["template"]["metadata"]["labels"]
    assert labels.items() >= (agent["spec"]["selector"]["matchLabels"] | {"team": "a"}).items()
    for name in ("kubernetes.io/os", "app.kubernetes.io/name"):
        assert not re.search(rf"^( +){re.escape(name)}: .*\n(\1\S.*\n)*\1{re.escape(name)}:", text, re.MULTILINE)


def test_every_setting_of_the_daemonset_is_one_of_the_agents(helm: str) -> None:
    known = {flag.twin: flag for flag in FLAGS}
    runtime = {"NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"}
    for case in CASES.values():
        for content in objects(render(helm, *case)):
            if content["kind"] == "DaemonSet":
                (container,) = content["spec"]["template"]["spec"]["containers"]
                if container["args"] != ["agent"]:
                    continue
                given = {entry["name"]: entry.get("value", "") for entry in container["env"]}
                assert given.keys() - runtime <= known.keys()
                for name in given.keys() - runtime:
                    assert not known[name].choices or given[name] in known[name].choices


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


@pytest.mark.parametrize(
    ("values", "is_there"),
    [
        ([], False),
        (["mps.enabled=true"], True),
        ([*OURS, "sharing.config.rules[0].sharing.strategy=MPS"], True),
        ([*OURS, "sharing.config.rules[0].sharing.strategy=TimeSlicing"], False),
        (PLUGINS, True),
        (["mps.enabled=false", *OURS, "sharing.config.rules[0].sharing.strategy=MPS"], False),
    ],
)
def test_the_supervisor_of_mps_comes_where_mps_is_configured(helm: str, values: list[str], is_there: bool) -> None:
    found = [c for c in objects(render(helm, *values)) if c["metadata"]["name"] == "dra-driver-mps"]
    assert bool(found) is is_there
    for content in found:
        assert content["spec"]["updateStrategy"] == {"type": "OnDelete"}
        assert content["spec"]["template"]["spec"]["hostPID"] is True


def test_everything_of_a_release_carries_its_labels(helm: str) -> None:
    for content in objects(render(helm, *CASES["everything"], release="mine")):
        assert content["metadata"]["labels"]["app.kubernetes.io/instance"] == "mine", content["kind"]


# Without helm: the files as they lie.


def test_the_default_values_pass_the_schema() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.Draft7Validator(schema).validate(yaml.safe_load((CHART / "values.yaml").read_text()))


def test_every_value_is_in_the_schema_and_the_other_way_round() -> None:
    def paths(tree: dict, prefix: str = "") -> set[str]:
        inner = (paths(value, f"{prefix}{key}.") for key, value in tree.items() if isinstance(value, dict) and value)
        return set().union(*inner, {f"{prefix}{key}" for key in tree})

    def described(schema: dict, prefix: str = "") -> set[str]:
        known = schema.get("properties", {})
        return set().union(*(described(s, f"{prefix}{k}.") for k, s in known.items()), {prefix + k for k in known})

    values = yaml.safe_load((CHART / "values.yaml").read_text())
    free = {"agent.resources.", "mps.resources.", "webhook.resources."}
    written = {path for path in paths(values) if not any(path.startswith(start) for start in free)}
    schema = {path for path in described(json.loads((CHART / "values.schema.json").read_text())) if "[]" not in path}
    assert written == {path for path in schema if not path.startswith(("global", "imagePullSecrets."))}


def test_every_value_is_described_and_in_the_table_of_the_page() -> None:
    def bare(schema: dict, prefix: str = "") -> list[str]:
        known = schema.get("properties", {})
        inner = [name for key, value in known.items() for name in bare(value, f"{prefix}{key}.")]
        return [*(prefix + key for key, value in known.items() if not value.get("description")), *inner]

    schema = json.loads((CHART / "values.schema.json").read_text())
    assert [name for name in bare(schema) if not name.startswith("imagePullSecrets")] == []
    command = [sys.executable, str(ROOT / "deploy" / "values_table.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_whoever_may_view_the_cluster_may_read_all_that_the_tools_read() -> None:
    documents = yaml.safe_load_all((ROOT / "deploy/manifests/rbac.yaml").read_text())
    (role,) = (it for it in documents if it["kind"] == "ClusterRole" and it["metadata"]["name"].endswith("-view"))
    # By Kubernetes' own role:
    allowed = {("", "pods"), ("", "namespaces"), ("", "events"), ("apps", "daemonsets")}
    for rule in role["rules"]:
        assert rule["verbs"] == ["get", "list", "watch"]
        allowed |= {(group, resource) for group in rule["apiGroups"] for resource in rule["resources"]}
    read = {path.removeprefix("/") for path in (*world.PATHS.values(), *cluster_evidence.KINDS.values())}
    needed = {(parts[1] if parts[0] == "apis" else "", parts[-1]) for parts in (path.split("/") for path in read)}
    assert needed <= allowed, needed - allowed


def test_the_chart_asks_for_the_image_that_is_built() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    named = re.search(r'^REPOSITORY_NAME = "(.+?)"', (ROOT / "deploy/image/contents.py").read_text(), re.MULTILINE)
    assert named
    assert values["image"]["repository"] == named[1]


def test_pods_go_where_the_image_has_an_architecture_unless_other_nodes_are_named(helm: str) -> None:
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


def test_classes_that_teach_are_installed_on_request_only(helm: str) -> None:
    def names(*values: str) -> set[str]:
        return {c["metadata"]["name"] for c in objects(render(helm, *values)) if c["kind"] == "DeviceClass"}

    shipped = {path.name.removesuffix(".yaml") for path in (ROOT / "deviceclasses").glob("*.nvidia.com.yaml")}
    teaching = {"gpu-hopper.nvidia.com", "gpu-at-least-40gi.nvidia.com"}
    assert names() == shipped - teaching
    assert names("deviceClasses.examples=true") == shipped
    assert teaching & names("deviceClasses.create=false", "deviceClasses.examples=true") == set()


AMD = ("agent.hardware=amd", "driverName=gpu.amd.com")


def test_a_release_for_amd_has_amds_class_driver_and_policy_and_nothing_of_nvidias_classes(helm: str) -> None:
    rendered = objects(render(helm, *AMD, "deviceClasses.extendedResources.enabled=true", release="amd"))
    (shown,) = [content for content in rendered if content["kind"] == "DeviceClass"]
    assert (shown["metadata"]["name"], shown["spec"]["extendedResourceName"]) == ("gpu.amd.com", "amd.com/gpu")
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
        (*AMD, "sharing.configMap=rules"),
    ],
)
def test_a_release_for_amd_with_settings_of_nvidia_is_refused(helm: str, values: tuple[str, ...]) -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        render(helm, *values)
    assert "docs/amd.md" in caught.value.stderr


def test_the_chart_and_the_package_have_one_version() -> None:
    from dra_driver import __version__

    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == __version__


def test_the_notes_name_files_that_exist() -> None:
    text = (CHART / "templates" / "NOTES.txt").read_text() + (CHART / "values.yaml").read_text()
    for name in re.findall(r"(?:docs|examples)/[\w/.-]+\w", text):
        assert (ROOT / name).exists(), name


# Fields that the chart uses, with their types. Source: cert-manager, API cert-manager.io/v1 (Certificate, Issuer).
_ISSUER_REF = {"name": str, "kind": str, "group": str}
_CERTIFICATE = {
    "secretName": str,
    "issuerRef": dict,
    "dnsNames": list,
    "usages": list,
    "isCA": bool,
    "commonName": str,
    "duration": str,
    "privateKey": dict,
}
_USAGES = {"digital signature", "server auth", "cert sign"}


def certificates(text: str) -> dict[tuple[str, str], dict]:
    """Return what is for cert-manager, by kind and name; each checked as its definition would."""
    found = {}
    for one in objects(text):
        if one["apiVersion"] == "cert-manager.io/v1":
            spec, name = one["spec"], one["metadata"]["name"]
            assert one["metadata"]["namespace"] == "dra-driver"
            assert len(name) <= 253
            if one["kind"] == "Certificate":
                assert {"secretName", "issuerRef"} <= spec.keys() <= _CERTIFICATE.keys()
                assert all(isinstance(value, _CERTIFICATE[key]) for key, value in spec.items())
                assert {"name"} <= spec["issuerRef"].keys() <= _ISSUER_REF.keys()
                assert set(spec["usages"]) <= _USAGES
                assert len(spec.get("commonName", "")) <= 64
                assert spec.get("dnsNames") or spec.get("commonName")
            else:
                assert one["kind"] == "Issuer"
                assert spec == {"selfSigned": {}} or spec.keys() == {"ca"}
            found[one["kind"], name] = spec
    return found


def test_cert_manager_gets_a_certificate_that_a_lasting_authority_signs(helm: str) -> None:
    text = render(helm, "webhook.enabled=true", "webhook.certManager.enabled=true")
    found, name = certificates(text), "dra-driver-webhook"
    leaf, root = found["Certificate", name], found["Certificate", f"{name}-root"]
    assert leaf["dnsNames"] == [f"{name}.dra-driver.svc", f"{name}.dra-driver.svc.cluster.local"]
    assert found["Issuer", leaf["issuerRef"]["name"]] == {"ca": {"secretName": root["secretName"]}}
    assert (root["isCA"], found["Issuer", root["issuerRef"]["name"]]) == (True, {"selfSigned": {}})
    by_kind = {one["kind"]: one for one in objects(text)}
    annotations = by_kind["ValidatingWebhookConfiguration"]["metadata"]["annotations"]
    assert annotations == {"cert-manager.io/inject-ca-from": f"dra-driver/{name}"}
    pod = by_kind["Deployment"]["spec"]["template"]["spec"]
    [volume] = pod["volumes"]
    assert volume["secret"]["secretName"] == leaf["secretName"]
    [container] = pod["containers"]
    [mount] = container["volumeMounts"]
    assert {"name": "TLS_DIR", "value": mount["mountPath"]} in container["env"]
    # It asks for no right to write anything, and brings no Secret of its own.
    assert "Secret" not in by_kind
    (role,) = (one for one in objects(text) if one["kind"] == "ClusterRole" and one["metadata"]["name"] == name)
    assert [rule["verbs"] for rule in role["rules"]] == [["list", "watch"]]


def test_an_issuer_of_ones_own_is_all_that_a_certificate_needs(helm: str) -> None:
    options = ["webhook.enabled=true", "webhook.certManager.enabled=true"]
    options += ["webhook.certManager.issuerRef.name=corporate", "webhook.certManager.issuerRef.kind=ClusterIssuer"]
    found = certificates(render(helm, *options))
    assert found.keys() == {("Certificate", "dra-driver-webhook")}
    [spec] = found.values()
    assert spec["issuerRef"] == {"name": "corporate", "kind": "ClusterIssuer"}


def test_each_namespace_has_classes_that_lead_to_its_own_shares_and_no_other_class_does(helm: str) -> None:
    def device(kind: str, **attributes: str) -> dict:
        mine = {"type": {"string": kind}, "sharingStrategy": {"string": "MPS"}, "sharedBy": {"string": "memory"}}
        mine |= {name: {"string": value} for name, value in attributes.items()}
        return {"name": "d", "attributes": mine}

    classes = {c["metadata"]["name"]: c for c in objects(render(helm, *CASES["tenants"])) if c["kind"] == "DeviceClass"}
    owned = {name for name in classes if name.endswith("-share-mps.nvidia.com") and name.count(".") == 3}
    assert {name.partition(".")[0] for name in owned} == {"team-a", "team-b", "team-c"}
    leads_to = {
        (kind, tenant): {
            name for name, content in classes.items() if selects(content, device(kind, **tenant_of(tenant)))
        }
        for kind in ("gpu-share", "mig-share")
        for tenant in ("", "team-a", "team-d")
    }
    assert leads_to["gpu-share", "team-a"] == {"team-a.gpu-share-mps.nvidia.com"}
    assert leads_to["mig-share", "team-a"] == {"team-a.mig-share-mps.nvidia.com"}
    assert leads_to["gpu-share", "team-d"] == leads_to["mig-share", "team-d"] == set()
    assert leads_to["gpu-share", ""] >= {"gpu-share.nvidia.com", "gpu-share-mps.nvidia.com"}
    assert not owned & leads_to["gpu-share", ""]


def tenant_of(namespace: str) -> dict[str, str]:
    return {"tenant": namespace} if namespace else {}


def selects(device_class: dict, device: dict) -> bool:
    expressions = [s["cel"]["expression"] for s in device_class["spec"]["selectors"]]
    return all(compile_selector(text).matches(device, "gpu.nvidia.com") for text in expressions)


SHARING = {
    "nothing": ({}, True),
    "replicas": ({"version": "rules/v1", "rules": [{"replicas": 4}]}, True),
    "no rules": ({"version": "rules/v1", "rules": []}, True),
    "memory": ({"version": "rules/v1", "rules": [{"memory": {"default": "10Gi", "max": 40 << 30}}]}, True),
    "compute": ({"version": "rules/v1", "rules": [{"compute": {"default": 25, "min": 5, "step": 5}}]}, True),
    "exclusive": ({"version": "rules/v1", "rules": [{"match": {"nodes": ["a-*"]}, "exclusive": True}]}, True),
    "labels": ({"version": "rules/v1", "rules": [{"match": {"nodeLabels": {"pool": "a"}}, "replicas": 2}]}, True),
    "plugin": ({"version": "v1", "sharing": {"mps": {"resources": [{"name": "nvidia.com/gpu", "replicas": 2}]}}}, True),
    "plugin's other parts": ({"version": "v1", "flags": {"migStrategy": "single"}, "resources": {"gpus": []}}, True),
    "no version": ({"rules": [{"replicas": 4}]}, False),
    "misspelt": ({"version": "rules/v1", "rules": [{"replica": 4}]}, False),
    "too many": ({"version": "rules/v1", "rules": [{"replicas": 129}]}, False),
    "too few": ({"version": "rules/v1", "rules": [{"replicas": 1}]}, False),
    "a text": ({"version": "rules/v1", "rules": [{"replicas": "4"}]}, False),
    "strategy": ({"version": "rules/v1", "rules": [{"replicas": 4, "sharing": {"strategy": "Turns"}}]}, False),
    "no default": ({"version": "rules/v1", "rules": [{"memory": {"min": "1Gi"}}]}, False),
    "percent": ({"version": "rules/v1", "rules": [{"compute": {"default": 101}}]}, False),
    "label": ({"version": "rules/v1", "rules": [{"match": {"nodeLabels": {"pool": 1}}, "replicas": 2}]}, False),
    "type": ({"version": "rules/v1", "rules": [{"match": {"types": ["vgpu"]}, "replicas": 2}]}, False),
    "soft": ({"version": "rules/v1", "rules": [{"replicas": 2, "enforcement": "soft"}]}, False),
    "plugin without replicas": (
        {"version": "v1", "sharing": {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu"}]}}},
        False,
    ),
    "plugin's misspelt": ({"version": "v1", "sharing": {"timeSlice": {}}}, False),
}


@pytest.mark.parametrize("case", SHARING)
def test_the_schema_judges_a_sharing_configuration_as_the_agent_does(case: str, tmp_path: Path) -> None:
    content, is_good = SHARING[case]
    schema = json.loads((CHART / "values.schema.json").read_text())
    found = list(jsonschema.Draft7Validator(schema | {"required": []}).iter_errors({"sharing": {"config": content}}))
    assert (not found) is is_good, found
    if content:
        file = tmp_path / "sharing.yaml"
        file.write_text(yaml.safe_dump(content))
        assert (run(["check-config", str(file)]) == ExitCode.OK) is is_good


def test_the_schema_accepts_what_the_page_and_the_examples_show() -> None:
    page = (ROOT / "docs/sharing.md").read_text()
    shown = [text for text in re.findall(r"```yaml\n(.+?)```", page, re.DOTALL) if text.startswith("version: ")]
    shown.append((ROOT / "examples/sharing/node/rules.yaml").read_text())
    assert len(shown) > 1
    schema = json.loads((CHART / "values.schema.json").read_text())
    for text in shown:
        values = {"sharing": {"config": yaml.safe_load(text)}}
        jsonschema.Draft7Validator(schema | {"required": []}).validate(values)


def test_the_role_for_people_reads_what_belongs_to_no_namespace_and_changes_nothing() -> None:
    documents = [it for it in yaml.safe_load_all((ROOT / "deploy/manifests/rbac.yaml").read_text()) if it]
    (role,) = (it for it in documents if it["kind"] == "ClusterRole" and it["metadata"]["name"] == access.VIEWER)
    read = {resource for rule in role["rules"] for resource in rule["resources"]}
    assert read == {"deviceclasses", "resourceslices", "nodes"}
    assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"get", "list", "watch"}
