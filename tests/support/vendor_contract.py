"""The contract suite of a vendor: checks of what the driver relies on, on a machine that the vendor sets up.

A vendor's test derives from `VendorContract` and gives it a `bench`. The suite runs on every vendor of the registry and
on the one of docs/new-vendor.md.
"""

from __future__ import annotations

import json
import os
import random
import re
import threading
from dataclasses import fields
from pathlib import Path
from typing import Protocol

import pytest

from dra_driver.base import errors, flags
from dra_driver.base.errors import HardwareError, Retry
from dra_driver.base.names import check_driver_name, normal_pci_address
from dra_driver.base.wire import DeviceType
from dra_driver.hardware.choose import choose
from dra_driver.hardware.facts import Facts
from dra_driver.hardware.port import Hardware, Roots
from dra_driver.hardware.vendors import STANDARD, Owner, ValueKind, load_vendor
from dra_driver.node.cdi import render
from dra_driver.node.devices.build import build_inventory
from dra_driver.node.devices.describing import device_wire, rows_of
from dra_driver.node.health.faults import KnownGpus, read_gpus
from dra_driver.node.slices.compare import content_of, find_faults
from tests.support.nodes.fake_node import can_make_nodes

ROUNDS = 10


class VendorBench(Protocol):
    """A machine of one vendor, laid out below a folder."""

    vendor: str

    @property
    def roots(self) -> Roots:
        """Return where the machine's trees are."""

    def lay_out(self, count: int) -> None:
        """Lay the machine out with this many GPUs, instead of those that it had."""

    def lose_node(self) -> None:
        """Remove the device node of the first GPU."""


