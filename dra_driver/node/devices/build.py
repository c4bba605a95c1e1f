"""Build: facts in, devices out. Pure: the same facts, policy and sharing rules yield the same inventory.

Each GPU becomes an offer: first as the sharing rules say, then with its placements on demand, with what its parts
count, and as a device for virtual machines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from dra_driver.base.flags import registered_or_default
from dra_driver.base.names import is_dns_label, replica_name, replicated_name
from dra_driver.base.wire import DeviceType, MpsSettings, Share, ShareMode, SharingSettings, TimeSlicingSettings
from dra_driver.hardware.facts import Facts, GpuFacts, Problem
from dra_driver.hardware.vendors import COMPUTE, MEMORY, MEMORY_SLICE, SHARES, load_vendor
from dra_driver.node.devices.describing import CommonFacts, Describer, Device, MigPlacement, RequestPolicy
from dra_driver.node.devices.offering import (
    GpuOffer,
    Inventory,
    Offering,
    channel_offer,
    with_counted_parts,
    with_passthrough_device,
)
from dra_driver.node.devices.partitions import (
    STATIC,
    CurrentGpu,
    MigPolicy,
    NamedPlacement,
    Ownership,
    capacity_of_gpu,
    counter_set_name,
    counters_of_gpu,
    counters_of_placement,
    current_gpus,
    whole_is_offered,
)
from dra_driver.node.devices.rules import NOTHING_SHARED, Portion, SharingRule, SharingRules


def build_inventory(facts: Facts, policy: MigPolicy = STATIC, sharing: SharingRules = NOTHING_SHARED) -> Inventory:
    """Return the devices that these facts are published as, with every problem found on the way.

    Never raises for facts that can't be published: those become problems. The same arguments yield the same inventory.
    """
    describer = Describer(facts)
    current = current_gpus(facts.gpus, policy, describer)
    shares = SharingOffers(sharing, policy.ownership, describer, current)
    offers = []
    for gpu in current:
        offer = shares.offer(gpu)
        offer = with_placements(offer, gpu, describer)
        offer = with_counted_parts(offer, gpu)
        offers.append(with_passthrough_device(offer, gpu, policy.ownership.held, describer))
    if facts.channel is not None:
        offers.append(channel_offer(facts.channel, policy.ownership.forms))
    return _inventory(facts, GpuOffer.combined(offers), describer)


def _inventory(facts: Facts, offer: GpuOffer, describer: Describer) -> Inventory:
    """Return everything that a node offers, in the order of names, with the problems found on the way."""
    devices, plain = (_named(one, describer) for one in (offer.devices, offer.plain))
    offering = Offering(
        devices=devices,
        counter_sets=offer.counter_sets,
        plain=plain if offer.counter_sets else (),
        instead=dict(sorted(offer.instead.items())),
    )
    return Inventory(
        offering,
        problems=tuple(dict.fromkeys((*facts.problems, *describer.problems))),
        waiting_for=facts.waiting_for,
        hidden=_by_name({device.name: device for device in offer.hidden}),
        waits_for_claims=offer.waits_for_claims,
        driver_version=facts.driver_version,
    )


def _named(devices: Iterable[Device], describer: Describer) -> tuple[Device, ...]:
    """Return the devices in the order of their names, without those whose name is invalid or already taken."""
    named: dict[str, Device] = {}
    for device in devices:
        if not is_dns_label(device.name):
            describer.report("name-invalid", device, f"{device.name!r} is not a valid device name")
        elif device.name in named:
            describer.report("name-taken", device, f"another device is already named {device.name}")
        else:
            named[device.name] = device
    return _by_name(named)


def _by_name(devices: Mapping[str, Device]) -> tuple[Device, ...]:
    return tuple(devices[name] for name in sorted(devices))


# Partitions on demand: a GPU that Prepare may partition, offered whole and as every placement. A placement is published
# in the same way whether MIG mode is on or off and whichever partitions exist, so the devices of a GPU's placements are
# computed once and kept until something other than its partitions changes. Computing the 200 placements of eight GPUs
# again took 11 ms at every scan. The devices with the facts as they are now are kept as well, so devices that did not
# change are the same objects in each inventory, and quickly compared.

_GPUS_KEPT = 32


@dataclass(frozen=True, slots=True)
class _Placements:
    """A GPU's placements as devices, the content of its counter set, and the new capacities of the whole GPU."""

    counters: Mapping[str, int]
    capacity: Mapping[str, int]
    problems: tuple[Problem, ...]
    devices: tuple[tuple[MigPlacement, Device], ...]

    def devices_of(self, gpu: GpuFacts) -> Iterator[Device]:
        """Yield the devices with the GPU's facts as they are now, and with the partitions that exist now."""
        now = {(partition.gi_profile_id, partition.start): partition for partition in reversed(gpu.partitions)}
        for placement, device in self.devices:
            yield replace(device, gpu=gpu, partition=now.get((placement.profile.gi_profile_id, placement.start)))


