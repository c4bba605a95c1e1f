"""Sharing among claims: agreement, reboots, a lost ledger, other agents, and many claims at once."""

import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dra_driver.base.errors import ClaimError, LedgerError, SharingError
from dra_driver.base.machine import Deadline
from dra_driver.base.wire import Interval, MpsSettings, TimeSlicingSettings
from dra_driver.node.ledger.record import record_of_step
from dra_driver.node.ledger.recorded_steps import RecordedSharing
from dra_driver.node.prepare.repair import Reaper
from tests.support.plugin.mig_parts import OTHER, WHOLE, MigRig, small
from tests.support.plugin.parts import DRIVER, in_thread
from tests.support.plugin.sharing_parts import BOTH_MODES, SharingRig, mps, replica

EXCLUSIVE = ("EXCLUSIVE_PROCESS", "DEFAULT")


# Agreement


def test_a_second_claim_with_other_settings_is_refused_with_the_first_one_named(served: SharingRig) -> None:
    served.allocate("u1", replica(0))
    served.allocate("u2", replica(1), configs=(mps(source="FromClass", defaultActiveThreadPercentage=20),))
    served.prepare("u1")
    with pytest.raises(
        ClaimError, match=r"ns/claim-u1 \(UID u1\), but this claim asks for MPS \(20 % of the threads"
    ) as refused:
        served.prepare("u2")
    assert refused.value.code == "claim.sharing-differs"
    assert (served.states(), served.effects()) == ({"u1": "prepared"}, {WHOLE: ["u1"]})
    served.unprepare("u1")
    served.prepare("u2")
    assert served.effects() == {WHOLE: ["u2"]}


def test_namespaces_share_a_daemon_only_where_that_is_configured(tmp_path: Path) -> None:
    for is_allowed in (False, True):
        rig = SharingRig(tmp_path / str(is_allowed), MpsSettings(across_namespaces=is_allowed))
        rig.allocate("u1", replica(0))
        rig.allocate("u2", replica(1))
        wire = rig.api.claims.pop(("ns", "claim-u2"))
        wire["metadata"]["namespace"] = "other"
        rig.api.put(wire)
        rig.prepare("u1")
        if is_allowed:
            rig.preparer.prepare("other", "claim-u2", "u2", Deadline.after(5))
        else:
            with pytest.raises(ClaimError, match="serves namespace ns") as refused:
                rig.preparer.prepare("other", "claim-u2", "u2", Deadline.after(5))
            assert refused.value.code == "claim.sharing-namespaces"
            assert "claim ns/claim-u1" in refused.value.message
            assert "delete the pods that use claim other/claim-u2" in refused.value.hint
            assert "acrossNamespaces" in refused.value.hint
            assert "u2" not in rig.states(), "refused before anything was begun"
        assert rig.effects()[WHOLE] == (["u1", "u2"] if is_allowed else ["u1"])
        rig.close()


def test_a_claim_that_holds_a_device_keeps_its_settings_when_the_configuration_changes(sliced: SharingRig) -> None:
    sliced.allocate("u1", replica(0))
    sliced.prepare("u1")
    sliced.settings = TimeSlicingSettings(Interval.SHORT)
    sliced.scan()
    sliced.prepare("u1")
    assert sliced.intervals() == ("Long", "Default")
    sliced.allocate("u2", replica(1))
    with pytest.raises(ClaimError, match="interval Long by claim ns/claim-u1"):
        sliced.prepare("u2")


def test_a_share_that_is_not_configured_any_more_is_prepared_again_as_it_was(served: SharingRig) -> None:
    served.allocate("u1", replica(0))
    served.allocate_share("u2", "s1", memory="10Gi")
    served.prepare("u1")
    served.prepare("u2")
    files = served.files()
    served.settings = None
    MigRig.scan(served)  # without replicas, and without devices that may be allocated many times
    assert [device.device for device in served.prepare("u1")] == [replica(0)]
    served.prepare("u2")
    assert served.repair.refresh_cdi() == 0
    assert served.files() == files
    assert served.effects() == {WHOLE: ["u1"], OTHER: ["u2"]}
    served.unprepare("u1")
    served.unprepare("u2")
    served.assert_unshared()


def test_a_partition_stays_until_its_daemon_has_ended(rig: SharingRig) -> None:
    rig.now_prepare("u1", small(3), configs=(mps("MigDeviceConfig"),))
    rig.supervisor.is_there = False
    with pytest.raises(SharingError):
        rig.unprepare("u1")
    assert len(rig.partitions(0)) == 1
    rig.supervisor.is_there = True
    rig.unprepare("u1")
    assert rig.partitions(0) == []
    rig.assert_unshared()


