"""A whole GPU and a part of it never go to two claims, whatever the GPU was offered as when each was allocated.

On a node whose partitions an administrator declares, devices have no counters that show the overlap, and a claim that
was allocated before the GPU was partitioned may be prepared afterwards.
"""

from __future__ import annotations

import pytest

from dra_driver.base.errors import ClaimError
from dra_driver.base.wire import DeviceType
from dra_driver.node.devices.describing import Device
from dra_driver.node.devices.offering import Inventory, Offering
from dra_driver.node.ledger.unreleased import names_in_conflict
from tests.node.support.running_pods import CONTAINER, OLD, Machine
from tests.support.plugin.parts import Rig, claim_wire, gpu, result

WHOLE, PART, OTHER = "gpu-0000-01-00-0", "gpu-0000-01-00-0-mig-1g10gb-19-0", "gpu-0000-01-00-0-mig-1g10gb-19-1"
SHARE = "11111111-2222-4333-8444-555555555555"
PAIRS = [
    (WHOLE, PART),
    (PART, WHOLE),
    (f"{WHOLE}-share-1", PART),
    (PART, f"{WHOLE}-share-1"),
    (WHOLE, f"{PART}-share-0"),
    (f"{PART}-share-0", WHOLE),
    (f"{WHOLE}-vfio", PART),
    (PART, f"{WHOLE}-vfio"),
]


@pytest.fixture
def offered(rig: Rig) -> Rig:
    names = {name for pair in PAIRS for name in pair} | {OTHER, "gpu-0000-02-00-0"}
    devices = [Device(name, DeviceType.GPU, {}, {}, gpu(number)) for number, name in enumerate(sorted(names))]
    rig.inventory = Inventory(Offering(tuple(devices)))
    return rig


@pytest.mark.parametrize(("held", "wanted"), PAIRS)
def test_a_part_of_a_gpu_that_another_claim_has_whole_is_refused_and_the_other_way_round(
    offered: Rig, held: str, wanted: str
) -> None:
    offered.prepare(offered.allocate("holder", held))
    with pytest.raises(ClaimError, match="still held"):
        offered.prepare(offered.allocate("late", wanted), 0.2)
    offered.unprepare("holder")
    assert offered.prepare("late")


def test_parts_of_one_gpu_and_devices_of_another_do_not_exclude_each_other(offered: Rig) -> None:
    for uid, device in (("u1", PART), ("u2", OTHER), ("u3", "gpu-0000-02-00-0")):
        assert offered.prepare(offered.allocate(uid, device))


@pytest.mark.parametrize("wanted", [WHOLE, PART, f"{WHOLE}-vfio", f"{PART}-share-0"])
@pytest.mark.parametrize("share", [{}, {"shareID": SHARE}])
def test_what_excludes_a_replica_or_a_share_waits_for_its_process_and_the_others_do_not(
    offered: Rig, wanted: str, share: dict[str, str]
) -> None:
    """A GPU that was offered in parts of its time may be offered in another form as soon as no claim has any."""
    machine = Machine(offered.root)
    machine.run(7, "container", CONTAINER, OLD)
    offered.api.put(claim_wire("old", result(WHOLE if share else f"{WHOLE}-share-1", **share), pods=(OLD,)))
    offered.prepare("old")
    offered.unprepare("old")
    assert list(offered.ledger.holders([WHOLE])) == [WHOLE]
    with pytest.raises(ClaimError, match=rf"{WHOLE} by containers of pod {OLD}"):
        offered.prepare(offered.allocate("late", wanted), 0.2)
    assert offered.prepare(offered.allocate("beside", f"{WHOLE}-share-1"), 0.0), "the same replica again"
    machine.end(7)
    offered.unprepare("beside")
    assert offered.prepare("late", 60)


def test_names_that_conflict_are_those_of_the_whole_its_replicas_and_its_parts() -> None:
    names, prefixes = names_in_conflict({PART})
    assert {WHOLE, f"{WHOLE}-vfio", PART} <= set(names)
    assert not OTHER.startswith(prefixes)
    _, prefixes = names_in_conflict({WHOLE})
    assert OTHER.startswith(prefixes)
    assert not "gpu-0000-01-00-1".startswith(prefixes)
