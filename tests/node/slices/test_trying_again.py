"""Writes that fail, servers that are down, and what is tried again."""

import pytest

from dra_driver.kube.paths import SLICES
from tests.node.slices.support.slices import NODE, gpu
from tests.support.waiting import until


@pytest.mark.parametrize("status", [409, 410, 429, 500, 503, 504])
def test_a_write_that_fails_is_tried_again_and_leaves_only_one_slice(cluster, status):
    publisher = cluster.publisher()
    cluster.server.faults.fail_next(status, count=2, method="POST", contains="resourceslices")
    publisher.offer([gpu(0)])
    assert publisher.wait_published(60)
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
            cluster.server.close_connections()
            return publisher._api.request("POST", SLICES, body={})  # refused, in place of an answer that was lost
        return answer

    publisher._writer.create = lost
    publisher.offer([gpu(0)])
    until(lambda: calls)
    publisher.offer([gpu(0), gpu(1)])
    assert publisher.wait_published(60)
    assert len(cluster.slices()) == 1


def test_slices_are_written_once_an_api_server_that_was_down_is_back(cluster):
    publisher = cluster.published([gpu(0)])
    port = int(cluster.server.url.rpartition(":")[2])
    cluster.server.stop()
    publisher.offer([gpu(0), gpu(1)])
    until(lambda: publisher.status().last_error and not publisher.status().is_published)
    assert publisher.status().problems[0].code.startswith("api.")
    cluster.server.start(port)
    assert publisher.wait_published(60)
    until(lambda: publisher.status().problems == ())


def test_a_node_that_does_not_exist_yet_is_waited_for(make_cluster, tmp_path):
    cluster = make_cluster()
    cluster.server.request("DELETE", f"/api/v1/nodes/{NODE}")
    publisher = cluster.publisher()
    publisher.offer([gpu(0)])
    until(lambda: "does not exist in the API" in publisher.status().last_error)
    assert cluster.slices() == []
    cluster.make_node()
    assert publisher.wait_published(60)


def test_a_token_that_was_rotated_is_read_again(cluster, tmp_path):
    publisher = cluster.published([gpu(0)])
    cluster.server.token = "rotated"
    (tmp_path / "token").write_text("rotated")
    publisher.offer([gpu(0), gpu(1)])
    assert publisher.wait_published(60)
