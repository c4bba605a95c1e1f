"""One GPU after the other is drained, acted on, validated and returned, even if the agent is killed on the way."""

import os
import signal
import sqlite3
from contextlib import suppress

import pytest

from dra_driver.base.errors import LedgerError
from dra_driver.node.health.cases import RemediationAction, RemediationJournal, RemediationPolicy, SiteCommand, Stage
from dra_driver.node.health.faults import FaultKey
from dra_driver.node.health.remediation import Remediation, RemediationRequest, RequestFile
from tests.node.health.remediation.support.parts import BOOT, ONE, TWO, Clock, FileNode
from tests.support.kept_files import damage_all, leave_hot_journal, locked, state_of, without_descriptors

MAX_TURNS = 60


class Killed(BaseException):
    """Ends a turn in the middle of an action, as a killed process would."""


class RemediationRig:
    """A node in a file, and its remediation. `restart` acts as a new process of the agent."""

    def __init__(self, folder, policy=None):
        self.folder, self.policy, self.clock = folder, policy or RemediationPolicy(), Clock()
        self.node = FileNode(folder / "node.json")
        self.locker = sqlite3.connect(":memory:")
        self.restart()

    def restart(self, boot=BOOT):
        self.node = FileNode(self.folder / "node.json")
        self.remediation = Remediation(self.node, self.folder, self.policy, boot_id=boot, clock=self.clock)
        self.remediation.load()

    def lock_journal(self):
        self.locker = sqlite3.connect(self.folder / "remediation.db", isolation_level=None)
        self.locker.execute("BEGIN EXCLUSIVE")

    def unlock_journal(self):
        self.locker.close()

    def case(self, address=ONE):
        return next((one for one in RemediationJournal(self.folder).cases() if one.gpu == address), None)

    def turn_until(self, stage, address=ONE):
        """Run turns until a case is at a stage; return the stages on the way. The process is killed in an action."""
        found = []

        def note():
            found.append(self.case(address).stage)
            if found[-1] is stage:
                raise Killed

        self.node.when_reset = note
        for _ in range(MAX_TURNS):
            if (case := self.case(address)) is not None:
                found.append(case.stage)
                if case.stage is stage:
                    return list(dict.fromkeys(found))
            with suppress(Killed):
                self.remediation.turn()
            self.clock.now += 20.0
        raise AssertionError(f"not {stage}: {found[-3:]}, {self.case(address)}")

    def turn(self, times=1):
        for _ in range(times):
            self.remediation.turn()
            self.clock.now += 1.0


@pytest.fixture
def rig(tmp_path):
    return RemediationRig(tmp_path)


