"""The publisher against the embedded API server over real HTTP."""

import logging
import threading
import time

import pytest

from dra_driver.controller.layout import PoolContent
from dra_driver.controller.publisher import Publisher
from dra_driver.embedded.api.server import EmbeddedApi
from dra_driver.kube import credentials
from dra_driver.kube.api import KubeApi
from dra_driver.kube.paths import SLICES
from tests.controller.support.slices import DRIVER, NODE, POOL, consumes, counter_set, device_wire, gpu, taint
from tests.support.waiting import until


class Cluster:
    """An embedded API server with one node, and publishers on it."""

    def __init__(self, folder, **options) -> None:
        self.server = EmbeddedApi(**options)
        self.server.start()
        self.make_node()
        self._config = str(self.server.write_kubeconfig(folder / "config", token_file=folder / "token"))
        self.publishers = []

    def make_node(self, name: str = NODE) -> dict:
        return self.server.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})

    def api(self) -> KubeApi:
        return KubeApi(credentials.load(self._config))

    def publisher(self, **options) -> Publisher:
        publisher = Publisher(self.api(), node=NODE, driver=DRIVER, **{"settle_s": 0.05, **options})
        self.publishers.append(publisher)
        publisher.start()
        return publisher

    def published(self, devices, **options) -> Publisher:
        publisher = self.publisher(**options)
        publisher.publish(devices)
        assert publisher.wait_published(10), publisher.status()
        return publisher

    def slices(self) -> list[dict]:
        return self.server.request("GET", SLICES)["items"]

    def specs(self) -> list[dict]:
        return [s["spec"] for s in self.slices()]

    def device_names(self) -> list[str]:
        return sorted(d["name"] for spec in self.specs() for d in spec.get("devices", ()))

    def writes(self) -> list[str]:
        return [e.method for e in self.server.log.writes("resourceslices")]

    def wipe(self) -> None:
        """Delete all slices of the node, as a kubelet does that starts."""
        for stored in self.slices():
            self.server.request("DELETE", f"{SLICES}/{stored['metadata']['name']}")

    def close(self) -> None:
        for publisher in self.publishers:
            publisher.stop()
        self.server.stop()


@pytest.fixture
def make_cluster(tmp_path):
    clusters = []

    def make(**options) -> Cluster:
        clusters.append(Cluster(tmp_path, **options))
        return clusters[-1]

    yield make
    for cluster in clusters:
        cluster.close()


@pytest.fixture
def cluster(make_cluster):
    return make_cluster()


def settled(cluster: Cluster, seconds: float = 0.3) -> None:
    """Give a publisher time to do what it should not do."""
    time.sleep(seconds)


def put_content(publisher: Publisher, *devices, counter_sets=()) -> None:
    """Publish wire devices: what later parts of the house will add to the inventory's (taints, counters)."""
    with publisher._changed:
        publisher._content = PoolContent(tuple(devices), tuple(counter_sets))
        publisher._revision += 1
        publisher._is_published = False
        publisher._schedule.at_once()
        publisher._changed.notify_all()


def test_devices_are_published_in_a_pool_of_node_and_driver_owned_by_the_node(cluster):
    publisher = cluster.published([gpu(1), gpu(0)])
    (stored,) = cluster.slices()
    assert stored["spec"]["pool"] == {"name": POOL, "generation": 1, "resourceSliceCount": 1}
    assert (stored["spec"]["driver"], stored["spec"]["nodeName"]) == (DRIVER, NODE)
    assert cluster.device_names() == ["gpu-0000-00-00-0", "gpu-0000-01-00-0"]
    node = cluster.server.request("GET", f"/api/v1/nodes/{NODE}")
    (owner,) = stored["metadata"]["ownerReferences"]
    assert owner["uid"] == node["metadata"]["uid"]
    assert (owner["apiVersion"], owner["kind"], owner["name"], owner["controller"]) == ("v1", "Node", NODE, True)
    status = publisher.status()
    assert (status.generation, status.slices, status.devices, status.is_published) == (1, 1, 2, True)
    assert (status.writes, status.last_error, status.server) == ({"create": 1}, "", "v1.36.0")


def test_the_first_slice_takes_no_more_than_three_reads_of_which_two_at_once(cluster):
    cluster.published([gpu(0)])
    before = [e for e in cluster.server.log.entries() if e.method != "POST" and "watch" not in e.query]
    assert sorted(e.path for e in before) == ["/api/v1/nodes/node-1", SLICES, "/version"]


