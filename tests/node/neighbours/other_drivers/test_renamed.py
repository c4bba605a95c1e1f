"""Devices that claims hold under another version's names. Not covered here: the real kubelet (cluster lane)."""

from __future__ import annotations

import json

import pytest

from dra_driver.hardware.port import Roots
from dra_driver.hardware.simulated import SimulatedHardware
from dra_driver.node import cdi
from dra_driver.node.cdi import CdiStore
from dra_driver.node.devices.build import build_inventory
from dra_driver.node.ledger.record import ClaimRecord, ClaimState
from dra_driver.node.neighbours.allocations import held_under_other_names, problems

DRIVER, BOOT = "gpu.nvidia.com", "boot-1"


@pytest.fixture(scope="module")
def devices():
    return build_inventory(SimulatedHardware("demo-h100", Roots(), node_name="n").discover()).devices


@pytest.fixture
def store(tmp_path):
    return CdiStore(tmp_path)


def record(*names, uid="1", boot=BOOT, **more):
    allocation = {"devices": [{"device": name, "request": "r", "pool": "p", **more} for name in names], "configs": []}
    return ClaimRecord(uid, "ns", "c", ClaimState.PREPARED, boot, allocation, ())


def write(store, uid, *paths):
    nodes = [{"path": path} for path in paths]
    device = {"name": "x", "containerEdits": {"deviceNodes": nodes}}
    document = {"cdiVersion": "0.5.0", "kind": cdi.kind(DRIVER), "devices": [device]}
    store.write(cdi.claim_file(DRIVER, uid), json.dumps(document).encode())


def held(store, devices, *records):
    return held_under_other_names(records, devices, store, driver=DRIVER, boot_id=BOOT)


def test_the_gpu_is_found_by_the_device_nodes_of_the_claims_cdi_file(store, devices):
    minor = devices[-1].gpu.minor
    write(store, "1", "/dev/nvidiactl", f"/dev/nvidia{minor}", "/dev/nvidia-uvm")
    found = held(store, devices, record("card-7"))
    assert found == {"card-7 (ns/c)": {d.name for d in devices if d.gpu.minor == minor}}
    (problem,) = problems(found)
    assert problem.code == "node.renamed-device"


def test_without_a_cdi_file_every_device_is_withheld(store, devices):
    assert held(store, devices, record("card-7")) == {"card-7 (ns/c)": {d.name for d in devices}}


def test_names_that_we_publish_or_would_give_to_a_gpu_that_is_gone_are_not_renamed(store, devices):
    names = [devices[0].name, "gpu-0000-ff-00-0", "gpu-0000-ff-00-0-mig-1g10gb-19-0"]
    assert held(store, devices, record(*names)) == {}


def test_admin_access_and_claims_of_another_boot_hold_nothing(store, devices):
    records = record("card-1", adminAccess=True), record("card-2", uid="2", boot="boot-0")
    assert held(store, devices, *records) == {}
