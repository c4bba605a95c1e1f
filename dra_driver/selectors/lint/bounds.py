"""Bounds: the lower bound that an exact amount probably means, if a given device reaches it.

In: the names and amounts of devices, the two sides of a comparison. Out: an amount to write as the bound. GPUs have a
little less memory than they are sold with (81559Mi for 80 GB), so no device would reach a bound of the amount sold.
"""

from __future__ import annotations

from fractions import Fraction

from dra_driver.model.quantity import Quantity
from dra_driver.model.quantity_text import QuantityError
from dra_driver.selectors.remedies.mistake import place_of
from dra_driver.selectors.remedies.names import KnownNames
from dra_driver.selectors.syntax.nodes import Call, Literal, Node

_NEAR = Fraction(85, 100)  # a device is near if it has this share of the written amount
_HUGE = 24  # a scale, beyond every amount of memory
_UNITS = ((1 << 30, "Gi"), (1 << 20, "Mi"), (1, ""))


def reachable_bound(names: KnownNames, value: Node, wanted: Node) -> str | None:
    """Return None if the written amount can stay, else the next round amount that devices reach ("" for none)."""
    place, amount = place_of(value), _amount(wanted)
    known = [_whole(one) for one in names.values(place) if isinstance(one, Quantity)] if place else []
    if amount is None or not known or max(known) >= amount:
        return None
    near = max(known)
    if near < amount * _NEAR:
        return ""
    unit, suffix = next((unit, suffix) for unit, suffix in _UNITS if near >= 8 * unit or unit == 1)
    return f"{near // unit}{suffix}"


def _amount(node: Node) -> Fraction | None:
    """Return the exact amount of quantity("…"); None for any other node and for an unreadable text."""
    if type(node) is not Call or node.function != "quantity" or type(node.args[0]) is not Literal:
        return None
    try:
        return Fraction(_whole(Quantity.parse(node.args[0].value)))
    except (QuantityError, TypeError):
        return None


def _whole(quantity: Quantity) -> int:
    """Return a quantity rounded down; 2^63 stands for any amount that is absurdly large."""
    return (1 << 63) if quantity.scale > _HUGE else int(quantity.value)
