"""The claims on a node that the ledger does not know: who is asked, how often, and what counts without an answer."""

from dataclasses import replace

import pytest

from dra_driver.base.errors import ApiError, LedgerError, NodeError
from dra_driver.node.devices.offering import NodeIdentity
from dra_driver.node.ledger.record import ClaimRecord, ClaimState
from dra_driver.node.neighbours.node_claims import FRESH_SECONDS, PATIENCE_SECONDS, SILENT, VERSION_SECONDS, NodeClaims
from dra_driver.node.neighbours.pod_resources import LIST_SECONDS, HeldDevice, ListedClaims, NodePods, PodClaim

DRIVER, NODE = "gpu.nvidia.com", "node-1"
POOL = f"{NODE}/{DRIVER}"
AWAY = NodeError("pod-resources", "no answer")


def wire(name, *devices, pool=NODE, uid="", **more):
    results = [{"driver": DRIVER, "pool": pool, "device": d, **more} for d in devices]
    metadata = {"namespace": "ns", "name": name, "uid": uid or f"uid-{name}"}
    return {"metadata": metadata, "status": {"allocation": {"devices": {"results": results}}}}


def held(*devices, pool=NODE):
    return PodClaim(tuple(HeldDevice(pool, d) for d in devices), is_prepared=bool(devices))


class World:
    """A kubelet, an API server, a ledger and a clock, whose answers a test sets."""

    def __init__(self):
        self.now, self.asked, self.kubelet_asked = 100.0, [], 0
        self.here, self.stored, self.fault, self.rows = {}, {}, None, ()
        self.version = "v1.35.2"

    def pods(self):
        self.kubelet_asked += 1
        if isinstance(self.here, Exception):
            raise self.here
        return NodePods(frozenset(), dict(self.here))

    def get_claim(self, namespace, name, *, timeout_s):
        self.asked.append(name)
        if self.fault:
            raise self.fault
        if name not in self.stored:
            raise ApiError("not-found", name, status=404)
        return self.stored[name]

    def get_node(self, name):
        self.asked.append("node")
        return {"status": {"nodeInfo": {"kubeletVersion": self.version}}}

    def names(self):
        return frozenset((row.namespace, row.name) for row in self.rows)

    def claims(self, listed=None):
        node = NodeIdentity(DRIVER, POOL, "boot")
        return NodeClaims(node, NODE, api=self, kubelet=self, ledger=self, listed=listed, clock=lambda: self.now)

    def listed(self, *claims):
        self.lists = 0

        def listing():
            self.lists += 1
            if self.fault:
                raise self.fault
            return iter(claims)

        return ListedClaims(listing, self, driver=DRIVER, pools=(NODE, POOL), clock=lambda: self.now)

    def later(self, seconds=FRESH_SECONDS + 1):
        self.now += seconds


@pytest.fixture
def world():
    return World()


def devices(claims):
    return {r["device"] for c in claims for r in c["status"]["allocation"]["devices"]["results"]}


def test_each_claim_that_the_ledger_does_not_know_is_read_once(world):
    record = ClaimRecord("uid-known", "ns", "known", ClaimState.PREPARED, "boot", {}, ())
    world.rows = (record,)
    world.here = {("ns", "known"): held("gpu-a", pool=POOL), ("ns", "old"): held("gpu-0")}
    world.stored = {"old": wire("old", "gpu-0")}
    claims = world.claims()
    for _ in range(3):
        (found,) = claims.unknown()
        world.later()
    assert found["metadata"] == {"namespace": "ns", "name": "old", "uid": "uid-old"}
    assert world.asked == ["old"]


def test_claims_of_other_drivers_are_not_asked_about_and_one_that_is_being_prepared_is(world):
    world.here = {("ns", "nic"): PodClaim((), is_prepared=True), ("ns", "early"): held()}
    world.stored = {"early": wire("early", "gpu-3", pool=POOL)}
    assert devices(world.claims().unknown()) == {"gpu-3"}
    assert world.asked == ["early"]


@pytest.mark.parametrize(
    "fault", [ApiError("too-many-requests", "429", status=429, retry_after_s=60), ApiError("timeout", "none")]
)
def test_a_claim_that_cannot_be_read_counts_with_the_devices_that_the_kubelet_reports(world, fault):
    world.here, world.fault = {("ns", "a"): held("gpu-0"), ("ns", "b"): held("gpu-1")}, fault
    claims = world.claims()
    assert devices(claims.unknown()) == {"gpu-0", "gpu-1"}
    assert len(world.asked) == (1 if fault.retry_after_s else 2), "a server that asks for a pause is not asked again"
    world.later()
    claims.unknown()
    assert len(world.asked) == (1 if fault.retry_after_s else 4)
    world.fault = None
    world.later(91)
    claims.unknown()
    assert len(world.asked) == (3 if fault.retry_after_s else 6)


def test_a_claim_that_is_gone_holds_the_devices_that_the_kubelet_reports(world):
    world.here = {("ns", "a"): held("gpu-0")}
    claims = world.claims()
    assert devices(claims.unknown()) == {"gpu-0"}
    world.later()
    assert devices(claims.unknown()) == {"gpu-0"}
    assert world.asked == ["a"]


def test_admin_access_is_known_from_the_api_server_alone(world):
    world.here = {("ns", "a"): held("gpu-0")}
    world.stored = {"a": wire("a", "gpu-0", adminAccess=True)}
    (found,) = world.claims().unknown()
    assert [r["adminAccess"] for r in found["status"]["allocation"]["devices"]["results"]] == [True]


