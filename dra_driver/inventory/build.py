"""Build: facts in, devices out.

Pure and total: any facts yield an inventory, and what can't be published is left out and listed in its problems.
Devices are ordered by name; the same facts yield the same inventory.

A GPU in MIG mode is not published as a whole GPU: its partitions are, and a GPU in MIG mode without partitions is not
published at all. A GPU that Prepare may partition is published whole and as every placement, whichever partitions exist
now (`partitions`). A device that a rule shares is published as one that may be allocated many times and, for servers
that do not support that, as its replicas or as itself (`sharing`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from dra_driver.hardware.facts import ChannelFacts, Facts, GpuFacts, PartitionFacts
from dra_driver.hardware.published.rows import Found
from dra_driver.inventory import parts
from dra_driver.inventory.channel import channel_devices
from dra_driver.inventory.describing import describe, problem_of
from dra_driver.inventory.device import Cut, Device
from dra_driver.inventory.mig import partitions
from dra_driver.inventory.mig.offered_cuts import OfferedCuts, offered_cuts
from dra_driver.inventory.mig.partitions import STATIC, MigPolicy
from dra_driver.inventory.offering import Inventory, Offering
from dra_driver.inventory.passthrough import offers as passthrough
from dra_driver.inventory.sharing.offers import SharingOffers
from dra_driver.inventory.sharing.rules import NOTHING_SHARED, SharingRules
from dra_driver.inventory.vendors import rows_of
from dra_driver.model import names
from dra_driver.model.shares import Share

_SHARES_AN_INSTANCE = re.compile(r"[0-9]+c\.")  # "1c.3g.40gb" is one of several compute instances of a GPU instance


def build_inventory(facts: Facts, policy: MigPolicy = STATIC, sharing: SharingRules = NOTHING_SHARED) -> Inventory:
    """Return the devices that these facts are published as, with every problem found on the way.

    Never raises for facts that can't be published: those become problems. The same arguments yield the same inventory.
    """
    collected = _Collected(facts, policy, sharing)
    counter_sets = parts.counter_sets_of(facts.gpus)
    for gpu in facts.gpus:
        cuts = collected.cuts_on_demand(gpu)
        if cuts:
            offered = offered_cuts(facts, gpu, cuts)
            counter_sets[offered.counter_set] = offered.counters
            collected.add_cuts(gpu, offered)
        else:
            collected.add_standing(gpu, collected.devices)
        if not gpu.parts:  # the whole of a divided GPU overlaps its parts
            collected.add_standing(gpu, collected.plain)
        if gpu.passthrough is not None and gpu.part_number is None:
            collected.add_passed(gpu, counter_sets)
    collected.withhold(passthrough.divided_addresses(facts.gpus))
    if facts.channel is not None:
        collected.add_channel(facts.channel)
    offering = Offering(
        devices=tuple(parts.counted(device, counter_sets) for device in _by_name(collected.devices)),
        counter_sets=counter_sets,
        plain=_by_name(collected.plain) if counter_sets else (),
        instead=dict(sorted(collected.instead.items())),
    )
    return Inventory(
        offering,
        problems=tuple(dict.fromkeys((*collected.problems, *collected.sharer.problems))),
        waiting_for=facts.waiting_for,
        hidden=_by_name(collected.hidden),
        waits_for_claims=collected.sharer.waits_for_claims or collected.waits_for_claims,
        driver_version=facts.driver_version,
    )


def _by_name(devices: Mapping[str, Device]) -> tuple[Device, ...]:
    return tuple(devices[name] for name in sorted(devices))


class _Collected:
    """The devices and problems found so far."""

    def __init__(self, facts: Facts, policy: MigPolicy, sharing: SharingRules) -> None:
        self._facts, self._policy = facts, policy
        self.problems = list(facts.problems)
        self.devices: dict[str, Device] = {}
        self.plain: dict[str, Device] = {}
        self.instead: dict[str, tuple[Device, ...]] = {}
        self.hidden: dict[str, Device] = {}
        self.waits_for_claims = False
        self._held = {gpu: _held_cuts(gpu, policy) for gpu in facts.gpus}
        self._standing = {gpu: tuple(self._as_it_stands(gpu)) for gpu in facts.gpus}
        self.sharer = SharingOffers(sharing, policy.ownership, self._make_share)
        self.sharer.choose(facts.gpus, self._standing)

    def cuts_on_demand(self, gpu: GpuFacts) -> tuple[Cut, ...]:
        """Return the placements that a GPU is offered as; none where Prepare does not partition it or it is shared."""
        if not partitions.is_dynamic(gpu, self._policy) or self.sharer.is_shared_whole(gpu):
            return ()
        cuts = partitions.cuts_of(gpu, with_all=self._policy.with_all)
        self.sharer.note_on_demand(gpu, cuts)
        held = self._held[gpu]
        known = {partitions.cut_name(gpu, cut) for cut in cuts} if held else ()
        return cuts + tuple(cut for name, cut in held.items() if name not in known)

    def add_channel(self, channel: ChannelFacts) -> None:
        """Add the node's IMEX channel, which any number of claims may have."""
        shared, whole = channel_devices(channel)
        if (
            (shared.name, False) in self._policy.ownership.forms
        ):  # a claim holds it as a whole device, so it is offered whole until that claim ends
            shared, self.waits_for_claims = whole, True
        self.devices[shared.name] = self.plain[shared.name] = shared
        self.instead[shared.name] = (whole,)

    def add_cuts(self, gpu: GpuFacts, offered: OfferedCuts) -> None:
        """Add a GPU that Prepare may partition: the whole GPU and every placement."""
        shared = offered.counter_set
        if partitions.whole_is_offered(gpu):
            whole = self._make(gpu.whole_name, gpu, None)
            capacity = {**whole.capacity, **offered.capacity}
            self._add(self.devices, replace(whole, capacity=capacity, counter_set=shared, counters=offered.counters))
        self.problems += offered.problems
        for device in offered.devices_of(gpu):
            self._add(self.devices, device)

    def add_standing(self, gpu: GpuFacts, offered: dict[str, Device]) -> None:
        """Add a GPU as it is now and the partitions that claims hold; what a rule shares is added as shares."""
        for device in self._standing[gpu]:
            offer = self.sharer.offer(device)
            for one in offer.devices:
                self._add(offered, one)
            if offer.instead:
                self.instead[device.name] = offer.instead
            self.hidden.update({one.name: one for one in offer.hidden})

    def add_passed(self, gpu: GpuFacts, counter_sets: dict[str, Mapping[str, int]]) -> None:
        """Add a GPU that virtual machines may have, and make it exclude what containers are offered of it."""
        shared, held = partitions.counter_set_name(gpu), self._policy.ownership.held
        name = passthrough.passed_name(gpu)
        found = Found(gpu, None, self._facts.driver_version, self._facts.runtime_version, is_passed=True)
        passed = self._describe(name, found, has_slices=False)
        if not names.is_dns_label(name):
            self._refuse("name-invalid", passed, f"{name!r} is not a valid device name")
            return
        if passthrough.claimed_physical(gpu, held) and name not in held:
            self.hidden[name], self.waits_for_claims = passed, True
            return
        why = passthrough.obstacle(
            self._standing[gpu],
            is_shared=self.sharer.is_shared_whole(gpu),
            is_foreign=bool(self._policy.ownership.foreign_places(gpu)),
        )
        if why and name not in held:
            self._refuse("not-passed", passed, f"GPU {gpu.pci_address} is not offered to virtual machines: {why}")
            return
        others, plain = self._of_address(self.devices, gpu), self._of_address(self.plain, gpu)
        offer = passthrough.passed_offer(passed, others, plain, held, counter_sets.get(shared, {}))
        for devices, old, new in ((self.devices, others, offer.devices), (self.plain, plain, offer.plain)):
            for one in old:
                del devices[one]
            devices.update(new)
        counter_sets.pop(shared, None)
        if offer.counters:
            counter_sets[shared] = offer.counters
        self.waits_for_claims |= offer.waits
        self.hidden.update({one.name: one for one in (passed, *plain.values()) if one.name not in self.devices})

    def withhold(self, addresses: Collection[str]) -> None:
        """Offer nothing of these GPUs, but what claims have of them until they end."""
        for device in [*self.devices.values(), *self.plain.values()]:
            if device.gpu.pci_address in addresses:
                if any(passthrough.of_gpu(name, device.gpu) for name in self._policy.ownership.held):
                    self.waits_for_claims = True
                    continue
                self.devices.pop(device.name, None)
                self.plain.pop(device.name, None)
                self.instead.pop(device.name, None)
                self.hidden[device.name] = device

    @staticmethod
    def _of_address(devices: Mapping[str, Device], gpu: GpuFacts) -> dict[str, Device]:
        return {name: one for name, one in devices.items() if one.gpu.pci_address == gpu.pci_address}

    def _as_it_stands(self, gpu: GpuFacts) -> Iterator[Device]:
        owner, whole_name = self._policy.ownership, gpu.name
        held = self._held[gpu]
        is_administrators = gpu.mig_enabled and gpu.pci_address not in owner.modes
        is_cut = bool(gpu.partitions or gpu.unusable or held) or is_administrators
        if not is_cut or whole_name in owner.held:
            yield self._make(whole_name, gpu, None)
        standing = set()
        for partition in gpu.partitions if gpu.mig_enabled else ():
            name = names.partition_name(gpu.pci_address, partition.profile, partition.gi_profile_id, partition.start)
            if _SHARES_AN_INSTANCE.match(partition.profile):
                name += f"-{partition.ci_id}"
            elif owner.owns(gpu, partition):
                continue  # either a claim holds it (added below), or it is about to be destroyed
            standing.add(name)
            yield self._make(name, gpu, partition)
        for name, cut in held.items():
            if name not in standing:
                yield self._cut_device(gpu, cut)

    def _cut_device(self, gpu: GpuFacts, cut: Cut) -> Device:
        now = next((p for p in gpu.partitions if cut.is_at(p)), None)
        device = self._make(partitions.cut_name(gpu, cut), gpu, partitions.partition_to_be(cut), has_slices=False)
        return replace(device, partition=now, cut=cut)

    def _make(self, name: str, gpu: GpuFacts, partition: PartitionFacts | None, *, has_slices: bool = True) -> Device:
        found = Found(gpu, partition, self._facts.driver_version, self._facts.runtime_version)
        return self._describe(name, found, has_slices=has_slices)

    def _make_share(self, name: str, of: Device, share: Share, replicas: int | None) -> Device:
        versions = self._facts.driver_version, self._facts.runtime_version
        found = Found(of.gpu, of.partition, *versions, share, replicas)
        return replace(self._describe(name, found, has_slices=False), share=share, cut=of.cut)

    def _describe(self, name: str, found: Found, *, has_slices: bool) -> Device:
        return describe(rows_of(self._facts.vendor), name, found, self.problems, has_slices=has_slices)

    def _add(self, devices: dict[str, Device], device: Device) -> None:
        if not names.is_dns_label(device.name):
            self._refuse("name-invalid", device, f"{device.name!r} is not a valid device name")
        elif device.name in devices:
            self._refuse("name-taken", device, f"another device is already named {device.name}")
        else:
            devices[device.name] = device

    def _refuse(self, code: str, device: Device, message: str) -> None:
        self.problems.append(problem_of(code, device.gpu, device.partition, message))


def _held_cuts(gpu: GpuFacts, policy: MigPolicy) -> dict[str, Cut]:
    """Return, by name, the placements of a GPU that claims hold, including those that are not usually offered."""
    own = f"{gpu.whole_name}-"
    if not any(name.startswith(own) for name in policy.ownership.held):
        return {}
    cuts = {partitions.cut_name(gpu, cut): cut for cut in partitions.cuts_of(gpu, with_all=True)}
    return {name: cut for name, cut in cuts.items() if name in policy.ownership.held}
