"""What Events about new faults say, to the node and to the pods that use the devices."""

import pytest

from dra_driver.base.wire import TaintEffect
from dra_driver.node.daemon.fault_reports import NewFaults
from dra_driver.node.health.faults import Fault, FaultKey, FaultVerdict, Subject


class Sent:
    """The Events that were sent."""

    def __init__(self):
        self.node, self.pods = [], []

    def send_node_event(self, reason, message):
        self.node.append((reason, message))

    def send_pod_events(self, notice):
        self.pods.append((sorted(notice.devices), notice.message))


@pytest.mark.parametrize(("key", "has_advice"), [(FaultKey.GPU_LOST, True), (FaultKey.NEEDS_RESET, False)])
def test_the_pods_of_a_lost_gpu_are_to_be_deleted_because_they_are_never_scheduled_again(key, has_advice):
    sent, fault = Sent(), Fault(key, Subject("0000:1b:00.0"), "", 1.0, 1.0)
    verdict = FaultVerdict(fault, TaintEffect.NO_SCHEDULE, 1.0)
    NewFaults(sent).report({"gpu-a": (verdict,), "gpu-b": (verdict,)}, [fault])
    ((devices, message),) = sent.pods
    assert devices == ["gpu-a", "gpu-b"]
    assert ("delete this pod" in message) is has_advice
    assert len(sent.node) == 1