def test_no_devices_are_published_as_one_empty_slice(cluster):
    cluster.published([])
    (spec,) = cluster.specs()
    assert "devices" not in spec
    assert spec["pool"]["resourceSliceCount"] == 1


def test_a_withdrawn_pool_is_deleted_and_what_another_driver_writes_meanwhile_is_left_alone(cluster):
    publisher = cluster.published([gpu(0)])
    theirs = {"driver": DRIVER, "nodeName": NODE, "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1}}
    meta = {"name": "theirs"}
    publisher.withdraw()
    assert publisher.wait_published(10)
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": meta,
        "spec": {**theirs, "devices": []},
    }
    cluster.server.create(body)
    publisher.withdraw()
    until(lambda: publisher.wait_published(0.1), what="a look after the other driver's write")
    assert [s["metadata"]["name"] for s in cluster.slices()] == ["theirs"]
    publisher.publish([gpu(0)])
    until(lambda: [spec["pool"]["name"] for spec in cluster.specs()] == [POOL], what="our pool alone")
    assert cluster.device_names() == ["gpu-0000-00-00-0"]


def test_nothing_is_written_before_the_first_publish(cluster):
    publisher = cluster.publisher()
    until(lambda: cluster.server.open_watches == 1)
    settled(cluster)
    assert cluster.writes() == []
    assert not publisher.status().is_published


def test_one_changed_device_costs_one_put_and_the_same_again_costs_nothing(cluster):
    publisher = cluster.published([gpu(i) for i in range(200)])
    cluster.server.log.clear()
    changed = [gpu(i, **({"numaNode": 1} if i == 150 else {})) for i in range(200)]
    publisher.publish(changed)
    assert publisher.wait_published(10)
    assert cluster.writes() == ["PUT"]
    assert {s["pool"]["generation"] for s in cluster.specs()} == {1}
    publisher.publish(list(changed))
    settled(cluster)
    assert cluster.writes() == ["PUT"]


def test_a_lost_gpu_leaves_the_slices_with_one_write(cluster):
    publisher = cluster.published([gpu(i) for i in range(200)])
    cluster.server.log.clear()
    publisher.publish([gpu(i) for i in range(200) if i != 3])
    assert publisher.wait_published(10)
    assert cluster.writes() == ["PUT"]
    assert len(cluster.device_names()) == 199


def test_of_many_publications_the_newest_wins(cluster):
    publisher = cluster.publisher()
    for count in range(1, 30):
        publisher.publish([gpu(i) for i in range(count)])
    assert publisher.wait_published(10)
    assert len(cluster.device_names()) == 29


def test_an_idle_publisher_asks_and_writes_nothing(cluster):
    cluster.published([gpu(0)])
    until(lambda: cluster.server.open_watches == 1)
    cluster.server.log.clear()
    settled(cluster, 0.5)
    assert cluster.server.log.entries() == []


def test_a_restarted_agent_adopts_its_slices_without_a_write(cluster):
    devices = [gpu(i) for i in range(200)]
    cluster.published(devices).stop()
    assert len(cluster.slices()) == 2
    cluster.server.log.clear()
    publisher = cluster.published(devices)
    assert cluster.writes() == []
    assert publisher.status().devices == 200


def test_stopping_deletes_nothing_and_is_quick(cluster):
    publisher = cluster.published([gpu(0)])
    started = time.monotonic()
    publisher.stop()
    assert time.monotonic() - started < 1.0
    assert len(cluster.slices()) == 1


def test_a_stopped_publisher_writes_no_more_and_can_be_started_again(cluster):
    publisher = cluster.published([gpu(0)])
    publisher.stop()
    cluster.server.log.clear()
    publisher.publish([gpu(0), gpu(1)])
    settled(cluster, 0.2)
    assert cluster.writes() == []
    publisher.start()
    assert publisher.wait_published(10)
    assert len(cluster.device_names()) == 2


def test_the_newer_instance_takes_over_with_one_write_when_its_attributes_differ(cluster):
    older = cluster.published([gpu(i) for i in range(8)])
    cluster.server.log.clear()
    older.stop()
    cluster.published([gpu(i, family="hopper") for i in range(8)])
    settled(cluster)
    assert cluster.writes() == ["PUT"]


