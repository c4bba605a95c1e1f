"""Machines of one kind have equal shapes in the webhook and equal templates, whichever vendor's GPUs they have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dra_driver.base.flags import registered_as
from dra_driver.hardware.port import Roots
from dra_driver.hardware.vendors import load_vendor
from dra_driver.node.devices.build import build_inventory
from dra_driver.node.devices.describing import device_wire
from dra_driver.tools.fleet.template import node_template
from dra_driver.tools.webhook.fleet import shapes_of
from tests.support.nodes.amd_tree import AmdCard, AmdTree
from tests.support.nodes.gaudi_tree import GaudiModule, GaudiTree
from tests.support.nodes.intel_tree import IntelCard, IntelTree

HERE, THERE = ("0000:05:00.0", "0000:05:00.1"), ("0001:c5:00.0", "0001:c5:00.1")


def amd(folder: Path, addresses: tuple[str, str], number: int, version: str) -> Roots:
    card = AmdCard(addresses[0], unique_id=100 + number, hive=7 + number, numa_node=number)
    return AmdTree(folder).write(card, version=version).roots


def intel(folder: Path, addresses: tuple[str, str], number: int, _version: str) -> Roots:
    card = IntelCard(addresses[0], number, virtuals=7)
    return IntelTree(folder).write(card, IntelCard(addresses[1], number + 1, physical=addresses[0])).roots


def gaudi(folder: Path, addresses: tuple[str, str], number: int, version: str) -> Roots:
    return GaudiTree(folder).write(GaudiModule(addresses[0], number, "5"), version=version).roots


MACHINES: dict[str, Callable[[Path, tuple[str, str], int, str], Roots]] = {"amd": amd, "intel": intel, "gaudi": gaudi}


def slice_of(vendor: str, roots: Roots) -> dict[str, Any]:
    facts = load_vendor(vendor).open(roots).discover()
    devices = [device_wire(one) for one in build_inventory(facts).devices]
    driver = registered_as(vendor).driver
    return {"spec": {"driver": driver, "pool": {"name": f"n/{driver}", "generation": 1}, "devices": devices}}


@pytest.mark.parametrize("vendor", MACHINES)
def test_two_machines_of_one_kind_have_the_same_shapes(vendor: str, tmp_path: Path) -> None:
    first, second = (
        slice_of(vendor, MACHINES[vendor](tmp_path / str(number), addresses, number, "1.2.3"))
        for number, addresses in enumerate((HERE, THERE))
    )
    assert {one.key for one in shapes_of(first)} == {one.key for one in shapes_of(second)}
    assert shapes_of(first)


@pytest.mark.parametrize("vendor", ["amd", "gaudi"])
def test_two_machines_of_one_kind_have_the_same_template(vendor: str, tmp_path: Path) -> None:
    lay_out = MACHINES[vendor]
    found = [slice_of(vendor, lay_out(tmp_path / str(number), HERE, number, f"1.2.{number}")) for number in (0, 1)]
    first, second = (node_template([one], "n")[0]["spec"]["devices"] for one in found)
    for device in (*first, *second):
        for name in ("numaNode", "resource.kubernetes.io/numaNode"):  # the kind decides where the card is
            device["attributes"].pop(name, None)
    assert first == second
