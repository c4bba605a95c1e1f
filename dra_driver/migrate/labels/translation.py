"""Requirements on the labels of GPU feature discovery, translated into CEL on published devices.

In: one requirement on a label, and the kind of device that the pod asks for. Out: an expression; "" if the claim
demands it already; or the reason why devices don't publish it. An expression always checks that an attribute exists
before it reads it, because a selector that fails stops the scheduling of the pod. inventory/attributes lists what each
attribute holds.

Source: GPU feature discovery (labels and their values); Kubernetes, NodeSelectorOperator (a missing label matches NotIn
and DoesNotExist only; Gt and Lt compare whole numbers).
"""

from __future__ import annotations

import re

from dra_driver.migrate.device_kind import DeviceKind
from dra_driver.migrate.labels.kinds import mig_capable, present, replicas, sharing_strategy
from dra_driver.migrate.labels.numbers import amount, full_version, memory, version_part
from dra_driver.migrate.labels.requirement import (
    ABOVE,
    ABSENT,
    BELOW,
    EXISTS,
    IN,
    MIG_INFIX,
    NOT_IN,
    SHARED,
    LabelRequirement,
    NotExpressible,
    Translate,
    Translation,
)
from dra_driver.migrate.labels.texts import family, product, text

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
