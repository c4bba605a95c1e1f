"""The embedded kubelet with a stand-in plugin over real sockets: registration, prepare, unprepare, slices."""

from __future__ import annotations

import json
import shutil
import socket
import tempfile
import threading
import time
from pathlib import Path

import pytest

from dra_driver.embedded.api.kinds import CLAIMS, SLICES
from dra_driver.embedded.api.server import EmbeddedApi
from dra_driver.embedded.kubelet import plugin_calls, plugin_watcher
from dra_driver.embedded.kubelet.kubelet import EmbeddedKubelet
from dra_driver.model.errors import NodeError
from dra_driver.plugin.node_claims.pod_resources import ClaimHere, HeldDevice, PodResources
from tests.support.embedded_client import slice_wire
from tests.support.stand_in_plugin import StandInPlugin
from tests.support.waiting import until

DRIVER = "gpu.example.com"


@pytest.fixture
def folder():
    made = Path(tempfile.mkdtemp(prefix="k-", dir="/tmp"))
    yield made
    shutil.rmtree(made)


@pytest.fixture
def api():
    return EmbeddedApi()


@pytest.fixture
def kubelet(folder, api):
    made = EmbeddedKubelet(folder, api, node="n1", wipe_after_s=0.3)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def plugin(folder, kubelet):
    made = StandInPlugin(folder).start()
    kubelet.wait_registered(DRIVER, 10)
    yield made
    made.stop()


def make_claim(api, name="c", *, devices=("d",), pods=("u1",), driver=DRIVER):
    requests = [{"name": f"r{i}", "exactly": {"deviceClassName": "x"}} for i in range(len(devices))]
    path = CLAIMS.path("default")
    made = api.request("POST", path, body={"metadata": {"name": name}, "spec": {"devices": {"requests": requests}}})
    results = [{"request": f"r{i}", "driver": driver, "pool": "n1", "device": d} for i, d in enumerate(devices)]
    status = {
        "allocation": {"devices": {"results": results}},
        "reservedFor": [{"resource": "pods", "name": uid, "uid": uid} for uid in pods],
    }
    return api.request("PUT", f"{path}/{name}/status", body={**made, "status": status})["metadata"]["uid"]


def pod(*claims, uid="u1", requests=()):
    uses = [{"name": claims[0], "request": r} for r in requests] or [{"name": name} for name in claims]
    return {
        "metadata": {"name": uid, "namespace": "default", "uid": uid},
        "spec": {
            "resourceClaims": [{"name": name, "resourceClaimName": name} for name in claims],
            "containers": [{"name": "main", "resources": {"claims": uses}}],
        },
    }


def device(name="d", *, requests=("r0",), ids=()):
    return {"request_names": requests, "pool_name": "n1", "device_name": name, "cdi_device_ids": ids}


def write_cdi(kubelet, name, **devices):
    document = {
        "cdiVersion": "0.5.0",
        "kind": "example.com/gpu",
        "devices": [{"name": n, "containerEdits": {"env": env}} for n, env in devices.items()],
    }
    (kubelet.cdi_dir / name).write_text(json.dumps(document))


# -- registration -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("versions", "chosen"),
    [
        (["v1.DRAPlugin", "v1beta1.DRAPlugin"], "v1.DRAPlugin"),
        (["v1beta1.DRAPlugin", "v1.DRAPlugin"], "v1beta1.DRAPlugin"),
        (["v9.DRAPlugin", "v1alpha1.DRAResourceHealth", "v1.DRAPlugin"], "v1.DRAPlugin"),
    ],
)
def test_the_first_version_that_is_known_is_taken(folder, kubelet, api, versions, chosen):
    plugin = StandInPlugin(folder, versions=versions).start()
    assert kubelet.wait_registered(DRIVER, 10).version == chosen
    assert plugin.statuses == [(True, "")]
    uid = make_claim(api)
    kubelet.prepare_pod(pod("c"))
    assert plugin.calls == [(chosen, "prepare", [uid])]
    plugin.stop()


