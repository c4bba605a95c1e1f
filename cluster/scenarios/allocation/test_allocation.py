"""The scheduler chooses among what the driver published: attributes, partitions, alternatives, admin access."""

from __future__ import annotations

import pytest

from cluster.agent import Agent
from cluster.api import Refused
from cluster.stage import Stage, results
from cluster.workload import claim, container, devices, pod, request, template

DOMAIN = "gpu.nvidia.com"
ADMIN = {"resource.kubernetes.io/admin-access": "true"}


def attribute(agent: Agent, device: str, name: str) -> object:
    attributes = agent.devices()[device]["attributes"]
    value = attributes.get(name) or attributes.get(f"{DOMAIN}/{name}") or {}
    return next(iter(value.values()), None)


@pytest.mark.smoke
def test_static_mig_partitions_are_claimed_by_profile(either_agent: Agent, stage: Stage) -> None:
    profile = next(filter(None, (attribute(either_agent, name, "profile") for name in sorted(either_agent.devices()))))
    wanted = f'device.attributes["{DOMAIN}"].profile == "{profile}"'
    stage.create(
        template(stage.namespace, "partition", devices(request("mig", "mig.nvidia.com", wanted))),
        pod(stage.namespace, "user", container("main", "mig"), templates={"mig": "partition"}),
    )
    (device,) = stage.devices(stage.check("user"))
    assert attribute(either_agent, device, "profile") == profile
    assert attribute(either_agent, device, "type") == "mig"


def test_match_attribute_gives_partitions_of_one_parent(agent: Agent, stage: Stage) -> None:
    same = {"matchAttribute": f"{DOMAIN}/parentUUID"}
    both = devices(request("mig", "mig.nvidia.com", count=2), constraints=[same])
    stage.create(
        template(stage.namespace, "siblings", both),
        pod(stage.namespace, "user", container("main", "mig"), templates={"mig": "siblings"}),
    )
    found = stage.devices(stage.check("user"))
    assert len(set(found)) == 2
    assert len({attribute(agent, name, "parentUUID") for name in found}) == 1


def test_match_attribute_gives_gpus_of_one_link_domain(agent: Agent, stage: Stage) -> None:
    same = {"matchAttribute": f"{DOMAIN}/nvlinkDomain"}
    stage.create(
        template(stage.namespace, "pair", devices(request("gpus", count=2), constraints=[same])),
        pod(stage.namespace, "user", container("main", "gpus"), templates={"gpus": "pair"}),
    )
    found = stage.devices(stage.check("user"))
    assert len(set(found)) == 2
    assert len({attribute(agent, name, "nvlinkDomain") for name in found}) == 1


@pytest.mark.smoke
def test_first_available_falls_back_to_an_alternative_that_exists(agent: Agent, stage: Stage) -> None:
    impossible = {"cel": {"expression": f'device.attributes["{DOMAIN}"].productName == "NVIDIA Dream"'}}
    choices = [
        {"name": "dream", "deviceClassName": "gpu.nvidia.com", "selectors": [impossible]},
        {"name": "any", "deviceClassName": "gpu.nvidia.com"},
    ]
    stage.create(
        template(stage.namespace, "wish", devices({"name": "gpu", "firstAvailable": choices})),
        pod(stage.namespace, "user", container("main", ("wish", "gpu")), templates={"wish": "wish"}),
    )
    found = stage.check("user")
    (result,) = results(stage.claims(found)["wish"])
    assert result["request"] == "gpu/any"


def test_the_selectors_of_class_and_request_both_apply(agent: Agent, stage: Stage) -> None:
    chosen = max(name for name in agent.devices() if attribute(agent, name, "type") == "gpu")
    uuid = attribute(agent, chosen, "uuid")
    of_class = f'device.driver == "{DOMAIN}" && device.attributes["{DOMAIN}"].type == "gpu"'
    name = f"{stage.namespace}.example.com"
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}}
    stage.create(kind | {"spec": {"selectors": [{"cel": {"expression": of_class}}]}})
    try:
        by_uuid = request("gpu", name, f'device.attributes["{DOMAIN}"].uuid == "{uuid}"')
        stage.create(
            template(stage.namespace, "that-gpu", devices(by_uuid)),
            pod(stage.namespace, "user", container("main", "gpu"), templates={"gpu": "that-gpu"}),
        )
        assert stage.devices(stage.check("user")) == [chosen]
    finally:
        stage.cluster.api.delete("DeviceClass", name)


def test_an_unsatisfiable_claim_stays_pending_with_a_message(agent: Agent, stage: Stage) -> None:
    stage.create(
        template(stage.namespace, "too-much", devices(request("gpus", count=20))),
        pod(stage.namespace, "user", container("main", "gpus"), templates={"gpus": "too-much"}),
    )
    assert "cannot allocate all claims" in stage.pending("user", "cannot allocate all claims")


def test_a_claim_with_admin_access_gets_a_gpu_that_another_pod_holds(agent: Agent, stage: Stage) -> None:
    stage.cluster.api.patch("Namespace", stage.namespace, "", {"metadata": {"labels": ADMIN}})
    stage.create(
        template(stage.namespace, "one-gpu", devices(request("gpu"))),
        pod(stage.namespace, "user", container("main", "gpu"), templates={"gpu": "one-gpu"}),
    )
    (held,) = stage.devices(stage.check("user"))
    every = request("all", allocationMode="All", adminAccess=True)
    stage.create(
        template(stage.namespace, "monitor", devices(every)),
        pod(stage.namespace, "monitor", container("main", "all"), templates={"all": "monitor"}),
    )
    watched = stage.devices(stage.check("monitor"))
    assert held in watched
    assert set(watched) == {name for name in agent.devices() if attribute(agent, name, "type") == "gpu"}
    # The end of the monitor does not affect the user.
    stage.delete_pod("monitor")
    stage.check("user")


def test_admin_access_is_refused_in_an_unlabelled_namespace(agent: Agent, stage: Stage) -> None:
    with pytest.raises(Refused, match="admin-access"):
        stage.create(claim(stage.namespace, "monitor", devices(request("all", adminAccess=True))))


def test_each_node_runs_the_pods_of_its_own_devices(agent: Agent, start_agent, stage: Stage) -> None:
    other = start_agent(stage.cluster.nodes[1], hardware="simulated:l40s")
    other.published()
    product = next(filter(None, (attribute(other, name, "productName") for name in other.devices())))
    wanted = f'device.attributes["{DOMAIN}"].productName == "{product}"'
    stage.create(
        template(stage.namespace, "there", devices(request("gpu", selector=wanted))),
        pod(stage.namespace, "user", container("main", "gpu"), templates={"gpu": "there"}),
    )
    there = stage.on(stage.cluster.nodes[1])
    assert there.check("user")["spec"]["nodeName"] == "node-2"
