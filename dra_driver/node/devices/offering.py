"""Offering and Inventory: everything that a node has to offer, as one value from the hardware to the slices.

Pure values. An offering holds its devices in each form that an API server may need: a server whose feature gates are
off drops fields, and a device without these fields might be allocated twice. `for_server` chooses the form.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from dra_driver.base.errors import GPU_LOST
from dra_driver.base.machine import boot_id_file, read_boot_id
from dra_driver.base.names import gpu_name, pool_name, replicated_name
from dra_driver.base.telemetry.logs import fields
from dra_driver.base.wire import DeviceTaints, DeviceType, Share, ShareMode
from dra_driver.hardware.facts import ChannelFacts, GpuFacts, PassthroughFacts, Problem
from dra_driver.hardware.vendors import SHARES
from dra_driver.node.devices.describing import AttributeValue, Describer, Device, RequestPolicy
from dra_driver.node.devices.partitions import CurrentGpu, counter_set_name

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KeptFields:
    """Which fields of a slice the API server keeps; until it has answered, all are assumed to be kept."""

    counters: bool = True  # sharedCounters and consumesCounters (gate DRAPartitionableDevices)
    shares: bool = True  # allowMultipleAllocations (gate DRAConsumableCapacity)
    taints: bool = True  # taints (gate DRADeviceTaints)


ALL_KEPT = KeptFields()


@dataclass(frozen=True)
class Offering:
    """What a node offers, with the devices of each form in the order of their names.

    `counter_sets` are the counters that overlapping devices share, by the names of set and counter. `plain` is offered
    in place of `devices` to a scheduler that does not count; none of its devices overlap. `instead` maps the name of a
    device that may be allocated many times to its replacement for a scheduler without support for that: replicas, or
    the whole device. `taints` are those of the devices that have any, by device name.
    """

    devices: tuple[Device, ...] = ()
    counter_sets: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    plain: tuple[Device, ...] = ()
    instead: Mapping[str, tuple[Device, ...]] = field(default_factory=dict)
    taints: DeviceTaints = field(default_factory=dict)

    def every(self) -> Iterator[Device]:
        """Yield each device of each form; replacements come last."""
        for group in (self.devices, self.plain, *self.instead.values()):
            yield from group

    def without(self, names: Collection[str]) -> Offering:
        """Return the offering without the devices of these names, in every form."""
        return self.narrowed(lambda devices: tuple(d for d in devices if d.name not in names)) if names else self

    def for_server(self, keeps: KeptFields, *, in_use: Collection[str] = ()) -> Offering:
        """Return what is offered to a server that keeps these fields, so that no scheduler allocates anything twice.

        Without counters, devices that share them would overlap; without shares, a device could not be allocated many
        times. Then their replacements are offered. Without taints, a device with a blocking taint is left out unless it
        is `in_use`: if a device in use were left out, its counters would seem free and be allocated again.
        """
        offering = self if keeps.taints else replace(self.without(self.blocked().difference(in_use)), taints={})
        devices, counter_sets = offering.devices, offering.counter_sets
        if not keeps.counters and counter_sets:
            devices, counter_sets = offering.plain, {}
        if not keeps.shares:
            devices = tuple(one for d in devices for one in (offering.instead.get(d.name, ()) if d.policies else (d,)))
        names = {device.name for device in devices}
        taints = {name: taints for name, taints in offering.taints.items() if name in names}
        return Offering(devices, counter_sets, taints=taints)

    def blocked(self) -> frozenset[str]:
        """Return the names of the devices with a taint that keeps pods away."""
        return frozenset(name for name, taints in self.taints.items() if any(one.effect.is_blocking for one in taints))

    def narrowed(self, narrow: Callable[[Sequence[Device]], tuple[Device, ...]]) -> Offering:
        """Return the offering with each of its forms replaced by what `narrow` leaves of it."""
        instead = {name: narrow(forms) for name, forms in self.instead.items()}
        return replace(self, devices=narrow(self.devices), plain=narrow(self.plain), instead=instead)


NOTHING = Offering()


@dataclass(frozen=True)
class Inventory:
    """Everything that this node has to offer, and the problems that keep the rest from being offered.

    `hidden` are devices that are not offered but may appear in the allocation of a claim. `waits_for_claims` is true if
    some device will be offered in another form once claims release it. `waiting_for` is what keeps the hardware from
    answering at all, "" while it answers.
    """

    offering: Offering = NOTHING
    problems: tuple[Problem, ...] = ()
    waiting_for: str = ""
    hidden: tuple[Device, ...] = ()
    waits_for_claims: bool = False
    driver_version: str | None = field(default=None, compare=False)

    @property
    def devices(self) -> tuple[Device, ...]:
        """Return the devices that are offered to a scheduler that counts and shares."""
        return self.offering.devices

    @cached_property
    def by_name(self) -> Mapping[str, Device]:
        """Return all devices that a claim may have been allocated, by name, each in the form that is offered first."""
        return MappingProxyType({name: forms[0] for name, forms in self._forms.items()})

    def find(self, name: str, share_id: str | None) -> Device | None:
        """Return a device of an allocation in the form in which it was allocated, or None if there is none.

        A device that may be allocated many times is allocated with a share ID, any other without one; a device that was
        allocated whole stays whole, whatever is offered now.
        """
        forms = self._forms.get(name, ())
        return next((form for form in forms if bool(form.policies) is bool(share_id)), forms[0] if forms else None)

    def find_or_replica(self, name: str, share_id: str | None) -> Device | None:
        """Return what `find` returns; for a replica that is no longer configured, at least the device behind it."""
        device, parent = self.find(name, share_id), replicated_name(name)
        if device is not None or parent is None:
            return device
        whole = self.find(parent, None)
        if whole is None or whole.share is not None:
            return None
        share = Share(parent, ShareMode.REPLICAS, int(name.rpartition("-")[2]))
        return Device(name, DeviceType(f"{whole.type}-share"), {}, {}, whole.gpu, whole.partition, share=share)

    def on_lost_gpus(self, names: Iterable[str]) -> list[str]:
        """Return those of the devices whose GPU is lost, whether or not it is still in the inventory."""
        gpus = tuple(gpu_name(problem.subject) for problem in self.problems if problem.code == GPU_LOST)
        return [name for name in names if self._is_on_lost_gpu(name, gpus)]

    def _is_on_lost_gpu(self, name: str, lost_gpus: Iterable[str]) -> bool:
        device = self.find(name, None)
        if device is not None:
            return device.gpu.is_lost
        return any(name == gpu or name.startswith(f"{gpu}-") for gpu in lost_gpus)

    @cached_property
    def _forms(self) -> Mapping[str, tuple[Device, ...]]:
        found: dict[str, list[Device]] = {}
        for device in (*self.offering.every(), *self.hidden):
            found.setdefault(device.name, []).append(device)
        return {name: tuple(forms) for name, forms in found.items()}


class CurrentInventory(Protocol):
    """The holder of a node's newest inventory; any thread may read it."""

    @property
    def current(self) -> Inventory:
        """Return the newest inventory."""


