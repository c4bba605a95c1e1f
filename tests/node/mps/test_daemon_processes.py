"""Which processes belong to a daemon: those that it started, under our user and in our namespaces."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.node.mps import processes
from dra_driver.node.mps.daemon_folder import DaemonFolder
from dra_driver.node.mps.launch import ControlProgram, spawned
from dra_driver.node.mps.processes import Origin
from tests.support.mps.parts import (
    device,
    imitator,
)
from tests.support.waiting import until


def test_a_recorded_process_must_be_of_our_user_namespace_and_program():
    mine = processes.identify(os.getpid())
    assert mine
    origin = Origin(processes.namespace_of(), processes.executable_of("self") or (0, 0))
    assert processes.is_genuine(mine, origin)
    assert not processes.is_genuine(mine, replace(origin, executable=(1, 2)))
    assert not processes.is_genuine(mine, replace(origin, namespace=1))
    assert not processes.is_genuine(replace(mine, start_ticks=1), origin)
    with imitator() as process:
        theirs = processes.identify(process.pid)
        runs = processes.executable_of(process.pid)
        assert theirs
        assert runs
        if os.geteuid() == 0:
            assert not processes.is_genuine(theirs, replace(origin, executable=runs))


def test_a_process_of_another_pid_namespace_is_not_one_of_ours():
    unshare = ["unshare", "--pid", "--fork", "--kill-child", "sleep", "600"]
    if subprocess.run([*unshare[:4], "true"], check=False, capture_output=True, timeout=120).returncode:
        pytest.skip("no PID namespace can be made here")
    with subprocess.Popen(unshare) as process:
        until(lambda: Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
        inner = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
        found = processes.identify(inner)
        assert found
        runs = processes.executable_of(inner)
        assert runs
        assert not processes.is_genuine(found, Origin(processes.namespace_of(), runs))
        outer = processes.identify(process.pid)
        assert outer
        assert found not in processes.started_by([outer])
        process.kill()


def test_only_processes_that_a_daemon_started_belong_to_it():
    command = ["/bin/sh", "-c", "sleep 600 & read word"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as daemon, imitator() as other:
        known = processes.identify(daemon.pid)
        assert known
        until(lambda: len(processes.started_by([known])) == 1)
        (child,) = processes.started_by([known])
        assert (
            processes.started_by([replace(known, start_ticks=known.start_ticks - 1)]) == []
        )  # another process has its pid
        daemon.kill()
        daemon.wait()
        assert processes.started_by([known]) == [child]
        assert other.pid not in {child.pid, known.pid}
        assert processes.end([child], 1.0) == []


def test_a_process_that_is_not_released_ends_without_running_the_program(folder: Path):
    at = DaemonFolder(folder, "key")
    at.path.mkdir()
    at.log.mkdir()
    program = ControlProgram((sys.executable, "-c", "raise SystemExit('it began')"))
    with spawned(program, at, [], uuid=device().uuid, cgroup=None) as new:
        identity = new.identity
        assert identity.is_alive()
    assert processes.wait_gone([identity], 10) == []
    assert (at.log / "output.log").read_text() == ""
