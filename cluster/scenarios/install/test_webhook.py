"""The admission webhook and the policy, as the chart renders them, called by the real API server.

The webhook runs as a process behind the chart's Service; one scenario runs the chart's Deployment from the built image.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.api import Object, Refused
from cluster.chart import CHART, NAMESPACE, Chart
from cluster.chart import rendered as chart_objects
from cluster.cluster import REPOSITORY, Cluster
from cluster.daemon import Daemon
from cluster.sandbox import until
from dra_driver.node.claims.config import validate
from dra_driver.tools.webhook.certificates import LIFE, make_certificate_pair
from dra_driver.tools.world.fleet import fleet_of_profile
from tests.support.webhook.config_cases import AMD_PARAMETERS, PARAMETERS
from tests.support.webhook.webhook_page import FILES, shown

DRIVER, NAME = "gpu.nvidia.com", "dra-driver-webhook"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
CONFIGURATION = f"{ADMISSION}/validatingwebhookconfigurations/{NAME}"
VERSIONS = ("v1", "v1beta2", "v1beta1")
RIGHT = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": {"strategy": "TimeSlicing"}}
WRONG = {**RIGHT, "sharing": {"strategy": "nonsense"}}
PORT = 8443


def rendered(*sets: str, template: str = "webhook.yaml") -> list[Object]:
    """Return what a template of the chart makes with its options on. Nothing in it needs a GPU or a node."""
    return chart_objects(template, values=",".join(("webhook.enabled=true", "configPolicy.enabled=true", *sets)))


def obj(kind: str, parameters: Any, *, version: str = "v1", driver: str = DRIVER, name: str = "it") -> Object:
    """Return an object of any kind and version with one config."""
    config = [{"opaque": {"driver": driver, "parameters": parameters}}]
    exactly = {"deviceClassName": DRIVER}
    request = {"name": "gpu", **(exactly if version == "v1beta1" else {"exactly": exactly})}
    spec: Object = {"devices": {"requests": [request], "config": config}}
    if kind == "ResourceClaimTemplate":
        spec = {"spec": spec}
    if kind == "DeviceClass":
        spec = {"config": config}
    meta = {"name": name} if kind == "DeviceClass" else {"name": name, "namespace": "default"}
    return {"apiVersion": f"resource.k8s.io/{version}", "kind": kind, "metadata": meta, "spec": spec}


def versions(cluster: Cluster) -> list[str]:
    """Return the versions of the resource API that are served; by default Kubernetes serves no beta versions."""
    served = {one["version"] for one in cluster.api.call("GET", "/apis/resource.k8s.io")["versions"]}
    assert "v1" in served
    return [one for one in VERSIONS if one in served]


def refusal(cluster: Cluster, content: Object) -> str:
    """Return why an object is refused in a dry run; empty when it is not."""
    path = cluster.api.path(content["kind"], namespace=content["metadata"].get("namespace", ""))
    try:
        cluster.api.call(
            "POST", path.replace("/v1/", f"/{content['apiVersion'].split('/')[1]}/"), content, dryRun="All"
        )
    except Refused as refused:
        return str(refused)
    return ""


class Served:
    """The webhook as a process on the first node, behind the chart's Service."""

    def __init__(self, cluster: Cluster, *options: str) -> None:
        self.cluster = cluster
        node = cluster.nodes[0]
        token = self._token()
        kubeconfig = cluster.authority.kubeconfig(NAME, token, "https://10.96.0.1:443")
        names = ("--namespace", NAMESPACE, "--service", NAME, "--secret", NAME, "--configuration", NAME)
        argv = [sys.executable, "-m", "dra_driver", "webhook", "--kubeconfig", str(kubeconfig), *names]
        argv += ["--address", f"{node.address}:{PORT}", *options]
        self.daemon: Daemon = node.daemon("webhook", argv, environment={"PYTHONPATH": str(REPOSITORY)})

    def _token(self) -> str:
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
        path = self.cluster.api.path("ServiceAccount", NAME, NAMESPACE) + "/token"
        return str(self.cluster.api.call("POST", path, body)["status"]["token"])

    def start(self) -> None:
        self.daemon.start()
        self.daemon.until("trusted", lambda: all(self.bundles()) and self.refuses(), 60)

    def refuses(self) -> bool:
        return "denied the request" in refusal(self.cluster, obj("ResourceClaim", WRONG))

    def bundles(self) -> list[str]:
        found = self.cluster.api.call("GET", CONFIGURATION)
        return [one["clientConfig"].get("caBundle", "") for one in found["webhooks"]]


