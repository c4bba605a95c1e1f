"""The embedded kubelet with a stand-in plugin over real sockets: registration, prepare, unprepare, slices."""

from __future__ import annotations

import json
import threading

import pytest

from dra_driver.base.errors import NodeError
from dra_driver.node.neighbours.pod_resources import HeldDevice, PodClaim, PodResources
from dra_driver.simulator.kubelet import EmbeddedKubelet
from dra_driver.simulator.store import CLAIMS
from tests.simulator.support.kubelet_pods import DRIVER, make_claim, pod
from tests.support.waiting import until


def device(name="d", *, requests=("r0",), ids=()):
    return {"request_names": requests, "pool_name": "n1", "device_name": name, "cdi_device_ids": ids}


def write_cdi(kubelet, name, **devices):
    document = {
        "cdiVersion": "0.5.0",
        "kind": "example.com/gpu",
        "devices": [{"name": n, "containerEdits": {"env": env}} for n, env in devices.items()],
    }
    (kubelet.cdi_dir / name).write_text(json.dumps(document))


def test_a_pod_gets_the_devices_of_its_claims_in_one_call(kubelet, plugin, api):
    uids = [make_claim(api, name) for name in ("a", "b")]
    for uid, number in zip(uids, "12", strict=True):
        plugin.devices[uid] = [device(ids=[f"example.com/gpu={uid}"])]
        write_cdi(kubelet, f"{number}.json", **{uid: [f"N{number}=1"]})
    kubelet.prepare_pod(pod("a", "b"))
    assert [call[1:] for call in plugin.calls] == [("prepare", uids)]
    view = kubelet.containers(pod("a", "b"))["main"]
    assert view.env == ("N1=1", "N2=1")
    resources = kubelet.pod_resources(pod("a", "b"))["main"]
    assert [entry["claimName"] for entry in resources] == ["a", "b"]
    assert resources[0]["claimResources"][0]["cdiDevices"] == [{"name": f"example.com/gpu={uids[0]}"}]
    kubelet.unprepare_pod(pod("a", "b"))
    assert plugin.calls[-1][1:] == ("unprepare", uids)
    assert kubelet.cached_claims() == ()


def test_a_container_that_names_a_request_gets_its_devices_and_those_of_all(kubelet, plugin, api):
    uid = make_claim(api, devices=("d", "e"))
    plugin.devices[uid] = [
        device("d", requests=["r0"], ids=["example.com/gpu=d"]),
        device("e", requests=["r1"], ids=["example.com/gpu=e"]),
        device("all", requests=[], ids=["example.com/gpu=all"]),
    ]
    write_cdi(kubelet, "x.json", d=["D=1"], e=["E=1"], all=["ALL=1"])
    kubelet.prepare_pod(pod("c"))
    assert set(kubelet.containers(pod("c"))["main"].env) == {"D=1", "E=1", "ALL=1"}
    assert set(kubelet.containers(pod("c", requests=["r1"]))["main"].env) == {"E=1", "ALL=1"}


def test_a_shared_claim_is_prepared_once_and_unprepared_after_its_last_pod(kubelet, plugin, api):
    uid = make_claim(api, pods=("u1", "u2"))
    kubelet.prepare_pod(pod("c"))
    kubelet.prepare_pod(pod("c", uid="u2"))
    kubelet.unprepare_pod(pod("c"))
    assert [call[1:] for call in plugin.calls] == [("prepare", [uid])]
    kubelet.unprepare_pod(pod("c", uid="u2"))
    assert plugin.calls[-1][1:] == ("unprepare", [uid])


def test_a_failed_claim_fails_the_pod_keeps_the_others_and_is_tried_again(kubelet, plugin, api):
    good, bad = make_claim(api, "a"), make_claim(api, "b")
    plugin.errors[bad] = "no such device"
    with pytest.raises(NodeError, match=r"claim default/b: driver gpu\.example\.com: no such device"):
        kubelet.prepare_pod(pod("a", "b"))
    plugin.errors.clear()
    kubelet.prepare_pod(pod("a", "b"))
    assert [call[2] for call in plugin.calls] == [[good, bad]] * 2


def test_ids_that_change_with_a_repeated_prepare_are_added_to_the_old_ones(kubelet, plugin, api):
    uid = make_claim(api)
    other = make_claim(api, "z")
    plugin.errors[other] = "not yet"
    for name in ("one", "two"):
        plugin.devices[uid] = [device(ids=[f"example.com/gpu={name}"])]
        with pytest.raises(NodeError):
            kubelet.prepare_pod(pod("c", "z"))
    (cached,) = [claim for claim in kubelet.cached_claims() if claim.ref.uid == uid]
    assert [d.cdi_ids for d in cached.devices[DRIVER]] == [("example.com/gpu=one",), ("example.com/gpu=two",)]


