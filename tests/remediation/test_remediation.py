"""One GPU after the other is drained, acted on, proven well and returned; whatever kills the agent on the way."""

import os
import signal

import pytest

from dra_driver.health.fault import FaultKey
from dra_driver.remediation.case import Stage
from dra_driver.remediation.journal import RemediationJournal
from dra_driver.remediation.policy import RemediationAction, RemediationPolicy, SiteCommand
from dra_driver.remediation.remediation import Remediation
from dra_driver.remediation.requests import RemediationRequest, RequestFile
from tests.remediation.support.parts import BOOT, ONE, TWO, Clock, FileNode

MOST_TURNS = 60


class Ward:
    """A node in a file, and the remediation that treats it; `again` is a new process of the agent."""

    def __init__(self, folder, policy=None):
        self.folder, self.policy, self.clock = folder, policy or RemediationPolicy(), Clock()
        self.node = FileNode(folder / "node.json")
        self.again()

    def again(self, boot=BOOT):
        self.node = FileNode(self.folder / "node.json")
        self.it = Remediation(self.node, self.folder, self.policy, boot_id=boot, clock=self.clock)
        self.it.load()

    def case(self, address=ONE):
        return next((one for one in RemediationJournal(self.folder).cases() if one.gpu == address), None)

    def turns(self, stage, address=ONE):
        """Take turns until a case is at a stage; return the stages on the way."""
        found = []
        for _ in range(MOST_TURNS):
            if (case := self.case(address)) is not None:
                found.append(case.stage)
                if case.stage is stage:
                    return list(dict.fromkeys(found))
            self.it.turn()
            self.clock.now += 20.0
        raise AssertionError(f"not {stage}: {found[-3:]}, {self.case(address)}")

    def turn(self, times=1):
        for _ in range(times):
            self.it.turn()
            self.clock.now += 1.0


@pytest.fixture
def ward(tmp_path):
    return Ward(tmp_path)


def test_a_gpu_goes_through_every_stage_and_comes_back(ward):
    ward.node.change(published=False)
    ward.turn(3)
    assert ward.case().waits_for == "the taint to be published"
    ward.node.change(published=True)
    assert ward.turns(Stage.RETURNED) == [
        Stage.DETECTED,
        Stage.TAINTED,
        Stage.DRAIN_ASKED,
        Stage.DRAINED,
        Stage.NVML_LET_GO,
        Stage.ACTED,
        Stage.SAME_UUID_FOUND,
        Stage.VALIDATED,
        Stage.RETURNED,
    ]
    assert ward.node.did("reset") == [f"reset {ONE}"]
    assert ward.node["persistence"], "persistence mode is not as it was"
    assert ward.node["held"] == {}
    assert not ward.node.is_let_go
    assert [row.outcome for row in RemediationJournal(ward.folder).actions()] == ["done"]
    ward.turn(3)
    assert ward.it.counts() == {}


def test_a_claim_on_the_gpu_is_waited_for_and_named(ward):
    ward.node.change(users=["team/train"])
    ward.turn(8)
    assert ward.case().stage is Stage.DRAIN_ASKED
    assert ward.case().waits_for == "claim team/train to end"
    assert ward.node["held"] == {ONE: "reset"}
    assert ward.node.did("tell") == ["tell RemediationDrain"]
    assert not ward.node.did("slot"), "other nodes wait for one that waits itself"
    ward.node.change(users=[])
    ward.turns(Stage.RETURNED)


def test_a_program_that_has_the_gpu_open_is_named_and_waited_for(ward):
    ward.node.change(clients=["4711 (dcgm-exporter) of pod monitoring/dcgm-x"])
    ward.turn(8)
    assert ward.case().waits_for == "process 4711 (dcgm-exporter) of pod monitoring/dcgm-x to close the GPU"
    assert "tell RemediationBlocked" in ward.node.did("tell")
    assert not ward.node.did("reset")
    ward.node.change(clients=[])
    ward.turns(Stage.RETURNED)


def test_other_nodes_at_work_are_waited_for(ward):
    ward.node.change(slot=30.0)
    ward.turn(8)
    assert ward.case().stage is Stage.DRAIN_ASKED
    assert "other nodes" in ward.case().waits_for
    ward.node.change(slot=0.0)
    ward.turns(Stage.RETURNED)
    assert ward.node.did("slot-back")


def test_two_tries_that_do_not_help_are_enough(ward):
    ward.node.change(cures=99)
    ward.turns(Stage.ESCALATED)
    assert len(ward.node.did("reset")) == 2
    assert ward.node["held"] == {ONE: "support"}
    assert ward.node["persistence"] or ward.case().persistence
    assert "is not healthy" in ward.case().waits_for
    ward.turn(10)
    assert len(ward.node.did("reset")) == 2
    assert ward.node["persistence"]


