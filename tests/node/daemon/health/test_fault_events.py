"""Which pods are told of a fault, and how often, by real requests to the embedded API server."""

import time
from types import SimpleNamespace

import pytest

from dra_driver.kube.api import KubeApi
from dra_driver.kube.credentials import load_credentials
from dra_driver.node.daemon.claim_status import KEPT_SECONDS, DeviceUsers
from dra_driver.node.daemon.fault_reports import APPLICATION_REASON, FAULT_REASON, FaultEvents, PodNotice
from dra_driver.node.devices.offering import NodeIdentity
from dra_driver.node.ledger.record import ClaimRecord, ClaimState
from dra_driver.simulator.api_server import EmbeddedApi
from dra_driver.simulator.store import CLAIMS, EVENTS
from tests.node.daemon.support.claims import claim
from tests.support.thread_starts import no_thread_starts
from tests.support.waiting import until

NODE, GPU, OTHER = "node-1", "gpu-0000-1b-00-0", "gpu-0000-43-00-0"
DRIVER = "gpu.nvidia.com"
POOL = f"{NODE}/{DRIVER}"


class HeldClaims:
    """The part of a ledger that is read here: the claims that are prepared."""

    def __init__(self):
        self.held = []

    def names(self):
        return frozenset((one.namespace, one.name) for one in self.held)

    def with_device(self, devices):
        return tuple(one for one in self.held if one.device_names().intersection(devices))


class NodeWithClaims:
    """A node with claims in an API server; the test sets its clock."""

    def __init__(self, server, folder):
        self.server, self.ledger, self.at, self.tick = server, HeldClaims(), time.time(), 0.0
        api = KubeApi(load_credentials(str(server.write_kubeconfig(folder / "config"))))
        identity = NodeIdentity(DRIVER, POOL, "boot")
        self.users = DeviceUsers(api, identity, self.ledger, clock=lambda: self.at)
        self.events = FaultEvents(api, self.users, node=NODE, driver=DRIVER, clock=lambda: self.tick)

    def prepare(self, name, *pods, device=GPU):
        ref = claim(SimpleNamespace(api=self.server), device, name)
        path = CLAIMS.path("default", name)
        wire = self.server.request("GET", path)
        users = [{"resource": "pods", "name": pod, "uid": f"uid-{pod}"} for pod in pods]
        self.server.request("PUT", f"{path}/status", body={**wire, "status": {**wire["status"], "reservedFor": users}})
        self.users.get_claim("default", name, timeout_s=5)
        devices = {"devices": [{"device": device}]}
        self.ledger.held.append(ClaimRecord(ref.uid, "default", name, ClaimState.PREPARED, "boot", devices, ()))

    def unprepare(self, name):
        self.ledger.held = [one for one in self.ledger.held if one.name != name]
        self.server.request("DELETE", CLAIMS.path("default", name))
        self.users.claim_ended()

    def fault(self, message="needs-reset: it does", device=GPU, at=None):
        self.events.send_pod_events(PodNotice(frozenset([device]), FAULT_REASON, message, at or self.at))
        self.settle()

    def crash(self):
        self.events.send_application_event(frozenset([GPU]), "an application's error, Xid 13", self.at)
        self.settle()

    def settle(self):
        until(lambda: not self.events._waiting and not self.events._loop.is_running, what="everything sent")

    def reported(self):
        return sorted((e["involvedObject"]["name"], e["reason"]) for e in self.server.items(EVENTS))


@pytest.fixture
def node(tmp_path):
    with EmbeddedApi(version="1.36") as server:
        yield NodeWithClaims(server, tmp_path)


@pytest.mark.parametrize(("reason", "kind"), [("RemediationReturned", "Normal"), ("RemediationAction", "Warning")])
def test_the_return_of_a_gpu_is_no_warning(node, reason, kind):
    node.events.send_node_event(reason, "gpu-0000-1b-00-0: it is offered again")
    node.settle()
    [event] = node.server.items(EVENTS)
    assert (event["reason"], event["type"]) == (reason, kind)


def test_pods_that_use_a_faulty_device_are_told_once_of_faults_close_together_and_other_pods_are_not(node):
    node.prepare("one", "first", "second")
    node.prepare("two", "third", device=OTHER)
    node.fault("needs-reset: it does")
    node.fault("xid (95): it did")
    assert node.reported() == [("first", FAULT_REASON), ("second", FAULT_REASON)]
    event = next(e for e in node.server.items(EVENTS) if e["involvedObject"]["name"] == "first")
    assert event["message"] == f"device {GPU}: needs-reset: it does; claim default/one"
    assert event["involvedObject"]["uid"] == "uid-first"
    assert (event["type"], event["source"]) == ("Warning", {"component": DRIVER, "host": NODE})
    assert (event["reportingComponent"], event["reportingInstance"]) == (DRIVER, NODE)


