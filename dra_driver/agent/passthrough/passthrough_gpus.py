"""Passthrough GPUs: facts, completed by the GPUs that virtual machines may have.

In: facts as the vendor reports them, the rules of an administrator, the PCI bus. Out: the same facts, in which the GPUs
that the rules name are marked, and GPUs that a VFIO driver has are listed as they were before. Such a GPU is absent by
intent: the vendor's driver does not report it, and that is no problem. A GPU that the rules name but that can't be
passed through is a problem.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import replace

from dra_driver.agent.passthrough.remembered_gpus import RememberedGpus
from dra_driver.hardware import pci
from dra_driver.hardware.facts import Facts, GpuFacts, PassthroughFacts, Problem
from dra_driver.hardware.passthrough.drivers import is_vfio, needed_driver
from dra_driver.hardware.passthrough.functions import is_of, read_addressable_bytes, read_function, read_physical
from dra_driver.hardware.passthrough.group import read_passthrough_group
from dra_driver.hardware.passthrough.readiness import has_iommufd, require_passable, require_safe_iommu
from dra_driver.hardware.port import Roots
from dra_driver.hardware.vendors import load_vendor
from dra_driver.inventory.passthrough.rules import PassthroughRule, PassthroughRules
from dra_driver.model.errors import DriverError
from dra_driver.model.vendors import registered_or_default

_NOT_DRIVEN = "hardware.gpu-not-driven"


class PassthroughGpus:
    """The GPUs of one node that an administrator named for virtual machines."""

    def __init__(self, rules: PassthroughRules, roots: Roots, kept: RememberedGpus) -> None:
        self._rules, self._roots, self._kept = rules, roots, kept

    def fingerprint(self) -> Hashable:
        """Return a value that changes when another driver is bound to one of the GPUs."""
        return tuple((address, self._driver_of(address)) for address in sorted(self._candidates()))

    def completed(self, facts: Facts) -> Facts:
        """Return the facts with the GPUs that virtual machines may have."""
        here = {gpu.pci_address: gpu for gpu in facts.gpus}
        problems: list[Problem] = []
        gpus = [self._named(gpu, problems) for gpu in facts.gpus]
        self._kept.learn(gpu for gpu in gpus if gpu.passthrough is not None and not gpu.is_lost)
        passed = tuple(self._unreported(facts, frozenset(here), problems))
        away = {gpu.pci_address for gpu in passed}
        kept = [one for one in facts.problems if one.code != _NOT_DRIVEN or one.subject not in away]
        waiting = facts.waiting_for
        if passed and not here and not any(one.code == _NOT_DRIVEN for one in kept):
            waiting = ""  # the driver has no GPU left, as intended
            kept = [one for one in kept if one.subject != "node"]
        in_order = tuple(sorted((*gpus, *passed), key=lambda gpu: (gpu.pci_address, gpu.part)))
        return replace(facts, gpus=in_order, problems=(*kept, *problems), waiting_for=waiting)

    def _named(self, gpu: GpuFacts, problems: list[Problem]) -> GpuFacts:
        if gpu.part and not gpu.parts:  # a partition has no function of its own; only the whole GPU has one
            return gpu
        is_virtual = read_physical(self._roots, gpu.pci_address) != ""
        rule = self._rules.rule_of(gpu.pci_address, gpu.uuid, is_virtual=is_virtual)
        found = self._passthrough(gpu.pci_address, gpu.vendor, rule, problems) if rule is not None else None
        return gpu if found is None else replace(gpu, passthrough=found)

    def _unreported(self, facts: Facts, here: frozenset[str], problems: list[Problem]) -> Iterator[GpuFacts]:
        """Yield the GPUs that the vendor does not report: GPUs with a VFIO driver, and virtual functions."""
        registry = registered_or_default(facts.vendor)
        for address in sorted(self._candidates() - here):
            known = self._kept.facts_of(address)
            if known is None and not is_of(self._roots, address, registry):  # another vendor's driver offers it
                continue
            is_virtual = read_physical(self._roots, address) != ""
            rule = self._rules.rule_of(address, known.uuid if known else "", is_virtual=is_virtual)
            is_away = is_vfio(self._driver_of(address))
            if rule is None and known is not None and is_away:  # it stays listed until its claim ends
                rule = PassthroughRule((), (address,))
            if rule is None or not (is_away or is_virtual):
                continue
            found = self._passthrough(address, registry.name, rule, problems)
            if found is not None:
                gpu = known or self._of_bus(registry.name, address)
                is_only_passed = found.is_only_passed or known is None
                yield replace(
                    gpu, passthrough=replace(found, is_away=is_away, is_only_passed=is_only_passed), is_lost=False
                )

    def _passthrough(
        self, address: str, vendor: str, rule: PassthroughRule, problems: list[Problem]
    ) -> PassthroughFacts | None:
        try:
            require_safe_iommu(self._roots)
            group = read_passthrough_group(self._roots, address)
            needed_driver(self._roots, address, rule.driver)
            require_passable(self._roots, address)
        except DriverError as error:
            text = f"not offered to virtual machines: {error}"
            problems.append(Problem(error.code, address, text))
            return None
        declared = load_vendor(registered_or_default(vendor).name).passthrough
        return PassthroughFacts(
            addressable_bytes=read_addressable_bytes(self._roots, address),
            has_iommufd=has_iommufd(self._roots),
            is_only_passed=rule.is_only_passed,
            driver=rule.driver,
            group=group.number,
            physical=read_physical(self._roots, address),
            has_api_device=declared is not None and declared.has_api_device,
        )

    def _of_bus(self, vendor: str, address: str) -> GpuFacts:
        """Return the facts of a GPU as far as the bus alone shows them."""
        declared = load_vendor(vendor)
        gpu = declared.gpu(
            uuid="",
            pci_address=address,
            minor=-1,
            memory_bytes=None,
            numa_node=pci.read_numa_node(self._roots, address),
            pcie_root=pci.read_pcie_root(self._roots, address),
            pci_id=pci.read_pci_id(self._roots, address),
        )
        return declared.passthrough.with_pci_facts(gpu, self._roots) if declared.passthrough else gpu

    def _candidates(self) -> frozenset[str]:
        return self._rules.addresses | self._kept.addresses

    def _driver_of(self, address: str) -> str:
        found = read_function(self._roots, address)
        return found.driver if found is not None else ""
