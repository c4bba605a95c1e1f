"""The one IMEX channel of a node on a real scheduler, kubelet and API server: its class, its namespaces, who shares it.

The machine is simulated. The class and the policies are the chart's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster.agent import Agent
from cluster.api import Object
from cluster.cluster import Cluster
from cluster.labelled_class import LabelledClass, refusal
from cluster.sandbox import until
from cluster.stage import Stage
from cluster.workload import claim, container, devices, pod, request, template

CHANNEL, NODE = "imex-channel-0", "/dev/nvidia-caps-imex-channels/channel0"
CLASS, WIDE, LABEL = "imex-channel.nvidia.com", "any-channel.example.com", "gpu.nvidia.com/imex-channel"
HAS_SHARES = os.environ.get("GATES") != "default" or os.environ.get("K8S", "1.35") >= "1.36"
KEPT = LabelledClass(CLASS, WIDE, LABEL, "imex-channel", "imex.yaml", "imexChannel=auto")


@pytest.fixture
def asking(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[Object]:
    """A template for the channel, where the policies are in force."""
    made = template(namespace, "channel", devices(request("channel", CLASS)))
    with KEPT.enforced(cluster, made, tmp_path / "channel-objects.yaml"):
        yield made


@pytest.mark.smoke
def test_the_channel_of_a_node_goes_to_labelled_namespaces_and_is_shared_there(
    cluster: Cluster, start_agent: Callable[..., Agent], asking: Object, stage: Stage
) -> None:
    agent = start_agent(hardware="simulated:gb200-tray", flags=["--imex-channel", "auto"])
    until("the channel", lambda: CHANNEL in agent.devices(), 60)
    assert agent.devices()[CHANNEL].get("allowMultipleAllocations", False) is HAS_SHARES

    # No class gives it to a pod in a namespace without the label.
    assert f"labelled {LABEL}=true" in refusal(cluster, asking)
    stage.create(
        template(stage.namespace, "by-another-class", devices(request("channel", WIDE))),
        pod(stage.namespace, "sneak", container("main", "channel"), templates={"channel": "by-another-class"}),
    )
    until("the allocation is refused", lambda: LABEL in " ".join(stage.events("sneak")), 60)
    stage.delete_pod("sneak")

    # In a labelled namespace the pods of a node get it: each by a claim of its own, or all by one claim.
    KEPT.set_label(cluster, stage.namespace, "true")
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
    KEPT.set_label(cluster, stage.namespace, None)
