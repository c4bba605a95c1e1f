"""Trees of sysfs in which files are missing, unreadable or nonsense: no vendor fails, invents a name or reports 0."""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dra_driver.hardware.amd import health
from dra_driver.hardware.amd.metering import read_all
from dra_driver.hardware.facts import Facts
from dra_driver.hardware.intel import attributes
from dra_driver.hardware.intel.attributes import IntelReader
from dra_driver.hardware.port import Roots
from dra_driver.hardware.vendors import load_vendor
from dra_driver.node.devices.build import build_inventory
from dra_driver.node.slices.compare import content_of, find_faults
from tests.support.nodes.amd_tree import AmdCard, AmdTree
from tests.support.nodes.gaudi_tree import GaudiModule, GaudiTree
from tests.support.nodes.intel_tree import IntelCard, IntelTree

ROUNDS = 25
READERS = {"amd": read_all, "intel": lambda roots: IntelReader(roots).read()}
VITALS = {"amd": health.read_all_vitals, "intel": attributes.read_all_vitals}
JUNK = [
    *(b"", b"\0" * 64, b"N/A\n", b"-1", b"\xff\xfe\0", b"9" * 26, b"9" * 20, b"0x", b"0x0\n\0\0", b"-0x10", b"1_0"),
    *("\u0663".encode(), b"1e9", b"x" * 5000, b"simd_count 1\nsimd_count -1\n", b"None", b" \n"),
    b"simd_count 4\ndomain 99999999999",
]


def amd(folder: Path) -> Roots:
    tree = AmdTree(folder)
    names = ("temp1_input", "temp1_crit", "power1_average", "freq1_input")
    sensors = {f"hwmon/hwmon1/{name}": "1000" for name in names}
    return tree.write(
        AmdCard("0000:05:00.0", modes=("DPX", "NPS1"), partitions=(128, 129), files={**sensors, "product_name": "x"}),
        AmdCard("10001:02:00.0", number=8, render_minor=136, unique_id=2),
        AmdCard("0000:c1:00.0", number=9, render_minor=144, modes=None, unique_id=0),
    ).roots


def intel(folder: Path) -> Roots:
    files = {"config": "x", "tile0/gt0/freq0/act_freq": "10", "tile0/physical_vram_size_bytes": str(8 << 30)}
    cards = IntelCard("0000:03:00.0", files=files), IntelCard("0000:00:02.0", 1, 0x9A49, "i915", memory_bytes=0)
    return IntelTree(folder).write(*cards, IntelCard("0000:03:00.1", 2, physical="0000:03:00.0")).roots


def gaudi(folder: Path) -> Roots:
    own, old = GaudiModule("0000:a0:00.0", 3, "5"), GaudiModule("0000:a1:00.0", 4, "6", verbs=None, is_virtual=True)
    return GaudiTree(folder).write(own, old, GaudiModule("0001:a0:00.0", 5, "7", device_id=0x1063, verbs=2)).roots


def files_of(roots: Roots) -> list[Path]:
    return [Path(folder, name) for folder, _, names in os.walk(roots.sys) for name in sorted(names)]


def damage(path: Path, dice: random.Random) -> None:
    if path.is_symlink() or not path.is_file():
        return
    kind = dice.randrange(10)
    if kind < 3:
        path.unlink()
    elif kind == 3:
        path.unlink()
        path.mkdir()
    elif kind == 4:
        path.unlink()
        os.mkfifo(path)  # no process ever writes into it
    else:
        path.write_bytes(dice.choice(JUNK))


def names_of(roots: Roots, vendor: str) -> set[str]:
    """Return the names that may occur: those of the machine, and those that it has where its modes can't be known."""
    found = {device.name for device in build_inventory(load_vendor(vendor).open(roots).discover()).devices}
    return found | {name.replace("-dpx-", "-xcp-") for name in found} | {name.partition("-dpx")[0] for name in found}


def check(facts: Facts, known: set[str]) -> None:
    inventory = build_inventory(facts)
    names = [device.name for device in inventory.devices]
    assert len(names) == len(set(names))
    assert set(names) <= known, "a name that the machine does not have"
    assert all(gpu.memory_bytes is None or 0 < gpu.memory_bytes < 1 << 60 for gpu in facts.gpus)
    assert not find_faults(content_of(inventory.offering, server_minor=36), server_minor=36)


@pytest.mark.parametrize(("vendor", "lay_out"), [("amd", amd), ("intel", intel), ("gaudi", gaudi)])
def test_damaged_files_end_in_facts_left_out(vendor: str, lay_out: Callable[[Path], Roots], tmp_path: Path) -> None:
    known = names_of(lay_out(tmp_path / "whole"), vendor)
    for number in range(ROUNDS):
        dice = random.Random(number)
        roots = lay_out(tmp_path / str(number))
        for path in dice.sample(files_of(roots), dice.randint(1, 6)):
            damage(path, dice)
        hardware = load_vendor(vendor).open(roots)
        hardware.fingerprint()
        check(hardware.discover(), known)
        for reading in READERS.get(vendor, lambda _: ())(roots):
            assert all(isinstance(value, float) and value >= -1 for value in reading.values.values()), number
        list(VITALS.get(vendor, lambda _: ())(roots))
        shutil.rmtree(tmp_path / str(number))


@pytest.mark.parametrize(("vendor", "lay_out"), [("amd", amd), ("intel", intel), ("gaudi", gaudi)])
def test_a_pipe_in_place_of_any_file_blocks_no_reading(
    vendor: str, lay_out: Callable[[Path], Roots], tmp_path: Path
) -> None:
    roots = lay_out(tmp_path)
    known = names_of(roots, vendor)
    hardware = load_vendor(vendor).open(roots)
    for path in files_of(roots):
        if path.is_symlink():
            continue
        content = path.read_bytes()
        path.unlink()
        os.mkfifo(path)
        check(hardware.discover(), known)
        list(READERS.get(vendor, lambda _: ())(roots))
        list(VITALS.get(vendor, lambda _: ())(roots))
        path.unlink()
        path.write_bytes(content)
