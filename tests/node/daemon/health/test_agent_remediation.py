"""Remediation from end to end: the real agent process, simulated hardware, a program nvidia-smi below a driver root."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dra_driver.base.errors import NodeError
from dra_driver.base.names import NVIDIA_DRIVER
from dra_driver.node.daemon.node_remediation import require_privilege
from dra_driver.node.health.cases import RemediationJournal, Stage
from dra_driver.simulator.store import EVENTS, LEASES
from dra_driver.tools.main import run
from tests.node.daemon.support.claims import claim
from tests.node.daemon.support.faulty_gpu import FAULTY, NAME, taints, write_profile
from tests.support.agents.agent_process import stage
from tests.support.programs.static_program import build_static
from tests.support.waiting import until


def stages(here):
    """Return the stages that the agents' logs show."""
    found = []
    for index in range(len(here.agents)):
        lines = here.log(index).splitlines()
        found += [line.partition("step=")[2].split()[0] for line in lines if "remediation" in line and "step=" in line]
    return list(dict.fromkeys(found))


@pytest.mark.gcc
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change a process's root")
def test_a_gpu_that_needs_a_reset_is_drained_reset_validated_and_returned(tmp_path):
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
        until(lambda: "returned" in stages(here), what="the return")
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


@pytest.mark.gcc
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change a process's root")
def test_a_gpu_that_an_earlier_agent_was_about_to_reset_is_not_reset_under_a_claim(tmp_path):
    """The earlier agent kept claims from the GPU by locks, which ended with it."""
    root = tmp_path / "driver"
    build_static(root / "usr/bin/nvidia-smi", log=root / "calls")
    profile = tmp_path / "node.yaml"
    write_profile(profile)
    flags = ["--mig=static", "--remediation=on", "--lease-namespace=default", f"--nvidia-driver-root={root}"]
    with stage("1.36") as here:
        agent = here.start(f"simulated:{profile}", *flags)
        until(lambda: len(here.devices()) == 8, what="devices")
        used = claim(here, NAME)
        plugin = here.kubelet.wait_registered(NVIDIA_DRIVER)
        assert not isinstance(plugin.prepare([used])[used.uid], str)
        write_profile(profile, recoveryAction=1)
        until(lambda: "claim default/c1 to end" in here.log(), what="the wait for the claim")
        here.end(agent, signal.SIGKILL)
        journal = RemediationJournal(here.kubelet.plugins_dir / NVIDIA_DRIVER)
        journal.write(journal.cases()[0].at(Stage.NVML_LET_GO, time.time()))
        here.start(f"simulated:{profile}", *flags)
        is_decided = lambda: "claim default/c1 to end" in here.log() or (root / "calls").exists()  # noqa: E731
        until(is_decided, what="the wait for the claim")
        assert not (root / "calls").exists(), "reset under a claim"
        plugin = here.kubelet.wait_registered(NVIDIA_DRIVER)
        assert plugin.unprepare([used]) == {used.uid: ""}
        until(lambda: "returned" in stages(here), what="the return")
        assert len((root / "calls").read_text().splitlines()) == 1


def remediation_events(here):
    """Return the reasons of the Events about remediation."""
    return [one["reason"] for one in here.api.items(EVENTS) if one["reason"].startswith("Remediation")]


def test_a_dry_run_says_what_it_would_do_and_writes_nothing(tmp_path):
    profile = tmp_path / "node.yaml"
    write_profile(profile, recoveryAction=1)
    with stage("1.36") as here:
        here.start(f"simulated:{profile}", "--mig=static", "--remediation=dry-run", "--lease-namespace=default")
        until(lambda: f"would reset {NAME}" in here.log(), what="the dry run")
        until(lambda: "needs-reset" in taints(here).get(NAME, {}), what="the taint of the fault")
        assert "remediation" not in taints(here)[NAME]
        assert not remediation_events(here)
        assert not here.api.items(LEASES)
        folder = here.kubelet.plugins_dir / NVIDIA_DRIVER
        assert [one.name for one in folder.iterdir() if "remed" in one.name or "reboot" in one.name] == []
        assert [one.name for one in folder.iterdir() if "resets" in one.name] == []


@pytest.mark.long
def test_a_remediation_goes_on_after_its_agent_is_killed_and_commands_show_and_steer_it(tmp_path, capsys):
    profile = tmp_path / "node.yaml"
    write_profile(profile, reset="nothing")
    flags = ["--mig=static", "--remediation=on", "--lease-namespace=default"]
    with stage("1.36") as here:
        agent = here.start(f"simulated:{profile}", *flags)
        until(lambda: len(here.devices()) == 8, what="devices")
        write_profile(profile, recoveryAction=2, reset="nothing")
        until(lambda: 'reason="a reboot of the machine"' in here.log(), what="the request of a reboot")
        folder = here.kubelet.plugins_dir / NVIDIA_DRIVER
        request = (folder / "reboot-required").read_text()
        assert Path("/proc/sys/kernel/random/boot_id").read_text().strip() in request
        here.end(agent, signal.SIGKILL)
        where = ["--kubelet-plugins-directory-path", str(here.kubelet.plugins_dir)]
        assert run(["remediation", "show", "-o", "json", *where]) == 1
        shown = json.loads(capsys.readouterr().out)
        (row,) = shown["remediations"]
        assert (row["device"], row["stage"], row["action"]) == (NAME, "acted", "reboot")
        assert row["message"] == "a reboot of the machine"
        (action,) = shown["actions"]
        assert (action["action"], action["outcome"]) == ("reboot", "asked")
        assert run(["health", "show", *where]) == 1
        assert "a reboot of the machine" in " ".join(capsys.readouterr().out.split())

        before = taints(here)
        here.start(f"simulated:{profile}", *flags)
        until(lambda: "role gained" in here.log(), what="the role")
        until(lambda: len(here.devices()) == 8, what="devices")
        assert taints(here) == before, "the taints changed with the restart"
        assert run(["remediation", "give-up", "gpu-0000-43-00-0", *where]) == 3
        assert run(["remediation", "give-up", FAULTY, *where]) == 0
        until(lambda: taints(here).get(NAME, {}).get("remediation") == "support", what="the escalation")
        write_profile(profile)
        assert run(["remediation", "done", NAME, *where]) == 0
        until(lambda: not taints(here), what="the return")
        assert (folder / "reboot-required").exists() is False
        assert {"RemediationEscalated", "RemediationReturned"} <= set(remediation_events(here))


def test_remediation_without_health_is_refused(tmp_path):
    with stage() as here:
        agent = here.start("simulated:t4", "--remediation=on", "--health=off")
        assert agent.wait(60) == 2
        assert "acts on faults" in here.log()


def test_an_agent_without_the_privilege_to_reset_is_refused(tmp_path):
    status = tmp_path / "status"
    status.write_text("Name:\tagent\nCapEff:\t00000000a80425fb\n")
    with pytest.raises(NodeError, match="CAP_SYS_ADMIN") as refused:
        require_privilege(status)
    assert refused.value.code == "node.unprivileged"
    status.write_text("CapEff:\t000001ffffffffff\n")
    require_privilege(status)


def test_nothing_of_remediation_is_imported_while_the_option_is_off():
    program = """
import sys
import dra_driver.node.daemon.main, dra_driver.node.daemon.node, dra_driver.node.daemon.node_health
import dra_driver.node.health.monitor
import dra_driver.hardware.simulated.hardware, dra_driver.hardware.nvidia.hardware
print([name for name in sys.modules if "remediation" in name or "programs" in name])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "[]\n"
