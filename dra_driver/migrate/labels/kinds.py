"""Labels that decide the kind of device: whether it can be partitioned, whether it is shared.

In: a requirement and the kind that the pod asks for. Out: CEL, "" if such a device fulfils it anyway, or the reason why
there is no expression.
"""

from __future__ import annotations

import json

from dra_driver.migrate.device_kind import DeviceKind
from dra_driver.migrate.labels.numbers import whole_numbers
from dra_driver.migrate.labels.requirement import (
    ABOVE,
    ATTRIBUTES,
    BELOW,
    EXISTS,
    IN,
    NOT_IN,
    LabelRequirement,
    NotExpressible,
    Translation,
)


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