class VendorContract:
    """Every test of the suite. A subclass has the fixture `bench`.

    `unknown_memory` is what the vendor's own driver publishes for memory that is not known, None for nothing.
    """

    unknown_memory: int | None = None

    @pytest.fixture
    def hardware(self, bench: VendorBench) -> Hardware:
        """The vendor behind the port, opened as the agent opens it, on a machine with two GPUs."""
        bench.lay_out(2)
        return self.opened(bench)

    @staticmethod
    def opened(bench: VendorBench) -> Hardware:
        return choose(bench.vendor, bench.roots, node_name="node-1")

    # -- what the vendor declares

    def test_the_vendors_line_in_the_registry_is_unique(self, bench: VendorBench) -> None:
        line = flags.registered(bench.vendor)
        assert line is not None
        check_driver_name(line.driver)
        for key in ("name", "driver"):
            assert [getattr(one, key) for one in flags.VENDORS].count(getattr(line, key)) == 1
        assert load_vendor(line.name).gpu.vendor == line.name

    def test_published_names_are_valid_in_the_api_and_fit_a_device(self, bench: VendorBench) -> None:
        for device_type, rows in rows_of(bench.vendor).items():
            names = [row.name for row in rows]
            assert len(names) == len(set(names)), device_type
            assert len(names) <= errors.DEVICE_ATTRIBUTES_AND_CAPACITIES + 1  # percent of compute, or replicas
            for row in rows:
                assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,31}", row.name.removeprefix(STANDARD)), row.name
                assert row.meaning.endswith((".", "…", ")")), row.name
                assert row.name.startswith(STANDARD) == (row.owner is Owner.KUBERNETES)

    def test_devices_have_the_attributes_that_all_vendors_have_in_common(self, bench: VendorBench) -> None:
        names = {row.name: row.kind for row in rows_of(bench.vendor)[DeviceType.GPU]}
        assert {STANDARD + "pciBusID", STANDARD + "pcieRoot", STANDARD + "numaNode", "memory", "type"} <= set(names)
        assert names["memory"] is ValueKind.QUANTITY

    def test_no_other_vendor_has_the_same_page(self, bench: VendorBench) -> None:
        pages = [load_vendor(one.name).page.file for one in flags.VENDORS]
        assert pages.count(load_vendor(bench.vendor).page.file) == 1

    # -- what the vendor finds

    def test_a_machine_without_gpus_of_the_vendor_has_none_and_no_problem(self, bench: VendorBench) -> None:
        bench.lay_out(0)
        hardware = self.opened(bench)
        assert not hardware.is_present()
        found = hardware.discover()
        assert (found.vendor, found.gpus, found.problems) == (bench.vendor, (), ())
        hardware.close()

    def test_gpus_are_found_in_pci_order_with_their_identity(self, bench: VendorBench, hardware: Hardware) -> None:
        assert hardware.is_present()
        found = hardware.discover()
        addresses = [gpu.pci_address for gpu in found.gpus]
        assert len(addresses) == 2
        assert addresses == sorted(map(normal_pci_address, addresses))
        assert len({gpu.uuid for gpu in found.gpus}) == 2
        assert {type(gpu) for gpu in found.gpus} == {load_vendor(bench.vendor).gpu}
        assert all(gpu.memory_bytes is None or gpu.memory_bytes > 0 for gpu in found.gpus)
        assert hash(found.gpus) == hash(hardware.discover().gpus)

    def test_the_order_of_listings_changes_nothing(self, hardware: Hardware, monkeypatch: pytest.MonkeyPatch) -> None:
        expected, listdir, dice = hardware.discover(), os.listdir, random.Random(0)
        monkeypatch.setattr(os, "listdir", lambda *at: dice.sample(listed := listdir(*at), len(listed)))
        assert all(hardware.discover() == expected for _ in range(ROUNDS))

    def test_the_hardware_may_be_discovered_from_any_thread(self, hardware: Hardware) -> None:
        answers: list[Facts] = []
        threads = [threading.Thread(target=lambda: answers.append(hardware.discover())) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert answers == [hardware.discover()] * 4

    def test_the_probe_changes_when_a_gpu_leaves_and_not_before(self, bench: VendorBench, hardware: Hardware) -> None:
        hardware.discover()
        before = hardware.fingerprint()
        assert hardware.fingerprint() == before
        assert hash(before.rest) == hash(hardware.fingerprint().rest)
        bench.lay_out(1)
        assert hardware.fingerprint() != before
        assert len(hardware.discover().gpus) == 1

    def test_the_hardware_can_be_closed_twice_and_used_again(self, hardware: Hardware) -> None:
        found = hardware.discover()
        hardware.close()
        hardware.close()
        assert hardware.discover() == found
        hardware.close()

    def test_a_lost_gpu_is_remembered_as_it_was(self, hardware: Hardware) -> None:
        known = KnownGpus(lambda _: {})
        known.completed(hardware.discover())
        assert read_gpus(json.loads(json.dumps(known.to_wire()))) == hardware.discover().gpus

    # -- what is published

    @pytest.mark.parametrize("minor", [34, 35, 36])
    def test_slices_are_valid_for_the_api_server(self, hardware: Hardware, minor: int) -> None:
        inventory = build_inventory(hardware.discover())
        assert not [problem for problem in inventory.problems if problem.code.startswith("inventory.")]
        assert len(inventory.devices) == 2
        assert not find_faults(content_of(inventory.offering, server_minor=minor), server_minor=minor)

    def test_what_is_published_stays_the_same_to_the_byte(self, bench: VendorBench, hardware: Hardware) -> None:
        def wire(one: Hardware) -> str:
            return json.dumps([device_wire(device) for device in build_inventory(one.discover()).devices])

        expected = wire(hardware)
        assert all(wire(self.opened(bench)) == expected for _ in range(3))

    def test_an_unknown_fact_is_published_only_as_the_vendors_own_driver_does(self, hardware: Hardware) -> None:
        (gpu, *_) = hardware.discover().gpus
        optional = [field.name for field in fields(gpu) if field.default is None]
        bare = type(gpu)(**{name: getattr(gpu, name) for name in ("uuid", "pci_address", "minor")}, memory_bytes=None)
        assert all(getattr(bare, name) is None for name in optional)
        (device,) = build_inventory(Facts(gpu.vendor, (bare,))).devices
        assert device.capacity.get("memory") == self.unknown_memory
        assert "" not in device.attributes.values()

    # -- what containers get

    def test_a_container_gets_the_nodes_of_its_own_gpu_only(self, hardware: Hardware, tmp_path: Path) -> None:
        if not can_make_nodes(tmp_path):
            pytest.skip("making device nodes needs root")
        first, second = ({node.path for node in self.edits(hardware, index).device_nodes} for index in (0, 1))
        assert first
        assert second
        assert not first & second
        common = hardware.common_edits()
        assert not {node.path for node in common.device_nodes} & (first | second)
        assert render("k8s.example.com/claim", {"gpu": self.edits(hardware, 0)}, common)

    def test_a_missing_device_node_is_named_and_looked_for_again_later(
        self, bench: VendorBench, hardware: Hardware
    ) -> None:
        gpu = hardware.discover().gpus[0]
        bench.lose_node()
        with pytest.raises(HardwareError, match="/dev/") as caught:
            hardware.device_edits(gpu, None)
        assert (caught.value.code, caught.value.retry) == ("hardware.node-missing", Retry.LATER)

    @staticmethod
    def edits(hardware: Hardware, index: int):
        return hardware.device_edits(hardware.discover().gpus[index], None)