@pytest.fixture
def installed(cluster: Cluster) -> Iterator[Cluster]:
    """Everything of the chart's webhook except its pods; and a slice of a node that does not exist."""
    if cluster.api.find("Namespace", NAMESPACE) is None:
        cluster.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    contents = [one for one in rendered() if one["kind"] != "Deployment"]
    for one in contents:
        if one["kind"] == "Service":
            del one["spec"]["selector"]
            one["spec"]["ports"][0]["targetPort"] = PORT
    contents += [_endpoints(cluster.nodes[0].address), _slice()]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": contents})
    cluster.kubectl("apply", "-f", "-", stdin=text)
    try:
        yield cluster
    finally:
        cluster.kubectl("delete", "--ignore-not-found", "-f", "-", stdin=text)


@pytest.fixture
def served(installed: Cluster) -> Iterator[Served]:
    made = Served(installed)
    made.start()
    yield made
    if made.daemon.alive:
        assert made.daemon.stop(20) == 0


def _endpoints(address: str) -> Object:
    meta = {"name": NAME, "namespace": NAMESPACE, "labels": {"kubernetes.io/service-name": NAME}}
    endpoint = {"addresses": [address], "conditions": {"ready": True}}
    ports = [{"name": "https", "port": PORT, "protocol": "TCP"}]
    kind = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4"}
    return {**kind, "metadata": meta, "endpoints": [endpoint], "ports": ports}


def _slice() -> Object:
    devices = [one.wire for one in fleet_of_profile("demo-h100").devices if one.driver == DRIVER]
    kept = [{key: one[key] for key in ("name", "attributes", "capacity") if key in one} for one in devices]
    pool = {"name": "page", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": "page", "pool": pool, "devices": kept}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "page"}, "spec": spec}


def applied(cluster: Cluster, folder: Path, name: str, *options: str) -> list[str]:
    """Apply a file of the page as its reader would; return kubectl's output and errors."""
    (folder / name).write_text(FILES[name])
    command = [str(cluster.programs["kubectl"]), f"--kubeconfig={cluster.kubeconfig}", "apply", "-f", name, *options]
    done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True, timeout=60)
    return [line.rstrip() for line in (done.stderr + done.stdout).splitlines() if line]


def test_wrong_configs_are_refused_in_every_kind_and_version_and_right_ones_are_not(served: Served) -> None:
    for version in versions(served.cluster):
        for kind, path in (
            ("ResourceClaim", "spec.devices"),
            ("ResourceClaimTemplate", "spec.spec.devices"),
            ("DeviceClass", "spec"),
        ):
            said = refusal(served.cluster, obj(kind, WRONG, version=version))
            assert f"{path}.config[0].opaque.parameters.sharing.strategy" in said, (version, kind, said)
            assert refusal(served.cluster, obj(kind, RIGHT, version=version)) == ""
            assert refusal(served.cluster, obj(kind, WRONG, version=version, driver="nic.example.com")) == ""


@pytest.mark.parametrize("text", ['{"a":' * 3000 + "1" + "}" * 3000, "9" * 300, '"1e999999999"', '"\\ud800"'])
def test_however_a_config_is_written_its_review_ends_with_a_verdict(served: Served, text: str) -> None:
    """Deep, long and strange JSON passes the API server unchanged; without a verdict it would be admitted.

    The server itself refuses a config longer than 10 KiB, before it calls a webhook.
    """
    limits = {"defaultPinnedDeviceMemoryLimit": "HERE"}
    made = obj("ResourceClaim", {**RIGHT, "sharing": {"strategy": "MPS", "mpsConfig": limits}})
    body = json.dumps(made).replace('"HERE"', text)
    path = f"{served.cluster.api.path('ResourceClaim', namespace='default')}?dryRun=All"
    with pytest.raises(subprocess.SubprocessError) as refused:
        served.cluster.kubectl("create", "--raw", path, "-f", "-", stdin=body)
    assert "opaque.parameters" in str(refused.value)


def test_kubectl_shows_what_the_page_shows(served: Served, tmp_path: Path) -> None:
    assert applied(served.cluster, tmp_path, "wrong.yaml") == shown("wrong.yaml")
    # It warns once it has seen the fleet.
    until(
        "a warning", lambda: "Warning" in applied(served.cluster, tmp_path, "doubtful.yaml", "--dry-run=server")[0], 20
    )
    assert applied(served.cluster, tmp_path, "trainer.yaml", "--dry-run=server")[:2] == shown("trainer.yaml")[:2]
    try:
        assert applied(served.cluster, tmp_path, "doubtful.yaml") == shown("doubtful.yaml")
    finally:
        served.cluster.kubectl("delete", "--ignore-not-found", "-f", str(tmp_path / "doubtful.yaml"))


