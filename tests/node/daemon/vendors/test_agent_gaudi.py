"""The real agent process over Gaudi accelerators: a tree of sysfs with real device nodes, an embedded cluster."""

import json
from pathlib import Path

import pytest

from dra_driver.base.names import pool_name
from dra_driver.simulator.plugin_watcher import ClaimRef
from dra_driver.simulator.store import SLICES
from tests.support.agents.agent_process import NODE, stage
from tests.support.nodes.fake_node import can_make_nodes
from tests.support.nodes.gaudi_tree import GaudiModule, GaudiTree
from tests.support.waiting import until

DRIVER = "gaudi.intel.com"
DEVICES = ("gpu-0000-a0-00-0", "gpu-0000-a1-00-0")


def test_a_claim_of_two_cards_sets_each_variable_once_with_both_cards(tmp_path: Path) -> None:
    if not can_make_nodes(tmp_path):
        pytest.skip("making device nodes needs root")
    tree = GaudiTree(tmp_path).write(
        GaudiModule("0000:a0:00.0", 0, "1"), GaudiModule("0000:a1:00.0", 1, "0", verbs=None)
    )
    roots = tree.roots
    flags = [f"--sysfs-root={roots.sys}", f"--proc-root={roots.proc}", f"--dev-root={roots.dev}"]
    with stage("1.36") as here:
        here.start("gaudi", *flags, f"--nvidia-driver-root-mount={roots.driver_mount}")
        until(lambda: here.api.items(SLICES), what="slices")
        assert here.api.items(SLICES)[0]["spec"]["pool"]["name"] == pool_name(NODE, DRIVER)
        request = {"name": "cards", "exactly": {"deviceClassName": DRIVER, "count": 2}}
        wire = here.api.create(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": "two", "namespace": "default"},
                "spec": {"devices": {"requests": [request]}},
            }
        )
        place = {"request": "cards", "driver": DRIVER, "pool": pool_name(NODE, DRIVER)}
        wire["status"] = {"allocation": {"devices": {"results": [{**place, "device": name} for name in DEVICES]}}}
        path = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/two/status"
        here.api.request("PUT", path, body=wire)
        claim = ClaimRef("default", "two", wire["metadata"]["uid"])
        prepared = here.kubelet.wait_registered(DRIVER).prepare([claim])[claim.uid]
        assert [one.device for one in prepared] == list(DEVICES)
        (file,) = here.kubelet.cdi_dir.iterdir()
        document = json.loads(file.read_text())
        assert document["containerEdits"]["env"] == [
            "HABANA_VISIBLE_DEVICES=0,1",
            "HABANA_VISIBLE_MODULES=1,0",
            "HL_VISIBLE_DEVICES=/dev/accel/accel0,/dev/accel/accel1",
        ]
        assert not any(one["containerEdits"].get("env") for one in document["devices"])
        nodes = [[node["path"] for node in one["containerEdits"]["deviceNodes"]] for one in document["devices"]]
        assert [len(paths) for paths in nodes] == [3, 2]
