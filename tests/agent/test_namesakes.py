"""An agent beside another driver of its name: NVIDIA's own, for example. The real kubelet: the cluster lane."""

import shutil
import socket
import tempfile
import urllib.request
from pathlib import Path

import pytest

from dra_driver.cli import main
from dra_driver.embedded.kinds import SLICES
from dra_driver.model.names import NVIDIA_DRIVER
from tests.support.agent_process import stage
from tests.support.stand_in_plugin import StandInPlugin
from tests.support.waiting import until


@pytest.fixture
def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.fixture
def short_folder():
    made = Path(tempfile.mkdtemp(prefix="dra"))  # a socket's name is limited
    yield made
    shutil.rmtree(made)


def registered(here):
    return [path.name for path in here.kubelet.registrar_dir.iterdir() if path.name.startswith(NVIDIA_DRIVER)]


def test_beside_another_driver_nothing_is_published_or_registered_until_that_one_is_gone(free_port):
    with stage() as here:
        other = StandInPlugin(here.folder, NVIDIA_DRIVER, name="other")
        other.registrar = here.kubelet.registrar_dir / "other-reg.sock"
        other.start()
        here.start("simulated:t4", "--metrics-address", f"127.0.0.1:{free_port}")
        until(lambda: here.api.items(SLICES), timeout_s=20, what="a slice")
        assert here.devices() == []
        assert registered(here) == []
        assert "not registered beside another driver" in here.log()
        # The stand-in API server takes no events; the real one does (cluster lane).
        until(lambda: "AnotherDriverRegistered" in here.log(), timeout_s=10, what="an event")
        with urllib.request.urlopen(f"http://127.0.0.1:{free_port}/metrics", timeout=5) as page:
            assert 'dra_driver_problems{code="node.namesake"} 1.0' in page.read().decode()
        with urllib.request.urlopen(f"http://127.0.0.1:{free_port}/readyz", timeout=5) as page:
            assert page.status == 200
        other.stop()
        until(lambda: len(here.devices()) == 4, timeout_s=30, what="four devices")
        until(lambda: registered(here), timeout_s=10, what="our registration")


def test_the_devices_command_says_so_too(short_folder, capsys):
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


def test_a_driver_that_comes_later_takes_the_devices_away_again():
    with stage() as here:
        here.start("simulated:t4")
        until(lambda: len(here.devices()) == 4, timeout_s=20, what="four devices")
        other = StandInPlugin(here.folder, NVIDIA_DRIVER, name="other")
        other.registrar = here.kubelet.registrar_dir / "other-reg.sock"
        other.start()
        try:
            until(lambda: not here.devices(), timeout_s=30, what="no devices")
        finally:
            other.stop()
