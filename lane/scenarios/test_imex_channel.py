"""The one IMEX channel of a node on a real scheduler, kubelet and API server: its class, its namespaces, who shares it.

The machine is simulated. The class and the policies are the chart's.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from lane import binaries
from lane.agent import Agent
from lane.api import Object, Refused
from lane.chart import CHART, NAMESPACE
from lane.cluster import Cluster
from lane.sandbox import until
from lane.stage import Stage
from lane.workload import claim, container, devices, pod, request, template

CHANNEL, NODE = "imex-channel-0", "/dev/nvidia-caps-imex-channels/channel0"
CLASS, WIDE, LABEL = "imex-channel.nvidia.com", "any-channel.example.com", "gpu.nvidia.com/imex-channel"
HAS_SHARES = os.environ.get("GATES") != "default" or os.environ.get("K8S", "1.35") >= "1.36"


def rendered() -> list[Object]:
    """Return the class and the policies, as the chart renders them."""
    command = [str(binaries.helm()), "template", "dra-driver", str(CHART), "-n", NAMESPACE, "--kube-version", "1.35.0"]
    command += ["--set", "imexChannel=auto", "--show-only", "templates/imex.yaml"]
    command += ["--show-only", "templates/deviceclasses.yaml"]
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    found = [one for one in yaml.safe_load_all(said) if one]
    return [one for one in found if one["kind"] != "DeviceClass" or one["metadata"]["name"] == CLASS]


def refusal(cluster: Cluster, content: Object) -> str:
    """Return why an object is refused in a dry run; empty when it is not."""
    try:
        cluster.api.create(content, dryRun="All")
    except Refused as refused:
        return str(refused)
    return ""


def label(cluster: Cluster, namespace: str, value: str | None) -> None:
    cluster.api.patch("Namespace", namespace, "", {"metadata": {"labels": {LABEL: value}}})


@pytest.fixture
def asking(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[Object]:
    """A template for the channel, where the policies are in force."""
    file = tmp_path / "channel-objects.yaml"
    expression = 'device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "imex-channel"'
    wide = {"metadata": {"name": WIDE}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}
    wide |= {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass"}
    file.write_text(yaml.safe_dump_all([*rendered(), wide]))
    cluster.kubectl("apply", "-f", str(file))
    made = template(namespace, "channel", devices(request("channel", CLASS)))
    until("the policies are enforced", lambda: bool(refusal(cluster, made)), 30)
    yield made
    for kind in ("Pod", "ResourceClaimTemplate", "ResourceClaim"):
        cluster.api.call("DELETE", cluster.api.path(kind, namespace=namespace))
    until("no claim is left", lambda: not cluster.api.list("ResourceClaim", namespace), 90)
    cluster.kubectl("delete", "-f", str(file))


@pytest.mark.smoke
def test_the_channel_of_a_node_goes_to_labelled_namespaces_and_is_shared_there(
    cluster: Cluster, start_agent: Callable[..., Agent], asking: Object, stage: Stage
) -> None:
    agent = start_agent(hardware="simulated:gb200-tray", flags=["--imex-channel", "auto"])
    until("the channel", lambda: CHANNEL in agent.devices(), 60)
    assert agent.devices()[CHANNEL].get("allowMultipleAllocations", False) is HAS_SHARES

    # Nobody gets it in a namespace that is not named, by no class.
    assert f"labelled {LABEL}=true" in refusal(cluster, asking)
    stage.create(
        template(stage.namespace, "by-another-class", devices(request("channel", WIDE))),
        pod(stage.namespace, "sneak", container("main", "channel"), templates={"channel": "by-another-class"}),
    )
    until("the allocation is refused", lambda: LABEL in " ".join(stage.events("sneak")), 60)
    stage.delete_pod("sneak")

    # In one that is named, the pods of a node have it: each by a claim of its own, or all by one.
    label(cluster, stage.namespace, "true")
    until("the label is known", lambda: not refusal(cluster, asking), 30)
    main = container("main", "channel")
    if HAS_SHARES:
        stage.create(asking)
        named: dict[str, dict[str, str]] = {"templates": {"channel": "channel"}}
    else:
        stage.create(claim(stage.namespace, "shared", devices(request("channel", CLASS))))
        named = {"claims": {"channel": "shared"}}
    stage.create(*(pod(stage.namespace, name, main, **named) for name in ("first", "second")))
    for name in ("first", "second"):
        assert stage.devices(stage.running(name)) == [CHANNEL]
        assert [node for node in stage.seen(name).nodes if "nvidia" in node] == [NODE]
    label(cluster, stage.namespace, None)
