"""Labels whose values are text: the product, the family, the NVLink domain.

In: a requirement. Out: CEL that compares text, or why there is none.
"""

from __future__ import annotations

import json

from dra_driver.migrate.device_kind import DeviceKind
from dra_driver.migrate.labels.requirement import (
    ATTRIBUTES,
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
    any_of = " || ".join(f"({one})" if " && " in one and len(terms) > 1 else one for one in terms)
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
