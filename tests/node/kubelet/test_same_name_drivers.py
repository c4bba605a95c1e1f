"""Other drivers under our name. Not covered: what agents do about them (tests/node/daemon/test_same_name_drivers)."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import grpc
import pytest

from dra_driver.node.kubelet.methods import CallPool
from dra_driver.node.kubelet.registration import Registration, SameNameDrivers, ask
from tests.support.plugin.stand_in_plugin import StandInPlugin
from tests.support.waiting import until

DRIVER = "gpu.nvidia.com"


@pytest.fixture
def folder():
    made = Path(tempfile.mkdtemp(prefix="dra"))  # short path: a socket's name is limited
    (made / "plugins_registry").mkdir()
    yield made
    shutil.rmtree(made)


@pytest.fixture
def other(folder):
    plugins = []

    def start(driver=DRIVER, **more):
        plugins.append(StandInPlugin(folder, driver, **more))
        return plugins[-1].start()

    yield start
    for plugin in plugins:
        plugin.stop()


def serving(instance):
    pool = CallPool(1, "registration")
    return grpc.server(pool, [instance.methods(pool)])


def watch(folder, **more):
    return SameNameDrivers(folder / "plugins_registry", folder / "plugins" / DRIVER, driver=DRIVER, **more)


def test_a_driver_of_our_name_is_found_whatever_its_socket_is_called(folder, other):
    plugin = other(name="anything")
    assert str(plugin.registrar) in watch(folder).find()


def test_drivers_of_other_names_and_plugins_of_other_kinds_are_ignored(folder, other):
    other("nic.example.com")
    storage = StandInPlugin(folder, DRIVER, name="storage")
    storage.type = "CSIPlugin"
    storage.start()
    assert watch(folder).find() == ""
    storage.stop()


def test_a_socket_below_a_folder_counts_and_a_hidden_one_does_not(folder, other):
    plugin = other(name="one")
    below = folder / "plugins_registry" / "deep"
    below.mkdir()
    plugin.registrar.rename(below / "reg.sock")
    assert "deep/reg.sock" in watch(folder).find()
    (below / "reg.sock").rename(below / ".reg.sock")
    assert watch(folder).find() == ""


@pytest.mark.parametrize(("data", "is_other"), [("plugins/gpu.nvidia.com", False), ("elsewhere", True)])
def test_our_own_other_instance_is_ignored_unless_it_keeps_its_claims_elsewhere(folder, data, is_other):
    instance = Registration(DRIVER, folder / "plugins_registry" / "a-reg.sock", folder / data / "dra.sock")
    server = serving(instance)
    instance.bind(server)
    server.start()
    try:
        assert bool(watch(folder).find()) is is_other
    finally:
        instance.stop()
        server.stop(0).wait(60)


def test_of_two_agents_that_started_in_the_same_millisecond_one_goes_on(folder):
    registrar, running = folder / "plugins_registry", []
    try:
        for name in ("a", "b"):  # both report when this process started
            instance = Registration(DRIVER, registrar / f"{name}.sock", folder / name / "dra.sock")
            server = serving(instance)
            instance.bind(server)
            server.start()
            running.append((instance, server))
        found = [SameNameDrivers(registrar, folder / name, driver=DRIVER).find() for name in ("a", "b")]
    finally:
        for instance, server in running:
            instance.stop()
            server.stop(0).wait(60)
    assert [bool(text) for text in found] == [False, True]
    assert f"folder {folder / 'a'}" in found[1]


def test_files_and_sockets_on_which_nothing_listens_are_ignored(folder, other):
    plugin = other()
    os.link(plugin.registrar, plugin.registrar.with_name("left-reg.sock"))
    plugin.stop()
    (folder / "plugins_registry" / "file").touch()
    assert watch(folder).find() == ""
    assert ask(plugin.registrar.with_name("left-reg.sock")) is None


def test_in_a_missing_folder_no_driver_is_found(folder):
    shutil.rmtree(folder / "plugins_registry")
    assert watch(folder).find() == ""


def test_the_start_and_the_end_of_another_driver_are_reported_once_each(folder, other):
    reasons = []
    looking = watch(folder, changed=lambda: reasons.append(looking.reason), check_s=0.2, folder_s=0.01)
    looking.start()
    assert looking.reason == ""
    plugin = other()
    until(lambda: reasons, what="a report of the start")
    assert [p.code for p in looking.problems()] == ["node.namesake"]
    plugin.stop()
    until(lambda: len(reasons) == 2, what="a report of the end")
    looking.stop()
    assert reasons[1] == ""
    assert looking.problems() == ()
