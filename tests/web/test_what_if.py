"""What if: both timelines, from a board that stays as it is."""

from __future__ import annotations

import jsonschema
import pytest

from dra_driver.views.envelope import DocumentKind
from dra_driver.views.schemas.documents import schema_of

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


def test_a_node_that_is_added_makes_room(console):
    found = played(console, added=["dgx-h100"])
    assert waits(found["now"]) == ["default/many"]
    assert waits(found["then"]) == []


def test_a_lost_device_and_a_drained_node_take_room_away(console):
    small = CLAIM.replace("count: 7", "count: 6")
    assert waits(played(console, objects=small)["now"]) == []
    assert waits(played(console, objects=small, lost=["demo-node/gpu-0000-1b-00-0"])["then"]) == ["default/many"]
    assert waits(played(console, objects=small, drained=["demo-node"])["then"]) == ["default/many"]


def test_a_node_is_cut_otherwise(console):
    found = played(console, recut=["demo-node=dgx-h100"])
    assert waits(found["then"]) == []


def test_the_board_stays_as_it_is(console):
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
def test_what_can_not_be_played_is_refused_by_name_and_no_file_is_read(console, change):
    reply = console.post("what-if", {"objects": CLAIM, **change})
    assert reply.status == 422
    assert reply.json["error"]["message"]
    assert "/tmp" not in reply.json["error"]["message"]
