"""Compute units that claims keep to: disjoint among the claims of a GPU, and free when a claim ends."""

import random
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.base.errors import ClaimError, SharingError
from dra_driver.hardware.amd.hardware import compute_unit_edits
from tests.node.support.units_rig import TOTAL, UnitsRig
from tests.support.plugin.parts import in_thread
from tests.support.plugin.sharing_parts import replica


@pytest.fixture
def rig(tmp_path: Path):
    rig = UnitsRig(tmp_path)
    yield rig
    rig.close()


def test_claims_of_one_gpu_get_different_units_and_a_claim_without_a_config_gets_no_variable(rig: UnitsRig) -> None:
    rig.ask("u0", replica(0), 8)
    rig.ask("u1", replica(1), 4)
    rig.allocate("u2", replica(2))
    for uid in ("u0", "u1", "u2"):
        rig.prepare(uid)
    assert rig.masks() == {"u0": "0:0-7", "u1": "0:8-11", "u2": ""}


def test_units_of_a_claim_that_ended_go_to_the_next_even_in_pieces(rig: UnitsRig) -> None:
    for index, count in enumerate((8, 4, 8)):
        rig.ask(f"u{index}", replica(index), count)
        rig.prepare(f"u{index}")
    rig.unprepare("u0")
    rig.unprepare("u2")
    rig.ask("u3", replica(3), 12)
    rig.prepare("u3")
    assert rig.masks() == {"u1": "0:8-11", "u3": "0:0-7,12-15"}


def test_a_claim_for_more_than_is_left_is_refused_and_leaves_nothing(rig: UnitsRig) -> None:
    rig.ask("u0", replica(0), 18)
    rig.ask("u1", replica(1), 3)
    rig.prepare("u0")
    with pytest.raises(SharingError, match=r"of which 2 are free beside claims .*; this claim asks for 3") as refused:
        rig.prepare("u1")
    assert refused.value.code == "sharing.compute-units-taken"
    assert list(rig.units()) == ["u0"]
    rig.unprepare("u0")
    rig.prepare("u1")
    assert rig.masks() == {"u1": "0:0-2"}


def test_units_are_taken_once_they_are_chosen_although_the_claim_is_not_prepared_yet(rig: UnitsRig) -> None:
    is_chosen, may_go_on = threading.Event(), threading.Event()

    def slow(units: tuple[int, ...]):
        if 0 in units:
            is_chosen.set()
            assert may_go_on.wait(60)
        return compute_unit_edits(units)

    rig.hardware.compute_unit_edits = slow
    rig.ask("u0", replica(0), 8)
    rig.ask("u1", replica(1), 4)
    thread, outcome = in_thread(rig.prepare, "u0", 60)
    assert is_chosen.wait(60)
    rig.prepare("u1")
    may_go_on.set()
    thread.join(60)
    assert not isinstance(outcome[0], Exception)
    assert rig.masks() == {"u0": "0:0-7", "u1": "0:8-11"}


@pytest.mark.parametrize("again", ["prepare", "restart", "reboot"])
def test_a_claim_keeps_its_units_when_it_is_prepared_again(rig: UnitsRig, again: str) -> None:
    rig.ask("u0", replica(0), 4)
    rig.ask("u1", replica(1), 4)
    rig.prepare("u0")
    rig.prepare("u1")
    rig.unprepare("u0")
    if again != "prepare":
        getattr(rig, again)()
    rig.prepare("u1")
    assert rig.masks()["u1"] == "0:4-7"


@pytest.mark.parametrize(
    ("architecture", "count", "why"),
    [("gfx942", TOTAL + 1, "is 21, and .* has 20"), ("gfx1100", 3, "must be even, is 3")],
)
def test_a_count_that_the_gpu_does_not_have_is_refused_before_anything_is_done(
    tmp_path: Path, architecture: str, count: int, why: str
) -> None:
    rig = UnitsRig(tmp_path)
    rig.architecture = architecture
    rig.scan()
    rig.ask("u0", replica(0), count)
    with pytest.raises(ClaimError, match=why):
        rig.prepare("u0")
    assert rig.states() == {}
    rig.close()


def test_a_claim_of_two_devices_cannot_choose_units(rig: UnitsRig) -> None:
    rig.ask("u0", replica(0), 4)
    results = rig.api.claims["ns", "claim-u0"]["status"]["allocation"]["devices"]["results"]
    results.append({**results[0], "device": replica(1)})
    with pytest.raises(ClaimError, match="a claim of one device"):
        rig.prepare("u0")


def test_all_partitions_of_a_gpu_are_many_gpus_for_the_runtime_and_cannot_choose_units(rig: UnitsRig) -> None:
    several = tuple(replace(one, gpu=replace(one.gpu, parts=8)) for one in rig.inventory.hidden)
    rig.inventory = replace(rig.inventory, hidden=several)
    rig.ask("u0", replica(0), 4)
    with pytest.raises(ClaimError, match="is 8 GPUs for the runtime"):
        rig.prepare("u0")


def test_a_config_is_refused_if_the_hardware_backend_does_not_support_it(rig: UnitsRig) -> None:
    del rig.hardware.compute_unit_edits
    rig.ask("u0", replica(0), 4)
    with pytest.raises(SharingError) as refused:
        rig.prepare("u0")
    assert refused.value.code == "sharing.compute-units-unsupported"


@pytest.mark.parametrize("seed", range(6))
def test_no_two_claims_ever_have_the_same_unit(tmp_path: Path, seed: int) -> None:
    rig, dice = UnitsRig(tmp_path), random.Random(seed)
    for _ in range(25):
        index = dice.randrange(4)
        uid = f"u{index}"
        if uid in rig.units() and dice.random() < 0.6:
            rig.unprepare(uid)
        elif uid not in rig.units():
            rig.ask(uid, replica(index), dice.randint(1, 9))
            with suppress(SharingError):  # no unit is left
                rig.prepare(uid)
        held = list(rig.units().values())
        assert sum(map(len, held)) == len(set().union(*held)) <= TOTAL
    rig.close()
