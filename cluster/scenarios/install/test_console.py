"""The console on a real API server: a waiting pod, the reason, and its start once corrected; two viewers' rights."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from cluster.agent import Agent
from cluster.cluster import REPOSITORY, Cluster
from cluster.node import Node
from cluster.scenarios.install.test_few_rights import kubeconfig_of
from cluster.stage import Stage
from cluster.workload import container, devices, pod, request, template
from dra_driver.tools.schemas import schema_of
from dra_driver.tools.world.access import DocumentKind
from tests.support.console.process import RunningConsole, running_console
from tests.support.waiting import until

pytestmark = pytest.mark.parametrize("agent", ["simulated"], indirect=True)


@contextmanager
def console_of(kubeconfig: Path) -> Iterator[RunningConsole]:
    with running_console("--kubeconfig", str(kubeconfig), env={"PYTHONPATH": str(REPOSITORY), **os.environ}) as console:
        console.ready()
        with console.looked_at():
            yield console


def answered(console: RunningConsole, name: str, query: str, kind: DocumentKind) -> Any:
    reply = console.ask(name, query)
    assert reply.status == 200, reply.body
    jsonschema.validate(reply.json, schema_of(kind))
    return reply.json


def states(console: RunningConsole, namespace: str) -> dict[str, str]:
    rows = answered(console, "claims", f"?namespace={namespace}", DocumentKind.CLAIMS_PAGE)["rows"]
    return {f"{row['subject']} {row['name']}": row["state"] for row in rows}


def test_a_waiting_pod_is_explained_and_seen_to_run_once_it_is_corrected(
    cluster: Cluster, node: Node, agent: Agent, stage: Stage
) -> None:
    stage.create(
        template(stage.namespace, "twenty", devices(request("gpu", count=20))),
        pod(stage.namespace, "wants-too-much", container("main", "gpu"), templates={"gpu": "twenty"}),
    )
    with console_of(cluster.kubeconfig) as console:
        until(lambda: states(console, stage.namespace).get("pod wants-too-much") == "pending")
        query = f"?kind=pod&namespace={stage.namespace}&name=wants-too-much"
        why = answered(console, "explanation", query, DocumentKind.EXPLANATION)
        assert why["ok"] is False
        assert "wants 20" in why["sentence"]
        stage.delete_pod("wants-too-much")
        stage.create(
            template(stage.namespace, "one", devices(request("gpu"))),
            pod(stage.namespace, "corrected", container("main", "gpu"), templates={"gpu": "one"}),
        )
        stage.check("corrected")
        until(lambda: "allocated" in states(console, stage.namespace).values())
        [name] = [
            one.partition(" ")[2] for one, state in states(console, stage.namespace).items() if state == "allocated"
        ]
        query = f"?namespace={stage.namespace}&name={name}"
        found = answered(console, "claim", query, DocumentKind.CLAIM_PAGE)
        assert [(one["pod"], one["phase"]) for one in found["containers"]] == [("corrected", "Running")]
        tile = next(
            tile
            for one in answered(console, "fleet", f"?name={node.name}", DocumentKind.FLEET_PAGE)["nodes"]
            for tile in one["tiles"]
            if tile["state"] == "held"
        )
        assert tile["name"] == found["holds"][0]["device"]
        stage.delete_pod("corrected")
        until(lambda: "allocated" not in states(console, stage.namespace).values())


def test_two_viewers_see_what_each_of_them_may_read(
    cluster: Cluster, node: Node, agent: Agent, stage: Stage, tmp_path: Path
) -> None:
    person = kubeconfig_of(cluster, stage.namespace, tmp_path)
    stage.create(
        template(stage.namespace, "one", devices(request("gpu"))),
        pod(stage.namespace, "mine", container("main", "gpu"), templates={"gpu": "one"}),
    )
    stage.check("mine")
    with console_of(cluster.kubeconfig) as all_rights, console_of(person) as some_rights:
        until(lambda: states(some_rights, stage.namespace))
        assert states(all_rights, stage.namespace) == states(some_rights, stage.namespace)
        assert answered(all_rights, "summary", "", DocumentKind.FLEET_SUMMARY)["gpus"] > 0
        fewer = answered(some_rights, "summary", "", DocumentKind.FLEET_SUMMARY)
        assert fewer["gpus"] == 0
        unseen = {one["kind"]: one["partial"] for one in fewer["unseen"]}
        assert unseen["ResourceSlice"] is False
        assert unseen["ResourceClaim"] is True
