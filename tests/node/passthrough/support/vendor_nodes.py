"""A node with GPUs of AMD or Intel on a simulated kernel, and the agent's parts that offer and prepare them."""

from __future__ import annotations

from pathlib import Path

from dra_driver.hardware.driver_binding import BusAccess
from dra_driver.hardware.facts import Facts
from dra_driver.hardware.port import Hardware, Roots
from dra_driver.hardware.simulated.kernel import SimulatedKernel
from dra_driver.hardware.vendors import load_vendor
from dra_driver.node.daemon.passthrough import PassthroughGpus, ReturnedGpus
from dra_driver.node.daemon.passthrough_memory import RememberedGpus
from dra_driver.node.devices.build import build_inventory
from dra_driver.node.devices.offering import Inventory, PassthroughRule, PassthroughRules
from dra_driver.node.devices.partitions import MigPolicy, Ownership
from dra_driver.node.prepare.steps.passthrough import NothingToRelease, PassthroughServices
from tests.node.passthrough.support.bus import ScriptedKernel
from tests.support.plugin.parts import Rig


class Recorder:
    """Records which GPUs are to be tested again."""

    def __init__(self) -> None:
        self.retested: list[str] = []

    def validation_changed(self) -> None:
        pass

    def retest(self, uuid: str) -> None:
        self.retested.append(uuid)


class VendorRig(Rig):
    """A node with one vendor's GPUs, which offers what the agent's parts make of the hardware as it is now."""

    def __init__(self, root: Path, vendor: str, kernel: SimulatedKernel, *rules: PassthroughRule) -> None:
        self.kernel = ScriptedKernel(kernel)
        (kernel.folder / "proc").mkdir(exist_ok=True)
        self.roots = kernel.roots(Roots(proc=str(kernel.folder / "proc")))
        self.vendors_hardware: Hardware = load_vendor(vendor).open(self.roots)
        kept, self.tests = RememberedGpus(root, "boot-1"), Recorder()
        self.named = PassthroughGpus(PassthroughRules(rules), self.roots, kept)
        self.returned = ReturnedGpus(kept, self.vendors_hardware, self.roots, self.tests, self.tests)  # type: ignore[arg-type]
        self.passthrough = PassthroughServices(BusAccess(self.roots, self.kernel), NothingToRelease(), self.returned)
        super().__init__(root)
        self.hardware = self.vendors_hardware  # type: ignore[assignment]
        self.restart()

    @property
    def facts(self) -> Facts:
        """Return what a discovery finds now, completed as the agent does it."""
        return self.returned.checked(self.named.completed(self.vendors_hardware.discover()))

    @property
    def current(self) -> Inventory:
        held = frozenset(self.ledger.held()) if self.ledgers else frozenset()
        return build_inventory(self.facts, MigPolicy(ownership=Ownership(held=held)))

    def problems(self) -> dict[str, str]:
        """Return the code of each problem by its subject."""
        return {one.subject: one.code for one in self.current.problems}

    def driver_of(self, address: str) -> str:
        return self.kernel.kernel.driver_of(address)

    def overrides(self) -> set[str]:
        return {path.read_text().strip() for path in Path(self.roots.sys).glob("bus/pci/devices/*/driver_override")}
