"""A lane that cannot fail proves nothing: with a driver that is broken on purpose, its checks fail and say why."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from cluster.agent import Agent
from cluster.drivers import broken_driver
from cluster.sandbox import NotInTime
from cluster.stage import Stage
from cluster.workload import container, devices, pod, request, template


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("wrong-socket", "/run/nobody.sock"),
        ("wrong-device", "gpu-of-somebody-else"),
        ("missing-cdi-file", "unresolvable CDI devices"),
    ],
)
def test_the_checks_fail_with_a_broken_driver_and_name_the_cause(
    start_agent: Callable[..., Agent], stage: Stage, fault: str, cause: str
) -> None:
    with pytest.raises((NotInTime, AssertionError)) as found:
        use(start_agent, stage, fault)
    message = "\n".join([str(found.value), *getattr(found.value, "__notes__", [])])
    assert cause in message
    # The pod can only end once a working driver runs.
    start_agent()


def use(start_agent: Callable[..., Agent], stage: Stage, fault: str) -> None:
    broken = start_agent(program=[sys.executable, broken_driver.__file__, fault])
    try:
        start_pod(stage)
    finally:
        broken.kill()


def start_pod(stage: Stage) -> None:
    stage.create(
        template(stage.namespace, "one-gpu", devices(request("gpu"))),
        pod(stage.namespace, "user", container("main", "gpu"), templates={"gpu": "one-gpu"}),
    )
    stage.check("user", 15)
