"""One console for a cluster's viewers on a real API server: tokens, reviews, rights that are given and taken away."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from cluster.agent import Agent
from cluster.chart import CHART, NAMESPACE
from cluster.cluster import Cluster
from cluster.components import programs
from cluster.stage import Stage
from cluster.workload import container, devices, pod, request, template
from tests.support.console.server import RunningServer, running_server
from tests.support.waiting import until

pytestmark = pytest.mark.parametrize("agent", ["simulated"], indirect=True)
LATER_SECONDS = 60.0  # a verdict is used for half a minute


def account(cluster: Cluster, namespace: str, name: str, role: str, *, everywhere: bool) -> str:
    """Make a ServiceAccount with a role, and return a token of it."""
    kind = "clusterrolebinding" if everywhere else "rolebinding"
    cluster.kubectl("-n", namespace, "create", "serviceaccount", name)
    bound = f"{namespace}-{name}" if everywhere else name
    subject = f"--serviceaccount={namespace}:{name}"
    cluster.kubectl("-n", namespace, "create", kind, bound, f"--clusterrole={role}", subject)
    return cluster.kubectl("-n", namespace, "create", "token", name).strip()


def console_of(cluster: Cluster, identity: str, folder: Path) -> Path:
    """Write the kubeconfig of the console as the chart makes it: with its own account, or without any rights."""
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    if identity == "review":
        values = ["--set", "console.enabled=true,console.identity=review"]
        command = [str(programs.helm()), "template", "dra-driver", str(CHART), "-n", NAMESPACE, *values]
        command += ["--kube-version", "1.35.0", "--show-only", "templates/console.yaml"]
        said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
        wanted = [one for one in yaml.safe_load_all(said) if one and one["kind"] not in {"Deployment", "NetworkPolicy"}]
        path = folder / "console.yaml"
        path.write_text(yaml.safe_dump_all([namespace_of(NAMESPACE), *wanted]))
        cluster.kubectl("apply", "-f", str(path))
        token = cluster.kubectl("-n", NAMESPACE, "create", "token", "dra-driver-console").strip()
        config["users"][0]["user"] = {"token": token}
    path = folder / "console-config"
    path.write_text(yaml.safe_dump(config))
    return path


def sees_nothing(server: RunningServer, token: str, namespace: str) -> bool:
    """Return whether a viewer gets an answer that shows no claim of a namespace."""
    return server.ask(token, "claims").status == 200 and not claims(server, token, namespace)


def namespace_of(name: str) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def claims(server: RunningServer, token: str, namespace: str) -> set[str]:
    reply = server.ask(token, "claims", f"?namespace={namespace}")
    return {row["name"] for row in reply.json["rows"]} if reply.status == 200 else set()


@pytest.mark.parametrize("identity", ["token", "review"])
def test_each_viewer_of_one_console_sees_what_they_may_read_and_no_longer_what_was_taken_away(
    cluster: Cluster, agent: Agent, stage: Stage, tmp_path: Path, identity: str
) -> None:
    space = stage.namespace
    everything = account(cluster, space, "everything", "cluster-admin", everywhere=True)
    person = account(cluster, space, "person", "view", everywhere=False)
    outsider = account(cluster, "default", f"outsider-{space}", "view", everywhere=False)
    stage.create(
        template(space, "one", devices(request("gpu"))),
        pod(space, "mine", container("main", "gpu"), templates={"gpu": "one"}),
    )
    stage.check("mine")
    try:
        with running_server(str(console_of(cluster, identity, tmp_path)), "--identity", identity) as server:
            with ExitStack() as pages:
                for token in (everything, person, outsider):
                    pages.enter_context(server.looked_at(authorization=f"Bearer {token}"))
                until(lambda: claims(server, everything, space))
                [name] = claims(server, everything, space)
                until(lambda: claims(server, person, space) == {name})
                until(lambda: sees_nothing(server, outsider, space))  # until then the fleet is being read
                assert server.ask(outsider, "claim", f"?namespace={space}&name={name}").status in {422, 502}
                found = server.ask(person, "claim", f"?namespace={space}&name={name}").json
                assert [(one["pod"], one["phase"]) for one in found["containers"]] == [("mine", "Running")]
                assert server.ask(everything, "summary").json["gpus"] > 0
                assert server.ask(person, "summary").json["gpus"] == 0, "slices are not theirs to read"
                assert server.ask("a.b.c", "summary").status == 401
                cluster.kubectl("-n", space, "delete", "rolebinding", "person")
                until(lambda: sees_nothing(server, person, space), timeout_s=LATER_SECONDS)
            cluster.kubectl("-n", space, "delete", "serviceaccount", "person")
            until(lambda: server.ask(person, "claims").status == 401, timeout_s=LATER_SECONDS)
    finally:
        cluster.kubectl("delete", "clusterrolebinding", f"{space}-everything")
        cluster.kubectl("-n", "default", "delete", "rolebinding,serviceaccount", f"outsider-{space}")