def test_an_expired_certificate_is_renewed_and_reviews_go_on(served: Served) -> None:
    names = (f"{NAME}.{NAMESPACE}.svc", f"{NAME}.{NAMESPACE}.svc.cluster.local")
    expired = make_certificate_pair(names, datetime.now(UTC) - LIFE - timedelta(days=1))
    served.daemon.stop(20)
    secret = served.cluster.api.get("Secret", NAME, NAMESPACE)
    pem = {"tls.crt": expired.certificate, "tls.key": expired.key, "ca.crt": expired.authorities}
    data = {key: base64.b64encode(text.encode()).decode() for key, text in pem.items()}
    served.cluster.api.replace({**secret, "data": data})
    served.start()
    assert served.cluster.api.get("Secret", NAME, NAMESPACE)["data"]["tls.crt"] != data["tls.crt"]


def test_a_stored_wrong_config_prevents_no_change_and_a_further_wrong_one_is_refused(installed: Cluster) -> None:
    """The class was written before the webhook was installed."""
    cluster = installed
    before = obj("DeviceClass", WRONG, name="ratchet")
    cluster.api.create(before)
    try:
        served = Served(cluster)
        served.start()
        assert "config[1]" in _made_worse(cluster, "ratchet")
        made = obj("ResourceClaim", WRONG)
        made["metadata"] = {"generateName": "made-", "namespace": "default"}
        assert "denied the request" in refusal(cluster, made)
        assert served.daemon.stop(20) == 0
    finally:
        cluster.api.delete("DeviceClass", "ratchet")


def _made_worse(cluster: Cluster, name: str) -> str:
    """Change a class that has a wrong config, adding another wrong one; return the answer about the second."""
    stored = cluster.api.get("DeviceClass", name)
    stored["spec"]["selectors"] = [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]
    stored = cluster.api.replace(stored)
    worse = {"opaque": {"driver": DRIVER, "parameters": {**WRONG, "more": 1}}}
    with pytest.raises(Refused) as refused:
        cluster.api.replace({**stored, "spec": {**stored["spec"], "config": [*stored["spec"]["config"], worse]}})
    return str(refused.value)


def test_a_webhook_whose_certificate_is_renewed_from_outside_needs_no_rights(
    installed: Cluster, tmp_path: Path
) -> None:
    """As with cert-manager, the files are mounted and caBundle is filled in from outside."""
    names = (f"{NAME}.{NAMESPACE}.svc", f"{NAME}.{NAMESPACE}.svc.cluster.local")
    pair = make_certificate_pair(names, datetime.now(UTC))
    tmp_path.chmod(0o755)
    (tmp_path / "tls.crt").write_text(pair.certificate)
    (tmp_path / "tls.key").write_text(pair.key)
    configuration = installed.api.call("GET", CONFIGURATION)
    for one in configuration["webhooks"]:
        one["clientConfig"]["caBundle"] = base64.b64encode(pair.authorities.encode()).decode()
    installed.api.call("PUT", CONFIGURATION, configuration)
    installed.kubectl("delete", "role,rolebinding", NAME, "-n", NAMESPACE)
    served = Served(installed, "--tls-dir", str(tmp_path))
    served.start()
    assert served.refuses()
    assert not installed.api.get("Secret", NAME, NAMESPACE).get("data")
    assert served.daemon.stop(20) == 0


def test_while_the_webhook_is_down_the_failure_policy_decides_for_configs_of_this_driver_only(served: Served) -> None:
    served.daemon.stop(20)
    cluster = served.cluster
    until("fail open", lambda: not refusal(cluster, obj("ResourceClaim", WRONG)), 20)

    cluster.api.create(obj("ResourceClaim", RIGHT, name="before"))
    try:
        configuration = cluster.api.call("GET", CONFIGURATION)
        configuration["webhooks"][0]["failurePolicy"] = "Fail"
        cluster.api.call("PUT", CONFIGURATION, configuration)
        until("fail closed", lambda: "failed calling webhook" in refusal(cluster, obj("ResourceClaim", RIGHT)), 20)
        assert refusal(cluster, obj("ResourceClaim", RIGHT, driver="nic.example.com")) == ""
        # An object that was admitted earlier can still be labelled.
        # (Not by a patch: the API server compares parameters by their bytes.)
        found = cluster.api.get("ResourceClaim", "before", "default")
        cluster.api.replace({**found, "metadata": {**found["metadata"], "labels": {"a": "b"}}})
    finally:
        cluster.api.delete("ResourceClaim", "before", "default")
    served.start()
    assert refusal(cluster, obj("ResourceClaim", RIGHT)) == ""


