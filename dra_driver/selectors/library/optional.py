"""Optional values: how to make them and how to read them.

In: values. Out: optionals and their contents, or a `CelError`. The evaluators themselves handle the lazy `or` and
`orValue`.

The rule: cel-go's optional types.
"""

from __future__ import annotations

from typing import Any

from dra_driver.selectors.library.access import native
from dra_driver.selectors.values.arithmetic import TIME_MIN
from dra_driver.selectors.values.equality import is_map, map_size
from dra_driver.selectors.values.values import NONE, CelError, Concat, Duration, Optional, Timestamp, TypeValue, Uint

_ZEROS = frozenset({bool, int, Uint, float, str, bytes, list})


def is_zero(value: Any) -> bool:
    """Return whether a value counts as zero: empty, 0, false, null, or the zero time."""
    kind = type(value)
    if value is None:
        return True
    if kind in _ZEROS:
        return not value
    if kind is Duration:
        return bool(value.ns == 0)
    if kind is Timestamp:
        return bool(value.ns == TIME_MIN)
    if kind is Concat:
        return bool(value.size == 0)
    return is_map(value) and map_size(value) == 0


def value_of(optional: Optional) -> Any:
    """Evaluate value()."""
    if not optional.present:
        raise CelError("optional.none() dereference")
    if type(optional.value) is CelError:
        raise optional.value
    return optional.value


def copied(optional: Optional) -> Optional:
    """Return an optional as a ternary passes it on up to 1.36: converted to Go and back.

    A value of one of Kubernetes' own types is lost (the error appears when the content is used), a type becomes its
    name, and nested optionals collapse into one.

    Source: cel-go 0.26, applyQualifiers.
    """
    if not optional.present:
        return optional
    value = optional.value
    while type(value) is Optional:
        value = value.value
    if type(value) is TypeValue:
        value = value.name
    try:
        return Optional(native(value))
    except CelError as error:
        return Optional(error)


def of(value: Any) -> Optional:
    """Evaluate optional.of()."""
    return Optional(value)


def of_non_zero(value: Any) -> Optional:
    """Evaluate optional.ofNonZeroValue()."""
    return NONE if is_zero(value) else Optional(value)


OPTIONALS: dict[str, dict[tuple[type, ...], Any]] = {
    "hasValue": {(Optional,): lambda optional: optional.present},
    "value": {(Optional,): value_of},
    "optional.none": {(): lambda: NONE},
}
ANY_TO_OPTIONAL = {"optional.of": of, "optional.ofNonZeroValue": of_non_zero}