def test_a_reset_that_is_refused_counts_as_a_try(ward):
    ward.node.change(cures=None)
    ward.turns(Stage.ESCALATED)
    assert len(ward.node.did("reset")) == 2
    assert "a reset failed: refused" in ward.case().waits_for
    assert [row.outcome for row in RemediationJournal(ward.folder).actions()] == ["failed: a reset failed: refused"] * 2


def test_a_spent_weekly_budget_escalates_before_anything_is_done(tmp_path):
    ward = Ward(tmp_path, RemediationPolicy(weekly_gpu=1))
    ward.turns(Stage.RETURNED)
    ward.node.change(faults={ONE: ["needs-reset", "gpu-reset"]})
    ward.turn(2)
    ward.turns(Stage.ESCALATED)
    assert len(ward.node.did("reset")) == 1
    assert "within seven days" in ward.case().waits_for
    ward.clock.now += 8 * 86400
    RequestFile(tmp_path).ask(ONE, RemediationRequest.RETRY)
    ward.turn()
    ward.node.change(cures=1)
    ward.turns(Stage.RETURNED)


def test_validation_decides_and_one_that_could_not_run_does_not(ward):
    ward.node.change(proof="failed", cures=1)
    ward.turns(Stage.ESCALATED)
    assert "validation failed: as-told" in ward.case().waits_for
    ward.node.change(proof="could-not-run")
    RequestFile(ward.folder).ask(ONE, RemediationRequest.DONE)
    ward.turns(Stage.RETURNED)


def test_one_gpu_is_acted_on_at_a_time_and_the_more_important_fault_is_first(ward):
    ward.node.change(faults={ONE: ["needs-reset", "gpu-reset"], TWO: ["needs-reboot", "node-reboot"]})
    ward.turns(Stage.ACTED, TWO)
    assert ward.node["held"] == {ONE: "reset", TWO: "reboot"}
    ward.turn(10)
    assert ward.case(ONE).stage is Stage.DRAIN_ASKED
    assert not ward.node.did("reset")
    ward.node.change(faults={ONE: ["needs-reset", "gpu-reset"]})
    ward.again(boot="another")
    ward.turns(Stage.RETURNED, TWO)
    ward.turns(Stage.RETURNED, ONE)


def test_gpus_that_still_serve_are_taken_out_one_after_the_other(tmp_path):
    actions = {FaultKey.ROW_REMAP_PENDING: RemediationAction.RESET}
    ward = Ward(tmp_path, RemediationPolicy(actions))
    ward.node.change(faults={ONE: ["row-remap-pending", ""], TWO: ["row-remap-pending", ""]}, users=["team/train"])
    ward.turn(6)
    assert ward.node["held"] == {ONE: "reset"}
    ward.node.change(users=[])
    ward.turns(Stage.RETURNED, ONE)
    ward.turns(Stage.RETURNED, TWO)


def test_a_reboot_is_asked_for_and_the_gpu_returns_after_it(ward):
    ward.node.change(faults={ONE: ["gpu-lost", ""]})
    ward.turns(Stage.ACTED)
    ward.turn(10)
    assert ward.case().waits_for == "a reboot of the machine"
    assert len(ward.node.did("reboot")) == 1
    ward.again()
    ward.turn(3)
    assert len(ward.node.did("reboot")) == 1, "asked again after a restart"
    assert ward.node["is_asked"]
    ward.node.change(faults={})
    ward.again(boot="another")
    ward.turns(Stage.RETURNED)
    assert not ward.node["is_asked"]


@pytest.mark.parametrize("request_", list(RemediationRequest))
def test_a_request_of_a_reboot_is_taken_back_when_a_person_steps_in(ward, request_):
    ward.node.change(faults={ONE: ["gpu-lost", ""]})
    ward.turns(Stage.ACTED)
    ward.node.change(users=["team/train"])
    RequestFile(ward.folder).ask(ONE, request_)
    ward.turn()
    assert not ward.node["is_asked"]


def test_nobody_reboots(ward):
    ward.node.change(faults={ONE: ["gpu-lost", ""]})
    ward.turns(Stage.ACTED)
    ward.clock.now += 86400
    ward.turn(2)
    assert (ward.case().stage, ward.case().waits_for) == (Stage.ESCALATED, "the machine was not rebooted in time")
    ward.node.change(faults={})
    ward.again(boot="another")
    ward.turns(Stage.RETURNED)


def test_another_gpu_at_the_place_is_not_held_back(ward):
    ward.node.change(cures=99)
    ward.turns(Stage.ESCALATED)
    ward.node.change(gpus={ONE: "GPU-new", TWO: f"GPU-{TWO}"}, faults={})
    ward.turn(2)
    assert ward.node["held"] == {}
    assert "another GPU, GPU-new" in ward.case().waits_for


def test_a_fault_that_ends_by_itself_ends_the_case_with_nothing_done(ward):
    ward.node.change(clients=["1 (x)"])
    ward.turn(8)
    assert not ward.node["persistence"]
    ward.node.change(faults={})
    ward.turn(2)
    assert ward.case().stage is Stage.RETURNED
    assert ward.node["persistence"]
    assert ward.node["held"] == {}
    assert not ward.node.did("reset")


