"""Who gets a device that another claim holds: waiting, refusal, and the rule for claims that are gone for good."""

import pytest

from dra_driver.base.errors import ApiError, ClaimError, Retry
from dra_driver.base.machine import HOLDER_SECONDS, Deadline
from dra_driver.node.ledger.record import ClaimState
from dra_driver.node.neighbours.gone_claims import GONE_SECONDS
from dra_driver.node.prepare.repair import Reaper
from tests.support.plugin.parts import DRIVER, BlindHardware, Rig, claim_wire, in_thread, result
from tests.support.waiting import until


@pytest.fixture
def held(rig: Rig) -> Rig:
    """gpu-0 is held by "old"; the claim "new" requests it."""
    rig.allocate("old", "gpu-0")
    rig.prepare("old")
    rig.allocate("new", "gpu-0")
    return rig


def test_a_device_in_use_is_refused_naming_the_holder(held: Rig) -> None:
    with pytest.raises(ClaimError) as caught:
        held.prepare("new", 0.3)
    assert caught.value.code == "claim.device-in-use"
    assert "gpu-0 by claim ns/claim-old (UID old)" in str(caught.value)
    assert held.states() == {"old": "prepared"}


def test_a_device_is_waited_for_until_it_is_unprepared(held: Rig) -> None:
    thread, outcome = in_thread(held.prepare, "new")
    held.unprepare("old")
    thread.join(60)
    assert outcome[0][0].device == "gpu-0"
    assert held.states() == {"new": "prepared"}


def test_the_wait_ends_before_the_kubelet_gives_up() -> None:
    deadline = Deadline.of_call(45.0)
    assert deadline.remaining() <= 40
    assert deadline.sooner(HOLDER_SECONDS).remaining() <= 35
    assert 3 < Deadline.of_call(5.0).remaining() < 4.5
    assert Deadline.of_call(None).remaining() <= 40


def test_waiting_for_one_device_delays_no_other_claim(held: Rig) -> None:
    thread, outcome = in_thread(held.prepare, "new", 600.0)
    until(lambda: held.preparer._wait._pause._sleepers == 1, "the claim to wait for the device")
    held.allocate("other", "gpu-1")
    held.prepare("other")
    held.unprepare("other")
    assert not outcome
    held.unprepare("old")
    thread.join(60)
    assert outcome[0][0].device == "gpu-0"


def test_a_claim_that_changed_while_it_waited_is_read_again(held: Rig) -> None:
    asked = held.api.requests["get"]
    thread, outcome = in_thread(held.prepare, "new")
    until(lambda: held.api.requests["get"] >= asked + 2)  # it has read its claim and asked about the holder
    held.allocate("new", "gpu-1")
    held.unprepare("old")
    thread.join(60)
    assert outcome[0][0].device == "gpu-1"


def test_a_claim_that_still_exists_never_loses_its_device(held: Rig) -> None:
    held.clock.seconds += 10 * GONE_SECONDS
    for _ in range(3):
        assert not held.repair.evict("old")
        held.clock.seconds += GONE_SECONDS
    del held.api.claims["ns", "claim-old"]["status"]  # deallocated, but not unprepared
    assert not held.repair.evict("old")


def test_a_claim_gone_for_five_minutes_without_processes_loses_its_device(held: Rig) -> None:
    held.api.delete("old")
    with pytest.raises(ClaimError):
        held.prepare("new", 0.3)
    held.clock.seconds += GONE_SECONDS - 1
    assert not held.repair.evict("old")
    held.clock.seconds += 1
    assert held.prepare("new")[0].device == "gpu-0"
    assert held.states() == {"new": "prepared"}


def test_a_claim_whose_name_was_taken_by_another_is_gone(held: Rig) -> None:
    held.api.put(claim_wire("newer", result("gpu-3"), name="claim-old"))
    assert not held.repair.evict("old")
    held.clock.seconds += GONE_SECONDS
    assert held.repair.evict("old")


