"""Plugins register with the embedded kubelet over real sockets."""

from __future__ import annotations

import shutil
import socket
import threading

import pytest

from dra_driver.base.errors import NodeError
from dra_driver.simulator import plugin_watcher
from dra_driver.simulator import plugin_watcher as plugin_calls
from tests.simulator.support.kubelet_pods import DRIVER, make_claim, pod
from tests.support.plugin.stand_in_plugin import StandInPlugin
from tests.support.waiting import unhindered, until


@pytest.mark.parametrize(
    ("versions", "chosen"),
    [
        (["v1.DRAPlugin", "v1beta1.DRAPlugin"], "v1.DRAPlugin"),
        (["v1beta1.DRAPlugin", "v1.DRAPlugin"], "v1beta1.DRAPlugin"),
        (["v9.DRAPlugin", "v1alpha1.DRAResourceHealth", "v1.DRAPlugin"], "v1.DRAPlugin"),
    ],
)
def test_the_first_version_that_the_kubelet_supports_is_used(folder, kubelet, api, versions, chosen):
    plugin = StandInPlugin(folder, versions=versions).start()
    assert kubelet.wait_registered(DRIVER, 60).version == chosen
    assert plugin.statuses == [(True, "")]
    uid = make_claim(api)
    kubelet.prepare_pod(pod("c"))
    assert plugin.calls == [(chosen, "prepare", [uid])]
    plugin.stop()


@pytest.mark.parametrize(
    ("type_", "versions", "message"),
    [
        ("DRAPlugin", [], "empty list"),
        ("DRAPlugin", ["v2.DRAPlugin"], "none of the versions"),
        ("CSIPlugin", ["v1.DRAPlugin"], "no handler"),
    ],
)
def test_a_plugin_that_does_not_fit_is_refused_with_the_reason(folder, kubelet, type_, versions, message):
    plugin = StandInPlugin(folder, versions=versions)
    plugin.type = type_
    plugin.start()
    until(kubelet.plugins.errors)
    with pytest.raises(NodeError, match="did not register") as caught:
        kubelet.wait_registered(DRIVER, 0.01)
    assert message in caught.value.hint
    assert plugin.statuses[0][0] is False
    assert message in plugin.statuses[0][1]
    plugin.stop()


def test_a_plugin_is_registered_while_its_socket_exists(kubelet, plugin):
    plugin.deregister()
    until(lambda: not kubelet.plugins.plugins(DRIVER))
    plugin.register()
    kubelet.wait_registered(DRIVER, 60)
    assert plugin.statuses == [(True, ""), (True, "")]


def test_dot_files_and_files_that_are_not_sockets_are_ignored(kubelet, plugin):
    (kubelet.registrar_dir / "notes.txt").write_text("")
    shutil.copy(plugin.registrar.parent / "notes.txt", kubelet.registrar_dir / ".hidden")
    assert kubelet.plugins.errors() == {}


def test_a_kubelet_ends_at_once_although_no_process_answers_on_a_socket(kubelet, monkeypatch):
    waiting = threading.Event()

    class Asking(plugin_watcher.Registrar):
        def get_info(self):
            waiting.set()
            return super().get_info()

    monkeypatch.setattr(plugin_watcher, "Registrar", Asking)
    monkeypatch.setattr(plugin_calls, "DIAL_S", 600.0)
    with socket.socket(socket.AF_UNIX) as killed:  # the file of a process that was killed
        killed.bind(str(kubelet.registrar_dir / "killed.sock"))
    assert waiting.wait(60)
    unhindered(kubelet.stop)
    assert not kubelet.plugins._thread.is_alive()
    kubelet.start()


def test_a_second_instance_gets_the_calls_and_the_first_gets_them_again_after_it(folder, kubelet, plugin, api):
    second = StandInPlugin(folder, name="second").start()
    kubelet.wait_registered(DRIVER, 10, instances=2)
    first_uid = make_claim(api)
    kubelet.prepare_pod(pod("c"))
    assert [call[1:] for call in second.calls] == [("prepare", [first_uid])]
    second.deregister()
    until(lambda: len(kubelet.plugins.plugins(DRIVER)) == 1)
    kubelet.unprepare_pod(pod("c"))
    assert [call[1:] for call in plugin.calls] == [("unprepare", [first_uid])]
    second.stop()


def test_the_same_endpoint_is_not_registered_twice(folder, kubelet, plugin):
    double = StandInPlugin(folder, name="double")
    double.socket = plugin.socket
    double.register()
    until(lambda: double.statuses)
    assert double.statuses[0] == (False, f"endpoint {plugin.socket} already registered for driver {DRIVER}")
    double.stop()
