"""Resets: nvidia-smi below the driver root with fixed arguments, and which processes have a GPU open."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dra_driver.base.errors import HardwareError
from dra_driver.hardware.driver_binding import processes_with as of_nodes
from dra_driver.hardware.nvidia.changes import processes_with, reset_gpus
from dra_driver.hardware.port import Roots
from dra_driver.hardware.programs import run_program
from tests.hardware.nvidia.support.gpus import nvidia_gpu
from tests.support.kept_files import without_descriptors
from tests.support.nodes.fake_node import FakeNode
from tests.support.programs.static_program import build_static
from tests.support.waiting import until

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may change a process's root")
GPU = nvidia_gpu("0000:1b:00.0", minor=3)


@pytest.fixture
def roots(tmp_path):
    build_static(tmp_path / "driver/usr/bin/nvidia-smi", log=tmp_path / "driver/calls")
    return Roots(driver="/run/nvidia/driver", driver_mount=str(tmp_path / "driver"))


@pytest.mark.gcc
@needs_root
def test_gpus_are_reset_below_the_driver_root_with_no_environment(roots, tmp_path, monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", "")
    reset_gpus(roots, [GPU, nvidia_gpu("0000:43:00.0", minor=4)], 10.0)
    (call,) = (tmp_path / "driver/calls").read_text().splitlines()
    assert call == "--gpu-reset -i GPU-0000:1b:00.0,GPU-0000:43:00.0 env=0 root=1"


@pytest.mark.gcc
@needs_root
def test_a_refusal_is_reported_in_the_program_s_words_and_a_program_that_is_late_is_killed(roots, tmp_path):
    (tmp_path / "driver/calls.refuse").write_text("GPU is in use by\x1b[2J another client.\n")
    with pytest.raises(HardwareError, match=r"in use by\?\[2J another client") as refused:
        reset_gpus(roots, [GPU], 10.0)
    assert refused.value.code == "hardware.reset-failed"
    (tmp_path / "driver/calls.refuse").unlink()
    (tmp_path / "driver/calls.hold").touch()
    with pytest.raises(HardwareError, match="did not end within"):
        reset_gpus(roots, [GPU], 0.2)


def test_a_driver_root_without_the_program_is_named(tmp_path):
    with pytest.raises(HardwareError) as refused:
        reset_gpus(Roots(driver_mount=str(tmp_path)), [GPU], 1.0)
    assert refused.value.code == "hardware.nvidia-smi-missing"


@needs_root
def test_a_root_without_the_program_ends_with_a_status_and_its_reason(tmp_path):
    end = run_program(["/bin/none"], 10.0, root=str(tmp_path))
    assert (end.status, "can't be run below" in end.output) == (127, True)
    assert run_program(["/bin/none"], 10.0, root=str(tmp_path / "none")).status == 125
    with pytest.raises(OSError, match="none"):
        run_program(["/bin/none"], 10.0)


def test_only_the_end_of_what_a_program_prints_is_kept(tmp_path):
    end = run_program([sys.executable, "-c", "print('x' * 100000 + 'end')"], 20.0)
    assert (end.status, end.output[-4:], len(end.output)) == (0, "xend", 600)


@pytest.mark.parametrize("null_nodes", [False, True])
def test_a_process_that_has_the_gpu_s_node_open_is_found_for_that_gpu_only(tmp_path, null_nodes):
    node = FakeNode(tmp_path / "node", null_nodes=null_nodes)
    for minor in (3, 4):
        node.add_node(f"nvidia{minor}", 195, minor)
    here = Roots(dev=node.roots.dev, proc="/proc")
    program = "import sys; f = open(sys.argv[1]); print('open', flush=True); sys.stdin.read()"
    path = Path(node.roots.dev, "nvidia3")
    try:
        path.open().close()
    except OSError:
        pytest.skip("there is no driver behind such a node")
    child = subprocess.Popen([sys.executable, "-c", program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout.readline() == b"open\n"
        until(lambda: processes_with(here, GPU) == (child.pid,), what="the process")
        assert processes_with(here, nvidia_gpu("0000:43:00.0", minor=4)) == ()
    finally:
        child.communicate()
    assert processes_with(here, GPU) == ()


@pytest.mark.parametrize("look", [lambda here: of_nodes(here, ["nvidia3"]), lambda here: processes_with(here, GPU)])
def test_an_agent_without_descriptors_takes_no_gpu_for_unused(tmp_path, look):
    (tmp_path / "nvidia3").touch()
    here = Roots(dev=str(tmp_path), proc="/proc")
    assert look(here) == ()
    with without_descriptors(), pytest.raises(HardwareError, match="Too many open files") as caught:
        look(here)
    assert caught.value.code == "hardware.gpu-in-use"
