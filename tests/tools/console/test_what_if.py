"""What if: the timelines with and without a change, from a board that is not changed."""

from __future__ import annotations

import jsonschema
import pytest

from dra_driver.tools.schemas import schema_of
from dra_driver.tools.world.access import DocumentKind
from tests.support.console.process import running_console

CLAIM = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: many}
spec: {devices: {requests: [{name: gpus, exactly: {deviceClassName: gpu.nvidia.com, count: 7}}]}}
"""


def played(console, **change):
    reply = console.post("what-if", {"objects": CLAIM, **change})
    assert reply.status == 200, reply.body
    jsonschema.validate(reply.json, schema_of(DocumentKind.WHAT_IF))
    return reply.json


def waits(moments):
    return [one["job"] for one in moments[-1]["waiting"]]


def test_a_claim_that_waits_fits_on_an_added_node(console):
    found = played(console, added=["dgx-h100"])
    assert waits(found["now"]) == ["default/many"]
    assert waits(found["then"]) == []


def test_a_claim_waits_after_a_device_is_lost_or_a_node_is_drained(console):
    small = CLAIM.replace("count: 7", "count: 6")
    assert waits(played(console, objects=small)["now"]) == []
    assert waits(played(console, objects=small, lost=["demo-node/gpu-0000-1b-00-0"])["then"]) == ["default/many"]
    assert waits(played(console, objects=small, drained=["demo-node"])["then"]) == ["default/many"]


def test_the_hardware_of_a_node_is_replaced_by_a_profile(console):
    found = played(console, recut=["demo-node=dgx-h100"])
    assert waits(found["then"]) == []


PARTS = """
kind: ResourceClaim
apiVersion: resource.k8s.io/v1
metadata: {{name: parts}}
spec: {{devices: {{requests: [{{name: gpu, exactly: {{deviceClassName: {device_class}, count: {count}, selectors: [
  {{cel: {{expression: 'device.attributes["gpu.nvidia.com"].?profile.orValue("") == "{profile}"'}}}}]}}}}]}}}}
"""


@pytest.mark.parametrize(
    ("become", "profile", "parts"),
    [
        ("all-1g.10gb", "1g.10gb", 56),
        ("all-balanced", "2g.20gb", 32),
        ("3g.40gb=2", "3g.40gb", 16),
        ("all-disabled", "", 8),
    ],
)
def test_the_gpus_of_a_node_are_partitioned_in_another_way(console, become, profile, parts):
    """The node has eight H100, of which two are partitioned, and offers fourteen devices."""
    device_class = "mig.nvidia.com" if profile else "gpu.nvidia.com"
    objects = PARTS.format(device_class=device_class, count=8, profile=profile)
    found = played(console, objects=objects, recut=[f"demo-node={become}"])
    assert waits(found["now"]) == ["default/parts"]
    assert waits(found["then"]) == []
    assert found["then"][-1]["usage"]["devices"] == found["now"][-1]["usage"]["devices"] - 14 + parts


def test_the_gpus_of_a_node_are_shared(console):
    found = played(console, recut=["demo-node=shares:4"], objects="")
    assert found["then"][-1]["usage"]["devices"] == found["now"][-1]["usage"]["devices"] - 14 + 32
    refused = console.post("what-if", {"recut": ["demo-node=shares:1"]})
    assert (refused.status, refused.json["error"]["code"]) == (422, "input.recut")


def test_copies_of_an_existing_claim_arrive(tmp_path):
    path = tmp_path / "claims.yaml"
    path.write_text(CLAIM.replace("many", "train").replace("count: 7", "count: 3"))
    with running_console("-f", str(path), "--fleet", "demo-h100") as console:
        console.ready()
        found = played(console, objects="", picked=["claim/default/train=2"], added=["dgx-h100"])
        assert waits(found["now"]) == ["default/train-copy-2"], "the node has six whole GPUs"
        assert waits(found["then"]) == []
        for picked in ("claim/default/none", "node/default/train", "claim/default/train=9999"):
            assert console.post("what-if", {"picked": [picked]}).status == 422


def test_the_board_is_not_changed(console):
    before = console.ask("summary").json
    played(console, added=["dgx-h100=3"], drained=["demo-node"])
    assert console.ask("summary").json == before


@pytest.mark.parametrize(
    "change",
    [
        {"added": ["/etc/passwd"]},
        {"added": ["dgx-h100=99999"]},
        {"recut": ["demo-node=/etc/passwd"]},
        {"drained": ["nothing"]},
        {"objects": "kind: ResourceClaim\nmetadata: ["},
        {"objects": "kind: ResourceClaim\nmetadata: {name: x}\nspec: {devices: 5}"},
        {"objects": "x" * 1_100_000},
        {"drained": "demo-node"},
    ],
    ids=lambda change: str(change)[:50],
)
def test_an_invalid_change_is_refused_with_a_message_and_no_file_is_read(console, change):
    reply = console.post("what-if", {"objects": CLAIM, **change})
    assert reply.status == 422
    assert reply.json["error"]["message"]
    assert "/tmp" not in reply.json["error"]["message"]