def test_a_process_on_the_device_keeps_it_with_the_vanished_claim(held: Rig) -> None:
    held.api.delete("old")
    held.hardware.busy = {0}
    held.repair.evict("old")
    held.clock.seconds += 3 * GONE_SECONDS
    assert not held.repair.evict("old")
    held.hardware.busy = set()
    assert held.repair.evict("old")


def test_a_vanished_claim_keeps_its_device_if_processes_cannot_be_listed(held: Rig) -> None:
    held.hardware = BlindHardware()
    held.restart()
    held.api.delete("old")
    held.repair.evict("old")
    held.clock.seconds += 3 * GONE_SECONDS
    assert not held.repair.evict("old")


def test_the_time_since_a_claim_is_gone_outlives_the_agent(held: Rig) -> None:
    held.api.delete("old")
    held.repair.evict("old")
    held.clock.seconds += GONE_SECONDS
    held.restart()
    assert held.repair.evict("old")


def test_a_reboot_starts_the_five_minutes_again(held: Rig) -> None:
    held.api.delete("old")
    held.repair.evict("old")
    held.clock.seconds += GONE_SECONDS
    held.reboot()
    assert not held.repair.evict("old")
    held.clock.seconds += GONE_SECONDS
    assert held.repair.evict("old")


def test_a_claim_that_comes_back_starts_the_five_minutes_again(held: Rig) -> None:
    wire = held.api.claims["ns", "claim-old"]
    held.api.delete("old")
    held.repair.evict("old")
    held.api.put(wire)
    held.clock.seconds += GONE_SECONDS
    assert not held.repair.evict("old")
    held.api.delete("old")
    assert not held.repair.evict("old")


def test_an_error_of_the_api_does_not_count_as_a_claim_that_is_gone(held: Rig) -> None:
    held.api.delete("old")
    held.repair.evict("old")
    held.clock.seconds += GONE_SECONDS
    held.api.faults = [
        ApiError("unreachable", "no route", retry=Retry.NOW),
        ApiError("not-served", "a proxy's page", status=404, retry=Retry.NOW),
    ]
    assert not held.repair.evict("old")
    assert not held.repair.evict("old"), "only the API server itself may say that a claim is not there"
    assert held.repair.evict("old")


def test_a_half_done_holder_that_no_call_works_on_is_undone_at_once(held: Rig) -> None:
    held.ledger.set_state("old", ClaimState.UNPREPARING)
    assert held.prepare("new")[0].device == "gpu-0"
    assert held.states() == {"new": "prepared"}


def test_the_reaper_undoes_what_is_gone_for_good(held: Rig) -> None:
    reaper = Reaper(held.repair, held.store, driver=DRIVER)
    held.api.delete("old")
    assert reaper.reap() == 0
    held.clock.seconds += GONE_SECONDS
    assert reaper.reap() == 1
    held.assert_empty()


def test_the_reaper_removes_orphan_files_of_ours_and_nothing_else(rig: Rig) -> None:
    rig.allocate("u1", "gpu-0")
    rig.prepare("u1")
    ours = rig.cdi / rig.file_of("orphan")
    others = [rig.cdi / "nvidia.json", rig.cdi / "k8s.gpu.nvidia.com-other.json", rig.cdi / "k8s.x.com-claim_u9.json"]
    for path in (ours, *others):
        path.write_text("{}")
    assert Reaper(rig.repair, rig.store, driver=DRIVER).reap() == 1
    assert sorted(rig.files()) == sorted([rig.file_of("u1"), *(p.name for p in others)])


def test_the_reaper_runs_by_itself_and_stops(held: Rig) -> None:
    held.api.delete("old")
    held.repair.evict("old")
    held.clock.seconds += GONE_SECONDS
    reaper = Reaper(held.repair, held.store, driver=DRIVER, interval_s=0.05)
    for _ in range(2):
        reaper.start()
        until(lambda: not held.states())
        reaper.stop()
    held.assert_empty()
