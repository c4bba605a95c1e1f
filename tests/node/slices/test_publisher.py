"""What the publisher writes, against the embedded API server over real HTTP."""

import threading

from dra_driver.kube.paths import SLICES
from tests.node.slices.support.cluster import settled
from tests.node.slices.support.slices import DRIVER, NODE, POOL, device_wire, gpu
from tests.support.waiting import until


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


def test_the_first_slice_takes_no_more_than_three_reads(cluster):
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
    assert publisher.wait_published(60)
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
    publisher.offer([gpu(0)])
    until(lambda: [spec["pool"]["name"] for spec in cluster.specs()] == [POOL], what="our pool alone")
    assert cluster.device_names() == ["gpu-0000-00-00-0"]


def test_nothing_is_written_before_the_first_publish(cluster):
    publisher = cluster.publisher()
    until(lambda: cluster.server.open_watches == 1)
    settled()
    assert cluster.writes() == []
    assert not publisher.status().is_published


def test_one_changed_device_costs_one_put_and_the_same_again_costs_nothing(cluster):
    publisher = cluster.published([gpu(i) for i in range(200)])
    cluster.server.log.clear()
    changed = [gpu(i, **({"numaNode": 1} if i == 150 else {})) for i in range(200)]
    publisher.offer(changed)
    assert publisher.wait_published(60)
    assert cluster.writes() == ["PUT"]
    assert {s["pool"]["generation"] for s in cluster.specs()} == {1}
    publisher.offer(list(changed))
    settled()
    assert cluster.writes() == ["PUT"]


def test_a_lost_gpu_leaves_the_slices_with_one_write(cluster):
    publisher = cluster.published([gpu(i) for i in range(200)])
    cluster.server.log.clear()
    publisher.offer([gpu(i) for i in range(200) if i != 3])
    assert publisher.wait_published(60)
    assert cluster.writes() == ["PUT"]
    assert len(cluster.device_names()) == 199


def test_of_many_publications_the_newest_wins(cluster):
    publisher = cluster.publisher()
    for count in range(1, 30):
        publisher.offer([gpu(i) for i in range(count)])
    assert publisher.wait_published(60)
    assert len(cluster.device_names()) == 29


def test_an_idle_publisher_reads_and_writes_nothing(cluster):
    cluster.published([gpu(0)])
    until(lambda: cluster.server.open_watches == 1)
    cluster.server.log.clear()
    settled(0.5)
    assert cluster.server.log.entries() == []


def test_our_stale_slices_are_deleted_and_those_of_others_stay(cluster):
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
    publisher.offer([gpu(0), gpu(1), gpu(1)])
    until(lambda: "occurs 2 times" in publisher.status().last_error)
    settled()
    assert cluster.writes() == []
    assert publisher.status().problems[0].code == "api.pool-invalid"
    publisher.offer([gpu(0), gpu(1)])
    assert publisher.wait_published(60)


def test_a_slice_that_was_refused_is_written_without_a_change_once_it_is_accepted(cluster):
    publisher = cluster.publisher()
    cluster.server.faults.fail_next(422, method="POST", contains="resourceslices")
    publisher.offer([gpu(0)])
    until(lambda: "422" in publisher.status().last_error)
    assert publisher.wait_published(60)
    assert [e.status for e in cluster.server.log.writes("resourceslices")] == [422, 201]


def test_publish_may_be_called_from_many_threads(cluster):
    publisher = cluster.publisher()
    threads = [threading.Thread(target=lambda n=n: publisher.offer([gpu(n)])) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert publisher.wait_published(60)
    assert len(cluster.device_names()) == 1


def test_only_our_own_slices_are_requested(cluster):
    cluster.published([gpu(0)])
    until(lambda: cluster.server.open_watches == 1)
    for entry in cluster.server.log.entries(method="GET", contains="resourceslices"):
        assert entry.query["fieldSelector"] == f"spec.nodeName={NODE},spec.driver={DRIVER}"
