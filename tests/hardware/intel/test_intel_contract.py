"""The code for Intel fulfils the contract of a vendor."""

from pathlib import Path

import pytest

from dra_driver.hardware.port import Roots
from tests.support.nodes.intel_tree import IntelCard, IntelTree
from tests.support.vendor_contract import VendorContract


class IntelBench:
    vendor = "intel"

    def __init__(self, folder: Path) -> None:
        self.tree = IntelTree(folder)

    @property
    def roots(self) -> Roots:
        return self.tree.roots

    def lay_out(self, count: int) -> None:
        self.tree.write(*(IntelCard(f"0000:0{3 + n}:00.0", n) for n in range(count)))

    def lose_node(self) -> None:
        (self.tree.folder / "dev/dri/renderD128").unlink()


class TestIntel(VendorContract):
    unknown_memory = 0

    @pytest.fixture
    def bench(self, tmp_path: Path) -> IntelBench:
        return IntelBench(tmp_path)
