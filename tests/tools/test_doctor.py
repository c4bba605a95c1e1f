"""`dra-driver doctor` as a user runs it, and docs/doctor.md: its example is the output for a faulty node."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dra_driver.base.errors import ApiError, ExitCode
from dra_driver.base.flags import FLAGS
from dra_driver.kube.api import KubeApi
from dra_driver.simulator.api_server import EmbeddedApi
from dra_driver.tools import main
from tests.support.nodes.fake_node import FakeNode

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for name in [*(flag.variable for flag in FLAGS), "KUBECONFIG", "FORCE_COLOR", "KUBERNETES_SERVICE_HOST"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/nonexistent")
    monkeypatch.setenv("COLUMNS", "160")  # a folder of the test is longer than what the page shows


@pytest.fixture
def faulty_node(monkeypatch):
    """A node where the driver was never built and the runtime ignores CDI."""
    folder = Path(tempfile.mkdtemp(prefix="dra"))
    machine = FakeNode(folder)
    machine.add_gpu("0000:65:00.0", driver=None)
    machine.add_gpu("0000:ca:00.0", driver="nouveau")
    (folder / "proc/sys/kernel/osrelease").write_text("6.12.48+deb13-amd64\n")
    (folder / "usr/src/nvidia-580.95.05").mkdir(parents=True)
    (folder / "etc/containerd").mkdir(parents=True)
    (folder / "etc/containerd/config.toml").write_text('[plugins."io.containerd.grpc.v1.cri"]\nenable_cdi = false\n')
    (folder / "plugins_registry").mkdir()
    variables = {
        "NODE_NAME": "gpu-node-7",
        "SYSFS_ROOT": folder / "sys",
        "PROC_ROOT": folder / "proc",
        "DEV_ROOT": folder / "dev",
        "NVIDIA_DRIVER_ROOT": folder / "run/nvidia/driver",
        "KUBELET_REGISTRAR_DIRECTORY_PATH": folder / "plugins_registry",
        "KUBELET_PLUGINS_DIRECTORY_PATH": folder / "plugins",
        "DEVICE_PLUGINS_DIRECTORY_PATH": folder / "device-plugins",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    yield folder
    shutil.rmtree(folder)


def test_the_page_shows_the_output_for_a_faulty_node(faulty_node):
    # In a process of its own: this one may have a library of the fake driver loaded.
    command = [sys.executable, "-m", "dra_driver", "doctor", "--only", "node", "--host-root", str(faulty_node)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT)
    assert done.returncode == ExitCode.NO_MATCH, done.stderr
    shown = done.stdout.replace(f"{faulty_node}/plugins_registry", "/var/lib/kubelet/plugins_registry")
    shown = shown.replace(str(faulty_node), "")
    [example] = re.findall(r"```console\n\$ dra-driver doctor --only node\n(.*?)```", PAGE, re.DOTALL)
    assert [line.rstrip() for line in shown.splitlines()] == example.splitlines()


def test_a_cluster_alone_is_checked_with_a_kubeconfig(tmp_path, capsys):
    api = EmbeddedApi()
    api.start()
    try:
        kubeconfig = str(api.write_kubeconfig(tmp_path / "kubeconfig"))
        status = main.run(["doctor", "--only", "cluster", "--kubeconfig", kubeconfig, "-o", "json"])
    finally:
        api.stop()
    report = json.loads(capsys.readouterr().out)
    assert (status, report["isClean"]) == (ExitCode.NO_MATCH, False)
    assert "slices-none" in {one["id"] for one in report["findings"]}
    assert all(one["page"].startswith("docs/") for one in report["findings"])


def test_the_exit_status_is_environment_where_there_is_nothing_to_check(tmp_path, capsys, monkeypatch):
    for name in ("SYSFS_ROOT", "KUBELET_REGISTRAR_DIRECTORY_PATH", "KUBELET_PLUGINS_DIRECTORY_PATH"):
        monkeypatch.setenv(name, str(tmp_path / name))
    assert main.run(["doctor"]) == ExitCode.ENVIRONMENT
    shown = capsys.readouterr().out
    assert "no kubelet and no GPU" in shown
    assert "node.no-credentials" in shown


def test_a_cluster_that_does_not_answer_does_not_hide_the_node(faulty_node, tmp_path, capsys):
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    assert main.run(["doctor", "--kubeconfig", str(tmp_path / "kubeconfig")]) == ExitCode.NO_MATCH
    shown = capsys.readouterr().out
    assert "api.unreachable" in shown
    assert "driver-nouveau" in shown


def test_a_cluster_that_was_asked_for_and_could_not_be_read_is_no_success(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("SYSFS_ROOT", str(tmp_path))
    monkeypatch.setenv("DEV_ROOT", str(tmp_path))
    with EmbeddedApi() as api:
        kubeconfig = str(api.write_kubeconfig(tmp_path / "kubeconfig"))
    node = ["doctor", "--hardware", "simulated:t4", "--kubeconfig", kubeconfig]
    assert main.run(node) == ExitCode.ENVIRONMENT
    assert "could not be checked" in capsys.readouterr().out
    assert main.run([*node[:-1], str(tmp_path / "none")]) == ExitCode.BAD_INPUT
    assert "input.kubeconfig" in capsys.readouterr().err


def test_a_cluster_that_lets_nothing_be_read_is_no_success(tmp_path, monkeypatch, capsys):
    answered = KubeApi.request

    def refuse(api, method, path, **options):
        if path == "/version":
            return answered(api, method, path, **options)
        raise ApiError("forbidden", f"{method} {path}: forbidden", status=403)

    api = EmbeddedApi()
    api.start()
    try:
        kubeconfig = str(api.write_kubeconfig(tmp_path / "kubeconfig"))
        monkeypatch.setattr(KubeApi, "request", refuse)
        assert main.run(["doctor", "--only", "cluster", "--kubeconfig", kubeconfig]) == ExitCode.ENVIRONMENT
        monkeypatch.setenv("KUBECONFIG", kubeconfig)
        assert main.run(["doctor", "--only", "cluster"]) == ExitCode.ENVIRONMENT
    finally:
        api.stop()
    assert "could not be checked" in capsys.readouterr().out
