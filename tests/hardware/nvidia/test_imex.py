"""IMEX channels: on which nodes channel 0 is offered, and what the host's daemons report about their domain.

How the daemons' program ended is made up here. Not covered: a real fabric.
"""

from dataclasses import replace

import pytest

from dra_driver.base.errors import HardwareError
from dra_driver.hardware.facts import ChannelFacts, Problem
from dra_driver.hardware.nvidia.edits.nodes import channel_edits, read_channel
from dra_driver.hardware.programs import ProgramEnd
from tests.support.facts import FULL_GPU, facts
from tests.support.nodes.fake_node import FakeNode

UUID = "5a3c1f0e-7b42-4d8a-9c61-2e0f8d7b6a54"
ONE, TWO = f"{UUID}.1", f"{UUID}.2"
DEVICES = "Character devices:\n  1 mem\n195 nvidia\n235 nvidia-caps-imex-channels\n\nBlock devices:\n  8 sd\n"


def gpus(*domains):
    return facts(
        *(replace(FULL_GPU, pci_address=f"0000:{n:02x}:00.0", link_domain=d) for n, d in enumerate(domains, 1))
    )


@pytest.fixture
def node(tmp_path):
    made = FakeNode(tmp_path)
    (tmp_path / "proc/devices").write_text(DEVICES)
    return made


def roots(node):
    return node.roots._replace(driver=str(node.folder / "driver"), driver_mount=str(node.folder / "driver"))


def set_answer(node, monkeypatch, words, status):
    program = node.folder / "driver/usr/bin/nvidia-imex-ctl"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setattr("dra_driver.hardware.programs.run_program", lambda *_, **__: ProgramEnd(status, words))


def test_a_node_in_one_clique_with_the_kernels_numbers_has_a_channel(node):
    assert read_channel(roots(node), gpus(ONE, ONE)) == ChannelFacts(ONE, 235)


@pytest.mark.parametrize("domains", [(), (None, None), ("nvlink-7f3a",), ("00000000-0000-0000-0000-000000000000.1",)])
def test_a_node_in_no_fabric_of_several_nodes_has_no_channel_and_no_problem(node, domains):
    assert read_channel(roots(node), gpus(*domains)) is None


@pytest.mark.parametrize("domains", [(ONE, TWO), (ONE, None)])
def test_gpus_in_several_cliques_or_outside_are_a_problem_that_names_them(node, domains):
    found = read_channel(roots(node), gpus(*domains))
    assert isinstance(found, Problem)
    assert found.code == "hardware.no-channel"
    assert all(str(one) in found.message for one in domains)


def test_a_driver_without_channels_is_a_problem(node):
    (node.folder / "proc/devices").write_text("Character devices:\n195 nvidia\n")
    found = read_channel(roots(node), gpus(ONE))
    assert isinstance(found, Problem)
    assert "nvidia-caps-imex-channels" in found.message


def test_a_container_gets_the_node_by_its_numbers_although_the_host_has_none(node):
    (made,) = channel_edits(roots(node)).device_nodes
    assert (made.path, made.major, made.minor) == ("/dev/nvidia-caps-imex-channels/channel0", 235, 0)
    assert made.host_path == ""


@pytest.mark.parametrize(("words", "status"), [("NOT_READY", 0), ("", 0), ("cannot connect", 1), ("", None)])
def test_a_domain_that_is_not_ready_is_reported_in_the_daemons_own_words(node, monkeypatch, words, status):
    set_answer(node, monkeypatch, words, status)
    with pytest.raises(HardwareError, match=words or "nothing|no answer") as refused:
        channel_edits(roots(node))
    assert refused.value.code == "hardware.imex-not-ready"


def test_a_ready_domain_gives_the_channel(node, monkeypatch):
    set_answer(node, monkeypatch, "READY", 0)
    assert channel_edits(roots(node)).device_nodes
