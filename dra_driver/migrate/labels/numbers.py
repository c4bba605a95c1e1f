"""Labels whose values are numbers: versions, memory, counts of engines.

In: a requirement. Out: CEL that compares numbers, or why there is none. Gt and Lt compare whole numbers.
"""

from __future__ import annotations

import re

from dra_driver.migrate.device_kind import DeviceKind
from dra_driver.migrate.labels.requirement import (
    ABOVE,
    ATTRIBUTES,
    BELOW,
    CAPACITY,
    EXISTS,
    IN,
    NOT_IN,
    LabelRequirement,
    NotExpressible,
    Translate,
    Translation,
)


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
        any_of = "(" + " || ".join(f"({one})" for one in terms) + ")" if len(terms) > 1 else terms[0]
        return f"{asked} && {any_of}" if rule.operator == IN else f"!({asked} && {any_of})"

    return translate