def test_a_gpu_goes_through_every_stage_and_comes_back(rig):
    rig.node.change(published=False)
    rig.turn(3)
    assert rig.case().waits_for == "the taint to be published"
    rig.node.change(published=True)
    assert rig.turn_until(Stage.RETURNED) == [
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
    assert rig.node.logged("reset") == [f"reset {ONE}"]
    assert rig.node["persistence"], "persistence mode is not as it was"
    assert rig.node["held"] == {}
    assert not rig.node.is_library_released
    assert [row.outcome for row in RemediationJournal(rig.folder).actions()] == ["done"]
    rig.turn(3)
    assert rig.remediation.counts() == {}


def test_a_claim_on_the_gpu_is_waited_for_and_named(rig):
    rig.node.change(users=["team/train"])
    rig.turn(8)
    assert rig.case().stage is Stage.DRAIN_ASKED
    assert rig.case().waits_for == "claim team/train to end"
    assert rig.node["held"] == {ONE: "reset"}
    assert rig.node.logged("event") == ["event RemediationDrain"]
    assert not rig.node.logged("slot"), "a node that waits for a claim keeps a slot from other nodes"
    rig.node.change(users=[])
    rig.turn_until(Stage.RETURNED)


def test_a_program_that_has_the_gpu_open_is_named_and_waited_for(rig):
    rig.node.change(clients=["4711 (dcgm-exporter) of pod monitoring/dcgm-x"])
    rig.turn(8)
    assert rig.case().waits_for == "process 4711 (dcgm-exporter) of pod monitoring/dcgm-x to close the GPU"
    assert "event RemediationBlocked" in rig.node.logged("event")
    assert not rig.node.logged("reset")
    rig.node.change(clients=[])
    rig.turn_until(Stage.RETURNED)


def test_a_gpu_waits_while_other_nodes_have_all_slots(rig):
    rig.node.change(slot=30.0)
    rig.turn(8)
    assert rig.case().stage is Stage.DRAIN_ASKED
    assert "other nodes" in rig.case().waits_for
    rig.node.change(slot=0.0)
    rig.turn_until(Stage.RETURNED)
    assert rig.node.logged("slot-back")


def test_a_gpu_that_waits_because_the_budget_is_not_readable_says_so_in_an_event_and_goes_on_afterwards(rig):
    """A right that is missing does not come by itself, so somebody has to hear of it."""
    rig.node.change(slot=None)
    rig.turn(8)
    assert rig.case().stage is Stage.DRAIN_ASKED
    why = "a slot of the cluster's budget, which can't be read: 403 (grant it)"
    assert rig.case().waits_for == why
    assert "event RemediationBlocked" in rig.node.logged("event")
    rig.node.change(slot=0.0)
    rig.turn_until(Stage.RETURNED)


def test_a_gpu_is_escalated_after_two_tries_that_do_not_help(rig):
    rig.node.change(resets_left=99)
    rig.turn_until(Stage.ESCALATED)
    assert len(rig.node.logged("reset")) == 2
    assert rig.node["held"] == {ONE: "support"}
    assert rig.node["persistence"] or rig.case().persistence
    assert "is not healthy" in rig.case().waits_for
    rig.turn(10)
    assert len(rig.node.logged("reset")) == 2
    assert rig.node["persistence"]


def test_a_reset_that_is_refused_counts_as_a_try(rig):
    rig.node.change(resets_left=None)
    rig.turn_until(Stage.ESCALATED)
    assert len(rig.node.logged("reset")) == 2
    assert "a reset failed: refused" in rig.case().waits_for
    assert [row.outcome for row in RemediationJournal(rig.folder).actions()] == ["failed: a reset failed: refused"] * 2


def test_a_spent_weekly_budget_escalates_before_anything_is_done(tmp_path):
    rig = RemediationRig(tmp_path, RemediationPolicy(weekly_gpu=1))
    rig.turn_until(Stage.RETURNED)
    rig.node.change(faults={ONE: ["needs-reset", "gpu-reset"]})
    rig.turn(2)
    rig.turn_until(Stage.ESCALATED)
    assert len(rig.node.logged("reset")) == 1
    assert "within seven days" in rig.case().waits_for
    rig.clock.now += 8 * 86400
    RequestFile(tmp_path).ask(ONE, RemediationRequest.RETRY)
    rig.turn()
    rig.node.change(resets_left=1)
    rig.turn_until(Stage.RETURNED)


def test_a_failed_validation_escalates_and_one_that_could_not_run_does_not(rig):
    rig.node.change(verdict="failed", resets_left=1)
    rig.turn_until(Stage.ESCALATED)
    assert "validation failed: as-scripted" in rig.case().waits_for
    rig.node.change(verdict="could-not-run")
    RequestFile(rig.folder).ask(ONE, RemediationRequest.DONE)
    rig.turn_until(Stage.RETURNED)


def test_one_gpu_is_acted_on_at_a_time_and_the_more_important_fault_is_first(rig):
    rig.node.change(faults={ONE: ["needs-reset", "gpu-reset"], TWO: ["needs-reboot", "node-reboot"]})
    rig.turn_until(Stage.ACTED, TWO)
    assert rig.node["held"] == {ONE: "reset", TWO: "reboot"}
    rig.turn(10)
    assert rig.case(ONE).stage is Stage.DRAIN_ASKED
    assert not rig.node.logged("reset")
    rig.node.change(faults={ONE: ["needs-reset", "gpu-reset"]})
    rig.restart(boot="another")
    rig.turn_until(Stage.RETURNED, TWO)
    rig.turn_until(Stage.RETURNED, ONE)


def test_gpus_that_can_still_be_used_are_drained_one_after_the_other(tmp_path):
    actions = {FaultKey.ROW_REMAP_PENDING: RemediationAction.RESET}
    rig = RemediationRig(tmp_path, RemediationPolicy(actions))
    rig.node.change(faults={ONE: ["row-remap-pending", ""], TWO: ["row-remap-pending", ""]}, users=["team/train"])
    rig.turn(6)
    assert rig.node["held"] == {ONE: "reset"}
    rig.node.change(users=[])
    rig.turn_until(Stage.RETURNED, ONE)
    rig.turn_until(Stage.RETURNED, TWO)


def test_a_reboot_is_asked_for_and_the_gpu_returns_after_it(rig):
    rig.node.change(faults={ONE: ["gpu-lost", ""]})
    rig.turn_until(Stage.ACTED)
    rig.turn(10)
    assert rig.case().waits_for == "a reboot of the machine"
    assert len(rig.node.logged("reboot")) == 1
    rig.restart()
    rig.turn(3)
    assert len(rig.node.logged("reboot")) == 1, "asked again after a restart"
    assert rig.node["is_asked"]
    rig.node.change(faults={})
    rig.restart(boot="another")
    rig.turn_until(Stage.RETURNED)
    assert not rig.node["is_asked"]


@pytest.mark.parametrize("request_", list(RemediationRequest))
def test_a_request_for_a_reboot_is_withdrawn_when_an_administrator_steps_in(rig, request_):
    rig.node.change(faults={ONE: ["gpu-lost", ""]})
    rig.turn_until(Stage.ACTED)
    rig.node.change(users=["team/train"])
    RequestFile(rig.folder).ask(ONE, request_)
    rig.turn()
    assert not rig.node["is_asked"]


@pytest.mark.parametrize("request_", [RemediationRequest.GIVE_UP, RemediationRequest.RETRY])
def test_an_administrator_who_steps_in_for_one_gpu_takes_neither_slot_nor_reboot_from_another(rig, request_):
    rig.node.change(faults={ONE: ["needs-reset", "gpu-reset"], TWO: ["needs-reboot", "node-reboot"]})
    rig.turn_until(Stage.ACTED, TWO)
    rig.turn()
    assert rig.case(ONE).stage.is_open
    RequestFile(rig.folder).ask(ONE, request_)
    rig.turn()
    assert rig.case(TWO).stage is Stage.ACTED
    assert rig.node["has_slot"]
    assert rig.node["is_asked"]


def test_a_gpu_is_escalated_if_the_machine_is_not_rebooted_in_time(rig):
    rig.node.change(faults={ONE: ["gpu-lost", ""]})
    rig.turn_until(Stage.ACTED)
    rig.clock.now += 86400
    rig.turn(2)
    assert (rig.case().stage, rig.case().waits_for) == (Stage.ESCALATED, "the machine was not rebooted in time")
    rig.node.change(faults={})
    rig.restart(boot="another")
    rig.turn_until(Stage.RETURNED)


def test_another_gpu_at_the_same_address_is_not_held_back(rig):
    rig.node.change(resets_left=99)
    rig.turn_until(Stage.ESCALATED)
    rig.node.change(gpus={ONE: "GPU-new", TWO: f"GPU-{TWO}"}, faults={})
    rig.turn(2)
    assert rig.node["held"] == {}
    assert "another GPU, GPU-new" in rig.case().waits_for


def test_a_fault_that_ends_by_itself_ends_the_case_without_a_reset(rig):
    rig.node.change(clients=["1 (x)"])
    rig.turn(8)
    assert not rig.node["persistence"]
    rig.node.change(faults={})
    rig.turn(2)
    assert rig.case().stage is Stage.RETURNED
    assert rig.node["persistence"]
    assert rig.node["held"] == {}
    assert not rig.node.logged("reset")


def test_the_action_that_the_driver_reports_after_the_drain_is_taken(rig):
    rig.node.change(faults={ONE: ["needs-reset", "drain-p2p"]})
    rig.turn_until(Stage.DRAINED)
    rig.turn(3)
    assert "the driver to report the next action" in rig.case().waits_for
    rig.node.change(faults={ONE: ["needs-reset", "gpu-reset"]})
    rig.turn_until(Stage.RETURNED)


def test_the_sites_command_gets_the_gpu(tmp_path):
    actions = {FaultKey.NEEDS_RESET: RemediationAction.COMMAND}
    rig = RemediationRig(tmp_path, RemediationPolicy(actions, command=SiteCommand(("/opt/mend", "{uuid}", "at={pci}"))))
    rig.turn_until(Stage.RETURNED)
    assert rig.node.logged("run") == [f"run /opt/mend GPU-{ONE} at={ONE}"]


def test_requests_of_an_administrator_are_done_and_malformed_ones_are_ignored(rig):
    rig.node.change(users=["team/train"])
    rig.turn(5)
    RequestFile(rig.folder).ask(ONE, RemediationRequest.GIVE_UP)
    rig.turn()
    assert (rig.case().stage, rig.case().waits_for) == (Stage.ESCALATED, "given up by hand")
    (rig.folder / "remediation-requests").write_text(f"retry {TWO}\nnonsense\nretry nowhere\nburn {ONE}\n")
    rig.turn()
    assert rig.case().stage is Stage.ESCALATED
    rig.node.change(users=[])
    RequestFile(rig.folder).ask(ONE, RemediationRequest.RETRY)
    rig.turn()
    rig.turn_until(Stage.RETURNED)


def test_partitions_that_an_administrator_made_keep_a_gpu_from_being_reset(rig):
    rig.node.change(partitioned=[ONE])
    rig.turn_until(Stage.DRAINED)
    rig.turn(2)
    assert rig.case().waits_for == "the GPU's MIG partitions to be removed"
    rig.clock.now += 300
    rig.turn()
    assert rig.case().stage is Stage.ESCALATED
    assert not rig.node.logged("reset")


def test_partitions_of_ended_claims_are_waited_for(rig):
    rig.node.change(partitioned=[ONE])
    rig.turn_until(Stage.DRAINED)
    rig.turn(2)
    rig.node.change(partitioned=[])
    rig.turn_until(Stage.RETURNED)


def interrupted(rig, stage):
    """Let an earlier process have drained the GPU, as far as it wrote to disk, and then begin a new one."""
    rig.turn_until(Stage.DRAINED)
    RemediationJournal(rig.folder).write(rig.case().at(stage, rig.clock()))
    rig.restart()


@pytest.mark.parametrize("stage", [Stage.DRAINED, Stage.NVML_LET_GO])
def test_a_gpu_that_was_about_to_be_reset_is_drained_again_after_a_restart(rig, stage):
    interrupted(rig, stage)
    rig.node.change(users=["team/new"])
    rig.turn(5)
    assert not rig.node.logged("reset"), "reset under a claim"
    assert (rig.case().stage, rig.case().waits_for) == (Stage.DRAIN_ASKED, "claim team/new to end")
    assert not rig.node["has_slot"], "a node that waits for a claim keeps a slot from other nodes"
    rig.node.change(users=[])
    rig.turn_until(Stage.RETURNED)


@pytest.mark.parametrize("stage", [Stage.DRAINED, Stage.NVML_LET_GO])
def test_a_fault_that_ends_while_its_gpu_is_about_to_be_reset_leaves_nothing_behind(rig, stage):
    interrupted(rig, stage)
    rig.node.change(faults={})
    rig.turn(2)
    assert rig.case().stage is Stage.RETURNED
    assert not rig.node.is_library_released
    assert not rig.node["has_slot"]
    rig.node.change(faults={ONE: ["needs-reset", "gpu-reset"]})
    rig.turn_until(Stage.DRAINED)
    rig.node.change(faults={})
    rig.turn(2)
    assert (rig.case().stage, rig.node.is_library_released, rig.node["has_slot"]) == (Stage.RETURNED, False, False)


def test_a_fault_is_not_over_because_the_gpu_was_not_read_yet_after_a_restart(rig):
    rig.node.change(users=["team/train"])
    rig.turn(5)
    rig.restart()
    rig.node.change(faults={}, read=False)
    rig.turn(3)
    assert rig.case().stage is Stage.DRAIN_ASKED
    assert rig.node["held"] == {ONE: "reset"}
    rig.node.change(read=True)
    rig.turn()
    assert rig.case().stage is Stage.RETURNED


def fail_with(error):
    def fail():
        raise error

    return fail


def before_the_reset(rig, happens):
    """Let something happen once the library is released, before it is known whether anything uses the GPU."""
    rig.turn_until(Stage.DRAINED)
    rig.node.when_asked = lambda: happens() if rig.node.is_library_released else None
    with suppress(RuntimeError):
        rig.turn()
    rig.node.when_asked = lambda: None


@pytest.mark.parametrize(
    "happens",
    [
        lambda rig: rig.node.change(users=["team/new"]),
        lambda rig: rig.node.change(clients=["1 (x)"]),
        lambda _: fail_with(LedgerError("busy", "locked"))(),
        lambda _: fail_with(RuntimeError("a bug"))(),
        lambda rig: rig.lock_journal(),
    ],
    ids=["claim", "process", "ledger-locked", "bug", "journal-locked"],
)
def test_whatever_ends_an_attempt_before_the_reset_library_and_slot_are_taken_back(rig, happens):
    before_the_reset(rig, lambda: happens(rig))
    assert not rig.node.is_library_released
    assert not rig.node["has_slot"]
    assert not rig.node.logged("reset")
    assert rig.node["held"] == {ONE: "reset"}
    rig.unlock_journal()
    rig.node.change(users=[], clients=[])
    rig.turn_until(Stage.RETURNED)
    assert rig.node.logged("reset") == [f"reset {ONE}"]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_slot_that_could_not_be_released_is_released_later(rig, is_restarted):
    """Otherwise other nodes would go without it for an hour."""
    rig.node.change(releases=False)
    rig.turn_until(Stage.RETURNED)
    rig.turn()
    assert rig.node["has_slot"]
    if is_restarted:
        rig.node.change(slot_left=False)  # nothing of it is on disk
        rig.restart()
    rig.node.change(releases=True)
    rig.turn()
    assert not rig.node["has_slot"]
    assert len(rig.node.logged("slot-back")) == 1
    rig.turn()
    assert len(rig.node.logged("slot-back")) == 1, "it is asked for once"


def test_a_gpu_whose_slot_was_lost_is_not_reset_before_there_is_another(rig):
    rig.turn_until(Stage.DRAINED)
    rig.node.change(slot=600.0, has_slot=False)
    rig.turn(4)
    assert (rig.case().stage, rig.node.logged("reset")) == (Stage.DRAIN_ASKED, [])
    rig.node.change(slot=0.0)
    rig.turn_until(Stage.RETURNED)


def test_a_reset_whose_end_could_not_be_written_is_not_repeated(rig):
    write, journal = rig.remediation._journal.write, rig.remediation._journal

    def full(case, began=None, outcome=""):
        if outcome:
            raise LedgerError("remediation", "the disk is full")
        write(case, began)

    journal.write = full
    rig.turn_until(Stage.DRAINED)
    rig.turn(3)
    assert rig.case().is_acting
    journal.write = write
    rig.turn_until(Stage.RETURNED)
    assert rig.node.logged("reset") == [f"reset {ONE}"]
    assert [row.outcome for row in journal.actions()] == ["interrupted"]


def escalated(rig):
    rig.node.change(resets_left=99)
    rig.turn_until(Stage.ESCALATED)
    rig.node.change(faults={})
    return rig.folder / "remediation.db"


def test_a_journal_that_is_locked_keeps_an_escalated_gpu_and_its_budget(rig):
    escalated(rig)
    path = rig.folder / "state.db"
    with locked(path):
        before = state_of(rig.folder)[path.name]
        rig.restart()
        rig.turn()
        assert rig.node["held"] is None, "it is not known which GPUs have to be kept from claims"
        assert rig.remediation.is_needed
        assert state_of(rig.folder)[path.name] == before
    rig.turn()
    assert rig.node["held"] == {ONE: "support"}
    assert len(RemediationJournal(rig.folder).actions()) == 2


@pytest.mark.parametrize("step", [-3600.0, 3600.0, 10 * 365 * 86400.0])
def test_a_clock_that_is_set_neither_delays_nor_hurries_a_remediation(tmp_path, step):
    rig, ahead = RemediationRig(tmp_path), 1e9

    def restart():
        rig.node = FileNode(tmp_path / "node.json")
        rig.remediation = Remediation(
            rig.node, tmp_path, rig.policy, boot_id=BOOT, clock=rig.clock, wall=lambda: rig.clock() + ahead
        )
        rig.remediation.load()

    restart()
    rig.node.change(faults={ONE: ["gpu-lost", ""]})
    rig.turn_until(Stage.ACTED)
    acted_at = rig.case().stage_at
    assert 1e9 < acted_at < 1e9 + 2000
    rig.turn(2)
    ahead += step
    restart()
    rig.turn(2)
    assert (rig.case().stage, rig.case().waits_for) == (Stage.ACTED, "a reboot of the machine")
    rig.clock.now += rig.policy.reboot_within_s
    rig.turn()
    assert rig.case().stage is Stage.ESCALATED


@pytest.mark.parametrize("moment", range(3))
def test_a_journal_whose_writer_was_killed_in_a_transaction_keeps_everything(rig, moment):
    leave_hot_journal(escalated(rig), ("cases", "actions", "cases")[moment])
    rig.restart()
    assert rig.node["held"] == {ONE: "support"}
    assert len(RemediationJournal(rig.folder).actions()) == 2


def test_an_agent_without_descriptors_keeps_the_journal(rig):
    path = escalated(rig)
    before = path.read_bytes()
    hold, rig.node.hold = rig.node.hold, lambda _: None
    with without_descriptors():
        rig.remediation.load()
    rig.node.hold = hold
    assert path.read_bytes() == before
    rig.turn()
    assert rig.node["held"] == {ONE: "support"}


@pytest.mark.parametrize("damage", [b"not a database, and too long to be an empty one" * 40, b""])
def test_after_damage_to_the_journal_every_gpu_is_examined_before_it_is_offered(rig, damage):
    escalated(rig).write_bytes(damage)
    rig.node.change(read=False)
    for _ in range(2):  # the first one ends before it has examined anything
        rig.restart()
        rig.turn(2)
        assert rig.node["held"] == {ONE: "examined", TWO: "examined"}
    assert (rig.folder / "remediation.db.damaged").read_bytes() == damage
    rig.node.change(read=True)
    rig.turn_until(Stage.RETURNED, ONE)
    rig.turn_until(Stage.RETURNED, TWO)
    assert rig.node.logged("validate") == [f"validate {ONE}", f"validate {TWO}"]
    assert rig.node["held"] == {}
    rig.restart()
    assert rig.node["held"] == {}


def test_a_damaged_state_loses_no_escalated_gpu_as_long_as_the_older_file_has_it(rig):
    escalated(rig)
    (rig.folder / "state.db").write_bytes(b"garbage" * 999)
    rig.restart()
    rig.turn(2)
    assert rig.node["held"] == {ONE: "support"}
    assert len(RemediationJournal(rig.folder).actions()) == 2


def test_after_damage_to_the_state_and_without_an_older_file_every_gpu_is_examined(rig):
    escalated(rig)
    damage_all(rig.folder, "remediation.db")
    rig.node.change(read=False)
    for _ in range(2):
        rig.restart()
        rig.turn(2)
        assert rig.node["held"] == {ONE: "examined", TWO: "examined"}
    assert (rig.folder / "state.db.damaged").exists()


def test_a_gpu_that_is_found_faulty_when_it_is_examined_is_remediated(rig):
    escalated(rig).write_bytes(b"garbage" * 999)
    rig.node.change(faults={TWO: ["needs-reset", "gpu-reset"]}, resets_left=1)
    rig.node.when_reset = lambda: None
    rig.restart()
    rig.turn_until(Stage.RETURNED, ONE)
    rig.turn_until(Stage.RETURNED, TWO)
    assert rig.node.logged("reset")[2:] == [f"reset {TWO}"]


def test_a_gpu_that_fails_its_test_when_it_is_examined_waits_for_a_person(rig):
    escalated(rig).write_bytes(b"garbage" * 999)
    rig.node.change(verdict="failed")
    rig.restart()
    rig.turn_until(Stage.ESCALATED, ONE)
    assert "validation failed" in rig.case().waits_for


def test_a_gpu_whose_health_can_not_be_read_is_not_out_of_use_for_good_after_damage(rig):
    escalated(rig).write_bytes(b"garbage" * 999)
    rig.node.change(read=False)
    rig.restart()
    rig.turn_until(Stage.RETURNED, ONE)


def kill_at(folder, number, moment):
    """Run a remediation in a process of its own, and kill it before or after its write of a number.

    Return whether there was such a write.
    """
    pid = os.fork()
    if pid:
        _, status = os.waitpid(pid, 0)
        return os.WIFSIGNALED(status)
    try:
        rig, count = RemediationRig(folder), 0
        write = rig.remediation._journal.write

        def counted(*arguments, **more):
            nonlocal count
            count += 1
            if count == number and moment == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            write(*arguments, **more)
            if count == number and moment == "after":
                os.kill(os.getpid(), signal.SIGKILL)

        rig.remediation._journal.write = counted
        rig.turn_until(Stage.RETURNED)
    finally:
        os._exit(0)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_agent_that_is_killed_at_any_write_continues_and_resets_no_more_than_twice(tmp_path, moment):
    for number in range(1, 40):
        folder = tmp_path / str(number)
        folder.mkdir()
        if not kill_at(folder, number, moment):
            break
        rig = RemediationRig(folder)
        if rig.case() is not None and rig.case().stage.is_open:
            assert rig.node["held"] == {ONE: "reset"}, "offered after a kill"
        rig.turn_until(Stage.RETURNED)
        assert 1 <= len(rig.node.logged("reset")) <= 2
        assert rig.node["persistence"]
        assert rig.node["held"] == {}
    assert number > 10, "every write was tried"


def test_an_agent_that_is_killed_repeatedly_returns_the_gpu_in_the_end(tmp_path):
    for number in (3, 2, 1, 2, 1, 3, 2):
        kill_at(tmp_path, number, "after")
    rig = RemediationRig(tmp_path)
    rig.turn_until(Stage.RETURNED)
    assert len(rig.node.logged("reset")) <= 2


@pytest.mark.parametrize("stage", [one for one in Stage if one.is_open])
def test_a_reboot_in_any_stage_is_survived(tmp_path, stage):
    rig = RemediationRig(tmp_path)
    rig.node.change(published=stage is not Stage.DETECTED)
    rig.turn_until(stage)
    rig.node.change(persistence=True, published=True)  # persistence mode is set at the start of the machine
    rig.restart(boot="another")
    rig.turn_until(Stage.RETURNED)
    assert rig.node["held"] == {}
