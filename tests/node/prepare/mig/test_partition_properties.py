"""Claims in any order: partitions are made as planned, overlapping ones are refused, and all leave without a trace."""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dra_driver.base.errors import DriverError
from dra_driver.hardware.simulated import partitioning
from tests.support.plugin.mig_parts import WHOLE, MigRig, small
from tests.support.plugin.parts import in_thread

MEMORY = Path("/dev/shm")
PLACES = [
    *(f"{WHOLE}-mig-1g10gb-19-{start}" for start in range(7)),
    *(f"{WHOLE}-mig-1g10gb-me-20-{start}" for start in (0, 6)),
    *(f"{WHOLE}-mig-1g20gb-15-{start}" for start in (0, 2, 4, 6)),
    *(f"{WHOLE}-mig-2g20gb-14-{start}" for start in (0, 2, 4)),
    *(f"{WHOLE}-mig-3g40gb-9-{start}" for start in (0, 4)),
    f"{WHOLE}-mig-4g40gb-5-0",
    f"{WHOLE}-mig-7g80gb-0-0",
    WHOLE,
]


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as name:
        yield Path(name)


def fits(rig: MigRig, device: str, held: list[str]) -> bool:
    """Return whether a scheduler would allocate the device beside those that are held, by the published counters."""
    counters = rig.inventory.offering.counter_sets[rig.inventory.by_name[WHOLE].counter_set]
    used = [rig.inventory.by_name[name].counters for name in (*held, device)]
    return all(sum(one.get(name, 0) for one in used) <= amount for name, amount in counters.items())


@pytest.mark.long
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.lists(st.tuples(st.sampled_from(PLACES), st.booleans()), min_size=1, max_size=8))
def test_what_the_counters_allow_is_made_as_published_and_undone_without_a_trace(folder, order):
    with tempfile.TemporaryDirectory(dir=folder) as name:
        rig = MigRig(Path(name))
        before = (rig.hardware.discover(), rig.names())
        held: dict[str, str] = {}
        for number, (device, ends) in enumerate(order):
            uid = f"u{number}"
            if fits(rig, device, list(held.values())):
                assert rig.now_prepare(uid, device)
                held[uid] = device
            else:
                with pytest.raises(DriverError):
                    rig.now_prepare(uid, device, seconds=0.05)
            slices = [(p.start, p.size) for p in rig.partitions()]
            covered = [index for start, size in slices for index in range(start, start + size)]
            assert len(covered) == len(set(covered)), "partitions overlap"
            for other in held.values():
                placement = rig.inventory.by_name[other].placement
                wanted = {f"memory-slice-{i}" for i in placement.slices} if placement else None
                mine = {n for n in rig.inventory.by_name[other].counters if n.startswith("memory-slice-")}
                assert wanted in (None, mine)
                assert placement is None or (placement.start, placement.profile.size) in slices
            if ends and held:
                rig.unprepare(held.popitem()[0])
        for uid in list(held):
            rig.unprepare(uid)
        rig.assert_untouched()
        assert (rig.hardware.discover(), rig.names()) == before
        rig.close()


def test_eight_claims_on_eight_gpus_are_made_at_the_same_time(folder, monkeypatch):
    rig = MigRig(folder, count=8)
    together = threading.Barrier(8)  # breaks, which is an error, if one waits for another to end
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: together.wait(60))
    monkeypatch.setattr(partitioning, "time", clock)
    rig.every = {"migDelayMs": 1}
    rig.write_profile()
    outcomes, threads = [], []
    for index in range(8):
        rig.allocate(f"u{index}", small(3, f"gpu-0000-{index + 1:02x}-00-0"))
    for index in range(8):
        thread, outcome = in_thread(rig.prepare, f"u{index}", 60.0)
        threads.append(thread)
        outcomes.append(outcome)
    for thread in threads:
        thread.join(60)
    assert [o[0][0].device for o in outcomes] == [small(3, f"gpu-0000-{i + 1:02x}-00-0") for i in range(8)]
    rig.close()
