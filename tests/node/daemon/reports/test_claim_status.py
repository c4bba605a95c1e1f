"""The status of claims: what their devices are and whether they are healthy, written after Prepare if it differs."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from dra_driver.base.errors import ApiError, Retry
from dra_driver.base.wire import DeviceTaint, TaintEffect
from dra_driver.node._proto import dra_v1_pb2 as v1
from dra_driver.node.daemon.claim_status import AT_ONCE, REFUSED_SECONDS, ClaimStatus
from dra_driver.node.devices.offering import NodeIdentity
from dra_driver.simulator.plugin_watcher import Plugin, Registrar
from dra_driver.simulator.store import CLAIMS
from tests.node.daemon.support.claims import claim
from tests.node.daemon.support.plugin_calls import call, wire
from tests.support.agents.agent_process import stage
from tests.support.plugin.mig_parts import OTHER, WHOLE, MigRig, small
from tests.support.plugin.parts import DRIVER, POOL
from tests.support.waiting import until

WHOLE_OF_DGX = "gpu-0000-1b-00-0"
FOREIGN = {"driver": "other.example.com", "pool": "p", "device": "nic", "data": {"mac": "1"}}
FAULTY = DeviceTaint("gpu.nvidia.com/xid", "79", TaintEffect.NO_SCHEDULE, datetime(2026, 1, 2, tzinfo=UTC))


class Server:
    """An API server that keeps claims and applies statuses, or refuses to."""

    def __init__(self, rig: MigRig) -> None:
        self.rig, self.patches, self.refusal, self.drops = rig, [], None, False
        self.status: dict[str, list[dict]] = {}

    def get_claim(self, namespace: str, name: str, *, timeout_s: float = 1.0) -> dict:
        found = json.loads(json.dumps(self.rig.api.get_claim(namespace, name, timeout_s=timeout_s)))
        if name in self.status:
            found["status"]["devices"] = self.status[name]
        return found

    def request(self, method: str, path: str, *, body: dict, query: dict, content_type: str) -> dict:
        assert (method, content_type) == ("PATCH", "application/apply-patch+yaml")
        assert query == {"fieldManager": "dra-driver gpu.nvidia.com", "force": "true"}
        if self.refusal:
            raise self.refusal
        name = body["metadata"]["name"]
        assert path.endswith(f"/namespaces/ns/resourceclaims/{name}/status")
        self.patches.append(body)
        if self.drops:
            return {"status": {}}
        others = [one for one in self.status.get(name, []) if one["driver"] != DRIVER]
        self.status[name] = [*others, *body["status"]["devices"]]
        return {"status": {"devices": self.status[name]}}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def rig(tmp_path):
    rig = MigRig(tmp_path)
    yield rig
    rig.close()


@pytest.fixture
def server(rig):
    return Server(rig)


def writer(rig, server, *, is_health_watched: bool = True, clock: Clock | None = None) -> ClaimStatus:
    node = NodeIdentity(DRIVER, POOL, rig.boot_id)
    return ClaimStatus(
        server,
        node,
        ledger=rig.ledger,
        store=rig.store,
        inventory=rig,
        is_health_watched=is_health_watched,
        clock=clock or Clock(),
    )


def test_the_status_of_a_prepared_claim_says_what_its_device_is_and_that_it_is_healthy(rig, server):
    rig.now_prepare("a", WHOLE)
    writer(rig, server).write_all()
    (body,) = server.patches
    assert body["metadata"] == {"name": "claim-a", "namespace": "ns", "uid": "a"}
    (entry,) = body["status"]["devices"]
    assert (entry["driver"], entry["pool"], entry["device"]) == (DRIVER, POOL, WHOLE)
    assert entry["data"] == {"uuid": rig.gpu().uuid, "driverVersion": "580.126.20", "nodes": ["/dev/nvidia0"]}
    assert [(c["type"], c["status"], c["reason"]) for c in entry["conditions"]] == [
        ("Ready", "True", "Prepared"),
        ("Healthy", "True", "NoFault"),
    ]
    assert all(c["lastTransitionTime"].endswith("Z") for c in entry["conditions"])


def test_a_partition_made_for_the_claim_is_named_by_its_real_uuid(rig, server):
    rig.now_prepare("a", small(0))
    writer(rig, server).write_all()
    (entry,) = server.patches[0]["status"]["devices"]
    assert entry["data"]["uuid"] == rig.partitions()[0].uuid
    assert any("nvidia-caps" in path for path in entry["data"]["nodes"])


def test_no_condition_of_health_is_written_where_health_is_not_watched(rig, server):
    rig.now_prepare("a", WHOLE)
    writer(rig, server, is_health_watched=False).write_all()
    (entry,) = server.patches[0]["status"]["devices"]
    assert [c["type"] for c in entry["conditions"]] == ["Ready"]


def test_a_fault_changes_one_condition_and_keeps_the_time_of_the_other(rig, server):
    rig.now_prepare("a", WHOLE)
    rig.now_prepare("b", OTHER)
    status = writer(rig, server)
    status.write_all()
    for name in ("claim-a", "claim-b"):
        for condition in server.status[name][0]["conditions"]:
            condition["lastTransitionTime"] = "2020-01-01T00:00:00Z"
    status.health_changed({WHOLE: (FAULTY,)})
    status.write_all()
    assert [body["metadata"]["name"] for body in server.patches[2:]] == ["claim-a"], "the other one has not changed"
    ready, healthy = server.status["claim-a"][0]["conditions"]
    assert ready["lastTransitionTime"] == "2020-01-01T00:00:00Z"
    assert (healthy["status"], healthy["reason"], healthy["message"]) == ("False", "Fault", "gpu.nvidia.com/xid=79")
    assert healthy["lastTransitionTime"] > "2026"


def test_an_unchanged_status_is_not_written_again_either_by_the_next_agent(rig, server):
    rig.now_prepare("a", WHOLE)
    status = writer(rig, server)
    assert (status.write_all(), status.write_all()) == (0, 0)
    writer(rig, server).write_all()
    assert len(server.patches) == 1


def test_entries_of_other_drivers_are_not_touched(rig, server):
    rig.now_prepare("a", WHOLE)
    server.status["claim-a"] = [FOREIGN]
    writer(rig, server).write_all()
    assert [one["driver"] for one in server.patches[0]["status"]["devices"]] == [DRIVER]
    assert FOREIGN in server.status["claim-a"]


def test_a_newer_claim_of_the_same_name_is_left_alone(rig, server):
    rig.now_prepare("a", WHOLE)
    rig.api.claims["ns", "claim-a"]["metadata"]["uid"] = "another"
    writer(rig, server).write_all()
    assert server.patches == []


@pytest.mark.parametrize("how", ["forbidden", "dropped"])
def test_a_server_that_refuses_or_drops_the_status_is_left_alone_for_an_hour(rig, server, how, caplog):
    clock = Clock()
    rig.now_prepare("a", WHOLE)
    rig.now_prepare("b", OTHER)
    server.drops = how == "dropped"
    server.refusal = ApiError("forbidden", "no", status=403) if how == "forbidden" else None
    status = writer(rig, server, clock=clock)
    status.write_all()
    asked = len(server.patches)
    status.write_all()
    assert len(server.patches) == asked
    assert len([r for r in caplog.records if "status of" in r.message]) == 1
    server.drops, server.refusal = False, None
    clock.now += REFUSED_SECONDS
    status.write_all()
    assert {one["metadata"]["name"] for one in server.patches[asked:]} == {"claim-a", "claim-b"}


def test_a_server_that_fails_is_asked_again(rig, server):
    rig.now_prepare("a", WHOLE)
    server.refusal = ApiError("unreachable", "no", retry=Retry.NOW)
    status = writer(rig, server)
    with pytest.raises(ApiError):
        status.write_all()
    server.refusal = None
    status.write_all()
    assert len(server.patches) == 1


def test_the_files_of_unchanged_claims_are_not_read_again(rig, server):
    rig.now_prepare("a", WHOLE)
    status = writer(rig, server)
    status.write_all()
    read, looks = rig.store.read, []
    rig.store.read = lambda file: looks.append(file) or read(file)
    status.write_all()
    assert looks == [], "each Prepare of a node would read the files of all its claims"
    rig.scan()
    status.health_changed({WHOLE: (FAULTY,)})
    status.write_all()
    assert len(looks) == 1


def test_a_claim_that_the_server_refuses_does_not_keep_others_from_being_written(rig, server):
    rig.now_prepare("a", WHOLE)
    rig.now_prepare("b", OTHER)
    request = server.request

    def refuse(method: str, path: str, **more: object) -> dict:
        if "claim-a" in path:
            raise ApiError("invalid", "no", status=422)
        return request(method, path, **more)

    server.request = refuse
    writer(rig, server).write_all()
    assert [body["metadata"]["name"] for body in server.patches] == ["claim-b"]


def test_a_prepared_claim_is_written_a_second_later_so_that_a_burst_is_written_together(rig, server):
    clock = Clock()
    status = writer(rig, server, clock=clock)
    assert status._turn() > 1
    rig.now_prepare("a", WHOLE)
    assert status._turn() == 1.0, "a second has not passed"
    assert server.patches == []
    clock.now += 1
    status._turn()
    assert len(server.patches) == 1


def test_many_claims_are_written_a_few_at_a_time(rig, server):
    status = writer(rig, server)
    rig.now_prepare("a", WHOLE)
    record = rig.ledger.get("a")
    changed = {str(number): (record, ()) for number in range(AT_ONCE + 3)}
    status._changed = lambda: iter([(k, v) for k, v in changed.items() if k not in status._written])
    assert status.write_all() == 3
    assert status.write_all() == 0


def test_the_agent_writes_the_status_of_a_claim_that_it_has_prepared():
    with stage() as here:
        here.start("simulated:dgx-h100", "--claim-status", "on")
        until(lambda: WHOLE_OF_DGX in here.devices(), what="slices")
        (registration,) = here.kubelet.registrar_dir.glob("*-reg.sock")
        info = Registrar(registration).get_info()
        plugin = Plugin(info.driver, info.endpoint, "v1.DRAPlugin", registration)
        ref = claim(here, WHOLE_OF_DGX)
        request = v1.NodePrepareResourcesRequest(claims=[wire(ref)])
        assert call(plugin, "NodePrepareResources", request, 10.0).claims[ref.uid].error == ""

        def entries() -> list[dict]:
            found = here.api.request("GET", CLAIMS.path(ref.namespace, ref.name))
            return list(found["status"].get("devices", ()))

        until(entries, what="the status")
        (entry,) = entries()
        assert entry["data"]["uuid"].startswith("GPU-")