def test_the_driver_s_next_word_decides_once_its_peers_are_drained(ward):
    ward.node.change(faults={ONE: ["needs-reset", "drain-p2p"]})
    ward.turns(Stage.DRAINED)
    ward.turn(3)
    assert "the driver to report the next action" in ward.case().waits_for
    ward.node.change(faults={ONE: ["needs-reset", "gpu-reset"]})
    ward.turns(Stage.RETURNED)


def test_the_site_s_command_gets_the_gpu(tmp_path):
    actions = {FaultKey.NEEDS_RESET: RemediationAction.COMMAND}
    ward = Ward(tmp_path, RemediationPolicy(actions, command=SiteCommand(("/opt/mend", "{uuid}", "at={pci}"))))
    ward.turns(Stage.RETURNED)
    assert ward.node.did("run") == [f"run /opt/mend GPU-{ONE} at={ONE}"]


def test_what_is_asked_by_hand_is_done(ward):
    ward.node.change(users=["team/train"])
    ward.turn(5)
    RequestFile(ward.folder).ask(ONE, RemediationRequest.GIVE_UP)
    ward.turn()
    assert (ward.case().stage, ward.case().waits_for) == (Stage.ESCALATED, "given up by hand")
    (ward.folder / "remediation-requests").write_text(f"retry {TWO}\nnonsense\nretry nowhere\nburn {ONE}\n")
    ward.turn()
    assert ward.case().stage is Stage.ESCALATED
    ward.node.change(users=[])
    RequestFile(ward.folder).ask(ONE, RemediationRequest.RETRY)
    ward.turn()
    ward.turns(Stage.RETURNED)


def test_partitions_that_an_administrator_made_keep_a_gpu_from_being_reset(ward):
    ward.node.change(cut=[ONE])
    ward.turns(Stage.DRAINED)
    ward.turn(2)
    assert ward.case().waits_for == "the GPU's MIG partitions to be removed"
    ward.clock.now += 300
    ward.turn()
    assert ward.case().stage is Stage.ESCALATED
    assert not ward.node.did("reset")


def test_partitions_of_ended_claims_are_waited_for(ward):
    ward.node.change(cut=[ONE])
    ward.turns(Stage.DRAINED)
    ward.turn(2)
    ward.node.change(cut=[])
    ward.turns(Stage.RETURNED)


def test_a_damaged_journal_is_set_aside(ward):
    ward.turn(3)
    (ward.folder / "remediation.db").write_bytes(b"not a database, and too long to be an empty one" * 40)
    ward.again()
    assert (ward.folder / "remediation.db.damaged").exists()
    ward.turns(Stage.RETURNED)


def kill_at(folder, number, moment):
    """Run a remediation in a process of its own, and kill it before or after its write of a number.

    Return whether there was such a write.
    """
    pid = os.fork()
    if pid:
        _, status = os.waitpid(pid, 0)
        return os.WIFSIGNALED(status)
    try:
        ward, count = Ward(folder), 0
        write = ward.it._journal.write

        def counted(*arguments, **more):
            nonlocal count
            count += 1
            if count == number and moment == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            write(*arguments, **more)
            if count == number and moment == "after":
                os.kill(os.getpid(), signal.SIGKILL)

        ward.it._journal.write = counted
        ward.turns(Stage.RETURNED)
    finally:
        os._exit(0)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_agent_that_is_killed_at_any_write_goes_on_and_resets_no_more_than_twice(tmp_path, moment):
    for number in range(1, 40):
        folder = tmp_path / str(number)
        folder.mkdir()
        if not kill_at(folder, number, moment):
            break
        ward = Ward(folder)
        if ward.case() is not None and ward.case().stage.is_open:
            assert ward.node["held"] == {ONE: "reset"}, "offered after a kill"
        ward.turns(Stage.RETURNED)
        assert 1 <= len(ward.node.did("reset")) <= 2
        assert ward.node["persistence"]
        assert ward.node["held"] == {}
    assert number > 10, "every write was tried"


def test_an_agent_that_is_killed_again_and_again_comes_to_an_end(tmp_path):
    for number in (3, 2, 1, 2, 1, 3, 2):
        kill_at(tmp_path, number, "after")
    ward = Ward(tmp_path)
    ward.turns(Stage.RETURNED)
    assert len(ward.node.did("reset")) <= 2


@pytest.mark.parametrize("stage", [one for one in Stage if one.is_open])
def test_a_reboot_in_any_stage_is_survived(tmp_path, stage):
    ward = Ward(tmp_path)
    ward.node.change(published=stage is not Stage.DETECTED)
    ward.turns(stage)
    ward.node.change(persistence=True, published=True)  # persistence mode is set at the start of the machine
    ward.again(boot="another")
    ward.turns(Stage.RETURNED)
    assert ward.node["held"] == {}