def test_a_pod_that_a_fault_has_ended_is_told_although_its_claim_is_gone(node):
    node.prepare("one", "first")
    node.at += 60
    node.unprepare("one")
    node.at += 10
    node.fault()
    assert node.reported() == [("first", FAULT_REASON)]


def test_a_claim_is_forgotten_five_minutes_after_its_end_and_a_held_one_is_not(node):
    node.prepare("one", "first")
    node.prepare("two", "second")
    node.prepare("three", "third")
    node.unprepare("one")
    node.at += KEPT_SECONDS
    node.unprepare("two")
    known = node.users.of([GPU], node.at, slack_s=2 * KEPT_SECONDS)
    assert [(use.full_name, use.ended) for use in known] == [("default/two", node.at), ("default/three", None)]


def test_pods_of_an_earlier_claim_of_the_same_name_get_no_event(node):
    node.prepare("one", "first")
    node.ledger.held.clear()
    node.server.request("DELETE", CLAIMS.path("default", "one"))
    node.prepare("one", "second")
    node.users.claim_ended()
    node.at += 60
    node.fault()
    assert node.reported() == [("second", FAULT_REASON)]


def test_a_claim_that_is_prepared_again_unchanged_has_its_users_again(node):
    node.prepare("one", "first")
    node.ledger.held.clear()
    node.users.claim_ended()
    node.at += 60
    node.users.get_claim("default", "one", timeout_s=5)
    node.fault()
    assert node.reported() == [("first", FAULT_REASON)]


def test_pods_that_ended_long_before_a_fault_or_started_after_it_get_no_event(node):
    node.prepare("one", "first")
    node.unprepare("one")
    node.at += 60
    began = node.at
    node.at += 5
    node.prepare("two", "second")
    node.fault(at=began)
    assert node.reported() == []


def test_an_application_that_crashes_ten_times_a_second_causes_at_most_one_write_a_minute(node):
    node.prepare("one", "first", "second")
    for _ in range(600):
        node.crash()
        node.tick += 0.1
    assert len(node.reported()) == 1
    for _ in range(1200):
        node.crash()
        node.tick += 0.1
    assert node.reported() == [("first", APPLICATION_REASON), ("second", APPLICATION_REASON)]
    assert sum(one.method == "POST" for one in node.server.log.entries(contains="/events")) == 2


def test_pods_that_joined_a_claim_later_are_told_and_known_users_even_if_the_server_fails(node):
    node.prepare("one", "first")
    path = CLAIMS.path("default", "one")
    wire = node.server.request("GET", path)
    wire["status"]["reservedFor"] += [{"resource": "pods", "name": "second", "uid": "uid-second"}]
    node.server.request("PUT", f"{path}/status", body=wire)
    node.fault()
    assert [name for name, _ in node.reported()] == ["first", "second"]
    node.prepare("two", "third", device=OTHER)
    node.server.faults.fail_next(500, count=1, contains="/resourceclaims")
    node.fault(device=OTHER)
    assert [name for name, _ in node.reported()] == ["first", "second", "third"]


@pytest.mark.parametrize(
    "users",
    [
        None,
        "x",
        [None],
        [{"resource": "pods"}],
        [{"resource": "jobs", "name": "a", "uid": "b"}],
        [{"resource": "pods", "name": 1, "uid": []}],
    ],
)
def test_a_claim_with_malformed_users_has_no_users(node, users):
    class Server:
        def get_claim(self, namespace, name, *, timeout_s):
            result = {"driver": DRIVER, "pool": POOL, "device": GPU, "request": "r"}
            status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": users}
            return {"metadata": {"namespace": namespace, "name": name, "uid": "u"}, "status": status}

    device_users = DeviceUsers(Server(), NodeIdentity(DRIVER, POOL, "boot"), node.ledger)
    device_users.get_claim("default", "c", timeout_s=1)
    assert device_users.of([GPU], time.time(), 0) == ()


def test_an_event_for_which_no_thread_can_be_started_is_sent_with_the_next_one(node):
    node.prepare("one", "first")
    with no_thread_starts("fault-events"):
        node.events.send_pod_events(PodNotice(frozenset([GPU]), FAULT_REASON, "needs-reset: it does", node.at))
    node.events.send_node_event("Other", "something else")
    node.settle()
    assert {reason for _, reason in node.reported()} == {FAULT_REASON, "Other"}
