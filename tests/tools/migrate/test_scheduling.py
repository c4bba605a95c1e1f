"""Migrated shapes: the embedded API accepts their templates, and our allocator finds devices for their claims.

The same on a real Kubernetes, pods included: cluster/scenarios/allocation/test_migrate.py.
"""

from __future__ import annotations

import pytest
import yaml

from dra_driver.allocation.allocator import Allocator
from dra_driver.simulator.api_server import EmbeddedApi
from dra_driver.tools.migrate.report import objects_of
from dra_driver.tools.world.world import World, add_profiles
from tests.support.migrate_shapes import SHAPES, expected

TEMPLATES = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates"


@pytest.fixture(scope="module")
def world():
    """A node with six whole GPUs and two that are partitioned, one with a GPU in shares."""
    made = World()
    add_profiles(made, ["demo-h100"])
    made.complete()
    node = made.of("Node")[0]["metadata"]["name"]
    [own] = [one for one in made.of("ResourceSlice") if one["spec"]["driver"] == "gpu.nvidia.com"]
    whole = own["spec"]["devices"][0]
    more = {"type": {"string": "gpu-share"}, "sharingStrategy": {"string": "MPS"}, "replicas": {"int": 10}}
    own["spec"]["devices"].append({**whole, "name": "share-0", "attributes": {**whole["attributes"], **more}})
    assert own["spec"]["nodeName"] == node
    return made


def templates(shape):
    documents = [one for one in yaml.safe_load_all(expected(shape).read_text()) if one]
    found = [one.wire for document in documents for one in objects_of(document)]
    return [wire for wire in found if wire["kind"] == "ResourceClaimTemplate"]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.stem)
def test_the_claims_of_a_shape_are_accepted_and_allocated(shape, world):
    allocator = Allocator(
        slices=world.of("ResourceSlice"), classes=world.of("DeviceClass"), allocated=[], kubernetes="1.35"
    )
    for template in templates(shape):
        body = {**template, "metadata": {"name": template["metadata"]["name"], "namespace": "default"}}
        stored = EmbeddedApi().request("POST", TEMPLATES, body=body)
        spec = (stored if isinstance(stored, dict) else stored.body)["spec"]["spec"]
        claim = {"metadata": {"name": "c", "namespace": "default"}, "spec": spec}
        outcome = allocator.for_claims([claim]).allocate(world.of("Node")[0])
        assert outcome.ok, outcome
        wanted = sum(row["exactly"].get("count", 1) for row in template["spec"]["spec"]["devices"]["requests"])
        assert len(outcome.results[0]["devices"]["results"]) == wanted
