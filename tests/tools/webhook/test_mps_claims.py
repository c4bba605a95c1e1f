"""Warnings about containers that use several claims under MPS: a container has one MPS daemon."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dra_driver.kube.api import KubeApi
from dra_driver.kube.credentials import load_credentials
from dra_driver.simulator.api_server import EmbeddedApi
from dra_driver.simulator.store import CLAIMS, TEMPLATES
from dra_driver.tools.webhook.fleet import PublishedFleet
from dra_driver.tools.webhook.linting import MpsAdvisor
from dra_driver.tools.webhook.review import WARNING_CHARACTERS, review_pods
from tests.support.api.embedded_client import slice_wire
from tests.tools.webhook.support.reviews import DRIVER, claim, config, device_class, request, review, template

MPS_CLASS = "gpu-share-mps.nvidia.com"
MPS = config(strategy="MPS")
TWO = [request(class_name=DRIVER, name="a"), request(class_name=DRIVER, name="b")]


class Cluster:
    """An API server with claims and templates, and what is known of its devices."""

    def __init__(self, folder: Path) -> None:
        self.api = EmbeddedApi()
        self.api.start()
        self.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
        fleet = PublishedFleet((DRIVER,))
        wire = slice_wire("s", driver=DRIVER, devices=[{"name": "gpu-0"}])
        wire["metadata"]["uid"] = "s"
        fleet.replace_slices((wire,))
        ours, mps = f'device.driver == "{DRIVER}"', f"device.attributes[\"{DRIVER}\"].sharingStrategy == 'MPS'"
        classes = [device_class(expressions=[ours], name=DRIVER), device_class(expressions=[mps], name=MPS_CLASS)]
        classes.append(device_class(expressions=['device.driver == "nic.example"'], name="nic"))
        fleet.replace_classes(classes)
        credentials = load_credentials(str(self.api.write_kubeconfig(folder / "kubeconfig")))
        self.advisor = MpsAdvisor(KubeApi(credentials), fleet, (DRIVER,))

    def add(self, name: str, obj: dict[str, Any]) -> None:
        kind = CLAIMS if obj["kind"] == "ResourceClaim" else TEMPLATES
        made = {**obj, "metadata": {"name": name, "namespace": "team"}}
        self.api.request("POST", kind.path("team"), body=made)

    def warned(self, obj: Any, namespace: str = "team") -> list[str]:
        asked = review(obj)
        asked["request"]["namespace"] = namespace
        answer = review_pods(asked, self.advisor)["response"]
        assert answer["allowed"]
        return answer.get("warnings", [])


@pytest.fixture
def cluster(tmp_path: Path):
    made = Cluster(tmp_path)
    yield made
    made.api.stop()


def pod(*uses: dict[str, str], kind: str = "Pod", **sources: str) -> dict[str, Any]:
    entries = [{"name": name, "resourceClaimTemplateName": source} for name, source in sources.items()]
    spec = {"containers": [{"name": "main", "resources": {"claims": list(uses)}}], "resourceClaims": entries}
    if kind == "Pod":
        return {"apiVersion": "v1", "kind": kind, "metadata": {"name": "p"}, "spec": spec}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "p"}, "spec": {"template": {"spec": spec}}}


@pytest.mark.parametrize("kind", ["Pod", "Deployment"])
def test_a_container_with_two_claims_under_mps_is_warned_of(cluster: Cluster, kind: str) -> None:
    cluster.add("by-config", template(MPS, requests=[request(class_name=DRIVER)]))
    cluster.add("by-class", template(requests=[request(class_name=MPS_CLASS, name="share")]))
    (text,) = cluster.warned(pod({"name": "x"}, {"name": "y"}, kind=kind, x="by-config", y="by-class"))
    assert text.startswith("container main: x/gpu, y/share are under MPS, and a container has one MPS daemon")
    assert len(text) < WARNING_CHARACTERS


def test_a_claim_is_looked_at_as_a_template_is(cluster: Cluster) -> None:
    cluster.add("one", claim(MPS, requests=[request(class_name=DRIVER)]))
    cluster.add("two", template(MPS, requests=[request(class_name=DRIVER)]))
    wanted = pod({"name": "x"}, {"name": "y"}, y="two")
    wanted["spec"]["resourceClaims"].append({"name": "x", "resourceClaimName": "one"})
    assert len(cluster.warned(wanted)) == 1


def test_two_requests_of_one_claim_in_a_container_are_warned_of_unless_each_has_its_own_container(
    cluster: Cluster,
) -> None:
    cluster.add("both", template(MPS, requests=TWO))
    assert len(cluster.warned(pod({"name": "x", "request": "a"}, {"name": "x", "request": "b"}, x="both"))) == 1
    apart = pod({"name": "x", "request": "a"}, x="both")
    apart["spec"]["containers"].append({"name": "side", "resources": {"claims": [{"name": "x", "request": "b"}]}})
    assert cluster.warned(apart) == []


def test_a_claim_under_mps_beside_others_is_no_problem(cluster: Cluster) -> None:
    cluster.add("mps", template(MPS, requests=[request(class_name=DRIVER)]))
    cluster.add("whole", template(requests=[request(class_name=DRIVER)]))
    cluster.add("nic", template(MPS, requests=[request(class_name="nic")]))  # the config is for no device of it
    other = config(strategy="MPS")
    other["requests"] = ["another"]
    cluster.add(
        "elsewhere", template(other, requests=[request(class_name=DRIVER), request(class_name="nic", name="another")])
    )
    for source in ("whole", "nic", "elsewhere", "missing"):
        assert cluster.warned(pod({"name": "x"}, {"name": "y"}, x="mps", y=source)) == [], source


def test_only_the_pods_own_namespace_is_read_and_no_path_is_made_of_odd_names(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, ask = [], KubeApi.request
    monkeypatch.setattr(KubeApi, "request", lambda api, *call, **more: paths.append(call[1]) or ask(api, *call, **more))
    cluster.add("mps", template(MPS, requests=TWO))
    uses = {"name": "x"}, {"name": "x", "request": "a"}
    assert len(cluster.warned(pod(*uses, x="mps"))) == 1
    assert cluster.warned(pod(*uses, x="mps"), namespace="other") == []
    assert cluster.warned(pod(*uses, x="mps"), namespace="..") == []
    for odd in ("..", ".", "../resourceclaimtemplates/mps", "mps?watch=1", "a/b", "x" * 300):
        assert cluster.warned(pod(*uses, x=odd)) == [], odd
    of_templates = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaimtemplates/mps"
    assert paths == [of_templates.format("team"), of_templates.format("other")]


def test_an_api_server_that_does_not_answer_means_no_warning(cluster: Cluster) -> None:
    cluster.add("mps", template(MPS, requests=TWO))
    cluster.api.stop()
    assert cluster.warned(pod({"name": "x"}, {"name": "x", "request": "a"}, x="mps")) == []


@pytest.mark.parametrize("odd", [None, 1, [], {"spec": 1}, {"spec": {"containers": [1], "resourceClaims": [[]]}}])
def test_odd_pods_are_allowed_without_a_warning(cluster: Cluster, odd: Any) -> None:
    assert cluster.warned({**(odd if isinstance(odd, dict) else {"spec": odd}), "kind": "Pod"}) == []