@pytest.mark.parametrize(
    ("type_", "versions", "message"),
    [
        ("DRAPlugin", [], "empty list"),
        ("DRAPlugin", ["v2.DRAPlugin"], "none of the versions"),
        ("CSIPlugin", ["v1.DRAPlugin"], "no handler"),
    ],
)
def test_a_plugin_that_does_not_fit_is_refused_and_told_why(folder, kubelet, type_, versions, message):
    plugin = StandInPlugin(folder, versions=versions)
    plugin.type = type_
    plugin.start()
    until(kubelet.plugins.errors)
    with pytest.raises(NodeError, match="did not register") as caught:
        kubelet.wait_registered(DRIVER, 0.01)
    assert message in caught.value.hint
    assert plugin.statuses[0][0] is False
    assert message in plugin.statuses[0][1]
    plugin.stop()


def test_a_socket_that_goes_deregisters_and_one_that_comes_back_registers(kubelet, plugin):
    plugin.deregister()
    until(lambda: not kubelet.plugins.plugins(DRIVER))
    plugin.register()
    kubelet.wait_registered(DRIVER, 10)
    assert plugin.statuses == [(True, ""), (True, "")]


def test_dot_files_and_files_that_are_no_sockets_are_not_looked_at(kubelet, plugin):
    (kubelet.registrar_dir / "notes.txt").write_text("")
    shutil.copy(plugin.registrar.parent / "notes.txt", kubelet.registrar_dir / ".hidden")
    assert kubelet.plugins.errors() == {}


def test_a_kubelet_ends_at_once_though_nobody_answers_behind_a_socket(kubelet, monkeypatch):
    waiting = threading.Event()

    class Asking(plugin_watcher.Registrar):
        def get_info(self):
            waiting.set()
            return super().get_info()

    monkeypatch.setattr(plugin_watcher, "Registrar", Asking)
    with socket.socket(socket.AF_UNIX) as killed:  # the file of a process that was killed
        killed.bind(str(kubelet.registrar_dir / "killed.sock"))
    assert waiting.wait(10)
    began = time.monotonic()
    kubelet.stop()
    assert time.monotonic() - began < plugin_calls.DIAL_S / 2
    kubelet.start()


def test_a_second_instance_takes_the_calls_and_the_first_takes_over_again(folder, kubelet, plugin, api):
    second = StandInPlugin(folder, name="second").start()
    kubelet.wait_registered(DRIVER, 10, instances=2)
    first_uid = make_claim(api)
    kubelet.prepare_pod(pod("c"))
    assert [call[1:] for call in second.calls] == [("prepare", [first_uid])]
    second.deregister()
    until(lambda: len(kubelet.plugins.plugins(DRIVER)) == 1)
    kubelet.unprepare_pod(pod("c"))
    assert [call[1:] for call in plugin.calls] == [("unprepare", [first_uid])]
    second.stop()


def test_the_same_endpoint_is_not_registered_twice(folder, kubelet, plugin):
    double = StandInPlugin(folder, name="double")
    double.socket = plugin.socket
    double.register()
    until(lambda: double.statuses)
    assert double.statuses[0] == (False, f"endpoint {plugin.socket} already registered for driver {DRIVER}")
    double.stop()


# -- prepare and unprepare --------------------------------------------------------------------------------------------


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


def test_ids_that_change_on_a_repeat_leave_the_stale_ones_behind(kubelet, plugin, api):
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
    kubelet.wait_registered(DRIVER, 10)
    kubelet.prepare_pod(pod("c", uid="u2"))
    assert [call[1:] for call in plugin.calls] == [("prepare", [uid])] * 2
    kubelet.unprepare_pod(pod("c"))
    kubelet.unprepare_pod(pod("c", uid="u2"))
    assert kubelet.cached_claims() == ()


@pytest.mark.parametrize(("attribute", "value"), [("extra_uids", ["stranger"]), ("skip", True)])
def test_a_reply_for_other_claims_than_asked_fails(kubelet, plugin, api, attribute, value):
    make_claim(api)
    setattr(plugin, attribute, value)
    with pytest.raises(NodeError, match=r"unknown claim UID stranger|skipped 1 of 1"):
        kubelet.prepare_pod(pod("c"))