def test_two_instances_that_wrongly_run_at_once_do_not_storm(cluster):
    older = cluster.published([gpu(0)])
    newer = cluster.published([gpu(0, family="hopper")])
    cluster.server.log.clear()
    settled(cluster, 2.0)
    assert 1 <= len(cluster.writes()) < 20
    older.stop()
    newer.stop()


def test_slices_that_the_kubelet_wiped_come_back_promptly_each_with_one_create(cluster):
    publisher = cluster.published([gpu(i) for i in range(200)])
    until(lambda: cluster.server.open_watches == 1)
    cluster.server.log.clear()
    wiped = time.monotonic()
    cluster.wipe()
    until(lambda: len(cluster.device_names()) == 200)
    assert time.monotonic() - wiped < 5.0
    settled(cluster)
    assert [e.method for e in cluster.server.log.writes("resourceslices")] == ["POST", "POST"]
    assert publisher.status().is_published
    assert {s["pool"]["generation"] for s in cluster.specs()} == {2}


def test_a_wipe_while_the_watch_was_down_is_noticed(cluster):
    cluster.published([gpu(0)])
    port = int(cluster.server.url.rpartition(":")[2])
    cluster.server.stop()
    cluster.wipe()
    cluster.server.compact()
    cluster.server.start(port)
    until(lambda: len(cluster.slices()) == 1)


def test_a_change_by_somebody_else_is_put_right(cluster):
    cluster.published([gpu(0)])
    until(lambda: cluster.server.open_watches == 1)
    (stored,) = cluster.slices()
    stored["spec"]["devices"][0]["attributes"] = {}
    stored["metadata"]["labels"] = {"team": "x"}
    cluster.server.request("PUT", f"{SLICES}/{stored['metadata']['name']}", body=stored)
    until(lambda: cluster.specs()[0]["devices"][0].get("attributes") == {"type": {"string": "gpu"}})
    assert cluster.slices()[0]["metadata"]["labels"] == {"team": "x"}


def test_a_label_by_somebody_else_is_left_alone(cluster):
    cluster.published([gpu(0)])
    until(lambda: cluster.server.open_watches == 1)
    (stored,) = cluster.slices()
    stored["metadata"]["labels"] = {"team": "x"}
    cluster.server.request("PUT", f"{SLICES}/{stored['metadata']['name']}", body=stored)
    cluster.server.log.clear()
    settled(cluster)
    assert cluster.writes() == []


def test_a_slice_changed_behind_our_back_is_read_again_and_written(cluster):
    """409: the watch is silent, so only the conflict tells."""
    publisher = cluster.published([gpu(0)])
    publisher._watch.stop()
    publisher._threads[0].join(5)
    (stored,) = cluster.slices()
    stored["metadata"]["labels"] = {"team": "x"}
    cluster.server.request("PUT", f"{SLICES}/{stored['metadata']['name']}", body=stored)
    cluster.server.log.clear()
    publisher.publish([gpu(0), gpu(1)])
    assert publisher.wait_published(10)
    assert [e.status for e in cluster.server.log.writes("resourceslices")] == [409, 200]
    assert cluster.slices()[0]["metadata"]["labels"] == {"team": "x"}


def test_a_slice_deleted_behind_our_back_is_created(cluster):
    """404 on PUT."""
    publisher = cluster.published([gpu(0)])
    publisher._watch.stop()
    publisher._threads[0].join(5)
    cluster.wipe()
    publisher.publish([gpu(0), gpu(1)])
    assert publisher.wait_published(10)
    assert len(cluster.device_names()) == 2


@pytest.mark.parametrize("status", [409, 410, 429, 500, 503, 504])
def test_a_write_that_fails_is_tried_again_and_leaves_no_double(cluster, status):
    publisher = cluster.publisher()
    cluster.server.troubles.fail_next(status, count=2, method="POST", contains="resourceslices")
    publisher.publish([gpu(0)])
    assert publisher.wait_published(10)
    assert len(cluster.slices()) == 1
    assert publisher.status().last_error == ""


def test_a_create_whose_answer_was_lost_is_not_repeated(cluster):
    publisher = cluster.publisher()
    create = publisher._writer.create
    calls = []

    def lost(wire):
        calls.append(wire)
        answer = create(wire)
        if len(calls) == 1:
            cluster.server.hang_up()
            return publisher._api.request("POST", SLICES, body={})  # refused: stands for the answer that got lost
        return answer

    publisher._writer.create = lost
    publisher.publish([gpu(0)])
    until(lambda: calls)
    publisher.publish([gpu(0), gpu(1)])
    assert publisher.wait_published(10)
    assert len(cluster.slices()) == 1


