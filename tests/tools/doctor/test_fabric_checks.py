"""NVLink fabrics of several nodes: a note where nothing serves channels, none beside NVIDIA's ComputeDomain plugin."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from dra_driver.tools.doctor.command import examine
from dra_driver.tools.doctor.finding import Finding
from tests.tools.doctor.support import evidence as e
from tests.tools.doctor.support import fabric

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def found(*slices: dict, **objects: list) -> list[Finding]:
    return list(examine(e.cluster(slices=list(slices), nodes=fabric.NODES, **objects), None, NOW).findings)


def test_nodes_of_a_clique_without_channels_are_named_and_the_report_stays_clean():
    (one,) = found(*fabric.slices("n1", "n2"), fabric.channels("n1"))
    assert (one.id, one.subject) == ("fabric-no-channels", f"NVLink clique {fabric.CLIQUE}")
    assert "spans 2 nodes" in one.message
    assert "on n2:" in one.message
    assert examine(e.cluster(slices=fabric.slices("n1", "n2"), nodes=fabric.NODES), None, NOW).is_clean


def test_nvidia_s_plugin_beside_this_driver_gives_no_finding():
    assert not found(*fabric.slices("n1", "n2"), fabric.channels("n1"), fabric.channels("n2"))
    classes = [
        *e.cluster().of("classes"),
        e.class_of(
            "compute-domain-default-channel.nvidia.com",
            'device.driver == "compute-domain.nvidia.com" && '
            'device.attributes["compute-domain.nvidia.com"].type == "channel"',
        ),
    ]
    slices = [*fabric.slices("n1", "n2"), fabric.channels("n1"), fabric.channels("n2")]
    assert not found(*slices, classes=classes), "its class matches only its own devices"


def test_channels_of_this_driver_serve_a_clique_as_well():
    assert not found(*fabric.slices("n1", "n2", has_channel=True))
    (half,) = found(*fabric.slices("n1", has_channel=True), *fabric.slices("n2"))
    assert half.id == "fabric-no-channels"
    assert "on n2:" in half.message


@pytest.mark.parametrize(
    ("state", "has_channel", "is_found"),
    [
        ("NOT_READY", True, True),
        ("", True, True),
        ("READY", True, False),
        (None, True, False),
        ("cannot connect", False, False),  # this driver offers no channel there
    ],
)
def test_a_daemon_that_is_not_ready_is_a_finding_where_its_channel_is_offered(state, has_channel, is_found):
    slices = fabric.slices("n1", has_channel=has_channel)
    report = examine(e.cluster(slices=slices, nodes=fabric.NODES[:1]), e.node(channel_state=state), NOW)
    messages = [one.message for one in report.findings if one.id == "fabric-not-ready"]
    assert [state or "nothing" for _ in messages] == ([state or "nothing"] if is_found else [])
    assert all((state or "nothing") in message for message in messages)


@pytest.mark.parametrize("domain", ["0000:1b:00.0", "", "5a3c1f0e-7b42-4d8a-9c61-2e0f8d7b6a54"])
def test_the_links_of_one_machine_are_no_fabric(domain):
    assert not found(*fabric.slices("n1", "n2", domain=domain))


def test_a_clique_of_one_node_needs_no_channels():
    assert not found(*fabric.slices("n1"), *fabric.slices("n2", domain=fabric.CLIQUE.replace("5a", "5b")))
