"""Events: how often a fault is reported, by requests to the embedded API server."""

import threading

from dra_driver.kube import api as events
from dra_driver.kube.api import MAX, EventThrottle, node_event, send_event


def fault(reason: str, node: str = "n1", message: str = "because") -> dict:
    return node_event(node, "gpu.example.com", "Warning", reason, message)


def sent(embedded) -> list[tuple[str, str]]:
    return [(e.method, e.path) for e in embedded.log.entries(contains="/events")]


def test_a_fault_is_reported_once_in_ten_minutes_whatever_the_message(api, embedded):
    for number in range(20):
        send_event(api, fault("Broken", message=f"for the {number}th time"))
    assert len(sent(embedded)) == 1
    send_event(api, fault("Broken", node="n2"))
    send_event(api, fault("Other"))
    assert sent(embedded) == [("POST", events.PATH)] * 3


def test_a_fault_that_lasts_is_reported_again_after_ten_minutes():
    now = [0.0]
    throttle = EventThrottle(lambda: now[0])
    assert throttle.is_due(("Broken",))
    now[0] = 599.0
    assert not throttle.is_due(("Broken",))
    now[0] = 600.0
    assert throttle.is_due(("Broken",))


def test_many_faults_cause_a_bounded_number_of_events_and_take_bounded_memory():
    now = [0.0]
    throttle = EventThrottle(lambda: now[0])
    assert sum(throttle.is_due(("Broken", str(number))) for number in range(10_000)) == MAX
    assert len(throttle._at) == MAX
    now[0] = 600.0
    assert throttle.is_due(("Broken", "10000"))
    assert len(throttle._at) == 1


def test_a_fault_that_many_threads_report_at_once_is_sent_once(api, embedded):
    threads = [threading.Thread(target=send_event, args=(api, fault("Broken"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(sent(embedded)) == 1


def test_an_event_that_is_refused_raises_nothing_and_is_not_sent_again_at_once(api, embedded):
    embedded.faults.fail_next(403, count=1, contains="/events")
    send_event(api, fault("Broken"))
    send_event(api, fault("Broken"))
    assert len(sent(embedded)) == 1