def test_an_api_server_that_is_away_costs_patience_only(cluster):
    publisher = cluster.published([gpu(0)])
    port = int(cluster.server.url.rpartition(":")[2])
    cluster.server.stop()
    publisher.publish([gpu(0), gpu(1)])
    until(lambda: publisher.status().last_error)
    assert not publisher.status().is_published
    assert publisher.status().problems[0].code.startswith("api.")
    cluster.server.start(port)
    assert publisher.wait_published(20)
    until(lambda: publisher.status().problems == ())


def test_a_node_that_does_not_exist_yet_is_waited_for(make_cluster, tmp_path):
    cluster = make_cluster()
    cluster.server.request("DELETE", f"/api/v1/nodes/{NODE}")
    publisher = cluster.publisher()
    publisher.publish([gpu(0)])
    until(lambda: "does not exist in the API" in publisher.status().last_error)
    assert cluster.slices() == []
    cluster.make_node()
    assert publisher.wait_published(10)


def test_slices_of_a_node_made_anew_get_its_new_uid(cluster):
    publisher = cluster.published([gpu(0)])
    until(lambda: cluster.server.open_watches == 1)
    cluster.server.request("DELETE", f"/api/v1/nodes/{NODE}")
    uid = cluster.make_node()["metadata"]["uid"]
    cluster.wipe()  # the garbage collector
    until(lambda: [s["metadata"]["ownerReferences"][0]["uid"] for s in cluster.slices()] == [uid])
    assert publisher.wait_published(10)


def test_stale_slices_of_ours_go_and_those_of_others_stay(cluster):
    def spec(**change):
        pool = {"name": NODE, "generation": 9, "resourceSliceCount": 1}
        return {"driver": DRIVER, "nodeName": NODE, "pool": pool, "devices": [device_wire("old")], **change}

    for name, wire in {
        "old-name": spec(),
        "other-node": spec(nodeName="node-2"),
        "other-driver": spec(driver="gpu.example.com"),
    }.items():
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}, "spec": wire}
        cluster.server.create(body)
    cluster.published([gpu(0)])
    names = {s["metadata"]["name"] for s in cluster.slices()}
    assert {"other-node", "other-driver"} < names
    assert "old-name" not in names


def test_a_pool_that_the_scheduler_would_skip_is_not_published(cluster):
    publisher = cluster.published([gpu(0)])
    cluster.server.log.clear()
    publisher.publish([gpu(0), gpu(1), gpu(1)])
    until(lambda: "occurs 2 times" in publisher.status().last_error)
    settled(cluster)
    assert cluster.writes() == []
    assert publisher.status().problems[0].code == "api.pool-invalid"
    publisher.publish([gpu(0), gpu(1)])
    assert publisher.wait_published(10)


def test_what_the_server_refuses_as_invalid_is_not_sent_again_and_again(cluster):
    publisher = cluster.publisher()
    put_content(publisher, device_wire("a", attributes={"x": {"string": "y" * 65}}))
    until(lambda: "422" in publisher.status().last_error)
    until(lambda: cluster.server.open_watches == 1)
    settled(cluster, 0.5)
    assert cluster.writes() == ["POST"]


def test_taints_keep_their_time_and_cost_no_further_write(make_cluster):
    cluster = make_cluster(version="1.36")
    publisher = cluster.publisher()
    put_content(publisher, device_wire("a", taints=[taint()]), device_wire("b"))
    assert publisher.wait_published(10)
    since = cluster.specs()[0]["devices"][0]["taints"][0]["timeAdded"]
    settled(cluster)
    assert cluster.writes() == ["POST"]
    time.sleep(1.1)  # the server's clock has whole seconds
    put_content(publisher, device_wire("a", taints=[taint()]), device_wire("b", attributes={}))
    assert publisher.wait_published(10)
    assert cluster.specs()[0]["devices"][0]["taints"][0]["timeAdded"] == since


def part(name: str, of: str = "gpu-0") -> dict:
    return device_wire(name, consumesCounters=consumes(of))


