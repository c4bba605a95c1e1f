"""The code for AMD fulfils the contract of a vendor."""

from pathlib import Path

import pytest

from dra_driver.hardware.port import Roots
from tests.support.nodes.amd_tree import AmdCard, AmdTree
from tests.support.vendor_contract import VendorContract


class AmdBench:
    vendor = "amd"

    def __init__(self, folder: Path) -> None:
        self.tree = AmdTree(folder)

    @property
    def roots(self) -> Roots:
        return self.tree.roots

    def lay_out(self, count: int) -> None:
        self.tree.write(*(AmdCard(f"0000:0{5 + n}:00.0", 8 * n, 128 + 8 * n, unique_id=0xA0 + n) for n in range(count)))

    def lose_node(self) -> None:
        (self.tree.folder / "dev/dri/renderD128").unlink()


class TestAmd(VendorContract):
    unknown_memory = 0

    @pytest.fixture
    def bench(self, tmp_path: Path) -> AmdBench:
        return AmdBench(tmp_path)