@pytest.mark.parametrize(
    "answer",
    [
        {"status": "x"},
        {"status": {"allocation": {"devices": {"results": {"a": 1}}}}},
        {"status": {"allocation": {"devices": {"results": [None, 7, {"device": 3}]}}}, "metadata": []},
    ],
)
def test_if_the_answer_is_not_a_claim_the_devices_that_the_kubelet_reports_count(world, answer):
    world.here, world.stored = {("ns", "a"): held("gpu-0")}, {"a": answer}
    assert devices(world.claims().unknown()) == {"gpu-0"}


def test_a_kubelet_that_does_not_answer_is_waited_for_but_not_for_ever(world):
    world.here = AWAY
    claims = world.claims()
    with pytest.raises(NodeError):
        claims.unknown()
    world.later(PATIENCE_SECONDS - 1)
    with pytest.raises(NodeError):
        claims.unknown()
    world.later()
    assert claims.unknown() == ()
    assert [problem.code for problem in claims.problems()] == [SILENT]
    with pytest.raises(NodeError):
        claims.unknown(is_patient=False)
    world.here = {("ns", "a"): held("gpu-0")}
    assert devices(claims.unknown()) == {"gpu-0"}
    claims.examine(())
    assert claims.problems() == ()
    world.here = AWAY
    world.later()
    with pytest.raises(NodeError):
        claims.unknown()
    world.later(PATIENCE_SECONDS)
    assert devices(claims.unknown()) == {"gpu-0"}, "its last answer still counts"
    assert world.asked == ["a"]


def test_a_ledger_that_cannot_be_read_counts_as_empty(world, monkeypatch):
    def broken():
        raise LedgerError("corrupt", "broken")

    monkeypatch.setattr(world, "names", broken)
    world.here = {("ns", "a"): held("gpu-0")}
    assert devices(world.claims().unknown()) == {"gpu-0"}


def test_one_answer_of_the_kubelet_is_used_for_all_questions_of_a_moment(world):
    claims = world.claims()
    record = ClaimRecord("u", "ns", "a", ClaimState.PREPARED, "boot", {}, ())
    assert not any(claims.has_pod(record) for _ in range(100))
    assert world.kubelet_asked == 1


def test_a_claim_is_found_by_its_uid_among_those_of_the_pods_here(world):
    world.here = {("ns", "a"): held("gpu-0", pool=POOL), ("ns", "b"): held("gpu-1", pool=POOL)}
    world.stored = {name: wire(name, "gpu-0", pool=POOL) for name in "ab"}
    claims = world.claims()
    assert claims.find("uid-b")["metadata"]["name"] == "b"
    assert claims.find("uid-c") is None
    assert claims.find("uid-c") is None
    assert world.asked == ["a", "b"]


def test_a_kubelet_without_claims_is_not_believed_unless_its_version_reports_them(world):
    claims = world.claims()
    for _ in range(3):
        with pytest.raises(NodeError, match="KubeletPodResourcesDynamicResources"):
            claims.find("uid-a")
    assert world.asked == ["node"]
    world.version = "v1.36.0"
    world.later(VERSION_SECONDS + 1)
    assert claims.find("uid-a") is None
    world.here = AWAY
    world.later()
    with pytest.raises(NodeError):
        claims.find("uid-a")


def test_a_kubelet_that_reports_no_claim_although_some_are_prepared_is_a_problem(world):
    claims = world.claims()
    prepared = ClaimRecord("u", "ns", "a", ClaimState.PREPARED, "boot", {}, ())
    claims.examine([replace(prepared, boot_id="before")])
    assert claims.problems() == ()
    claims.examine([prepared])
    assert [problem.code for problem in claims.problems()] == [SILENT]
    world.here = {("ns", "a"): held("gpu-0", pool=POOL)}
    world.later()
    claims.examine([prepared])
    assert claims.problems() == ()


def test_a_list_of_claims_is_used_until_it_is_old(world):
    listed = world.listed(wire("a", "gpu-0"), wire("b", "gpu-1"), wire("far", "gpu-2", pool="node-2"))
    world.stored = {"a": wire("a", "gpu-0"), "b": wire("b", "gpu-1", uid="another")}
    world.here = AWAY
    claims = world.claims(listed)
    assert devices(claims.unknown()) == {"gpu-0", "gpu-1"}
    world.later()
    assert devices(claims.unknown(is_fresh=False)) == {"gpu-0"}, "b was created again"
    assert (world.lists, world.asked) == (1, ["a", "b"])
    assert claims.find("uid-a")
    assert claims.find("uid-b") is None
    assert world.lists == 1
    world.later(LIST_SECONDS)
    assert claims.find("uid-b")
    assert world.lists == 2


def test_a_list_that_fails_is_neither_repeated_at_every_look_nor_waited_for_without_end(world):
    listed = world.listed(wire("a", "gpu-0"))
    world.fault = ApiError("too-many-requests", "429", status=429, retry_after_s=60)
    claims = world.claims(listed)
    for _ in range(5):
        with pytest.raises(ApiError):
            claims.unknown()
        world.now += 1
    assert world.lists == 1
    world.later(PATIENCE_SECONDS)
    assert claims.unknown() == ()
    assert world.lists == 1
    world.fault = None
    world.later(61)
    assert devices(claims.unknown()) == {"gpu-0"}


def test_an_agent_that_is_forbidden_to_list_claims_does_not_wait(world):
    listed = world.listed()
    world.fault = ApiError("forbidden", "403", status=403)
    assert world.claims(listed).unknown() == ()
