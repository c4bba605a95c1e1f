"""The validation gate from end to end: the real agent process, simulated GPUs, the embedded API."""

import json
import signal
import time

import pytest
import yaml

from dra_driver.base.errors import LedgerError
from dra_driver.base.machine import read_boot_id
from dra_driver.base.names import NVIDIA_DRIVER
from dra_driver.node.health import validation_results
from dra_driver.node.health.stored_health import HealthStore
from dra_driver.node.health.validation import ValidationLevel, ValidationResult, ValidationVerdict
from dra_driver.node.health.validation_results import ResultsFile
from dra_driver.simulator.store import EVENTS, SLICES
from dra_driver.tools.doctor.evidence import read_faults
from tests.support.agents.agent_process import stage
from tests.support.waiting import until

ONE, TWO, THREE = "gpu-0000-1b-00-0", "gpu-0000-43-00-0", "gpu-0000-61-00-0"
PASSED = ValidationResult(ValidationVerdict.PASSED, ValidationLevel.COMPUTE)


class Machine:
    """Simulated GPUs, and the results that their tests have."""

    def __init__(self, here, folder):
        self.here, self.path = here, folder / "profile.yaml"

    def does(self, **compute):
        """Set how the tests of gpu-1b, gpu-43 … end."""
        gpus = [
            {"pci": f"0000:{bus[1:]}:00.0", "model": "l40s", "health": {"compute": does, "recoveryAction": 0}}
            for bus, does in compute.items()
        ]
        profile = {"about": "some", "driverVersion": "580.95.5", "gpus": gpus}
        self.path.write_text(yaml.safe_dump(profile))

    def start(self, level="1"):
        return self.here.start(f"simulated:{self.path}", f"--validate={level}")

    def tests(self):
        """Return which devices the newest agent has begun to test."""
        lines = [line for line in self.here.log().splitlines() if "testing a device" in line]
        return [word.partition("=")[2] for line in lines for word in line.split() if word.startswith("device=")]


@pytest.fixture(params=["1.36"])
def machine(tmp_path, request):
    with stage(request.param) as here:
        yield Machine(here, tmp_path)


def taints(here):
    """Return value, effect and time of the taint of each device that failed a test."""
    return {
        device["name"]: (taint["value"], taint["effect"], taint["timeAdded"])
        for one in here.api.items(SLICES)
        for device in one["spec"].get("devices", ())
        for taint in device.get("taints", ())
        if taint["key"] == f"{NVIDIA_DRIVER}/unvalidated"
    }


def gpus(here):
    return {name for name in here.devices() if "-mig-" not in name}


def events(here):
    return [one["reason"] for one in here.api.items(EVENTS)]


def test_devices_are_offered_once_they_passed_and_failed_ones_stay_tainted_through_restarts(machine):
    machine.does(g1b="passes", g43="wrong-data", g61="not-ready")
    agent = machine.start()
    until(lambda: {ONE, TWO, THREE} <= gpus(machine.here), "devices")
    assert taints(machine.here), "a device that failed was offered without its taint"
    assert {name: taint[:2] for name, taint in taints(machine.here).items()} == {TWO: ("wrong-data", "NoSchedule")}
    assert machine.tests()[:3] == [ONE, TWO, THREE]
    assert "DeviceFault" in events(machine.here)
    folder = machine.here.kubelet.plugins_dir / NVIDIA_DRIVER
    assert [(one.device, one.reason) for one in read_faults(folder, time.time()).untested] == [(THREE, "not-ready")]
    before = taints(machine.here)
    machine.here.end(agent, signal.SIGKILL)
    agent = machine.start()
    until(lambda: THREE in machine.tests(), "the one that could not be tested is tried again")
    assert machine.tests() == [THREE]
    assert taints(machine.here) == before

    ResultsFile(machine.here.kubelet.plugins_dir / NVIDIA_DRIVER).add(uuid_of(machine, TWO), PASSED)
    until(lambda: not taints(machine.here), "a test by hand that passed")
    machine.does(g1b="passes", g43="wrong-data", g61="passes")
    ResultsFile(folder).add(uuid_of(machine, THREE), PASSED)
    until(lambda: not read_faults(folder, time.time()).untested, "nothing is untested")


def test_no_device_is_offered_while_its_test_runs(machine):
    machine.does(g1b="hangs", g43="passes")
    machine.start()
    until(lambda: machine.tests() == [ONE], "the first test")
    assert gpus(machine.here) == set()
    machine.does(g1b="passes", g43="passes")


@pytest.mark.parametrize("machine", ["1.35"], indirect=True)
def test_a_device_that_failed_is_withheld_where_the_server_drops_taints(machine):
    machine.does(g1b="crashes", g43="passes")
    machine.start()
    until(lambda: gpus(machine.here) == {TWO}, "the good one")
    assert len(machine.tests()) == 2
    assert gpus(machine.here) == {TWO}


def test_all_gpus_are_offered_with_an_event_if_every_one_of_them_fails(machine):
    machine.does(g1b="wrong-data", g43="crashes")
    machine.start()
    until(lambda: gpus(machine.here) == {ONE, TWO}, "both")
    until(lambda: "DevicesNotValidated" in events(machine.here), "an event")
    assert taints(machine.here) == {}


def recorded(here):
    """Return the GPUs that the agent has recorded as offered in this boot, none while the file is being made."""
    try:
        documents = HealthStore(here.kubelet.plugins_dir / NVIDIA_DRIVER).read()
    except LedgerError:
        return frozenset()
    return validation_results._offered(documents, read_boot_id("/proc"))


def test_a_gpu_that_was_offered_in_this_boot_is_not_tested_by_a_later_agent(machine):
    machine.does(g1b="wrong-data", g43="passes")
    agent = machine.start("0")
    until(lambda: gpus(machine.here) == {ONE, TWO}, "both without a test")
    until(lambda: len(recorded(machine.here)) == 2, "both recorded")
    machine.here.end(agent, signal.SIGKILL)
    machine.does(g1b="wrong-data", g43="passes", g61="passes")
    machine.start("1")
    until(lambda: THREE in gpus(machine.here), "the new one, whose test comes after theirs")
    assert machine.tests() == [THREE]
    assert {ONE, TWO} <= gpus(machine.here)


def uuid_of(machine, name):
    for one in machine.here.api.items(SLICES):
        for device in one["spec"].get("devices", ()):
            if device["name"] == name:
                return device["attributes"]["uuid"]["string"]
    raise AssertionError(json.dumps(machine.here.devices()))
