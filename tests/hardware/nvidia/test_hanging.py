"""Calls that return late or never, and what they delay."""

import subprocess
import sys
import textwrap

import pytest

from dra_driver.base.errors import HardwareError
from dra_driver.hardware.facts import Facts
from dra_driver.hardware.nvidia import discovery
from dra_driver.hardware.port import Fingerprint
from tests.hardware.nvidia.conftest import Machine, by_address, codes
from tests.support.fake_nvml import build, environment, h100, hgx_h100
from tests.support.waiting import unhindered, until

OVERDUE_S = 0.3
NEVER_S = 600.0  # longer than any test waits


@pytest.fixture(autouse=True)
def _short_fingerprints(_patient_fingerprints: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "PROBE_S", 0.1)


def seen(facts: Facts) -> tuple[set[str], list[tuple[str, str]]]:
    """Return the addresses of the GPUs that answered, and the problems with their subjects."""
    return set(by_address(facts)), [(problem.code, problem.subject) for problem in facts.problems]


def test_a_hanging_gpu_costs_no_other_gpu_and_comes_back_when_it_answers(machine: Machine) -> None:
    gpus = machine.add(*hgx_h100(4))
    hardware = machine.hardware(call_timeout_s=OVERDUE_S)
    until(lambda: len(hardware.discover().gpus) == 4)  # on a busy machine one may be late by chance
    gpus[2].hang("nvmlDeviceGetVbiosVersion")
    machine.write()
    others = {g.pci for g in gpus} - {gpus[2].pci}
    until(lambda: seen(hardware.discover()) == (others, [("hardware.gpu-not-answering", gpus[2].pci)]))
    gpus[2].heal()
    machine.write()
    until(lambda: seen(hardware.discover()) == ({g.pci for g in gpus}, []))


def test_a_call_in_flight_is_not_made_again(machine: Machine) -> None:
    gpus = machine.add(*hgx_h100(2))
    gpus[0].hang("nvmlDeviceGetSerial")
    machine.write()
    hardware = machine.hardware(call_timeout_s=NEVER_S, patience_s=0.05)
    rounds = 0

    def has_other() -> bool:
        nonlocal rounds
        rounds += 1
        return set(by_address(hardware.discover())) == {gpus[1].pci}

    for _ in range(5):
        until(has_other)
        hardware.fingerprint()
    assert 6 <= machine.calls("nvmlDeviceGetSerial") <= 1 + rounds, "once by the first GPU, the rest by the other"


@pytest.mark.parametrize("function", ["nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID", "nvmlDeviceGetMigMode"])
def test_a_gpu_that_hangs_from_the_start_is_named_and_the_others_are_there(machine: Machine, function: str) -> None:
    gpus = machine.add(*hgx_h100(3))
    gpus[1].hang(function)
    machine.write()
    hardware = machine.hardware(call_timeout_s=OVERDUE_S)
    expected = ({gpus[0].pci, gpus[2].pci}, [("hardware.gpu-not-answering", gpus[1].pci)])
    until(lambda: seen(hardware.discover()) == expected)


def test_other_gpus_are_not_kept_waiting_for_a_slow_one(machine: Machine) -> None:
    gpus = machine.add(*hgx_h100(2))
    gpus[0].hang("nvmlDeviceGetName")
    machine.write()
    hardware = machine.hardware(call_timeout_s=NEVER_S, patience_s=0.1)
    assert set(by_address(unhindered(hardware.discover))) == {gpus[1].pci}


@pytest.mark.parametrize("patience_s", [0.1, 0.0])  # 0: as when a busy machine is late to start the reading
def test_a_lone_gpu_is_waited_for(machine: Machine, patience_s: float) -> None:
    (gpu,) = machine.add(h100("0000:65:00.0", 0))
    gpu.slow("nvmlDeviceGetName", 400)
    machine.write()
    assert len(machine.hardware(call_timeout_s=NEVER_S, patience_s=patience_s).discover().gpus) == 1


def test_a_slow_gpu_keeps_its_last_facts_while_its_call_may_still_return(machine: Machine) -> None:
    gpus = machine.add(*hgx_h100(2))
    hardware = machine.hardware(call_timeout_s=NEVER_S, patience_s=0.1)
    until(lambda: len(hardware.discover().gpus) == 2)  # on a busy machine one may be slow from the start
    before = hardware.discover()
    gpus[0].hang("nvmlDeviceGetName")
    machine.write()
    assert hardware.discover() == before
    gpus[0].heal()
    gpus[0].facts["vbios_version"] = "96.00.99.00.01"
    machine.write()
    until(lambda: by_address(hardware.discover())[gpus[0].pci].vbios_version == "96.00.99.00.01")


