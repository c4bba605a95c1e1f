"""Publishers that stop, start again, and take over from each other."""

from tests.node.slices.support.cluster import settled
from tests.node.slices.support.slices import gpu
from tests.support.waiting import unhindered, until


def test_a_restarted_agent_adopts_its_slices_without_a_write(cluster):
    devices = [gpu(i) for i in range(200)]
    cluster.published(devices).stop()
    assert len(cluster.slices()) == 4
    cluster.server.log.clear()
    publisher = cluster.published(devices)
    assert cluster.writes() == []
    assert publisher.status().devices == 200


def test_stopping_deletes_nothing_and_waits_for_nothing(cluster):
    publisher = cluster.published([gpu(0)])
    threads = publisher._threads
    unhindered(lambda: publisher.stop(600))
    assert not any(thread.is_alive() for thread in threads)
    assert len(cluster.slices()) == 1


def test_a_stopped_publisher_writes_no_more_and_can_be_started_again(cluster):
    publisher = cluster.published([gpu(0)])
    publisher.stop()
    cluster.server.log.clear()
    publisher.offer([gpu(0), gpu(1)])
    settled(0.2)
    assert cluster.writes() == []
    publisher.start()
    assert publisher.wait_published(60)
    assert len(cluster.device_names()) == 2


def test_the_newer_instance_takes_over_with_one_write_when_its_attributes_differ(cluster):
    older = cluster.published([gpu(i) for i in range(8)])
    cluster.server.log.clear()
    older.stop()
    cluster.published([gpu(i, family="hopper") for i in range(8)])
    settled()
    assert cluster.writes() == ["PUT"]


def test_two_instances_that_wrongly_run_at_once_write_at_a_limited_rate(cluster):
    older = cluster.published([gpu(0)])
    newer = cluster.published([gpu(0, family="hopper")])
    cluster.server.log.clear()
    until(cluster.writes, "one of them to write again")
    settled(2.0)
    assert 1 <= len(cluster.writes()) < 20
    older.stop()
    newer.stop()
