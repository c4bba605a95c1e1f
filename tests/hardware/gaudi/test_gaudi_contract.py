"""The code for Gaudi fulfils the contract of a vendor."""

from pathlib import Path

import pytest

from dra_driver.hardware.port import Roots
from tests.support.nodes.gaudi_tree import GaudiModule, GaudiTree
from tests.support.vendor_contract import VendorContract


class GaudiBench:
    vendor = "gaudi"

    def __init__(self, folder: Path) -> None:
        self.tree = GaudiTree(folder)

    @property
    def roots(self) -> Roots:
        return self.tree.roots

    def lay_out(self, count: int) -> None:
        self.tree.write(*(GaudiModule(f"0000:a{n}:00.0", n, str(n), verbs=n) for n in range(count)))

    def lose_node(self) -> None:
        (self.tree.folder / "dev/accel/accel0").unlink()


class TestGaudi(VendorContract):
    @pytest.fixture
    def bench(self, tmp_path: Path) -> GaudiBench:
        return GaudiBench(tmp_path)
