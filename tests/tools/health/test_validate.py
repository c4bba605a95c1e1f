"""`dra-driver validate`: what is tested, what is reported, and the exit status."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from dra_driver.base.names import gpu_name
from dra_driver.base.wire import DeviceType
from dra_driver.hardware.port import Roots
from dra_driver.hardware.simulated.hardware import SimulatedHardware
from dra_driver.node.devices.describing import Device
from dra_driver.node.devices.offering import Inventory, Offering
from dra_driver.node.health.faults import KnownGpus
from dra_driver.node.health.stored_health import GPUS, HealthStore
from dra_driver.node.health.validation_results import ResultsFile
from dra_driver.tools.main import run
from dra_driver.tools.schemas import schema_of
from dra_driver.tools.world.access import DocumentKind
from tests.support.facts import FULL_GPU
from tests.support.plugin.parts import Rig

ONE, TWO = "gpu-0000-1b-00-0", "gpu-0000-43-00-0"


@pytest.fixture
def profile(tmp_path):
    def written(*gpus):
        path = tmp_path / "profile.yaml"
        rows = [{"pci": f"0000:{bus}:00.0", "model": "l40s", "health": health} for bus, health in gpus]
        path.write_text(yaml.safe_dump({"about": "some", "driverVersion": "580.95.5", "gpus": rows}))
        return f"--hardware=simulated:{path}"

    return written


@pytest.fixture
def validate(tmp_path, capsys):
    def ran(*flags, folder=tmp_path / "plugins"):
        status = run(["validate", "--node-name=node-1", f"--kubelet-plugins-directory-path={folder}",
                      f"--kubelet-registrar-directory-path={tmp_path / 'registry'}", *flags])  # fmt: skip
        return status, capsys.readouterr().out

    return ran


def document(out):
    found = json.loads(out)
    jsonschema.validate(found, schema_of(DocumentKind.VALIDATION))
    return {one["device"]: (one["verdict"], one["code"]) for one in found["devices"]}


def test_all_devices_are_tested_and_the_worst_verdict_is_the_exit_status(profile, validate):
    hardware = profile(("1b", {}), ("43", {"compute": "wrong-data"}), ("61", {"compute": "not-ready"}))
    status, out = validate(hardware, "-o", "json")
    assert status == 1
    assert list(document(out).values()) == [("passed", None), ("failed", "wrong-data"), ("could-not-run", "not-ready")]
    status, out = validate(hardware, ONE)
    assert status == 0
    assert "passed" in out
    assert TWO not in out
    assert validate(hardware, "0000:61:00.0")[0] == 5


def test_a_fault_in_the_library_fails_a_device_and_level_zero_runs_no_test(profile, validate):
    hardware = profile(("1b", {"recoveryAction": 1}), ("43", {"compute": "wrong-data"}))
    assert document(validate(hardware, "--level=0", "-ojson")[1]) == {
        ONE: ("failed", "needs-reset"),
        TWO: ("passed", None),
    }
    assert document(validate(hardware, ONE, "-ojson")[1]) == {ONE: ("failed", "needs-reset")}


def test_wrong_arguments_are_refused(profile, validate):
    hardware = profile(("1b", {}))
    assert validate(hardware, "gpu-0000-99-00-0")[0] == 3
    assert validate(hardware, "--command=diag")[0] == 2
    assert validate(hardware, "--command=/bin/true", "--level=1")[0] == 2
    assert validate(profile())[0] == 5


def test_a_command_is_run_for_each_device(profile, validate):
    hardware = profile(("1b", {}), ("43", {}))
    status, out = validate(hardware, "--command=/usr/bin/test {pci} = 0000:1b:00.0", "-ojson")
    assert status == 1
    assert document(out) == {ONE: ("passed", None), TWO: ("failed", "command")}


def test_a_device_that_a_claim_holds_is_not_tested_and_results_are_kept_for_the_agent(profile, validate, tmp_path):
    hardware = profile(("1b", {}), ("43", {"compute": "crashes"}))
    rig = Rig(tmp_path)
    facts = SimulatedHardware(hardware.partition("simulated:")[2], Roots(), node_name="node-1").discover()
    devices = [Device(gpu_name(gpu.pci_address), DeviceType.GPU, {}, {}, gpu) for gpu in facts.gpus]
    rig.inventory = Inventory(Offering(tuple(devices)))
    rig.prepare(rig.allocate("u1", ONE))
    status, out = validate(hardware, "-ojson")
    assert status == 1
    assert document(out) == {ONE: ("could-not-run", "held"), TWO: ("failed", "crash")}
    assert list(ResultsFile(rig.data).take()) == [facts.gpus[1].uuid]


def test_no_temporary_folder_is_needed_beside_an_agent(profile, validate, tmp_path, monkeypatch):
    (tmp_path / "plugins/gpu.nvidia.com").mkdir(parents=True)
    monkeypatch.setattr("tempfile.TemporaryDirectory", lambda **_: pytest.fail("the image has no folder for it"))
    assert validate(profile(("1b", {})))[0] == 0


def test_a_device_with_a_process_on_it_is_not_tested(profile, validate, tmp_path):
    hardware = profile(("1b", {}))
    path = Path(hardware.partition("simulated:")[2])
    content = yaml.safe_load(path.read_text())
    content["gpus"][0]["processes"] = [4711]
    path.write_text(yaml.safe_dump(content))
    assert document(validate(hardware, "-ojson")[1]) == {ONE: ("could-not-run", "held")}


def test_steps_are_shown_on_a_terminal_and_removed_at_the_end(profile):
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "dra_driver", "validate", profile(("1b", {})), "-ojson"]
    done = subprocess.run(command, check=False, stderr=follower, stdout=subprocess.PIPE, timeout=120)
    os.close(follower)
    shown = os.read(leader, 65536).decode()
    os.close(leader)
    assert done.returncode == 0
    assert f"{ONE}: context" in shown
    assert shown.endswith("\r\x1b[K")


def test_device_names_are_completed_from_the_gpus_that_the_agent_has_seen(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "gpu.nvidia.com"
    folder.mkdir()
    known = KnownGpus(lambda _: {})
    known.restore([FULL_GPU])
    HealthStore(folder).write({GPUS: known.to_wire()})
    monkeypatch.setenv("KUBELET_PLUGINS_DIRECTORY_PATH", str(tmp_path))
    for command in ("validate", "cordon"):
        assert run(["__complete", command, "gpu-0000"]) == 0
        assert gpu_name(FULL_GPU.pci_address) in capsys.readouterr().out
