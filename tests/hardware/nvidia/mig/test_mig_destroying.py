"""Partitions destroyed through the real ctypes path: waited for, unfinished, not ours."""

import threading

from dra_driver.model.errors import Retry
from tests.hardware.nvidia.conftest import Machine
from tests.hardware.nvidia.support.mig_bench import Bench, refusal
from tests.support.fake_nvml import Code


def test_destroying_may_be_repeated_and_another_partition_stays(machine: Machine) -> None:
    bench = Bench(machine)
    kept, gone = bench.create("1g.10gb", 0), bench.create("1g.10gb", 1)
    for _ in range(2):
        bench.destroy(gone)
    assert bench.now() == (kept,)


def test_what_is_in_use_is_waited_for(machine: Machine) -> None:
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


def test_a_gpu_instance_that_a_monitor_keeps_goes_with_the_next_call(machine: Machine) -> None:
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


def test_the_undo_of_a_creation_without_uuid_takes_the_unfinished_and_nothing_else(machine: Machine) -> None:
    bench = Bench(machine)
    finished = bench.create("1g.10gb", 0)
    bench.create("1g.10gb", 1)
    with machine.state.change():
        bench.gpus[0].cis.pop(0 if bench.gpus[0].cis[0].gi != finished.gi_id else 1)
    for start in (0, 1, 2):
        bench.hardware.destroy_partition(bench.gpu, "", 10, placement=(19, start))
    assert bench.now() == (finished,)
    assert bench.instances() == (1, 1)


def test_destroying_while_mig_mode_is_off_is_nothing_to_do(machine: Machine) -> None:
    bench = Bench(machine)
    made = bench.create("1g.10gb", 0)
    with machine.state.change():
        bench.gpus[0].unpartition()
        bench.gpus[0].set_mig(False)
    bench.destroy(made)
