"""Slices of captured and composed machines of every vendor, put before the real API server: it keeps all of each."""

from __future__ import annotations

import os
from pathlib import Path

from cluster.cluster import REPOSITORY, Cluster
from dra_driver.base.flags import registered_as
from dra_driver.base.names import pool_name
from dra_driver.hardware.port import Roots
from dra_driver.hardware.vendors import load_vendor
from dra_driver.node.devices.build import build_inventory
from dra_driver.node.devices.offering import KeptFields
from dra_driver.node.slices.compare import content_of
from dra_driver.node.slices.layout import lay_out
from tests.support.nodes.amd_tree import AmdCard, AmdTree
from tests.support.nodes.gaudi_tree import GaudiModule, GaudiTree
from tests.support.nodes.intel_tree import IntelCard, IntelTree

CAPTURES = Path(os.environ.get("DRA_SHARED", REPOSITORY.parent / "shared")) / "captures"
VENDORS = ("amd", "intel", "gaudi")


def composed(vendor: str, folder: Path) -> Roots:
    """Return a composed machine with the oddities that captures have."""
    if vendor == "amd":
        divided = AmdCard("0000:05:00.0", modes=("CPX", "NPS4"), partitions=tuple(range(128, 136)))
        odd = AmdCard("10001:02:00.0", number=9, render_minor=144, modes=None, unique_id=0, files={"product_name": ""})
        return AmdTree(folder).write(divided, odd, version="6.16.13.1").roots
    if vendor == "intel":
        flex = IntelCard("0000:03:00.0", 0, 0x56C0, "i915", 16 << 30, virtuals=31)
        cards = [flex, IntelCard("0000:00:02.0", 40, 0x1)]
        virtual = [
            IntelCard(f"0000:03:0{1 + n // 8}.{n % 8}", n + 1, 0x56C0, "i915", 0, physical="0000:03:00.0")
            for n in range(31)
        ]
        return IntelTree(folder).write(*cards, *virtual).roots
    modules = [GaudiModule(f"0000:a{n}:00.0", n, str(n), device_id=0x1060 + n % 5, verbs=n) for n in range(8)]
    return GaudiTree(folder).write(*modules, version="1.22.1-abc").roots


def machines(folder: Path) -> dict[str, tuple[str, Roots]]:
    """Return the vendor and the roots of each machine by its name."""
    found = {f"composed {vendor}": (vendor, composed(vendor, folder / vendor)) for vendor in VENDORS}
    for vendor in VENDORS:
        for place in sorted((CAPTURES / vendor).glob("*/sys")):
            found[place.parent.name] = vendor, Roots(sys=str(place), dev="/nonexistent")
    return found


def test_slices_of_every_captured_machine_are_kept_whole(cluster: Cluster, tmp_path: Path) -> None:
    keeps = KeptFields(*[cluster.keeps_gated] * 3)
    minor = int(cluster.version.split(".")[1])
    for name, (vendor, roots) in machines(tmp_path).items():
        offering = build_inventory(load_vendor(vendor).open(roots).discover()).offering
        content = content_of(offering.for_server(keeps), server_minor=minor)
        assert content.devices, name
        driver = registered_as(vendor).driver
        specs = lay_out(
            content.devices,
            pool=pool_name("node-1", driver),
            node="node-1",
            driver=driver,
            server_minor=minor,
            counter_sets=content.counter_sets,
        )
        for number, spec in enumerate(specs):
            wire = {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceSlice",
                "metadata": {"name": f"captured-{number}"},
                "spec": spec.wire(1, len(specs)),
            }
            kept = cluster.api.create(wire, dryRun="All")
            assert kept["spec"] == wire["spec"], name