def test_a_call_that_takes_too_long_fails(folder, api, plugin, kubelet):
    impatient = EmbeddedKubelet(folder, api, node="n1", rpc_timeout_s=0.2, wipes_slices=False)
    impatient.start()
    impatient.wait_registered(DRIVER, 10)
    make_claim(api)
    plugin.hang.clear()
    with pytest.raises(NodeError, match="DEADLINE_EXCEEDED"):
        impatient.prepare_pod(pod("c"))
    plugin.hang.set()
    impatient.stop()


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
        thread.join(10)
    assert len(plugin.calls) == 2


@pytest.mark.parametrize(
    ("arrange", "message"),
    [
        (lambda _: None, 'resourceclaims.resource.k8s.io "c" not found'),
        (lambda api: make_claim(api, pods=("other",)), "not reserved for pod"),
        (lambda api: make_claim(api, driver="absent.example.com"), "DRA driver absent.example.com is not registered"),
    ],
)
def test_claims_that_cannot_be_used_yet_fail_the_pod(kubelet, plugin, api, arrange, message):
    arrange(api)
    with pytest.raises(NodeError, match=message):
        kubelet.prepare_pod(pod("c"))
    assert plugin.calls == []


def test_a_claim_under_an_old_name_waits_for_the_old_one_to_be_unprepared(kubelet, plugin, api):
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


def test_without_its_driver_a_pod_cannot_end(kubelet, plugin, api):
    make_claim(api)
    kubelet.prepare_pod(pod("c"))
    plugin.deregister()
    until(lambda: not kubelet.plugins.plugins(DRIVER))
    with pytest.raises(NodeError, match="not registered"):
        kubelet.unprepare_pod(pod("c"))


# -- slices -----------------------------------------------------------------------------------------------------------


def put_slices(api):
    for name, node, driver in (("mine", "n1", DRIVER), ("other", "n1", "nic.example.com"), ("far", "n2", DRIVER)):
        api.request("POST", SLICES.path(), body=slice_wire(name, node=node, driver=driver))


def names(api):
    return {item["metadata"]["name"] for item in api.items(SLICES)}


def test_a_start_wipes_the_slices_of_the_node_and_no_others(kubelet, api):
    put_slices(api)
    kubelet.restart()
    assert names(api) == {"far"}


def test_a_start_may_leave_slices_alone(folder, api):
    put_slices(api)
    kubelet = EmbeddedKubelet(folder, api, node="n1", wipes_slices=False)
    kubelet.start()
    kubelet.stop()
    assert len(names(api)) == 3


def test_slices_of_a_driver_that_stays_away_are_wiped(kubelet, plugin, api):
    until(lambda: DRIVER in kubelet._known_drivers)
    put_slices(api)
    plugin.stop()
    until(lambda: "mine" not in names(api))
    assert names(api) == {"other", "far"}


def test_slices_stay_when_the_driver_comes_back_in_time(folder, api):
    kubelet = EmbeddedKubelet(folder, api, node="n1", wipe_after_s=30)
    kubelet.start()
    plugin = StandInPlugin(folder).start()
    kubelet.wait_registered(DRIVER, 10)
    put_slices(api)
    plugin.deregister()
    until(lambda: not kubelet.plugins.plugins(DRIVER))
    plugin.register()
    kubelet.wait_registered(DRIVER, 10)
    assert "mine" in names(api)
    kubelet.stop()
    plugin.stop()


# -- pod resources ----------------------------------------------------------------------------------------------------


def test_pod_resources_are_told_over_a_socket_as_the_kubelet_tells_them(kubelet, plugin, api, folder):
    uid = make_claim(api)
    plugin.devices[uid] = [{**device(), "share_id": "5e7"}]
    told = PodResources(folder / "pod-resources/kubelet.sock", DRIVER)
    assert told.pods().claims == {}
    kubelet.prepare_pod(pod("c"))
    here = told.pods()
    assert here.pods == {("default", "u1")}
    assert here.claims == {("default", "c"): ClaimHere((HeldDevice("n1", "d", "5e7"),), is_prepared=True)}
    kubelet.resources.is_telling = False
    assert told.pods().claims == {}
    kubelet.unprepare_pod(pod("c"))
    assert told.pods().pods == frozenset()
