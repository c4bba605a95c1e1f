"""Agents of several vendors on trees of files, with the policy and the classes that the chart has for them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator

import pytest

from cluster.agent import Agent
from cluster.cluster import REPOSITORY, Cluster
from cluster.sandbox import until
from cluster.vendors import DRIVERS, published
from dra_driver.hardware.port import Roots

POLICY = REPOSITORY / "deploy/manifests/admission-policy.yaml"


@pytest.fixture
def start_auto(cluster: Cluster, start_agent: Callable[..., Agent]) -> Iterator[Callable[..., Agent]]:
    """A function that starts an agent for trees of files, with the policy and classes that the chart has for it."""
    started: list[Agent] = []
    listed = ", ".join(f'"{driver}"' for driver in DRIVERS)
    cluster.kubectl("apply", "-f", "-", stdin=POLICY.read_text().replace('== "gpu.nvidia.com"', f"in [{listed}]"))
    for driver in DRIVERS[1:]:
        cluster.kubectl("apply", "-f", str(REPOSITORY / f"deviceclasses/{driver}.yaml"))

    def start(
        hardware: str,
        roots: Roots,
        drivers: set[str],
        environment: dict[str, str] | None = None,
        *,
        flags: tuple[str, ...] = (),
        program: tuple[str, ...] = (),
    ) -> Agent:
        places = ("--sysfs-root", roots.sys, "--proc-root", roots.proc, "--dev-root", roots.dev)
        agent = start_agent(
            hardware=hardware, is_named=False, flags=(*places, *flags), environment=environment, program=program
        )
        started.append(agent)
        until(f"slices of {drivers}", lambda: set(published(cluster, agent)) == drivers, 60)
        return agent

    yield start
    for agent in started:
        agent.kill()
        for driver in DRIVERS[1:]:
            for name in published(cluster, agent).get(driver, ()):
                cluster.api.delete("ResourceSlice", name)
            shutil.rmtree(agent.node.plugins / driver, ignore_errors=True)
    cluster.kubectl("apply", "-f", str(POLICY))
