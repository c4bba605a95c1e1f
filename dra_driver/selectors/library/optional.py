"""Optional values: how to make them and how to read them.

In: values. Out: optionals and their contents, or a `CelError`. The evaluators themselves handle the lazy `or` and
`orValue`.

Source: cel-go's optional types.
"""

from __future__ import annotations

from typing import Any

from dra_driver.selectors.library.access import Domains, value_of
from dra_driver.selectors.values.arithmetic import TIME_MIN
from dra_driver.selectors.values.containers import Concat, is_map, map_size
from dra_driver.selectors.values.values import NONE, Duration, Optional, Timestamp, Uint

_ZEROS = frozenset({bool, int, Uint, float, str, bytes, list})


def is_zero(value: Any) -> bool:
    """Return whether a value counts as zero: empty, 0, false, null, or the zero time. A device's domains never do."""
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
    return is_map(value) and type(value) is not Domains and map_size(value) == 0


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
