"""The processes that hold device files of the GPUs are found by their open files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dra_driver.tools.doctor.finding import read_device_users

HOLD = "import sys; file = open(sys.argv[1]); print(flush=True); sys.stdin.read()"


@pytest.mark.parametrize("name", ["nvidia0", "nvidiactl", "nvidia-caps/nvidia-cap1"])
def test_a_process_that_has_a_device_file_open_is_named(name, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.touch()
    assert read_device_users(Path("/proc"), tmp_path) == ()
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        holder.stdout.readline()
        (found,) = read_device_users(Path("/proc"), tmp_path)
        assert found.pid == holder.pid
        assert found.command.startswith("python")
        holder.stdin.close()
    assert read_device_users(Path("/proc"), tmp_path) == ()


def test_without_root_the_users_of_devices_cannot_be_read(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(PermissionError):
        read_device_users(Path("/proc"), tmp_path)
