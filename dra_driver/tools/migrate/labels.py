"""Requirements on the labels of GPU feature discovery, translated into CEL on published devices.

In: one requirement on a label, and the kind of device that the pod asks for. Out: an expression; "" if the claim
demands it already; or the reason why devices don't publish it. An expression always checks that an attribute exists
before it reads it, because a selector that fails stops the scheduling of the pod. `describing` lists what each
attribute holds.

Source: GPU feature discovery (labels and their values); Kubernetes, NodeSelectorOperator (a missing label matches NotIn
and DoesNotExist only; Gt and Lt compare whole numbers).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from dra_driver.base.names import NVIDIA_DRIVER
from dra_driver.tools.migrate.resources import DeviceKind

# A requirement on a label of GPU feature discovery, and its translation into CEL.

DOMAIN = "nvidia.com/"
ATTRIBUTES = f'device.attributes["{NVIDIA_DRIVER}"]'
CAPACITY = f'device.capacity["{NVIDIA_DRIVER}"]'
SHARED = "-SHARED"
MIG_INFIX = "-MIG-"
IN, NOT_IN, EXISTS, ABSENT, ABOVE, BELOW = "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"


@dataclass(frozen=True, slots=True)
class LabelRequirement:
    """One requirement on a node's label."""

    label: str
    operator: str
    values: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The label without its domain."""
        return self.label.removeprefix(DOMAIN)

    @property
    def words(self) -> str:
        """The requirement as a report shows it."""
        if self.operator == IN and len(self.values) == 1:
            return f"{self.label}: {self.values[0]}"
        return f"{self.label} {self.operator} {', '.join(self.values)}".strip()


@dataclass(frozen=True, slots=True)
class NotExpressible:
    """The reason why no expression can state a requirement, and the code of the loss that reports it."""

    why: str
    code: str = "label-kept"


Translation = str | NotExpressible
Translate = Callable[[LabelRequirement, DeviceKind], Translation]


# Labels whose values are numbers: versions, memory, counts of engines.


def version_part(attribute: str, part: str) -> Translate:
    """Translate a label that holds one number of a version."""

    def translate(rule: LabelRequirement, _: DeviceKind) -> Translation:
        asked = f'"{attribute}" in {ATTRIBUTES}'
        value = f"{ATTRIBUTES}.{attribute}.{part}()"
        numbers = whole_numbers(rule)
        if rule.operator == EXISTS:
            return ""
        if numbers is None:
            return NotExpressible("the label is a whole number on every node")
        if rule.operator in {ABOVE, BELOW}:
            return f"{asked} && {value} {'>' if rule.operator == ABOVE else '<'} {numbers[0]}"
        inside = f"{value} == {numbers[0]}" if len(numbers) == 1 else f"{value} in {numbers}"
        return f"{asked} && {inside}" if rule.operator == IN else f"!({asked} && {inside})"

    return translate


def whole_numbers(rule: LabelRequirement) -> list[int] | None:
    """Return the values as whole numbers; None if one of them is not a whole number."""
    if not all(re.fullmatch(r"-?[0-9]{1,18}", value) for value in rule.values):
        return None
    return [int(value) for value in rule.values]


def full_version(attribute: str) -> Translate:
    """Translate a label that holds a whole version; the driver publishes its numbers without leading zeros."""

    def translate(rule: LabelRequirement, _: DeviceKind) -> Translation:
        if rule.operator == EXISTS:
            return ""
        if rule.operator not in {IN, NOT_IN}:
            return NotExpressible("no node can match: the label is not a whole number")
        versions = [_version(value) for value in rule.values]
        if not all(versions):
            return NotExpressible("a value is not a version")
        value = f"{ATTRIBUTES}.{attribute}"
        terms = [f'{value}.compareTo(semver("{version}")) == 0' for version in versions]
        any_of = f"({' || '.join(terms)})" if len(terms) > 1 else terms[0]
        asked = f'"{attribute}" in {ATTRIBUTES}'
        return f"{asked} && {any_of}" if rule.operator == IN else f"!({asked} && {any_of})"

    return translate


def _version(text: str) -> str:
    parts = text.split(".")
    if len(parts) > 3 or not all(re.fullmatch(r"[0-9]{1,9}", part) for part in parts):
        return ""
    return ".".join(str(int(part)) for part in [*parts, "0", "0"][:3])


def memory(rule: LabelRequirement, kind: DeviceKind) -> Translation:
    """Translate memory: the label counts whole MiB, while the capacity is exact."""
    if kind.is_share:
        return NotExpressible("the memory of a share is its own, not that of its GPU")
    return amount("memory", "Mi")(rule, kind)


def amount(capacity: str, unit: str = "") -> Translate:
    """Translate a label that counts whole units of a capacity."""

    def translate(rule: LabelRequirement, _: DeviceKind) -> Translation:
        asked, value = f'"{capacity}" in {CAPACITY}', f"{CAPACITY}.{capacity}"

        def compared(number: int, sign: str) -> str:
            return f'{value}.compareTo(quantity("{number}{unit}")) {sign} 0'

        numbers = whole_numbers(rule)
        if rule.operator == EXISTS:
            return asked
        if numbers is None:
            return NotExpressible("the label is a whole number on every node")
        if rule.operator == ABOVE:
            return f"{asked} && {compared(numbers[0] + 1, '>=')}"
        if rule.operator == BELOW:
            return f"{asked} && {compared(numbers[0], '<')}"
        terms = [f"{compared(one, '>=')} && {compared(one + 1, '<')}" for one in numbers]
        any_of = "(" + " || ".join(f"({term})" for term in terms) + ")" if len(terms) > 1 else terms[0]
        return f"{asked} && {any_of}" if rule.operator == IN else f"!({asked} && {any_of})"

    return translate


# Labels that decide the kind of device: whether it can be partitioned, whether it is shared.


def mig_capable(rule: LabelRequirement, kind: DeviceKind) -> Translation:
    """Translate the label that says whether a GPU can be partitioned."""
    wanted = _truths(rule)
    if wanted is None or rule.operator == EXISTS:
        return "" if rule.operator == EXISTS else NotExpressible("the label is true or false on every node")
    if kind.is_partition:
        return "" if wanted == {True} else NotExpressible("a MIG partition is always part of a GPU that supports MIG")
    if len(wanted) != 1:
        return "" if wanted else NotExpressible("the label is true or false on every node")
    value = f"{ATTRIBUTES}.?migCapable.orValue(false)"
    return value if wanted == {True} else f"!{value}"


def _truths(rule: LabelRequirement) -> set[bool] | None:
    """Return the values that a rule on a true/false label accepts; None if it does not list values."""
    if rule.operator not in {IN, NOT_IN}:
        return None
    named = {value == "true" for value in rule.values if value in {"true", "false"}}
    return named if rule.operator == IN else {True, False} - named


def present(rule: LabelRequirement, _: DeviceKind) -> Translation:
    """Translate the label that says whether the node has a GPU."""
    wanted = _truths(rule)
    if rule.operator == EXISTS or (wanted is not None and True in wanted):
        return ""
    return NotExpressible("a pod that asks for a GPU needs a node that has one")


def sharing_strategy(rule: LabelRequirement, kind: DeviceKind) -> Translation:
    """Translate the label that says how devices are shared."""
    if rule.operator == EXISTS:
        return ""
    if rule.operator not in {IN, NOT_IN}:
        return NotExpressible("no node can match: the label is not a number")
    strategies = {"none", "time-slicing", "mps"}
    named = set(rule.values) & strategies
    wanted = named if rule.operator == IN else strategies - named
    if not kind.is_share:
        return "" if "none" in wanted else NotExpressible("the pod asks for a whole device, the label for a shared one")
    shared = sorted(_STRATEGIES[one] for one in wanted & set(_STRATEGIES))
    if len(shared) == 2:
        return ""
    if not shared:
        return NotExpressible("the pod asks for a share, the label for a device that is not shared")
    return f'{ATTRIBUTES}.?sharingStrategy.orValue("") == {json.dumps(shared[0])}'


_STRATEGIES = {"time-slicing": "TimeSlicing", "mps": "MPS"}


def replicas(rule: LabelRequirement, kind: DeviceKind) -> Translation:
    """Translate the number of replicas, which shares publish; a whole device counts as one."""
    numbers = whole_numbers(rule)
    if rule.operator == EXISTS:
        return ""
    if numbers is None:
        return NotExpressible("the label is a whole number on every node")
    if not kind.is_share:
        is_met = {IN: 1 in numbers, NOT_IN: 1 not in numbers, ABOVE: numbers[0] < 1, BELOW: numbers[0] > 1}
        return "" if is_met[rule.operator] else NotExpressible("a whole device has no replicas", "gpu-replicas")
    value = f"{ATTRIBUTES}.?replicas.orValue(1)"
    if rule.operator in {ABOVE, BELOW}:
        return f"{value} {'>' if rule.operator == ABOVE else '<'} {numbers[0]}"
    inside = f"{value} == {numbers[0]}" if len(numbers) == 1 else f"{value} in {numbers}"
    return inside if rule.operator == IN else f"!({inside})"


# Labels whose values are text: the product, the family, the NVLink domain.


def text(attribute: str) -> Translate:
    """Translate a label whose value is published unchanged."""

    def translate(rule: LabelRequirement, _: DeviceKind) -> Translation:
        return _one_of(f'{ATTRIBUTES}.?{attribute}.orValue("")', rule)

    return translate


def _one_of(value: str, rule: LabelRequirement) -> Translation:
    if rule.operator == EXISTS:
        return f'{value} != ""'
    if rule.operator not in {IN, NOT_IN}:
        return NotExpressible("no node can match: the label is not a number")
    listed = [json.dumps(one, ensure_ascii=False) for one in rule.values]
    if len(listed) == 1:
        return f"{value} {'==' if rule.operator == IN else '!='} {listed[0]}"
    inside = f"{value} in [{', '.join(listed)}]"
    return inside if rule.operator == IN else f"!({inside})"


def family(rule: LabelRequirement, kind: DeviceKind) -> Translation:
    """Translate the family, which every GPU has."""
    return "" if rule.operator == EXISTS else text("family")(rule, kind)


def product(rule: LabelRequirement, kind: DeviceKind) -> Translation:
    """Translate a product: GPUs publish the label's text, partitions only the driver's product name, with blanks."""
    if rule.operator == EXISTS:
        return ""
    if rule.operator not in {IN, NOT_IN}:
        return NotExpressible("no node can match: the label is not a number")
    parts = [_product_parts(value) for value in rule.values]
    ours = [part for part in parts if (part[1] != "", part[2]) == (kind.is_partition, kind.is_share)]
    if rule.operator == IN and len(ours) != len(parts):
        return NotExpressible("some of the values are products of partitioned or shared GPUs, and some are not")
    if not ours:
        return ""  # NotIn names only products that such a device never has
    if not kind.is_partition:
        names = tuple(name for name, _, _ in ours)
        return _one_of(f'{ATTRIBUTES}.?labelProduct.orValue("")', LabelRequirement(rule.label, rule.operator, names))
    terms = [_of_product(name, profile) for name, profile, _ in ours]
    any_of = " || ".join(f"({term})" if " && " in term and len(terms) > 1 else term for term in terms)
    asked = f'"productName" in {ATTRIBUTES}'
    any_of = f"({any_of})" if len(terms) > 1 else any_of
    return f"{asked} && {any_of}" if rule.operator == IN else f"!({asked} && {any_of})"


def _product_parts(value: str) -> tuple[str, str, bool]:
    """Split the label of a product into the name, the profile and whether the device is shared.

    >>> _product_parts("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb-SHARED")
    ('NVIDIA-A100-SXM4-40GB', '1g.5gb', True)
    """
    name = value.removesuffix(SHARED)
    name, _, profile = name.partition(MIG_INFIX)
    return name, profile.replace("gb.", "gb+", 1), value.endswith(SHARED)


def _of_product(name: str, profile: str) -> str:
    terms = f'{ATTRIBUTES}.productName.replace(" ", "-") == {json.dumps(name)}'
    return f'{terms} && {ATTRIBUTES}.?profile.orValue("") == {json.dumps(profile)}' if profile else terms


_NUMBER = re.compile(r"-?[0-9]+")


def to_cel(rule: LabelRequirement, kind: DeviceKind) -> Translation:
    """Translate a requirement into CEL.

    Return "" if a claim for such a device demands it already, and `NotExpressible` if no expression can state it.
    """
    if not _is_valid(rule):
        return NotExpressible(f"no node can match {rule.words}")
    found = _TABLE.get(rule.name)
    if found is None and (part := _PARTITION_LABEL.fullmatch(rule.name)) is not None:
        return _of_partition(rule, kind, part)
    if found is None:
        return NotExpressible(*_NOT_EXPRESSIBLE.get(rule.name, ("no published attribute holds it",)))
    if rule.operator == ABSENT:
        return NotExpressible("every node with GPUs has this label")
    return found(rule, kind)


def refined(kind: DeviceKind, rules: list[LabelRequirement]) -> DeviceKind:
    """Return the kind that `nvidia.com/gpu` stands for: a whole GPU, a partition (strategy single), or a share."""
    if kind.is_partition or not kind.is_default_vendors:
        return kind
    is_partition, is_share = False, kind.is_share
    for rule in rules:
        if rule.operator == IN and rule.name == "gpu.product" and rule.values:
            is_partition |= all(MIG_INFIX in value for value in rule.values)
            is_share |= all(value.endswith(SHARED) for value in rule.values)
        if rule.operator == IN and rule.name == "gpu.sharing-strategy":
            is_share |= bool(rule.values) and set(rule.values) <= {"time-slicing", "mps"}
    return DeviceKind(is_partition, is_share)


def _is_valid(rule: LabelRequirement) -> bool:
    if rule.operator in {IN, NOT_IN}:
        return bool(rule.values)
    if rule.operator in {ABOVE, BELOW}:
        return len(rule.values) == 1 and _NUMBER.fullmatch(rule.values[0]) is not None
    return rule.operator in {EXISTS, ABSENT} and not rule.values


_PARTITION_LABEL = re.compile(r"mig-((?:[0-9]+c\.)?[0-9]+g\.[0-9]+gb(?:[-.][a-z]+)*?)\.([a-z]+(?:[-.][a-z]+)?)")


def _of_partition(rule: LabelRequirement, kind: DeviceKind, part: re.Match[str]) -> Translation:
    """Translate a label about one MIG profile (strategy mixed) for a pod that asks for that profile."""
    profile, name = part[1].replace("gb.", "gb+", 1), part[2]
    if not kind.is_partition or kind.profile != profile:
        return NotExpressible("it is about another kind of device than the pod asks for")
    if name == "count":
        least = rule.operator == EXISTS or (rule.operator == ABOVE and rule.values == ("0",))
        return "" if least else NotExpressible("devices don't publish how many of them a node has", "gpu-count")
    if name == "product":
        return product(rule, kind)
    if name in _PARTITION_AMOUNTS:
        return _PARTITION_AMOUNTS[name](rule, kind)
    return NotExpressible(*_NOT_EXPRESSIBLE.get(f"gpu.{name}", ("no published attribute holds it",)))


def _partition_only(translate: Translate) -> Translate:
    def translate_for_partition(rule: LabelRequirement, kind: DeviceKind) -> Translation:
        if not kind.is_partition or kind.is_share:
            return NotExpressible("only MIG partitions publish it")
        return translate(rule, kind)

    return translate_for_partition


_PARTITION_AMOUNTS: dict[str, Translate] = {
    "memory": memory,
    "multiprocessors": _partition_only(amount("multiprocessors")),
    "engines.copy": _partition_only(amount("copyEngines")),
    "engines.decoder": _partition_only(amount("decoders")),
    "engines.encoder": _partition_only(amount("encoders")),
    "engines.jpeg": _partition_only(amount("jpegEngines")),
    "engines.ofa": _partition_only(amount("ofaEngines")),
}

_TABLE: dict[str, Translate] = {
    "gpu.present": present,
    "gpu.product": product,
    "gpu.family": family,
    "gpu.memory": memory,
    "gpu.compute.major": version_part("cudaComputeCapability", "major"),
    "gpu.compute.minor": version_part("cudaComputeCapability", "minor"),
    "gpu.clique": text("nvlinkDomain"),
    "gpu.sharing-strategy": sharing_strategy,
    "gpu.replicas": replicas,
    "mig.capable": mig_capable,
    "cuda.driver-version.full": full_version("driverVersion"),
    "cuda.driver-version.major": version_part("driverVersion", "major"),
    "cuda.driver-version.minor": version_part("driverVersion", "minor"),
    "cuda.driver-version.revision": version_part("driverVersion", "patch"),
    "cuda.driver.major": version_part("driverVersion", "major"),
    "cuda.driver.minor": version_part("driverVersion", "minor"),
    "cuda.driver.rev": version_part("driverVersion", "patch"),
    "cuda.runtime-version.full": full_version("cudaDriverVersion"),
    "cuda.runtime-version.major": version_part("cudaDriverVersion", "major"),
    "cuda.runtime-version.minor": version_part("cudaDriverVersion", "minor"),
    "cuda.runtime.major": version_part("cudaDriverVersion", "major"),
    "cuda.runtime.minor": version_part("cudaDriverVersion", "minor"),
    **{f"gpu.{name}": translate for name, translate in _PARTITION_AMOUNTS.items() if name != "memory"},
}

_NOT_EXPRESSIBLE: dict[str, tuple[str, str]] = {
    "gpu.count": ("devices don't publish how many of them a node has", "gpu-count"),
    "gpu.machine": ("devices don't publish what machine they are in", "label-kept"),
    "gpu.mode": ("devices don't publish whether they are for graphics or compute", "label-kept"),
    "mig.strategy": ("partitions and whole GPUs are separate devices here, and there is no strategy", "label-kept"),
    "mps.capable": ("no published attribute holds it", "label-kept"),
}
