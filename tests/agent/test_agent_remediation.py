"""Remediation from end to end: the real agent process, simulated hardware, a program nvidia-smi below a driver root."""

import os
import sqlite3

import pytest
import yaml

from dra_driver.embedded.api.kinds import EVENTS, SLICES
from dra_driver.hardware.simulated.profile import FOLDER
from dra_driver.model.names import NVIDIA_DRIVER
from tests.agent.support.static_program import build_static
from tests.support.agent_process import stage
from tests.support.waiting import until

SICK = "0000:1b:00.0"
NAME = "gpu-0000-1b-00-0"


def write_profile(path, **health):
    """Write the demo machine, one of whose GPUs reports this health."""
    content = yaml.safe_load((FOLDER / "demo-h100.yaml").read_text())
    for gpu in content["gpus"]:
        gpu.pop("mig", None)
        if gpu["pci"] == SICK:
            gpu["health"] = {"recoveryAction": 0, **health}
    new = path.with_suffix(".new")
    new.write_text(yaml.safe_dump(content))
    new.replace(path)


def taints(here):
    """Return the taints of each published device that has any: key without domain -> value."""
    slices = [s for s in here.api.items(SLICES) if s["spec"]["driver"] == NVIDIA_DRIVER]
    return {
        device["name"]: {taint["key"].rpartition("/")[2]: taint.get("value", "") for taint in device["taints"]}
        for one in slices
        for device in one["spec"].get("devices", ())
        if device.get("taints")
    }


def stages(here):
    """Return the stages that the agents' logs show."""
    found = []
    for index in range(len(here.agents)):
        lines = here.log(index).splitlines()
        found += [line.partition("step=")[2].split()[0] for line in lines if "remediation" in line and "step=" in line]
    return list(dict.fromkeys(found))


@pytest.mark.gcc
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change a process's root")
def test_a_gpu_that_needs_a_reset_is_drained_reset_proven_and_returned(tmp_path):
    root = tmp_path / "driver"
    build_static(root / "usr/bin/nvidia-smi", log=root / "calls")
    profile = tmp_path / "node.yaml"
    write_profile(profile)
    with stage("1.36") as here:
        here.start(
            f"simulated:{profile}",
            "--mig=static",
            "--remediation=on",
            "--lease-namespace=default",
            f"--nvidia-driver-root={root}",
        )
        until(lambda: len(here.devices()) == 8, what="devices")
        write_profile(profile, recoveryAction=1)
        until(lambda: taints(here).get(NAME, {}).get("remediation") == "reset", what="the taint")
        until(lambda: "returned" in stages(here), what="the return", timeout_s=60)
        until(lambda: not taints(here), what="no taint")
        assert stages(here) == [
            "detected", "tainted", "drain-asked", "drained", "nvml-let-go", "acted", "same-uuid-found", "validated",
            "returned",
        ]  # fmt: skip
        (call,) = (root / "calls").read_text().splitlines()
        assert call.startswith("--gpu-reset -i GPU-")
        assert call.endswith(" env=0 root=1")
        reasons = [one["reason"] for one in here.api.items(EVENTS)]
        assert {"RemediationDrain", "RemediationAction", "RemediationReturned"} <= set(reasons)
        rows = sqlite3.connect(here.kubelet.plugins_dir / NVIDIA_DRIVER / "remediation.db").execute(
            "SELECT action, outcome FROM actions"
        )
        assert rows.fetchall() == [("reset", "done")]
