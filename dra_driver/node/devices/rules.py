"""Sharing rules: which devices are shared, and how, according to the agent's configuration.

In: rules, in the order of their file, and the devices of a node. Out: the rule of each device, which is the first that
matches. Pure. A device that no rule matches stays whole. `rules_files` reads rules, and `sharing` computes how a
device is divided.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from dra_driver.base.flags import DEFAULT_VENDOR, registered_or_default
from dra_driver.base.names import label_product
from dra_driver.base.wire import DeviceType, ShareMode, SharingSettings, Tenants
from dra_driver.node.devices.describing import Device

MAX_REPLICAS = 128  # if one device's replicas filled more than one ResourceSlice, they would be hard to inspect


@dataclass(frozen=True, slots=True)
class DeviceMatch:
    """The conditions of a rule on devices and their node. A device matches if it meets every condition that is set.

    Patterns are as in a shell. `ids` are UUIDs, or indices as nvidia-smi counts: "0" is a GPU, "0:1" a partition of it.
    `first` limits the match to that many devices. `vendors` are the vendors whose devices can match.
    """

    nodes: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    devices: tuple[str, ...] = ()
    products: tuple[str, ...] = ()
    profiles: tuple[str, ...] = ()
    types: tuple[DeviceType, ...] = ()
    ids: tuple[str, ...] = ()
    first: int | None = None
    vendors: tuple[str, ...] = (DEFAULT_VENDOR.name,)

    def is_met_by(self, device: Device, index: str) -> bool:
        """Return whether a device meets the conditions on devices; those on its node are not checked."""
        product = device.gpu.product_name or ""
        profile = device.partition.profile if device.partition else ""
        return (
            registered_or_default(device.gpu.vendor).name in self.vendors
            and (not self.types or device.type in self.types)
            and (not self.devices or _is_one_of(device.name, self.devices))
            and (not self.products or _is_one_of(product, self.products) or _is_label(product, self.products))
            and (not self.profiles or _is_one_of(profile, self.profiles) or _is_mig_label(profile, self.profiles))
            and (not self.ids or bool({index, device.uuid} & set(self.ids)))
        )

    def is_met_on(self, node: str, labels: Mapping[str, str] | None) -> bool:
        """Return whether a node matches; while its labels are not known, whether it may match."""
        if self.nodes and not _is_one_of(node, self.nodes):
            return False
        return labels is None or all(key in labels and fnmatchcase(labels[key], value) for key, value in self.labels)


@dataclass(frozen=True, slots=True)
class Portion:
    """How much one share takes: bytes of memory, or percent of the multiprocessors.

    With a `maximum` of None, a share may take everything that the device has.
    """

    default: int
    minimum: int
    step: int
    maximum: int | None = None


@dataclass(frozen=True, slots=True)
class SharingRule:
    """How the devices that match are shared; with neither `replicas` nor a `portion` they stay whole.

    `replicas` beside a portion applies where the API server drops the fields in which shares are counted. `is_hard`
    requires that the driver keep each pod to its memory. The devices of each node are assigned to `namespaces` in turn;
    in the rule that `SharingRules.choose` returns for a device, `tenant` is the namespace that it is assigned to.
    """

    name: str
    match: DeviceMatch = DeviceMatch()
    mode: ShareMode | None = None
    replicas: int | None = None
    portion: Portion | None = None
    settings: SharingSettings | None = None
    is_hard: bool = False
    namespaces: tuple[str, ...] = ()
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class SharingRules:
    """All rules and where they apply: the node's name, and its labels (None while they are not known)."""

    rules: tuple[SharingRule, ...] = ()
    node: str = ""
    labels: Mapping[str, str] | None = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # settings in the file that have no effect here
    tenants: Tenants = Tenants.ANY

    @property
    def need_labels(self) -> bool:
        """Return whether a rule depends on labels of the node."""
        return any(rule.match.labels for rule in self.rules)

    def choose(self, devices: Iterable[tuple[Device, str]]) -> dict[str, SharingRule]:
        """Return the rule of each shared device, by the device's name. `devices` come with their indices.

        While the node's labels are not known, a device that a rule with labels may match is excluded from every later
        rule, so it stays whole.
        """
        here = [rule for rule in self.rules if rule.match.is_met_on(self.node, self.labels)]
        left = {id(rule): rule.match.first for rule in here}
        assigned: Counter[tuple[int, DeviceType]] = Counter()
        chosen: dict[str, SharingRule] = {}
        for device, index in devices:
            rule = self._rule_of(device, index, here, left)
            if rule is None:
                continue
            count = left[id(rule)]
            left[id(rule)] = None if count is None else count - 1
            if rule.mode is not None and not (self.labels is None and rule.match.labels):
                chosen[device.name] = _for_tenant(rule, assigned[id(rule), device.type])
                assigned[id(rule), device.type] += 1
        return chosen

    def _rule_of(
        self, device: Device, index: str, here: Sequence[SharingRule], left: Mapping[int, int | None]
    ) -> SharingRule | None:
        return next((r for r in here if left[id(r)] != 0 and r.match.is_met_by(device, index)), None)


NOTHING_SHARED = SharingRules()


def _for_tenant(rule: SharingRule, turn: int) -> SharingRule:
    return replace(rule, tenant=rule.namespaces[turn % len(rule.namespaces)]) if rule.namespaces else rule


def _is_one_of(text: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(text, pattern) for pattern in patterns)


def _is_label(product: str, patterns: Iterable[str]) -> bool:
    return _is_one_of(label_product(product) or "", patterns)


def _is_mig_label(profile: str, patterns: Iterable[str]) -> bool:
    return _is_one_of(profile.replace("+", "."), patterns)