def test_a_fingerprint_waits_for_no_gpu_that_hangs(machine: Machine) -> None:
    gpus = machine.add(*hgx_h100(3))
    hardware = machine.hardware(call_timeout_s=1.0)
    until(lambda: len(hardware.discover().gpus) == 3)

    def of_healthy_gpus() -> Fingerprint | None:  # on a busy machine one may be late by chance
        first, *more = (hardware.fingerprint() for _ in range(5))
        return first if all(one == first for one in more) else None

    before = until(of_healthy_gpus)
    for gpu in gpus:
        gpu.hang("nvmlDeviceGetUUID")
    machine.write()
    until(lambda: unhindered(hardware.fingerprint) != before)
    for gpu in gpus:
        gpu.heal()
    machine.write()
    until(lambda: hardware.fingerprint() == before)


def test_a_library_that_hangs_in_init_is_named_as_what_is_waited_for(machine: Machine) -> None:
    machine.add(h100("0000:65:00.0", 0))
    machine.state.faults["nvmlInitWithFlags"] = "hang"
    machine.write()
    hardware = machine.hardware(call_timeout_s=OVERDUE_S)
    until(lambda: "nvmlInitWithFlags" in hardware.discover().waiting_for)
    facts = hardware.discover()
    assert facts.gpus == ()
    assert codes(facts) == {"hardware.library-not-answering"}
    machine.state.faults.clear()
    machine.write()
    until(lambda: len(hardware.discover().gpus) == 1)


def test_closing_does_not_wait_for_a_hanging_call_nor_shut_down_the_library_during_it(machine: Machine) -> None:
    gpus = machine.add(*hgx_h100(2))
    hardware = machine.hardware(call_timeout_s=NEVER_S, patience_s=0.05)
    gpus[0].hang("nvmlDeviceGetName")
    machine.write()
    hardware.discover()
    unhindered(hardware.close)
    assert machine.calls("nvmlShutdown") == 0
    gpus[0].heal()
    machine.write()

    def is_shut_down() -> bool:
        hardware.close()
        return machine.calls("nvmlShutdown") == 1

    until(is_shut_down)
    hardware.close()
    assert machine.calls("nvmlShutdown") == 1


def test_a_count_that_hangs_is_waited_for_and_the_session_goes_on(machine: Machine) -> None:
    machine.add(*hgx_h100(2))
    hardware = machine.hardware(call_timeout_s=OVERDUE_S)
    until(lambda: len(hardware.discover().gpus) == 2)
    before = hardware.discover()
    machine.state.faults["nvmlDeviceGetCount_v2"] = "hang"
    machine.write()
    until(lambda: "nvmlDeviceGetCount" in hardware.discover().waiting_for)
    for _ in range(2):
        facts = hardware.discover()
        assert "nvmlDeviceGetCount" in facts.waiting_for
        assert codes(facts) == {"hardware.library-not-answering"}
    seen = hardware.fingerprint()
    machine.state.faults.clear()
    machine.write()
    until(lambda: hardware.fingerprint() != seen)
    until(lambda: hardware.discover() == before)
    assert machine.calls("nvmlInitWithFlags") == 1


def test_processes_of_a_hanging_gpu_are_refused_in_time(machine: Machine) -> None:
    gpus = machine.add(*hgx_h100(2))
    hardware = machine.hardware(call_timeout_s=OVERDUE_S)
    gpu = until(lambda: by_address(hardware.discover()).get(gpus[0].pci))
    gpus[0].hang("nvmlDeviceGetComputeRunningProcesses_v3")
    machine.write()
    for _ in range(2):
        with pytest.raises(HardwareError) as refused:
            hardware.processes(gpu, None)
        assert refused.value.code == "hardware.gpu-not-answering"


def test_a_process_exits_at_once_while_a_call_hangs(machine: Machine) -> None:
    gpus = machine.add(*hgx_h100(2))
    gpus[0].hang("nvmlDeviceGetName")
    machine.write()
    program = """
        import sys
        from dra_driver.hardware.nvidia.hardware import NvidiaHardware
        from dra_driver.hardware.port import Roots
        roots = Roots(sys=sys.argv[1], proc=sys.argv[2], dev=sys.argv[3])
        hardware = NvidiaHardware(roots, patience_s=0.1, call_timeout_s=600)
        print(len(hardware.discover().gpus))
    """
    roots = machine.node.roots
    library = build(machine.folder / "lib")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), roots.sys, roots.proc, roots.dev],
        env=environment(library, machine.folder / "state"),
        capture_output=True,
        text=True,
        timeout=60,  # the process ends although the call, whose result is no longer wanted, goes on
        check=True,
    )
    assert done.stdout == "1\n"