def test_counters_are_laid_out_as_the_servers_version_wants_them(make_cluster):
    for version, shapes in {
        "1.34": [["devices", "sharedCounters"]],
        "1.35": [["devices"], ["sharedCounters"]],
        "1.36": [["devices"], ["sharedCounters"]],
    }.items():
        cluster = make_cluster(version=version, gates={"DRAPartitionableDevices": True})
        publisher = cluster.publisher()
        put_content(publisher, part("a"), part("b"), counter_sets=[counter_set("gpu-0")])
        assert publisher.wait_published(10), publisher.status()
        assert sorted(sorted(s.keys() & {"devices", "sharedCounters"}) for s in cluster.specs()) == shapes
        assert publisher.status().dropped == ()


@pytest.mark.parametrize("version", ["1.34", "1.35"])
def test_a_server_that_drops_counters_never_keeps_overlapping_devices(make_cluster, caplog, version):
    cluster = make_cluster(version=version)
    publisher = cluster.publisher()
    with caplog.at_level(logging.WARNING):
        put_content(publisher, part("a"), part("b"), device_wire("whole"), counter_sets=[counter_set("gpu-0")])
        assert publisher.wait_published(10), publisher.status()
    assert cluster.device_names() == ["whole"]
    settled(cluster)
    status = publisher.status()
    assert "sharedCounters" in status.dropped
    (problem,) = status.problems
    assert problem.code == "controller.fields-dropped"
    assert "DRAPartitionableDevices" in problem.message
    dropped = [r for r in caplog.records if r.getMessage() == "api server dropped fields of our slices"]
    assert 1 <= len(dropped) <= 2
    assert "DRAPartitionableDevices" in dropped[0].dra_fields["hint"]
    assert len(cluster.writes()) <= 4


def test_a_server_that_drops_blocking_taints_is_not_offered_those_devices(make_cluster):
    cluster = make_cluster(version="1.35")
    publisher = cluster.publisher()
    put_content(publisher, device_wire("bad", taints=[taint()]), device_wire("good"))
    assert publisher.wait_published(10)
    assert cluster.device_names() == ["good"]
    assert publisher.status().dropped == ("devices.taints",)
    settled(cluster)
    assert cluster.writes() == ["POST", "PUT"]


def test_a_harmless_loss_is_reported_and_costs_no_further_write(make_cluster):
    cluster = make_cluster(version="1.35")
    publisher = cluster.publisher()
    put_content(publisher, device_wire("a", bindsToNode=True))
    assert publisher.wait_published(10)
    until(lambda: cluster.server.open_watches == 1)
    cluster.server.drop_watches()
    settled(cluster, 0.6)
    assert cluster.writes() == ["POST"]
    assert "DRADeviceBindingConditions" in publisher.status().problems[0].message
    publisher.publish([gpu(0)])
    assert publisher.wait_published(10)
    assert publisher.status().problems == ()


def test_a_new_server_version_is_noticed_when_the_watch_connects_again(make_cluster):
    cluster = make_cluster(version="1.34", gates={"DRAPartitionableDevices": True})
    publisher = cluster.publisher()
    put_content(publisher, part("a"), counter_sets=[counter_set("gpu-0")])
    assert publisher.wait_published(10)
    until(lambda: cluster.server.open_watches == 1)
    cluster.server._dispatch._minor = cluster.server._registry._minor = 35  # upgraded under its clients
    cluster.server.drop_watches()
    until(lambda: publisher.status().server == "v1.35.0")
    until(lambda: len(cluster.specs()) == 2)
    assert sorted(sorted(s.keys() & {"devices", "sharedCounters"}) for s in cluster.specs()) == [
        ["devices"],
        ["sharedCounters"],
    ]


def test_a_token_that_was_rotated_is_read_again(cluster, tmp_path):
    publisher = cluster.published([gpu(0)])
    cluster.server.token = "rotated"
    (tmp_path / "token").write_text("rotated")
    publisher.publish([gpu(0), gpu(1)])
    assert publisher.wait_published(10)


def test_publish_may_be_called_from_many_threads(cluster):
    publisher = cluster.publisher()
    threads = [threading.Thread(target=lambda n=n: publisher.publish([gpu(n)])) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert publisher.wait_published(10)
    assert len(cluster.device_names()) == 1


def test_only_our_own_slices_are_asked_for(cluster):
    cluster.published([gpu(0)])
    until(lambda: cluster.server.open_watches == 1)
    for entry in cluster.server.log.entries(method="GET", contains="resourceslices"):
        assert entry.query["fieldSelector"] == f"spec.nodeName={NODE},spec.driver={DRIVER}"