# GpuOffer: what one GPU is offered as; each stage of `build` takes one and returns the next.


@dataclass(frozen=True, slots=True)
class GpuOffer:
    """What one GPU is offered as, in the forms that an `Offering` has for the whole node.

    `hidden` and `waits_for_claims` are as in `Inventory`. With `is_shared`, the GPU is shared as a whole, by a rule or
    because claims hold shares of it.
    """

    devices: tuple[Device, ...] = ()
    plain: tuple[Device, ...] = ()
    instead: Mapping[str, tuple[Device, ...]] = field(default_factory=dict)
    hidden: tuple[Device, ...] = ()
    counter_sets: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    waits_for_claims: bool = False
    is_shared: bool = False

    @classmethod
    def combined(cls, offers: Iterable[GpuOffer]) -> GpuOffer:
        """Return the offers of a node's GPUs as one."""
        every = tuple(offers)
        return cls(
            devices=tuple(device for one in every for device in one.devices),
            plain=tuple(device for one in every for device in one.plain),
            instead={name: devices for one in every for name, devices in one.instead.items()},
            hidden=tuple(device for one in every for device in one.hidden),
            counter_sets={name: counters for one in every for name, counters in one.counter_sets.items()},
            waits_for_claims=any(one.waits_for_claims for one in every),
        )


# Passthrough: a whole GPU offered to containers and to virtual machines, of which only one gets it.

