"""Partitions destroyed through the real ctypes path: those in use, unfinished, or made by others."""

import threading

from dra_driver.base.errors import Retry
from tests.hardware.nvidia.conftest import Machine
from tests.hardware.nvidia.support.mig_bench import Bench, refusal
from tests.support.fake_nvml import Code


def mode_of(machine: Machine) -> str:
    """Return the MIG mode as the library has it: now and pending."""
    return str(machine.state.read().gpus[0].facts["mig_mode"])


def test_destroying_may_be_repeated_and_another_partition_stays(machine: Machine) -> None:
    bench = Bench(machine)
    kept, gone = bench.create("1g.10gb", 0), bench.create("1g.10gb", 1)
    for _ in range(2):
        bench.destroy(gone)
    assert bench.now() == (kept,)


def test_a_partition_in_use_is_waited_for(machine: Machine) -> None:
    bench = Bench(machine)
    made = bench.create("1g.10gb", 0)
    with machine.state.change():
        bench.gpus[0].run(bench.gpus[0].cis[0], 4711)
    assert refusal(bench.destroy, made, 1.0) == ("hardware.partition-in-use", Retry.LATER)
    assert bench.now() == (made,)

    def end_process() -> None:
        with machine.state.change():
            bench.gpus[0].processes.clear()

    timer = threading.Timer(0.2, end_process)
    timer.start()
    bench.destroy(made)
    timer.join()
    assert bench.instances() == (0, 0)


def test_a_gpu_instance_that_a_monitor_keeps_is_destroyed_by_the_next_call(machine: Machine) -> None:
    bench = Bench(machine)
    made = bench.create("1g.10gb", 0)
    bench.gpus[0].fail("nvmlGpuInstanceDestroy", Code.IN_USE)
    with machine.state.change():
        bench.gpus[0].fail("nvmlGpuInstanceDestroy", Code.IN_USE)
    assert refusal(bench.destroy, made, 1.0) == ("hardware.partition-in-use", Retry.LATER)
    assert bench.instances() == (1, 0)
    with machine.state.change():
        bench.gpus[0].heal()
    bench.destroy(made)
    assert bench.instances() == (0, 0)


def test_a_gpu_instance_that_others_use_is_left(machine: Machine) -> None:
    bench = Bench(machine)
    with machine.state.change():
        bench.gpus[0].partition("3g.40gb", 4, compute_slices=(1, 2))
    first, second = bench.now()
    bench.destroy(first)
    assert bench.now() == (second,)
    bench.destroy(second)
    assert bench.instances() == (0, 0)


def test_the_undo_of_a_creation_without_uuid_destroys_only_the_unfinished_instance(machine: Machine) -> None:
    bench = Bench(machine)
    finished = bench.create("1g.10gb", 0)
    bench.create("1g.10gb", 1)
    with machine.state.change():
        bench.gpus[0].cis.pop(0 if bench.gpus[0].cis[0].gi != finished.gi_id else 1)
    for start in (0, 1, 2):
        bench.hardware.destroy_partition(bench.gpu, "", 10, placement=(19, start))
    assert bench.now() == (finished,)
    assert bench.instances() == (1, 1)


def test_destroying_while_mig_mode_is_off_does_nothing(machine: Machine) -> None:
    bench = Bench(machine)
    made = bench.create("1g.10gb", 0)
    with machine.state.change():
        bench.gpus[0].unpartition()
        bench.gpus[0].set_mig(False)
    bench.destroy(made)


def test_mig_mode_ends_with_the_last_partition_in_one_call(machine: Machine) -> None:
    bench = Bench(machine)
    first, last = bench.create("1g.10gb", 0), bench.create("1g.10gb", 1)
    assert not bench.destroy(first, switches_off=True)
    assert (bench.now(), mode_of(machine)) == ((last,), "1 1")
    assert bench.destroy(last, switches_off=True)
    assert (bench.instances(), mode_of(machine)) == ((0, 0), "0 0")
    assert bench.destroy(last, switches_off=True)


def test_mig_mode_stays_on_under_an_unfinished_instance_of_somebody_else(machine: Machine) -> None:
    bench = Bench(machine)
    made = bench.create("1g.10gb", 0)
    bench.create("1g.10gb", 6)
    with machine.state.change():
        bench.gpus[0].cis = [ci for ci in bench.gpus[0].cis if ci.gi == made.gi_id]
    assert not bench.destroy(made, switches_off=True)
    assert bench.instances() == (1, 0)


def test_instances_are_listed_where_the_library_does_not_say_how_many_fit(machine: Machine) -> None:
    bench = Bench(machine)
    made, other = bench.create("1g.10gb", 0), bench.create("2g.20gb", 2)
    with machine.state.change():
        bench.gpus[0].fail("nvmlDeviceGetGpuInstanceRemainingCapacity", Code.NOT_SUPPORTED)
    assert not bench.destroy(made, switches_off=True)
    assert bench.now() == (other,)
    assert bench.destroy(other, switches_off=True)


def test_a_mode_that_does_not_end_at_once_is_not_left_pending(machine: Machine) -> None:
    bench = Bench(machine)
    made = bench.create("1g.10gb", 0)
    with machine.state.change():
        bench.gpus[0].facts["mig_late"] = "1"
    assert not bench.destroy(made, switches_off=True)
    assert bench.instances() == (0, 0)
    assert mode_of(machine) == "1 1"


def test_a_partition_made_elsewhere_under_the_same_ids_is_neither_seen_at_the_old_place_nor_destroyed(
    machine: Machine,
) -> None:
    bench = Bench(machine)
    made = bench.create("1g.10gb", 0)
    with machine.state.change():
        bench.gpus[0].gis.clear()
        bench.gpus[0].cis.clear()
        bench.gpus[0].partition("1g.10gb", 3)
    (other,) = bench.now()
    assert (other.gi_id, other.ci_id) == (made.gi_id, made.ci_id)
    assert bench.hardware.placement_now(bench.gpu, bench.profile("1g.10gb"), 0).partition is None
    bench.destroy(made)
    assert bench.now() == (other,)


def test_a_partition_that_was_divided_since_it_was_seen_is_neither_found_nor_destroyed(machine: Machine) -> None:
    bench = Bench(machine)
    made = bench.create("3g.40gb", 4)
    with machine.state.change():
        bench.gpus[0].gis.clear()
        bench.gpus[0].cis.clear()
        bench.gpus[0].partition("3g.40gb", 4, compute_slices=(1, 2))
    assert bench.hardware.placement_now(bench.gpu, bench.profile("3g.40gb"), 4).partition is None
    bench.destroy(made)
    assert len(bench.now()) == 2