@dataclass(frozen=True, slots=True)
class _Devices:
    """A GPU as it is now, as devices: its placements and, if it is offered as a whole, itself."""

    devices: tuple[Device, ...]
    counters: Mapping[str, int]
    problems: tuple[Problem, ...]


def with_placements(offer: GpuOffer, current: CurrentGpu, describer: Describer) -> GpuOffer:
    """Return the offer with a device for every placement, for schedulers that count, if Prepare may partition the GPU.

    A GPU that is shared as a whole is not partitioned on demand.
    """
    if offer.is_shared or not current.placements:
        return offer
    now = _devices_now(current.gpu, current.placements, describer.common)
    describer.problems += now.problems
    return replace(offer, devices=now.devices, counter_sets={counter_set_name(current.gpu): now.counters})


@lru_cache(_GPUS_KEPT)  # of eight GPUs, a scan after a claim finds one changed
def _devices_now(gpu: GpuFacts, named: tuple[NamedPlacement, ...], common: CommonFacts) -> _Devices:
    unpartitioned = replace(gpu, mig_enabled=True, partitions=(), unusable=(), limits_memory=False)
    placements, describer = _described(unpartitioned, named, common), Describer(common)
    devices = list(placements.devices_of(gpu))
    if whole_is_offered(gpu):
        whole = describer.describe(gpu.whole_name, gpu)
        capacity, shared = {**whole.capacity, **placements.capacity}, counter_set_name(gpu)
        devices.append(replace(whole, capacity=capacity, counter_set=shared, counters=placements.counters))
    return _Devices(tuple(devices), placements.counters, (*placements.problems, *describer.problems))


@lru_cache(_GPUS_KEPT)
def _described(gpu: GpuFacts, named: tuple[NamedPlacement, ...], common: CommonFacts) -> _Placements:
    placements = [placement for _, placement in named]
    counters, capacity, shared = counters_of_gpu(placements), capacity_of_gpu(placements), counter_set_name(gpu)
    taken = [counters_of_placement(placement) for placement in placements]
    describer, devices = Describer(common), []
    for (name, placement), of_placement in zip(named, taken, strict=True):
        device = describer.describe(name, gpu, placement.expected_partition)
        devices.append(
            (placement, replace(device, partition=None, placement=placement, counter_set=shared, counters=of_placement))
        )
    return _Placements(counters, capacity, tuple(describer.problems), tuple(devices))


# Shares: what each device is offered as, according to the sharing rules and to what claims hold. A device never changes
# its form while a claim holds it: one that is held whole stays whole, one whose replicas are held stays replicas, and
# one that is held in shares which are no longer configured is not offered until those are released.

MIB = 1 << 20
ALL_COMPUTE = 100  # in percent


@dataclass(frozen=True, slots=True)
class Allotment:
    """Capacities and policies of a device that may be allocated many times; `largest` is the most of one share."""

    capacity: Mapping[str, int]
    policies: Mapping[str, RequestPolicy]
    largest: int


def replica_memory(memory: int, replicas: int) -> int:
    """Return the memory of one replica in bytes, in whole MiB because MPS daemons count in those.

    >>> replica_memory(81559 << 20, 4) >> 20
    20389
    """
    return memory // replicas // MIB * MIB


