"""The vendor as other rooms use it: edits without library calls, many threads at once, what a node costs when idle."""

import threading
import time

from dra_driver.hardware.facts import Facts
from tests.hardware.nvidia.conftest import Machine, needs_root
from tests.support.fake_nvml import h100, hgx_h100


@needs_root
def test_edits_are_made_without_a_library_call(machine: Machine) -> None:
    _, split = machine.add(h100("0000:65:00.0", 0), h100("0000:66:00.0", 1))
    split.partition("1g.10gb", 0)
    machine.node.add_mig_capability(1, 1, 30, {0: 31})
    machine.write()
    hardware = machine.hardware()
    facts = hardware.discover()
    calls = machine.log.read_text()
    common = hardware.common_edits()
    whole = hardware.device_edits(facts.gpus[0], None)
    part = hardware.device_edits(facts.gpus[1], facts.gpus[1].partitions[0])
    assert {n.path for n in whole.device_nodes} == {"/dev/nvidia0"}
    assert {"/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap30", "/dev/nvidia-caps/nvidia-cap31"} <= {
        n.path for n in part.device_nodes
    }
    assert "/dev/nvidiactl" in {n.path for n in common.device_nodes}
    assert isinstance(hardware.edit_problems(), tuple)
    assert machine.log.read_text() == calls


def test_edits_need_no_discovery(machine: Machine) -> None:
    machine.add(h100("0000:65:00.0", 0))
    assert "NVIDIA_VISIBLE_DEVICES=void" in machine.hardware().common_edits().env
    assert not machine.log.exists()


def test_any_thread_may_call_at_any_time(machine: Machine) -> None:
    machine.add(*hgx_h100(4))
    hardware = machine.hardware()
    expected = hardware.discover()
    found: list[Facts] = []
    prints: list[object] = []
    faults: list[BaseException] = []
    until = time.monotonic() + 0.5

    def ask(verb: int) -> None:
        try:
            while True:
                if verb == 0:
                    found.append(hardware.discover())
                elif verb == 1:
                    prints.append(hardware.fingerprint())
                else:
                    hardware.processes(expected.gpus[0], None)
                if time.monotonic() > until:
                    return
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=ask, args=(n % 3,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert faults == []
    assert found
    assert all(facts == expected for facts in found)
    assert prints


def test_a_probe_of_eight_gpus_costs_little(machine: Machine) -> None:
    gpus = machine.add(*hgx_h100(8))
    for start in range(7):
        gpus[0].partition("1g.10gb", start)
    machine.write()
    hardware = machine.hardware()
    hardware.discover()
    hardware.fingerprint()
    began = time.process_time()
    for _ in range(20):
        hardware.fingerprint()
    spent_ms = (time.process_time() - began) / 20 * 1000
    assert spent_ms < 10, "every two seconds; 4 ms are 0.2 % of a core (the rest is for a busy machine)"