def test_the_policy_without_a_server_judges_as_the_node_does(cluster: Cluster, tmp_path: Path) -> None:
    policy = REPOSITORY / "deploy" / "manifests" / "options" / "config-policy.yaml"
    cluster.api.create(obj("DeviceClass", WRONG, name="ratchet"))
    cluster.apply(policy)
    try:
        until("the policy in force", lambda: refusal(cluster, obj("ResourceClaim", WRONG)), 30)
        for parameters in PARAMETERS:
            said = refusal(cluster, obj("ResourceClaim", parameters))
            assert bool(said) is bool(validate(parameters, driver=DRIVER)), (parameters, said)
            assert not said or "denied request" in said, (parameters, said)
        for version in versions(cluster):
            for kind in ("ResourceClaim", "ResourceClaimTemplate", "DeviceClass"):
                assert "sharing.strategy must be one of" in refusal(cluster, obj(kind, WRONG, version=version))
                assert refusal(cluster, obj(kind, RIGHT, version=version)) == ""
                assert refusal(cluster, obj(kind, WRONG, version=version, driver="nic.example.com")) == ""
        assert "unknown field" in _made_worse(cluster, "ratchet")
        assert applied(cluster, tmp_path, "wrong.yaml") == shown("wrong.yaml", 1)
        found = cluster.api.call("GET", f"{ADMISSION}/validatingadmissionpolicies/dra-driver-configs")
        assert not found["status"].get("typeChecking", {}).get("expressionWarnings"), found["status"]
    finally:
        cluster.kubectl("delete", "-f", str(policy))
        cluster.api.delete("DeviceClass", "ratchet")


def test_the_policy_of_a_release_for_several_vendors_judges_each_drivers_configs_as_the_node_does(
    cluster: Cluster,
) -> None:
    policy = rendered(r"agent.hardware=nvidia\,amd\,intel", template="config-policy.yaml")
    text = yaml.safe_dump_all(policy)
    drivers = ("gpu.nvidia.com", "gpu.amd.com", "gpu.intel.com")
    cluster.kubectl("apply", "-f", "-", stdin=text)
    try:  # for a while, the server may still have an earlier policy of the same name, for NVIDIA's driver alone
        wrong = [obj("ResourceClaim", WRONG, driver=driver) for driver in drivers]
        until("the policy in force", lambda: all(refusal(cluster, one) for one in wrong), 30)
        for driver in drivers:
            for parameters in (*AMD_PARAMETERS, *PARAMETERS[::5]):
                said = refusal(cluster, obj("ResourceClaim", parameters, driver=driver))
                assert bool(said) is bool(validate(parameters, driver=driver)), (driver, parameters, said)
        found = cluster.api.call("GET", f"{ADMISSION}/validatingadmissionpolicies/dra-driver-configs")
        assert not found["status"].get("typeChecking", {}).get("expressionWarnings"), found["status"]
    finally:
        cluster.kubectl("delete", "-f", "-", stdin=text)


def test_the_charts_deployment_serves_and_an_upgrade_keeps_its_authority(cluster: Cluster) -> None:
    chart = Chart(cluster)
    nothing_else = ("--set", "agent.nodeSelector.nowhere=x", "--set", "deviceClasses.create=false")
    nothing_else += ("--set", "fullnameOverride=second", "--set", "driverName=gpu.example.com")
    values = [*chart.values(cluster.nodes[0], webhook__enabled="true"), *nothing_else]
    options = ["--install", "--create-namespace", "--wait", "--timeout", "100s"]
    path = f"{ADMISSION}/validatingwebhookconfigurations/second-webhook"
    wrong = obj("ResourceClaim", WRONG, driver="gpu.example.com")
    try:
        chart.helm("upgrade", "second", str(CHART), *options, *values)
        until("a refusal", lambda: "denied the request" in refusal(cluster, wrong), 30)
        before = cluster.api.call("GET", path)["webhooks"][0]["clientConfig"]["caBundle"]
        chart.helm("upgrade", "second", str(CHART), *options, *values, "--set", "webhook.failurePolicy=Fail")
        after = cluster.api.call("GET", path)["webhooks"][0]
        assert (after["failurePolicy"], after["clientConfig"]["caBundle"]) == ("Fail", before)
        assert "denied the request" in refusal(cluster, wrong)
        for pod in cluster.api.list("Pod", NAMESPACE, labelSelector="app.kubernetes.io/component=webhook"):
            code = "print(next(l.split()[1] for l in open('/proc/1/status') if l.startswith('VmRSS')))"
            said = chart.run(pod["metadata"]["name"], "/usr/bin/python3", "-c", code)
            print(f"\na replica: {int(said) / 1024:.1f} MiB", end="")
    finally:
        chart.helm("uninstall", "second", "--no-hooks", "--ignore-not-found", "--wait", "--timeout", "60s")