def allot(capacity: Mapping[str, int], rule: SharingRule) -> Allotment | str:
    """Return the amounts of a shared device and of one share of it, or the reason why it can't be shared, as a text.

    With n replicas exactly n shares fit; with a portion, shares fit as long as enough is left for them.
    """
    mode = ShareMode.REPLICAS if rule.portion is None else rule.mode
    whole = without_slices(capacity)
    policies = {name: RequestPolicy(0) for name in whole}  # published but not counted: all shares use the same engines
    if mode is ShareMode.REPLICAS:
        count = rule.replicas or 1
        one = replica_memory(whole.get(MEMORY, 0), count)
        if whole.get(MEMORY):
            if not one:
                return f"its memory can't be divided into {count} replicas"
            policies[MEMORY] = RequestPolicy(one, values=(one,))
        return Allotment({**whole, SHARES: count}, {**policies, SHARES: RequestPolicy(1, values=(1,))}, one)
    assert rule.portion is not None  # noqa: S101 - every mode but replicas has one
    counted = MEMORY if mode is ShareMode.MEMORY else COMPUTE
    if mode is ShareMode.COMPUTE:
        whole[COMPUTE] = ALL_COMPUTE
    if not whole.get(counted):
        return "it reports no memory of its own to share"
    policy = _range(rule.portion, whole[counted])
    if isinstance(policy, str):
        return f"{counted}: {policy}"
    return Allotment(whole, {**policies, counted: policy}, policy.maximum or whole[counted])


def without_slices(capacity: Mapping[str, int]) -> dict[str, int]:
    """Return the capacities without memory slices: those mark which partitions overlap, and shares always overlap."""
    return {name: value for name, value in capacity.items() if not name.startswith(MEMORY_SLICE)}


