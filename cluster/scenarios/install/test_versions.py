"""From 0.1.1 to this version and back, with pods that hold whole GPUs, partitions made on demand, and shares."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.agent import Agent
from cluster.cluster import REPOSITORY, Cluster
from cluster.drivers.older_version import NoHistoryError, OlderVersion, take_out
from cluster.sandbox import until
from cluster.stage import Stage
from cluster.workload import container, devices, pod, request, template

RULES = """\
version: rules/v1
rules:
  - match: {devices: ["gpu-0000-1b-*"]}
    replicas: 4
    sharing: {strategy: TimeSlicing, timeSlicingConfig: {interval: Short}}
"""
PROFILE = 'device.attributes["gpu.nvidia.com"].profile == "1g.10gb"'


@pytest.fixture(scope="session")
def older(tmp_path_factory: pytest.TempPathFactory) -> OlderVersion:
    """The release before this one."""
    try:
        return take_out("0.1.1", tmp_path_factory.mktemp("older"))
    except NoHistoryError as reason:
        pytest.skip(str(reason))


def kinds(cluster: Cluster) -> dict[str, dict[str, Any]]:
    """Return a claim of each kind that this cluster can serve."""
    whole = {"whole": devices(request("gpu"))}
    shares = {"share": devices(request("gpu", "gpu-share-timeslicing.nvidia.com"))}
    part = {"part": devices(request("gpu", "mig.nvidia.com", PROFILE))}
    return whole | shares | part


def start(stage: Stage, wave: str, specs: dict[str, Any]) -> list[str]:
    """Start a pod for each kind of claim and return their names when they run with what was allocated to them."""
    for kind in specs:
        used = container("main", "gpu")
        stage.create(pod(stage.namespace, f"{kind}-{wave}", used, templates={"gpu": kind}))
    names = [f"{kind}-{wave}" for kind in specs]
    for name in names:
        stage.check(name)
    return names


def before_downgrade(cluster: Cluster) -> list[str]:
    """Return the doctor's findings against a downgrade to 0.1.1."""
    words = ["doctor", "--only", "cluster", "--before-downgrade", "0.1.1", "-o", "json"]
    surroundings = os.environ | {"PYTHONPATH": str(REPOSITORY), "KUBECONFIG": str(cluster.kubeconfig)}
    argv = [sys.executable, "-m", "dra_driver", *words]
    done = subprocess.run(argv, env=surroundings, capture_output=True, text=True, timeout=90, check=False)
    found = json.loads(done.stdout)["findings"]
    return [f"{one['subject']}: {one['message']}" for one in found if one["id"].startswith("downgrade-")]


def check_untouched(stage: Stage, names: list[str]) -> None:
    """Check that pods run as they did, and that every device is held by one of them alone, or is shared."""
    held: list[str] = []
    for name in names:
        found = stage.running(name)
        assert all(status["restartCount"] == 0 for status in found["status"]["containerStatuses"]), name
        held += [] if name.startswith("share") else stage.devices(found)
    assert len(set(held)) == len(held)


def test_pods_with_claims_of_every_kind_run_on_through_an_upgrade_from_0_1_and_a_downgrade(
    stage: Stage, cluster: Cluster, start_agent: Callable[..., Agent], older: OlderVersion, tmp_path: Path
) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES)
    flags = ["--sharing-config", str(rules)]
    specs = kinds(cluster)
    stage.create(*(template(stage.namespace, kind, spec) for kind, spec in specs.items()))

    first = start_agent(mig="dynamic", flags=flags, pod_uid="first-000000000000000", **older.options())
    first.published()
    running = start(stage, "of-0-1", specs)

    # The newer agent starts beside the older one, as a rolling update has it.
    newer = start_agent(mig="dynamic", flags=flags, pod_uid="newer-000000000000000")
    first.stop()
    newer.published()
    running += start(stage, "of-this", specs)
    check_untouched(stage, running)
    stage.delete_pod("whole-of-0-1")
    running.remove("whole-of-0-1")

    # Nothing of this prevents a downgrade; a device that an administrator cordoned does.
    assert before_downgrade(cluster) == []
    if cluster.keeps_gated:
        device = min(newer.devices())
        newer.command("cordon", device, "--reason", "fan")
        assert device in "".join(until("doctor to name the cordon", lambda: before_downgrade(cluster), 30))
        newer.command("uncordon", device)

    # The downgrade: the older agent undoes what the newer one has made.
    back = start_agent(mig="dynamic", flags=flags, pod_uid="back-0000000000000000", **older.options())
    newer.stop()
    back.published()
    check_untouched(stage, running)
    running += start(stage, "again", {"whole": specs["whole"]})
    for name in running:
        stage.delete_pod(name)
    until("an empty ledger", lambda: back.ledger_rows() == [], 30)
    assert back.metric("dra_driver_problems") == 0
    # 0.1 ignores the records beside the CDI files of a later version, which removes them when it runs again.
    assert {file.suffix for file in back.cdi_files()} <= {".record"}
    again = start_agent(mig="dynamic", flags=flags, pod_uid="again-00000000000000")
    back.stop()
    again.wait_empty()
