"""An agent beside another driver of its name: NVIDIA's own, for example. The real kubelet: the cluster lane."""

import shutil
import tempfile
import urllib.request
from pathlib import Path

import pytest

from dra_driver.base.names import NVIDIA_DRIVER
from dra_driver.simulator.store import EVENTS, SLICES
from dra_driver.tools import main
from tests.support.agents.agent_process import NODE, stage
from tests.support.plugin.stand_in_plugin import StandInPlugin
from tests.support.ports import free_port
from tests.support.waiting import until

THEIRS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceSlice",
    "metadata": {"generateName": f"{NODE}-"},
    "spec": {
        "driver": NVIDIA_DRIVER,
        "nodeName": NODE,
        "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "gpu-0"}],
    },
}


@pytest.fixture
def short_folder():
    made = Path(tempfile.mkdtemp(prefix="dra"))  # a socket's name is limited
    yield made
    shutil.rmtree(made)


def ready(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=60) as page:
            return page.status == 200
    except OSError:
        return False


def registered(here):
    return [path.name for path in here.kubelet.registrar_dir.iterdir() if path.name.startswith(NVIDIA_DRIVER)]


def test_nothing_is_published_or_registered_beside_another_driver_until_that_one_is_gone():
    port = free_port()
    with stage() as here:
        other = StandInPlugin(here.folder, NVIDIA_DRIVER, name="other")
        other.registrar = here.kubelet.registrar_dir / "other-reg.sock"
        other.start()
        here.start("simulated:t4", "--metrics-address", f"127.0.0.1:{port}")
        until(
            lambda: "not registered because another driver has this name" in here.log(),
            what="a line in the log",
        )
        here.api.create(THEIRS)  # and it is left alone
        until(lambda: any(e["reason"] == "AnotherDriverRegistered" for e in here.api.items(EVENTS)), what="an event")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as page:
            assert 'dra_driver_problems{code="node.namesake"} 1.0' in page.read().decode()
        until(lambda: ready(port), what="the agent to be ready")
        assert here.devices() == ["gpu-0"]
        assert registered(here) == []
        other.stop()
        until(lambda: len(here.devices()) == 4 and "gpu-0" not in here.devices(), what="four devices")
        until(lambda: registered(here), what="our registration")


def test_the_devices_command_names_the_other_driver(short_folder, capsys):
    other = StandInPlugin(short_folder, NVIDIA_DRIVER).start()
    words = ["devices", "--hardware", "simulated:t4", "--node-name", "n"]
    words += ["--kubelet-registrar-directory-path", str(short_folder / "plugins_registry")]
    try:
        assert main.run(words) == 0
    finally:
        other.stop()
    assert (
        f"the agent publishes none of them: another driver is registered as {NVIDIA_DRIVER}" in capsys.readouterr().out
    )


def test_devices_are_withdrawn_when_another_driver_registers_later():
    with stage() as here:
        here.start("simulated:t4")
        until(lambda: len(here.devices()) == 4, what="four devices")
        other = StandInPlugin(here.folder, NVIDIA_DRIVER, name="other")
        other.registrar = here.kubelet.registrar_dir / "other-reg.sock"
        other.start()
        try:
            until(lambda: not here.api.items(SLICES), what="no slices")
        finally:
            other.stop()