WHOLE = "gpu"  # the one counter of a GPU that is not partitioned on demand


def with_passthrough_device(
    offer: GpuOffer, current: CurrentGpu, held: Collection[str], describer: Describer
) -> GpuOffer:
    """Return the offer of a GPU with the device for virtual machines, if they may have the GPU.

    `held` are the names of the devices that claims hold. A physical function whose virtual functions are for virtual
    machines is not offered itself.
    """
    gpu, facts = current.gpu, current.gpu.passthrough
    if facts is not None and gpu.part_number is None:
        passed = describer.describe_passed(gpu.passed_name, gpu)
        is_passed = passed.name in held
        if not is_passed and facts.physical and _is_held(facts.physical_name, held):
            return replace(offer, hidden=(*offer.hidden, passed), waits_for_claims=True)
        if not is_passed and (why := _obstacle(offer, current)):
            message = f"GPU {gpu.pci_address} is not offered to virtual machines: {why}"
            describer.report("not-passed", passed, message)
        else:
            offer = _with_passed(offer, passed, facts, held)
    if current.has_passed_functions and (offer.devices or offer.plain):
        return _withheld(offer, gpu, held)
    return offer


def _obstacle(offer: GpuOffer, current: CurrentGpu) -> str:
    """Return why no virtual machine can have a GPU, or "" if one can."""
    if offer.is_shared:
        return "a rule of the sharing configuration shares it"
    if current.is_administrators or any(device.partition is not None for device in current.devices):
        return "it has partitions of an administrator"
    return ""


def _with_passed(offer: GpuOffer, passed: Device, facts: PassthroughFacts, held: Collection[str]) -> GpuOffer:
    """Return the offer with the device for virtual machines; the other devices of the GPU are hidden."""
    keeps_others = passed.name not in held and _is_held(passed.gpu.whole_name, held)
    chosen = _choose(offer, passed, is_alone=facts.is_only_passed or facts.is_away, keeps_others=keeps_others)
    offered = {device.name for device in chosen.devices}
    hidden = tuple(device for device in (passed, *offer.plain) if device.name not in offered)
    return replace(chosen, hidden=(*offer.hidden, *hidden))


def _withheld(offer: GpuOffer, gpu: GpuFacts, held: Collection[str]) -> GpuOffer:
    """Return an offer without devices, or the same offer while claims hold a part of the GPU."""
    if _is_held(gpu.whole_name, held):
        return replace(offer, waits_for_claims=True)
    hidden = (*offer.hidden, *offer.devices, *offer.plain)
    return replace(offer, devices=(), plain=(), instead={}, hidden=hidden)


def _choose(offer: GpuOffer, passed: Device, *, is_alone: bool, keeps_others: bool) -> GpuOffer:
    """Return the offer with the device for virtual machines.

    With `is_alone`, containers don't get the GPU. With `keeps_others`, containers have it until their claims end.
    """
    if is_alone or not (offer.devices or offer.plain):
        if keeps_others:
            return replace(offer, waits_for_claims=True)
        return replace(offer, devices=(passed,), plain=(passed,), counter_sets={})
    shared = counter_set_name(passed.gpu)
    every_counter = offer.counter_sets.get(shared) or {WHOLE: 1}
    every = (*offer.devices, passed)
    return replace(
        offer,
        devices=tuple(
            one if one.counter_set else replace(one, counter_set=shared, counters=every_counter) for one in every
        ),
        plain=offer.plain if keeps_others else (passed,),
        counter_sets={shared: every_counter},
        waits_for_claims=offer.waits_for_claims or keeps_others,
    )


def _is_held(whole: str, held: Collection[str]) -> bool:
    """Return whether a claim has the GPU of this name, or a part of it."""
    return any(name == whole or name.startswith(f"{whole}-") for name in held)


# Passthrough rules: which GPUs of which nodes virtual machines may have.

ALL_GPUS = "all"