def test_after_a_restart_a_claim_is_prepared_again_and_can_be_unprepared(kubelet, plugin, api):
    uid = make_claim(api, pods=("u1", "u2"))
    kubelet.prepare_pod(pod("c"))
    kubelet.restart()
    kubelet.wait_registered(DRIVER, 60)
    kubelet.prepare_pod(pod("c", uid="u2"))
    assert [call[1:] for call in plugin.calls] == [("prepare", [uid])] * 2
    kubelet.unprepare_pod(pod("c"))
    kubelet.unprepare_pod(pod("c", uid="u2"))
    assert kubelet.cached_claims() == ()


@pytest.mark.parametrize(("attribute", "value"), [("extra_uids", ["another"]), ("skip", True)])
def test_a_reply_for_other_claims_than_asked_fails(kubelet, plugin, api, attribute, value):
    make_claim(api)
    setattr(plugin, attribute, value)
    with pytest.raises(NodeError, match=r"unknown claim UID another|skipped 1 of 1"):
        kubelet.prepare_pod(pod("c"))


def test_a_call_that_takes_too_long_fails(folder, api, plugin, kubelet):
    other = EmbeddedKubelet(folder, api, node="n1", rpc_timeout_s=0.2, wipes_slices=False)
    other.start()
    other.wait_registered(DRIVER, 60)
    make_claim(api)
    plugin.hang.clear()
    with pytest.raises(NodeError, match="DEADLINE_EXCEEDED"):
        other.prepare_pod(pod("c"))
    plugin.hang.set()
    other.stop()


def test_calls_for_different_pods_overlap(kubelet, plugin, api):
    for number in (1, 2):
        make_claim(api, f"c{number}", pods=(f"u{number}",))
    plugin.hang.clear()
    threads = [
        threading.Thread(target=kubelet.prepare_pod, args=(pod(f"c{number}", uid=f"u{number}"),)) for number in (1, 2)
    ]
    for thread in threads:
        thread.start()
    until(lambda: len(kubelet.cached_claims()) == 2)
    plugin.hang.set()
    for thread in threads:
        thread.join(60)
    assert len(plugin.calls) == 2


@pytest.mark.parametrize(
    ("arrange", "message"),
    [
        (lambda _: None, 'resourceclaims.resource.k8s.io "c" not found'),
        (lambda api: make_claim(api, pods=("other",)), "not reserved for pod"),
        (lambda api: make_claim(api, driver="absent.example.com"), "DRA driver absent.example.com is not registered"),
    ],
)
def test_claims_that_cannot_be_prepared_fail_the_pod(kubelet, plugin, api, arrange, message):
    arrange(api)
    with pytest.raises(NodeError, match=message):
        kubelet.prepare_pod(pod("c"))
    assert plugin.calls == []


def test_a_new_claim_of_the_same_name_fails_until_the_old_one_is_unprepared(kubelet, plugin, api):
    make_claim(api)
    kubelet.prepare_pod(pod("c"))
    api.delete(CLAIMS, "c")
    make_claim(api, pods=("u2",))
    with pytest.raises(NodeError, match="different UID"):
        kubelet.prepare_pod(pod("c", uid="u2"))
    kubelet.unprepare_pod(pod("c"))
    kubelet.prepare_pod(pod("c", uid="u2"))


def test_unprepare_needs_no_claim_object_and_is_repeated_until_it_succeeds(kubelet, plugin, api):
    uid = make_claim(api)
    kubelet.prepare_pod(pod("c"))
    api.delete(CLAIMS, "c")
    plugin.errors[uid] = "busy"
    with pytest.raises(NodeError, match="busy"):
        kubelet.unprepare_pod(pod("c"))
    plugin.errors.clear()
    kubelet.unprepare_pod(pod("c"))
    assert kubelet.cached_claims() == ()


def test_a_pod_cannot_end_while_its_driver_is_not_registered(kubelet, plugin, api):
    make_claim(api)
    kubelet.prepare_pod(pod("c"))
    plugin.deregister()
    until(lambda: not kubelet.plugins.plugins(DRIVER))
    with pytest.raises(NodeError, match="not registered"):
        kubelet.unprepare_pod(pod("c"))


def test_pod_resources_are_served_over_a_socket_as_by_the_kubelet(kubelet, plugin, api, folder):
    uid = make_claim(api)
    plugin.devices[uid] = [{**device(), "share_id": "5e7"}]
    reader = PodResources(folder / "pod-resources/kubelet.sock", DRIVER)
    assert reader.pods().claims == {}
    kubelet.prepare_pod(pod("c"))
    here = reader.pods()
    assert here.pods == {("default", "u1")}
    assert here.claims == {("default", "c"): PodClaim((HeldDevice("n1", "d", "5e7"),), is_prepared=True)}
    kubelet.resources.lists_claims = False
    assert reader.pods().claims == {}
    kubelet.unprepare_pod(pod("c"))
    assert reader.pods().pods == frozenset()
