"""From the value of an expression to a match or an error.

In: a value. Out: whether the device matches, or an error with the server's text for a value that is not a bool.

Source: Kubernetes' DeviceMatches, which converts the CEL result to a Go bool.
"""

from __future__ import annotations

from typing import Any

from dra_driver.selectors.engine import SelectorRuntimeError
from dra_driver.selectors.values.type_names import type_name
from dra_driver.selectors.values.values import Optional

NOTHING = "optional.none() dereference"
_NATIVE = {
    "string": "unsupported native conversion from string to 'bool'",
    "int": "unsupported type conversion from 'int' to bool",
    "uint": "unsupported type conversion from 'uint' to bool",
    "double": "type conversion error from Double to 'bool'",
    "map": "type conversion error from map to 'bool'",
    "list": "type conversion error from list to 'bool'",
    "bytes": "unsupported native conversion from bytes to 'bool'",
    "null_type": "type conversion error from 'null_type' to 'bool'",
    "kubernetes.Semver": "type conversion error from 'Semver' to 'bool'",
    "kubernetes.Quantity": "type conversion error from 'Quantity' to 'bool'",
    "kubernetes.URL": "type conversion error from 'URL' to 'bool'",
}


def to_match(value: Any) -> bool:
    """Return whether the value means a match.

    Raises:
        SelectorRuntimeError: The value is not a bool.
    """
    if value is True or value is False:
        return bool(value)
    name = inner = type_name(value)
    while type(value) is Optional:
        if not value.present:
            raise SelectorRuntimeError(f"CEL result of type {name} could not be converted to bool: {NOTHING}")
        value = value.value
        inner = type_name(value)
        if value is True or value is False:
            return bool(value)
    reason = _NATIVE.get(inner, f"type conversion error from '{inner}' to 'bool'")
    raise SelectorRuntimeError(f"CEL result of type {name} could not be converted to bool: {reason}")
