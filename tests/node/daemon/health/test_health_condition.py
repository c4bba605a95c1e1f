"""The condition of the Node: its content and when it is written, with a stand-in for the API server."""

import pytest

from dra_driver.base.errors import ApiError, Retry
from dra_driver.base.wire import TaintEffect
from dra_driver.node.daemon.fault_reports import APART_SECONDS, READ_SECONDS, REFUSED_SECONDS, HealthCondition
from dra_driver.node.health.faults import Fault, FaultKey, FaultVerdict, Subject

NODE, DRIVER, TYPE, ASKED = (
    "node-1",
    "gpu.nvidia.com",
    "gpu.nvidia.com/DevicesHealthy",
    "gpu.nvidia.com/reboot-requested",
)
READY = {"type": "Ready", "status": "True"}


class Server:
    """A server with one Node that applies a status, or refuses to."""

    def __init__(self):
        self.node = {
            "metadata": {"name": NODE, "uid": "u", "annotations": {"other": "1"}},
            "status": {"conditions": [READY]},
        }
        self.patches, self.reads, self.refusal = [], 0, None

    def get_node(self, name):
        assert name == NODE
        self.reads += 1
        return self.node

    def request(self, method, path, *, body, query, content_type):
        assert (method, path) == ("PATCH", f"/api/v1/nodes/{NODE}/status")
        assert content_type == "application/apply-patch+yaml"
        assert query == {"fieldManager": "dra-driver gpu.nvidia.com node", "force": "true"}
        if self.refusal:
            raise self.refusal
        self.patches.append(body)
        others = {key: one for key, one in self.node["metadata"]["annotations"].items() if key != ASKED}
        self.node["metadata"]["annotations"] = {**others, **body["metadata"].get("annotations", {})}
        self.node["status"]["conditions"] = [READY, *body["status"]["conditions"]]
        return self.node

    @property
    def condition(self):
        found = next((one for one in self.node["status"]["conditions"] if one["type"] == TYPE), {})
        return found.get("status"), found.get("reason")


class Health:
    is_silent = False
    verdicts = ()

    def blocking(self):
        return self.verdicts


def verdict(key, value="", gpu="0000:1b:00.0"):
    return FaultVerdict(Fault(key, Subject(gpu), value, 1.0, 1.0), TaintEffect.NO_SCHEDULE, 1.0)


class Bench:
    def __init__(self):
        self.server, self.health, self.now, self.is_asked = Server(), Health(), 0.0, False
        self.condition = HealthCondition(
            self.server, self.health, node=NODE, driver=DRIVER, boot_id="boot",
            is_reboot_asked=lambda: self.is_asked, clock=lambda: self.now,
        )  # fmt: skip

    def turn(self, seconds=APART_SECONDS):
        self.now += seconds
        return self.condition.turn()


@pytest.fixture
def bench():
    return Bench()


def test_a_node_is_healthy_until_a_fault_keeps_claims_away_and_again_after_it(bench):
    bench.turn()
    assert bench.server.condition == ("True", "NoFaults")
    since = bench.server.node["status"]["conditions"][1]["lastTransitionTime"]
    bench.health.verdicts = (verdict(FaultKey.GPU_LOST), verdict(FaultKey.XID, "79"))
    bench.turn()
    assert bench.server.condition == ("False", "GpuLost")
    message = bench.server.node["status"]["conditions"][1]["message"]
    assert message.startswith("gpu-0000-1b-00-0: gpu-lost: ")
    bench.health.verdicts = ()
    bench.turn()
    assert bench.server.condition == ("True", "NoFaults")
    assert bench.server.node["status"]["conditions"][1]["lastTransitionTime"] >= since
    assert bench.server.node["status"]["conditions"][0] == READY


def test_an_unchanged_condition_is_not_written_or_read_again_and_a_removed_one_is_restored(bench):
    for _ in range(20):
        bench.turn()
    assert (len(bench.server.patches), bench.server.reads) == (1, 1)
    bench.server.node["status"]["conditions"] = [READY]  # the condition was removed
    bench.turn(READ_SECONDS)
    assert bench.server.condition == ("True", "NoFaults")


def test_an_agent_that_restarts_does_not_write_a_condition_that_the_node_has(bench):
    bench.turn()
    again = Bench()
    again.server = again.condition._api = bench.server
    again.turn()
    assert len(bench.server.patches) == 1


def test_a_change_soon_after_another_is_written_after_a_delay(bench):
    bench.turn()
    bench.health.verdicts = (verdict(FaultKey.NVLINK),)
    assert bench.turn(1.0) == pytest.approx(APART_SECONDS - 1)
    assert bench.server.condition == ("True", "NoFaults")
    bench.turn(APART_SECONDS)
    assert bench.server.condition == ("False", "Nvlink")


def test_a_request_for_a_reboot_is_an_annotation_and_a_reason_until_it_is_withdrawn(bench):
    bench.health.verdicts, bench.is_asked = (verdict(FaultKey.NEEDS_REBOOT, "node-reboot"),), True
    bench.turn()
    assert bench.server.condition == ("False", "RebootRequested")
    assert bench.server.node["metadata"]["annotations"] == {"other": "1", ASKED: "boot"}
    bench.is_asked = False
    bench.turn()
    assert bench.server.condition == ("False", "NeedsReboot")
    assert bench.server.node["metadata"]["annotations"] == {"other": "1"}


def test_a_monitor_that_does_not_answer_makes_the_condition_unknown_and_a_cordon_changes_nothing(bench):
    bench.health.verdicts = (verdict(FaultKey.CORDONED),)
    bench.turn()
    assert bench.server.condition == ("True", "NoFaults")
    bench.health.is_silent = True
    bench.turn()
    assert bench.server.condition == ("Unknown", "Unmonitored")


def test_no_condition_is_written_before_the_health_is_known(bench):
    bench.health.verdicts = None
    bench.turn()
    assert (bench.server.patches, bench.server.reads) == ([], 0)


def test_many_faults_are_named_in_a_short_message(bench):
    bench.health.verdicts = tuple(verdict(FaultKey.XID, "48", f"0000:{n:02x}:00.0") for n in range(16))
    bench.turn()
    message = bench.server.node["status"]["conditions"][1]["message"]
    assert message.endswith("; and 13 more")
    assert len(message) < 1000


def test_a_forbidden_write_is_tried_again_after_an_hour_and_other_errors_are_raised(bench):
    bench.server.refusal = ApiError("forbidden", "no", status=403, retry=Retry.NEVER)
    bench.turn()
    bench.turn()
    assert bench.server.reads == 1
    bench.server.refusal = None
    bench.turn(REFUSED_SECONDS)
    assert bench.server.condition == ("True", "NoFaults")
    bench.server.refusal = ApiError("unavailable", "later", status=503, retry=Retry.LATER)
    bench.health.verdicts = (verdict(FaultKey.FABRIC),)
    with pytest.raises(ApiError):
        bench.turn()
