"""Slices that another client deletes or changes, and what the publisher does about it."""

from dra_driver.kube.paths import SLICES
from tests.node.slices.support.cluster import settled
from tests.node.slices.support.slices import NODE, gpu
from tests.support.waiting import until


def test_slices_that_the_kubelet_wiped_are_written_again_with_one_create_each(cluster):
    publisher = cluster.published([gpu(i) for i in range(200)])
    until(lambda: cluster.server.open_watches == 1)
    cluster.server.log.clear()
    cluster.wipe()
    until(lambda: len(cluster.device_names()) == 200)
    settled()
    assert [e.method for e in cluster.server.log.writes("resourceslices")] == ["POST"] * 4
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


def test_a_change_by_another_client_is_reverted(cluster):
    cluster.published([gpu(0)])
    until(lambda: cluster.server.open_watches == 1)
    (stored,) = cluster.slices()
    stored["spec"]["devices"][0]["attributes"] = {}
    stored["metadata"]["labels"] = {"team": "x"}
    cluster.server.request("PUT", f"{SLICES}/{stored['metadata']['name']}", body=stored)
    until(lambda: cluster.specs()[0]["devices"][0].get("attributes") == {"type": {"string": "gpu"}})
    assert cluster.slices()[0]["metadata"]["labels"] == {"team": "x"}


def test_a_label_of_another_client_is_left_alone(cluster):
    cluster.published([gpu(0)])
    until(lambda: cluster.server.open_watches == 1)
    (stored,) = cluster.slices()
    stored["metadata"]["labels"] = {"team": "x"}
    cluster.server.request("PUT", f"{SLICES}/{stored['metadata']['name']}", body=stored)
    cluster.server.log.clear()
    settled()
    assert cluster.writes() == []


def test_a_slice_that_changed_unnoticed_is_read_again_and_written(cluster):
    """The watch has ended, so only the conflict (409) reveals the change."""
    publisher = cluster.published([gpu(0)])
    publisher._watch.stop()
    publisher._threads[0].join(60)
    (stored,) = cluster.slices()
    stored["metadata"]["labels"] = {"team": "x"}
    cluster.server.request("PUT", f"{SLICES}/{stored['metadata']['name']}", body=stored)
    cluster.server.log.clear()
    publisher.offer([gpu(0), gpu(1)])
    assert publisher.wait_published(60)
    assert [e.status for e in cluster.server.log.writes("resourceslices")] == [409, 200]
    assert cluster.slices()[0]["metadata"]["labels"] == {"team": "x"}


def test_a_slice_that_was_deleted_unnoticed_is_created(cluster):
    """The PUT is answered with 404."""
    publisher = cluster.published([gpu(0)])
    publisher._watch.stop()
    publisher._threads[0].join(60)
    cluster.wipe()
    publisher.offer([gpu(0), gpu(1)])
    assert publisher.wait_published(60)
    assert len(cluster.device_names()) == 2


def test_slices_of_a_recreated_node_get_its_new_uid(cluster):
    publisher = cluster.published([gpu(0)])
    until(lambda: cluster.server.open_watches == 1)
    cluster.server.request("DELETE", f"/api/v1/nodes/{NODE}")
    uid = cluster.make_node()["metadata"]["uid"]
    cluster.wipe()  # the garbage collector
    until(lambda: [s["metadata"]["ownerReferences"][0]["uid"] for s in cluster.slices()] == [uid])
    assert publisher.wait_published(60)


def test_a_slice_that_another_client_deletes_after_a_deletion_of_ours_failed_comes_back(cluster):
    publisher = cluster.published([gpu(0)])
    until(lambda: cluster.server.open_watches == 1)
    cluster.server.faults.fail_next(503, method="DELETE")
    publisher.withdraw()  # its error may be over before anybody sees it, but the server has seen the request
    until(lambda: any(entry.method == "DELETE" for entry in cluster.server.log.entries(contains="resourceslices")))
    publisher.offer([gpu(0)])
    assert publisher.wait_published(60)
    cluster.wipe()
    until(lambda: cluster.device_names() == [gpu(0).name], timeout_s=10)


def test_a_server_whose_versions_have_no_order_is_asked_for_no_list_while_only_we_write(make_cluster):
    cluster = make_cluster(version="1.34")
    publisher = cluster.published([gpu(0)])
    until(lambda: cluster.server.open_watches == 1)
    cluster.server.log.clear()
    for count in range(2, 6):
        publisher.offer([gpu(index) for index in range(count)])
        assert publisher.wait_published(60)
    settled()
    assert {entry.method for entry in cluster.server.log.entries(contains="resourceslices")} == {"PUT"}


def test_three_wipes_in_a_row_are_repaired_at_once(cluster):
    publisher = cluster.published([gpu(0)])
    until(lambda: cluster.server.open_watches == 1)
    for _ in range(3):
        cluster.wipe()
        until(lambda: cluster.device_names() == [gpu(0).name], timeout_s=10)
        assert publisher.wait_published(60)


def test_after_three_repairs_the_next_one_waits_and_says_why(cluster):
    publisher = cluster.published([gpu(0)])
    until(lambda: cluster.server.open_watches == 1)
    for _ in range(4):
        until(lambda: cluster.slices() or publisher.status().problems)
        cluster.wipe()
    until(lambda: publisher.status().problems)
    assert publisher.status().problems[0].code == "api.overwritten"
    assert not publisher.status().is_published
    publisher.offer([gpu(0), gpu(1)])
    assert publisher.wait_published(60), "a new wish waits for nothing"
    assert len(cluster.device_names()) == 2


def test_a_watch_that_reconnects_while_slices_are_written_leaves_them_published(cluster):
    publisher = cluster.published([gpu(0)])
    update = publisher._writer.update

    def reconnected(wire):
        with publisher._changed:
            publisher._schedule.within(3600.0)  # what a new connection asks for
        return update(wire)

    publisher._writer.update = reconnected
    publisher.offer([gpu(0), gpu(1)])
    assert publisher.wait_published(60)
