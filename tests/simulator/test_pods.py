"""A pod's life in the embedded cluster: claims from templates, placed and released; and a foreign driver beside it."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from dra_driver.base.errors import NodeError
from dra_driver.simulator.api_server import EmbeddedApi
from dra_driver.simulator.foreign_plugin import ForeignPlugin, publish_slice
from dra_driver.simulator.kubelet import EmbeddedKubelet
from dra_driver.simulator.scheduler import FINALIZER, EmbeddedScheduler, end_pod, make_claims
from dra_driver.simulator.store import CLAIMS, CLASSES, PODS, SLICES, TEMPLATES
from tests.support.api.embedded_client import slice_wire

REQUESTS = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "any"}}]}}


@pytest.fixture
def api():
    made = EmbeddedApi()
    made.request("POST", CLASSES.path(), body={"metadata": {"name": "any"}, "spec": {}})
    made.request("POST", SLICES.path(), body=slice_wire(devices=[{"name": "a"}]))
    template = {"metadata": {"name": "t"}, "spec": {"metadata": {"labels": {"a": "b"}}, "spec": REQUESTS}}
    made.request("POST", TEMPLATES.path("default"), body=template)
    return made


def make_pod(api, name="p", **entry):
    spec = {"resourceClaims": [{"name": "gpu", **entry}], "containers": [{"name": "main"}]}
    return api.request("POST", PODS.path("default"), body={"metadata": {"name": name}, "spec": spec})


def test_a_claim_from_a_template_is_owned_by_its_pod_and_deleted_with_it(api):
    pod = make_claims(api, make_pod(api, resourceClaimTemplateName="t"))
    (claim,) = api.items(CLAIMS)
    metadata = claim["metadata"]
    assert metadata["name"].startswith("p-gpu-")
    assert metadata["labels"] == {"a": "b"}
    assert metadata["annotations"] == {"resource.kubernetes.io/pod-claim-name": "gpu"}
    assert metadata["ownerReferences"][0]["uid"] == pod["metadata"]["uid"]
    assert pod["status"]["resourceClaimStatuses"] == [{"name": "gpu", "resourceClaimName": metadata["name"]}]
    end_pod(api, pod)
    assert api.items(CLAIMS) == []
    assert api.items(PODS) == []


def test_a_placed_pod_is_bound_and_its_claim_reserved_and_protected(api):
    pod = make_claims(api, make_pod(api, resourceClaimTemplateName="t"))
    pod, (placement,) = EmbeddedScheduler(api, node="n1").schedule(pod)
    assert pod["spec"]["nodeName"] == "n1"
    assert placement.outcome.choices[0].id == ("gpu.example.com", "n1/gpu.example.com", "a")
    (claim,) = api.items(CLAIMS)
    assert claim["metadata"]["finalizers"] == [FINALIZER]
    assert claim["status"]["reservedFor"] == [{"resource": "pods", "name": "p", "uid": pod["metadata"]["uid"]}]


def test_nothing_is_written_for_a_pod_that_does_not_fit(api):
    scheduler = EmbeddedScheduler(api, node="n1")
    scheduler.schedule(make_claims(api, make_pod(api, resourceClaimTemplateName="t")))
    before = api.store.revision
    late = make_claims(api, make_pod(api, "late", resourceClaimTemplateName="t"))
    made = api.store.revision
    pod, (placement,) = scheduler.schedule(late)
    assert made > before
    assert api.store.revision == made
    assert "nodeName" not in pod["spec"]
    assert placement.outcome.refusal == ("request gpu wants 1: 1 devices here, 1 of class any, 1 held by other claims")
    end_pod(api, pod)


def test_a_shared_claim_stays_allocated_until_its_last_pod_has_ended(api):
    api.request("POST", CLAIMS.path("default"), body={"metadata": {"name": "shared"}, "spec": REQUESTS})
    scheduler = EmbeddedScheduler(api, node="n1")
    first, second = (scheduler.schedule(make_pod(api, name, resourceClaimName="shared"))[0] for name in ("p", "q"))
    assert len(api.get(CLAIMS, "shared")["status"]["reservedFor"]) == 2
    end_pod(api, first)
    assert "allocation" in api.get(CLAIMS, "shared")["status"]
    end_pod(api, second)
    claim = api.get(CLAIMS, "shared")
    assert claim["status"] == {}
    assert "finalizers" not in claim["metadata"]


def test_a_kubelet_refuses_a_templated_claim_that_was_made_for_another_pod(api):
    folder = Path(tempfile.mkdtemp(prefix="k-", dir="/tmp"))
    kubelet = EmbeddedKubelet(folder, api, node="n1", wipes_slices=False)
    kubelet.start()
    pod = make_claims(api, make_pod(api, resourceClaimTemplateName="t"))
    pod, _ = EmbeddedScheduler(api, node="n1").schedule(pod)
    other = {**pod, "metadata": {**pod["metadata"], "uid": "another-pod"}}
    with pytest.raises(NodeError, match="was not made for pod p"):
        kubelet.prepare_pod(other)
    unmade = {**pod, "status": {}}
    with pytest.raises(NodeError, match="no claim has been created from the template"):
        kubelet.prepare_pod(unmade)
    kubelet.stop()
    shutil.rmtree(folder)


def test_a_foreign_driver_publishes_registers_and_prepares_without_device_nodes(api):
    folder = Path(tempfile.mkdtemp(prefix="k-", dir="/tmp"))
    kubelet = EmbeddedKubelet(folder, api, node="n1")
    kubelet.start()
    assert publish_slice(api, "nic.example.com", "n1", [{"name": "nic0"}])["spec"]["pool"]["name"] == (
        "n1/nic.example.com"
    )
    plugin = ForeignPlugin("nic.example.com", registrar_dir=kubelet.registrar_dir, plugins_dir=kubelet.plugins_dir)
    plugin.start()
    kubelet.wait_registered("nic.example.com", 60)
    pod = make_claims(api, make_pod(api, resourceClaimTemplateName="t"))
    pod, (placement,) = EmbeddedScheduler(api, node="n1").schedule(pod)
    assert placement.outcome.choices[0].id[2] == "nic0"
    kubelet.prepare_pod(pod)
    assert kubelet.containers(pod)["main"].device_nodes == ()
    kubelet.unprepare_pod(pod)
    plugin.stop()
    kubelet.stop()
    shutil.rmtree(folder)