def settings_of(
    rule: SharingRule, allotment: Allotment, device_type: DeviceType, ids: tuple[str, ...]
) -> SharingSettings | None:
    """Return a rule's settings, completed for one device, which `ids` (UUID, index) identify.

    An MPS daemon's default for a client is set to the largest possible share, since a client can only lower it.
    """
    settings = rule.settings
    if isinstance(settings, TimeSlicingSettings):  # a MIG device has no interval of its own
        return settings if device_type is DeviceType.GPU else TimeSlicingSettings()
    if not isinstance(settings, MpsSettings):
        return None
    mode = ShareMode.REPLICAS if rule.portion is None else rule.mode
    memory = next((settings.per_device_limits[id_] for id_ in ids if id_ in settings.per_device_limits), None)
    memory = settings.pinned_memory_limit if memory is None else memory
    if memory is None and mode is not ShareMode.COMPUTE and allotment.largest:
        memory = allotment.largest
    threads = settings.active_thread_percentage
    if threads is None and mode is ShareMode.COMPUTE:
        threads = allotment.largest
    if threads is None and mode is ShareMode.REPLICAS and rule.replicas:
        threads = max(1, ALL_COMPUTE // rule.replicas)
    return replace(settings, active_thread_percentage=threads, pinned_memory_limit=memory, per_device_limits={})


def _range(portion: Portion, total: int) -> RequestPolicy | str:
    """Return the policy for portions of what a device has (`total`), or a text on why they do not fit.

    The API requires that the maximum is a whole number of steps from the minimum, and that there is room for one step.
    """
    most = min(total, portion.maximum or total)
    maximum = portion.minimum + (most - portion.minimum) // portion.step * portion.step
    if most < portion.minimum or portion.default > maximum:
        return f"a share takes {portion.default}, but the device has only {most}"
    if portion.minimum + portion.step > total:
        return f"a share takes {portion.minimum}, or {portion.step} more, but the device has only {total}"
    return RequestPolicy(portion.default, portion.minimum, maximum, portion.step)


@dataclass(frozen=True, slots=True)
class ShareOffer:
    """What one device is offered as. `instead` replaces the one in `devices` if the API server drops shares.

    With `waits`, the device will be offered in another form once claims end.
    """

    devices: tuple[Device, ...] = ()
    instead: tuple[Device, ...] = ()
    hidden: tuple[Device, ...] = ()
    waits: bool = False


class SharingOffers:
    """What the devices of one node are offered as; `describer` collects the problems."""

    def __init__(
        self, sharing: SharingRules, ownership: Ownership, describer: Describer, current: Sequence[CurrentGpu]
    ) -> None:
        self._sharing, self._forms, self._describer = sharing, ownership.forms, describer
        self._replicated = frozenset(filter(None, (replicated_name(name) for name, _ in ownership.forms)))
        self._tenants: dict[str, set[str]] = {}
        for name, namespace in ownership.tenants:
            self._tenants.setdefault(name, set()).add(namespace)
        self._rules: dict[str, SharingRule] = {}
        self._indices: dict[str, str] = {}
        if sharing.rules:
            self._choose(current)

    def _choose(self, current: Sequence[CurrentGpu]) -> None:
        candidates = []
        self._report_divided(one.gpu for one in current if one.gpu.part)
        for number, one in enumerate(one for one in current if not one.gpu.part):
            whole = Device(one.gpu.whole_name, DeviceType.GPU, {}, {}, one.gpu)
            parts = [device for device in one.devices if device.type is DeviceType.MIG]
            candidates += [(whole, str(number)), *((part, f"{number}:{at}") for at, part in enumerate(parts))]
        self._rules = self._sharing.choose(candidates)
        self._report_left_out([rule for device, _ in candidates if (rule := self._rules.get(device.name))])
        self._indices = {device.name: index for device, index in candidates}

    def _report_divided(self, parts: Iterable[GpuFacts]) -> None:
        """Report the rules that match a GPU that the hardware has divided: its parts are allocated whole."""
        whole = {gpu.whole_name: gpu for gpu in parts}
        devices = [(Device(name, DeviceType.GPU, {}, {}, gpu), "") for name, gpu in whole.items()]
        for name, rule in self._sharing.choose(devices).items():
            message = (
                f"{rule.name} can't share it: the hardware has divided it, and each part goes to one claim as a whole"
            )
            self._describer.problems.append(Problem("inventory.share-unfit", name, message))

    def _report_left_out(self, chosen: Iterable[SharingRule]) -> None:
        """Report each rule with the namespaces for which it has no device left on this node."""
        served: dict[tuple[str, tuple[str, ...]], set[str]] = {}
        for rule in chosen:
            served.setdefault((rule.name, rule.namespaces), set()).add(rule.tenant)
        for (name, namespaces), found in served.items():
            if left_out := [namespace for namespace in namespaces if namespace not in found]:
                message = f"{name} has no device left on this node for {', '.join(left_out)}"
                self._describer.problems.append(Problem("inventory.share-tenants", self._sharing.node, message))

    def _is_held_in_shares(self, name: str) -> bool:
        return name in self._replicated or (name, True) in self._forms

    def _report_on_demand(self, gpu: GpuFacts, placements: Iterable[NamedPlacement]) -> None:
        """Report the rules that match partitions which Prepare would create: those are always allocated whole."""
        parts = [
            (Device(name, DeviceType.MIG, {}, {}, gpu, placement.expected_partition), "")
            for name, placement in placements
        ]
        for name in dict.fromkeys(rule.name for rule in self._sharing.choose(parts).values()):
            message = (
                f"{name} matches partitions that are created on demand: each of those goes to one claim as a whole"
            )
            self._describer.problems.append(Problem("inventory.share-on-demand", gpu.pci_address, message))

    def offer(self, current: CurrentGpu) -> GpuOffer:
        """Return what a GPU is offered as: its current devices; one that a rule shares is replaced by its shares."""
        whole = current.gpu.whole_name
        is_shared = whole in self._rules or self._is_held_in_shares(whole)
        if self._sharing.rules and not is_shared:
            self._report_on_demand(current.gpu, current.placements)
        offers = [(device.name, self._offer(device)) for device in current.devices]
        devices = tuple(device for _, offer in offers for device in offer.devices)
        return GpuOffer(
            devices=devices,
            plain=devices,
            instead={name: offer.instead for name, offer in offers if offer.instead},
            hidden=tuple(device for _, offer in offers for device in offer.hidden),
            waits_for_claims=any(offer.waits for _, offer in offers),
            is_shared=is_shared,
        )

    def _offer(self, device: Device) -> ShareOffer:
        """Return what a device is offered as. A placement that Prepare creates is never shared."""
        rule = self._rules.get(device.name)
        is_held_in_shares = self._is_held_in_shares(device.name)
        if device.placement is not None or (rule is None and not is_held_in_shares):
            return ShareOffer((device,))
        if rule is None:
            return self._hide(device)
        allotment = allot(device.capacity, rule)
        if isinstance(allotment, str):
            self._problem(device, "share-unfit", f"{rule.name} can't share it, so it stays whole: {allotment}")
            return self._hide(device) if is_held_in_shares else ShareOffer((device,))
        if rule.is_hard and not _is_hard(device, rule):
            self._problem(device, "share-not-hard", f"{rule.name} requires memory limits: {_why_not(device)}")
        holders = self._tenants.get(device.name, set()) if rule.tenant else set()
        if not holders - {rule.tenant}:
            return self._offer_shares(device, rule, allotment)
        if len(holders) > 1 or not holders <= set(rule.namespaces):
            return self._hide(device, *self._shares(device, rule, allotment))
        (holder,) = holders
        return replace(self._offer_shares(device, replace(rule, tenant=holder), allotment), waits=True)

    def _offer_shares(self, device: Device, rule: SharingRule, allotment: Allotment) -> ShareOffer:
        """Return the form in which a shared device is offered: the form that claims hold, else that of its rule."""
        shared, *replicas = self._shares(device, rule, allotment)
        if (device.name, True) in self._forms:
            return ShareOffer((shared,), (), (device, *replicas))
        if device.name in self._replicated:
            return ShareOffer(tuple(replicas), (), (device,)) if replicas else self._hide(device)
        if (device.name, False) in self._forms:
            return ShareOffer((device,), (), (shared, *replicas), waits=True)
        if device.partition is None and device.gpu.mig_enabled:  # its last partition is gone, but MIG mode is still on
            return ShareOffer(hidden=(device, shared, *replicas))
        return ShareOffer((shared,), tuple(replicas) or (device,), (device,) if replicas else ())

    def _hide(self, device: Device, *shares: Device) -> ShareOffer:
        why = "of another namespace than it is for" if shares else "that are not configured any more"
        self._problem(device, "share-held", f"claims hold shares of it {why}: not offered until they end")
        return ShareOffer(hidden=(device, *shares), waits=True)

    def _shares(self, device: Device, rule: SharingRule, allotment: Allotment) -> Iterator[Device]:
        yield self._shared(device, rule, allotment)
        yield from self._replicas(device, rule)

    def _shared(self, device: Device, rule: SharingRule, allotment: Allotment) -> Device:
        mode = ShareMode.REPLICAS if rule.portion is None else rule.mode or ShareMode.REPLICAS
        settings = settings_of(rule, allotment, device.type, self._ids(device))
        share = Share(device.name, mode, None, settings, _is_hard(device, rule), rule.tenant, self._sharing.tenants)
        replicas = rule.replicas if mode is ShareMode.REPLICAS else None
        made = self._describer.describe_share(device.name, device, share, replicas)
        return replace(made, capacity=allotment.capacity, policies=allotment.policies)

    def _replicas(self, device: Device, rule: SharingRule) -> Iterator[Device]:
        plain = replace(rule, mode=ShareMode.REPLICAS, portion=None)
        allotment = allot(device.capacity, plain) if rule.replicas else "no replicas"
        if isinstance(allotment, str) or not rule.replicas:
            return
        settings = settings_of(plain, allotment, device.type, self._ids(device))
        first = Share(
            device.name, ShareMode.REPLICAS, 0, settings, _is_hard(device, plain), rule.tenant, self._sharing.tenants
        )
        for index in range(rule.replicas):
            name, share = replica_name(device.name, index), replace(first, index=index)
            made = self._describer.describe_share(name, device, share, rule.replicas)
            capacity = without_slices(device.capacity)
            if MEMORY in capacity:
                capacity[MEMORY] = replica_memory(capacity[MEMORY], rule.replicas)
            yield replace(made, capacity=capacity)

    def _ids(self, device: Device) -> tuple[str, ...]:
        return device.uuid, self._indices.get(device.name, "")

    def _problem(self, device: Device, code: str, message: str) -> None:
        self._describer.problems.append(Problem(f"inventory.{code}", device.name, message))


def _is_hard(device: Device, rule: SharingRule) -> bool:
    is_possible = device.type is DeviceType.GPU and device.gpu.limits_memory and MEMORY in device.capacity
    return rule.is_hard and is_possible


def _why_not(device: Device) -> str:
    """Return why the driver can't limit how much of a device's memory each user gets."""
    if device.type is DeviceType.MIG:
        return "the driver has none for partitions, which the hardware separates"
    if not device.capacity.get(MEMORY):
        return "the device reports no memory of its own"
    terms = load_vendor(registered_or_default(device.gpu.vendor).name).sharing
    return f"they can't be set on this node ({terms.limits_need if terms else 'nothing'} is needed)"
