"""What keeps a GPU from being reset: claims by name, and processes by number, program and pod."""

import pytest

from dra_driver.node.claims.allocated import AllocatedClaim, AllocatedDevice
from dra_driver.node.health.remediation import claims_on
from dra_driver.node.ledger.ledger import Ledger
from dra_driver.node.ledger.record import ClaimRecord, ClaimState, record_of_claim
from dra_driver.node.neighbours.gone_claims import described
from tests.node.health.remediation.support.parts import BOOT, ONE, TWO

UID = "0f0c3ab2-9b6f-4f32-8b7a-000000000001"


class AllocatedNames:
    def __init__(self, *names):
        self._names = frozenset(names)

    def names(self, *, is_patient=True):
        return self._names


def hold(ledger, name, device, *, is_admin=False):
    """Record that a claim is prepared."""
    devices = (AllocatedDevice("req", "node-1", device, is_admin=is_admin),)
    claim = AllocatedClaim(name, "team", name, devices)
    ledger.intend(ClaimRecord(name, "team", name, ClaimState.PREPARED, BOOT, record_of_claim(claim), ()), claim)


@pytest.fixture
def ledger(tmp_path):
    opened = Ledger(tmp_path / "ledger.db", boot_id=BOOT)
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("device", "is_on_it"),
    [
        ("gpu-0000-1b-00-0", True),
        ("gpu-0000-1b-00-0-mig-1g-10gb-19-0", True),
        ("gpu-0000-1b-00-0-share-3", True),
        ("gpu-0000-43-00-0", False),
    ],
)
def test_a_claim_on_the_gpu_or_a_part_of_it_counts(ledger, device, is_on_it):
    hold(ledger, "train", device)
    assert claims_on([ONE], ledger, AllocatedNames(), BOOT) == (("team/train",) if is_on_it else ())
    assert claims_on([ONE, TWO], ledger, AllocatedNames(), BOOT) == ("team/train",)


def test_a_claim_with_admin_access_does_not_count(ledger):
    hold(ledger, "monitor", "gpu-0000-1b-00-0", is_admin=True)
    assert claims_on([ONE], ledger, AllocatedNames(), BOOT) == ()


def test_a_claim_that_the_kubelet_will_prepare_counts(ledger):
    (found,) = claims_on([ONE], ledger, AllocatedNames("gpu-0000-1b-00-0", "gpu-0000-43-00-0"), BOOT)
    assert found == "of gpu-0000-1b-00-0, which is not prepared yet"


def process(proc, pid, comm, cgroup):
    (proc / str(pid)).mkdir(parents=True)
    (proc / str(pid) / "comm").write_text(comm)
    (proc / str(pid) / "cgroup").write_text(cgroup)


def test_processes_are_named_with_their_pods_and_without_control_characters(tmp_path):
    slice_ = UID.replace("-", "_")
    process(tmp_path, 7, "dcgm-exporter\n", f"0::/kubepods.slice/kubepods-pod{slice_}.slice/cri-x.scope\n")
    process(tmp_path, 8, "a\x1b[31m, process 9 and a long tail\n", "0::/system.slice/x.service\n")
    assert described([7], tmp_path) == (f"7 (dcgm-exporter) of pod UID {UID}",)
    (tmp_path / "1/root/var/log/pods" / f"monitoring_dcgm-exporter-x_{UID}").mkdir(parents=True)
    assert described([7], tmp_path) == ("7 (dcgm-exporter) of pod monitoring/dcgm-exporter-x",)
    assert described([8], tmp_path) == ("8 (a?[31m, process )",)
    assert described([9], tmp_path) == ("9 (unknown)",)