# Reboot, lost ledger, other agents


def test_after_a_reboot_effects_are_made_again_and_not_undone(served: SharingRig) -> None:
    for uid, index in (("u1", 0), ("u2", 1)):
        served.allocate(uid, replica(index))
        served.prepare(uid)
    served.supervisor._write({})
    served.reboot()
    assert served.compute_modes() == BOTH_MODES
    calls = len(served.supervisor.calls)
    served.prepare("u2")
    assert served.compute_modes() == EXCLUSIVE
    served.unprepare("u1")
    assert list(served.supervisor.daemons()) == [WHOLE]
    served.unprepare("u2")
    served.assert_unshared()
    assert "stop" in served.supervisor.calls[calls:]


def test_an_effect_of_another_boot_is_removed_from_the_ledger_without_an_undo(served: SharingRig) -> None:
    served.allocate("u1", replica(0))
    served.prepare("u1")
    served.reboot()
    served.supervisor.is_there = False
    served.unprepare("u1")
    assert served.effects() == {}


@pytest.mark.parametrize("how", [TimeSlicingSettings(Interval.SHORT), MpsSettings(50)])
def test_a_rebuilt_ledger_has_the_settings_of_shared_devices(tmp_path: Path, how) -> None:
    rig = SharingRig(tmp_path, how)
    for uid, index in (("u1", 0), ("u2", 1)):
        rig.allocate(uid, replica(index))
        rig.prepare(uid)
    for name in ("ledger.db", "ledger.db-wal", "ledger.db-shm"):
        (rig.data / name).unlink(missing_ok=True)
    rig.restart()
    assert rig.effects() == {WHOLE: ["u1", "u2"]}
    Reaper(rig.repair, rig.store, driver=DRIVER).reap()
    assert rig.effects() == {WHOLE: ["u1", "u2"]}
    rig.prepare("u1")
    rig.unprepare("u1")
    assert (rig.intervals(), rig.compute_modes()) != (("Default", "Default"), BOTH_MODES)
    rig.unprepare("u2")
    rig.assert_unshared()
    rig.close()


def test_an_effect_that_only_a_newer_agent_can_undo_is_kept(sliced: SharingRig) -> None:
    sliced.allocate("u1", replica(0))
    sliced.prepare("u1")
    sliced.ledger._write(lambda c: c.execute('UPDATE device_effects SET settings = \'{"strategy": "Teleport"}\''))
    sliced.allocate("u2", replica(1))
    with pytest.raises(LedgerError, match="Teleport"):
        sliced.prepare("u2")
    with pytest.raises(LedgerError):
        sliced.unprepare("u1")
    Reaper(sliced.repair, sliced.store, driver=DRIVER).reap()
    assert sliced.effects() == {WHOLE: ["u1"]}


def test_a_step_is_recorded_with_kind_key_device_and_settings(sliced: SharingRig) -> None:
    sliced.allocate("u1", replica(0))
    sliced.prepare("u1")
    record = sliced.ledger.get("u1")
    assert record is not None
    (step,) = (record_of_step(step) for step in record.steps_of(RecordedSharing))
    assert (step["kind"], step["key"]) == ("sharing", WHOLE)
    assert step["device"]["gpu_uuid"] == sliced.gpu(0).uuid
    assert step["settings"] == {"strategy": "TimeSlicing", "interval": "Long"}


def test_a_ledger_of_the_previous_minor_version_gets_the_missing_tables(sliced: SharingRig) -> None:
    sliced.ledger._write(lambda c: [c.execute(f"DROP TABLE {t}") for t in ("device_effects", "effect_holds")])
    sliced.ledger._write(lambda c: c.execute("PRAGMA user_version=1001"))
    sliced.restart()
    sliced.allocate("u1", replica(0))
    sliced.prepare("u1")
    assert sliced.effects() == {WHOLE: ["u1"]}


def test_the_reaper_undoes_effects_that_no_claim_holds_and_ends_stray_daemons(served: SharingRig) -> None:
    served.allocate("u1", replica(0))
    served.allocate("u2", OTHER, configs=(mps(),))
    served.prepare("u1")
    served.prepare("u2")
    served.supervisor._write({**served.supervisor.daemons(), "gpu-stray": "GPU-stray"})
    served.ledger._write(lambda c: c.execute("DELETE FROM claims WHERE uid = 'u1'"))
    reaper = Reaper(served.repair, served.store, driver=DRIVER)
    assert reaper.reap() >= 2
    assert list(served.supervisor.daemons()) == [OTHER]
    assert served.effects() == {OTHER: ["u2"]}
    assert served.compute_modes() == ("DEFAULT", "EXCLUSIVE_PROCESS")