@dataclass(frozen=True, slots=True)
class PassthroughRule:
    """One rule. `nodes` are patterns of node names; `driver` is the VFIO driver to use ("" for the usual one).

    With `is_only_passed` containers never get these GPUs.
    """

    nodes: tuple[str, ...]
    gpus: tuple[str, ...]
    is_only_passed: bool = False
    driver: str = ""

    def names(self, address: str, uuid: str, *, is_virtual: bool) -> bool:
        """Return whether the rule names a GPU."""
        return address in self.gpus or (uuid != "" and uuid in self.gpus) or (ALL_GPUS in self.gpus and not is_virtual)


@dataclass(frozen=True, slots=True)
class PassthroughRules:
    """The rules in their order; the first that names a GPU decides about it."""

    rules: tuple[PassthroughRule, ...] = ()

    def of_node(self, node: str) -> PassthroughRules:
        """Return the rules that concern a node."""
        return PassthroughRules(
            tuple(rule for rule in self.rules if any(fnmatchcase(node, pattern) for pattern in rule.nodes))
        )

    def rule_of(self, address: str, uuid: str = "", *, is_virtual: bool = False) -> PassthroughRule | None:
        """Return the rule about a GPU, or None if virtual machines may not have it."""
        return next((rule for rule in self.rules if rule.names(address, uuid, is_virtual=is_virtual)), None)

    @property
    def addresses(self) -> frozenset[str]:
        """Return the PCI addresses that are named."""
        return frozenset(name for rule in self.rules for name in rule.gpus if ":" in name)


# The IMEX channel of a node: one device for all programs on the node that belong to the fabric's trust domain.

CHANNEL = "imex-channel-0"
SHARES_OF_CHANNEL = 4096  # more pods than a node can have


def channel_offer(channel: ChannelFacts, forms: Collection[tuple[str, bool]]) -> GpuOffer:
    """Return what the channel is offered as; `forms` are the forms in which claims hold devices (`Ownership.forms`)."""
    shared, whole = channel_devices(channel)
    if (CHANNEL, False) in forms:  # a claim holds it as a whole device, so it is offered whole until that claim ends
        return GpuOffer((whole,), (whole,), {CHANNEL: (whole,)}, waits_for_claims=True)
    return GpuOffer((shared,), (shared,), {CHANNEL: (whole,)})


def channel_devices(channel: ChannelFacts) -> tuple[Device, Device]:
    """Return the device for a server that keeps shares, and the one for a server that does not."""
    no_gpu = GpuFacts(uuid="", pci_address="", minor=-1, memory_bytes=None, link_domain=channel.domain)
    attributes: dict[str, AttributeValue] = {
        "type": DeviceType.IMEX_CHANNEL.value,
        "id": 0,
        "nvlinkDomain": channel.domain,
    }
    whole = Device(CHANNEL, DeviceType.IMEX_CHANNEL, attributes, {}, no_gpu)
    policies = {SHARES: RequestPolicy(default=1, values=(1,))}
    return replace(whole, capacity={SHARES: SHARES_OF_CHANNEL}, policies=policies), whole


# Parts into which the hardware itself divides a GPU, and the whole GPU beside them.

PARTS = "parts"


def with_counted_parts(offer: GpuOffer, current: CurrentGpu) -> GpuOffer:
    """Return the offer with the GPU's parts counted, if it has any and the whole GPU is offered beside them."""
    parts = current.gpu.parts
    if not parts:
        return offer
    shared = counter_set_name(current.gpu)
    devices = tuple(replace(one, counter_set=shared, counters={PARTS: one.gpu.parts or 1}) for one in offer.devices)
    plain = tuple(one for one in offer.plain if not one.gpu.parts)
    return replace(offer, devices=devices, plain=plain, counter_sets={shared: {PARTS: parts}})


# Node identity: the driver and pool that this process serves, and the boot in which it runs.


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """The driver's name, the pool of this node, and the id of the current boot."""

    driver: str
    pool: str
    boot_id: str


def this_node(node: str, driver: str, proc_root: str | Path) -> NodeIdentity:
    """Return the identity of this node; without a readable boot id, log that and leave it empty.

    The boot id shows whether the effects of prepared claims can still be there.
    """
    try:
        boot_id = read_boot_id(proc_root)
    except OSError as exc:
        boot_id = ""
        keys = fields(file=str(boot_id_file(proc_root)), err=str(exc))
        log.warning("boot id can't be read: a reboot won't be noticed", extra=keys)
    return NodeIdentity(driver, pool_name(node, driver), boot_id)
