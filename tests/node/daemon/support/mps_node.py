"""A node whose GPUs are shared by MPS, with its supervisor."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager

import pytest

from dra_driver.base.errors import NodeError
from dra_driver.base.names import NVIDIA_DRIVER
from tests.node.daemon.support.nvidia_machine import Machine, names
from tests.support.agents.agent_process import stage
from tests.support.mps.fake_mps import FakeMps
from tests.support.mps.parts import Supervisor, end_all, processes_below, short_folder, unmount
from tests.support.waiting import until

RULES = """\
version: rules/v1
rules:
  - replicas: 4
    sharing: {strategy: MPS, mpsConfig: {defaultActiveThreadPercentage: 50, defaultPinnedDeviceMemoryLimit: 4Gi}}
"""


class MpsMachine(Machine):
    """Two H100 GPUs shared by MPS, and a supervisor over a fake control program."""

    def __init__(self, here, folder):
        super().__init__(here, folder)
        (folder / "rules.yaml").write_text(RULES)
        self.fake = FakeMps(folder / "driver")
        hardware = ["--hardware", "nvidia", "--nvidia-driver-root", str(self.fake.root)]
        self.supervisor = Supervisor(here.kubelet.plugins_dir, hardware=hardware)
        self.supervisor.log = folder / "supervisor.log"
        self.daemons = here.kubelet.plugins_dir / NVIDIA_DRIVER / "mps"

    def start(self):
        agent = super().start("--sharing-config", str(self.folder / "rules.yaml"))
        until(lambda: "registered" in self.here.log(), "registration")
        until(lambda: len(self.here.devices()) == 8, "four replicas of two GPUs")
        self.plugin = self.here.kubelet.wait_registered(NVIDIA_DRIVER)
        return agent

    def claim_share(self, index, name):
        of_first = [one for one in sorted(self.here.devices()) if one.startswith(names(self.gpus)[0])]
        return self.claim(of_first[index], name)

    @property
    def mode(self):
        return self.state.read().gpus[0].facts.get("compute_mode", "0")

    @property
    def pipe(self):
        (path,) = self.daemons.glob("d/*/pipe")
        return path

    def is_empty(self):
        return not processes_below(self.daemons) and not list(self.daemons.glob("d/*")) and self.mode == "0"


@contextmanager
def mps_machine(make):
    """Yield a machine that `make` returns, with its supervisor running; its daemons and mounts end with the block.

    Its folders are not below /dev/shm, wherever TMPDIR is: each daemon sees the /dev/shm of its device.
    """
    if os.geteuid() != 0:
        pytest.skip("mounts of /dev/shm need root")
    with short_folder("/tmp") as folder, stage(parent="/tmp") as here:
        it = make(here, folder)
        it.supervisor.begin()
        try:
            yield it
        finally:
            it.supervisor.close()
            end_all(it.daemons)
            unmount(it.daemons)


def prepared(machine, claim):
    answers = []

    def ask():  # repeated, as the kubelet repeats it: a killed agent stays registered for a moment
        try:
            answers[:] = machine.here.kubelet.wait_registered(NVIDIA_DRIVER).prepare([claim]).values()
        except NodeError as error:
            answers[:] = [str(error)]
        if "mps-no-permission" in str(answers):
            pytest.skip(f"mounts are not permitted here: {answers}")
        return not isinstance(answers[0], str)

    until(ask, "prepared")
    (file,) = (path for path in machine.here.kubelet.cdi_dir.glob("*.json") if claim.uid in path.name)
    return [edit for one in json.loads(file.read_text())["devices"] for edit in one["containerEdits"].get("mounts", [])]