def test_a_ledger_with_an_effect_that_no_claim_holds_is_not_empty(sliced: SharingRig) -> None:
    sliced.allocate("u1", replica(0))
    sliced.prepare("u1")
    sliced.ledger._write(lambda c: c.execute("DELETE FROM claims"))
    assert not sliced.ledger.is_empty()
    assert sliced.repair.settle_sharing() == 1
    assert sliced.ledger.is_empty()


# Many at once


def test_claims_that_are_prepared_at_once_make_one_effect(served: SharingRig) -> None:
    uids = [served.allocate(f"u{i}", replica(i)) for i in range(4)]
    threads = [in_thread(served.prepare, uid) for uid in uids]
    for thread, outcome in threads:
        thread.join(60)
        assert not isinstance(outcome[0], Exception), outcome
    assert served.effects() == {WHOLE: uids}
    threads = [in_thread(served.unprepare, uid) for uid in uids]
    for thread, outcome in threads:
        thread.join(60)
        assert outcome == [None]
    served.assert_unshared()


def test_a_claim_that_is_unprepared_while_another_is_prepared_leaves_the_device_shared(served: SharingRig) -> None:
    """Whichever call is first, the claim that stays has its daemon and its compute mode."""
    for uid, index in (("a", 0), ("b", 1)):
        served.allocate(uid, replica(index))
    served.prepare("a")
    for leaving, coming in (("a", "b"), ("b", "a")) * 4:
        start = threading.Barrier(2)

        def go(call, uid: str, start: threading.Barrier = start) -> None:
            start.wait(60)
            call(uid)

        threads = [in_thread(go, served.unprepare, leaving), in_thread(go, served.prepare, coming)]
        for thread, outcome in threads:
            thread.join(60)
            assert outcome == [None]
        assert served.effects() == {WHOLE: [coming]}
        assert served.compute_modes() == EXCLUSIVE
        assert list(served.supervisor.daemons()) == [WHOLE]


def test_two_agents_on_one_node_make_one_effect_and_undo_it_once(sliced: SharingRig) -> None:
    older = sliced.preparer
    newer = sliced.restart()
    for round_ in range(3):
        uids = [sliced.allocate(f"{round_}-{i}", replica(i)) for i in range(4)]
        threads = [in_thread(sliced.prepare, uid, 5.0, (older, newer)[i % 2]) for i, uid in enumerate(uids)]
        for thread, outcome in threads:
            thread.join(60)
            assert not isinstance(outcome[0], Exception), outcome
        assert sliced.effects() == {WHOLE: uids}
        threads = [in_thread((newer, older)[i % 2].unprepare, uid, Deadline.after(5)) for i, uid in enumerate(uids)]
        for thread, outcome in threads:
            thread.join(60)
            assert outcome == [None]
        sliced.assert_unshared()
    assert sliced.sets == [(WHOLE, "Long"), (WHOLE, "Default")] * 3


STEPS = st.lists(
    st.tuples(st.sampled_from(["prepare", "unprepare", "restart", "reap"]), st.integers(0, 3)), max_size=12
)


@settings(
    max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)
@given(STEPS, st.sampled_from([TimeSlicingSettings(Interval.LONG), MpsSettings(50)]))
def test_a_device_is_shared_exactly_while_a_claim_holds_it(tmp_path_factory, steps, how) -> None:
    rig = SharingRig(tmp_path_factory.mktemp("rig"), how)
    for index in range(4):
        rig.allocate(f"u{index}", replica(index))
    held: set[str] = set()
    for what, index in steps:
        uid = f"u{index}"
        if what == "prepare":
            rig.prepare(uid)
            held.add(uid)
        elif what == "unprepare":
            rig.unprepare(uid)
            held.discard(uid)
        elif what == "restart":
            rig.restart()
        else:
            Reaper(rig.repair, rig.store, driver=DRIVER).reap()
        assert rig.effects() == ({WHOLE: sorted(held)} if held else {})
        is_mps = isinstance(how, MpsSettings)
        assert rig.compute_modes() == (EXCLUSIVE if held and is_mps else BOTH_MODES)
        assert bool(rig.supervisor.daemons()) == bool(held and is_mps)
        assert rig.intervals()[0] == ("Long" if held and not is_mps else "Default")
    rig.close()
