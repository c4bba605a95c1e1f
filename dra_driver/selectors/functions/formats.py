"""string.format: its clauses, checked at compile time and applied at run time.

In: a format string and arguments. Out: the text, or a `BadClause`. The compile-time check uses the same parser of
clauses, so both stages find the same faults.

Source: cel-go's strings extension version 2 (locale en-US for %f and %e).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from dra_driver.base.quantity import INT64_MAX
from dra_driver.base.versions import Semver
from dra_driver.selectors.functions.lists import is_list
from dra_driver.selectors.functions.time import CONVERSIONS
from dra_driver.selectors.values.equality import MAX_TEXT
from dra_driver.selectors.values.types import type_name
from dra_driver.selectors.values.values import (
    COST_EXCEEDED,
    CelAbort,
    CelError,
    CelQuantity,
    Concat,
    Duration,
    NamedFormat,
    Optional,
    Timestamp,
    TypeValue,
    Uint,
    Url,
    count_work,
    is_map,
    list_size,
    map_items,
    map_size,
    unfold,
)

_PRECISION = 6
_DIGITS, _WIDTHS = 256, 65_536  # the server keeps the least number of digits in 8 bits, and widths in 16
_MOST_DIGITS = 1_074  # no double has more behind its point
_READABLE = 10**6  # a number that goes on beyond this is not read
_NO_VERB = "%!(NOVERB)"
_PRINTED_AT_ONCE = 256  # this many characters are copied in the time in which one element is printed
_CLAUSE = re.compile(r"(?:\.(?P<precision>[0-9]*))?(?P<verb>.)?", re.DOTALL)
_SUPERSCRIPTS = str.maketrans("0123456789-+", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺")
_SPECIAL = frozenset({"NaN", "Infinity", "-Infinity"})

REFUSALS = {
    "s": "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, and "
    "timestamps, was given {}",
    "d": "decimal clause can only be used on integers, was given {}",
    "f": "fixed-point clause can only be used on doubles, was given {}",
    "e": "scientific clause can only be used on doubles, was given {}",
    "b": "only integers and bools can be formatted as binary, was given {}",
    "x": "only integers, byte buffers, and strings can be formatted as hex, was given {}",
    "X": "only integers, byte buffers, and strings can be formatted as hex, was given {}",
    "o": "octal clause can only be used on integers, was given {}",
}


class BadClause(Exception):
    """The format string and its arguments do not fit together."""


class BadArgument(BadClause):
    """An argument has a type that its clause can't print. `about` is what the check reports as the culprit."""

    def __init__(self, message: str, about: Any = None) -> None:
        super().__init__(message)
        self.about = about


def walk(template: str, count: int, write: Callable[[str, int | None, int], str]) -> tuple[str, int]:
    """Go through a format string and put each argument in its place.

    `write(verb, precision, index)` prints one argument. Returns the text and the number of arguments that were used.

    Raises:
        BadClause: A clause is malformed, or has no argument.
    """
    parts: list[str] = []
    at, used, size = 0, 0, 0
    while True:
        percent = template.find("%", at)
        if percent < 0:
            parts.append(template[at:])
            return "".join(parts), used
        parts.append(template[at:percent])
        if template.startswith("%%", percent):
            parts.append("%")
            at = percent + 2
            continue
        if used >= count:
            raise BadClause(f"index {used} out of range")
        if percent + 1 >= len(template):
            raise BadClause("unexpected end of string")
        verb, precision, at = _read_clause(template, percent + 1)
        used += 1
        try:
            parts.append(write(verb, precision, used - 1))
        except BadArgument as bad:
            raise BadArgument(f"error during formatting: {bad}", bad.about) from bad
        size += len(parts[-1])
        count_work(len(parts[-1]) // _PRINTED_AT_ONCE)
        if size > MAX_TEXT:
            raise CelAbort(COST_EXCEEDED)


def _read_clause(template: str, at: int) -> tuple[str, int | None, int]:
    found = _CLAUSE.match(template, at)
    assert found is not None  # noqa: S101  (everything in it is optional)
    precision = None
    broken = "could not parse formatting clause: error while parsing precision: "
    if found["precision"] is not None:
        if found["verb"] is None:
            raise BadClause(f"{broken}could not find end of precision specifier")
        if not found["precision"]:
            raise BadClause(
                f'{broken}error while converting precision to integer: strconv.Atoi: parsing "": invalid syntax'
            )
        precision = int(found["precision"][:20])
        if precision > INT64_MAX:
            reason = f'strconv.Atoi: parsing "{found["precision"]}": value out of range'
            raise BadClause(f"{broken}error while converting precision to integer: {reason}")
    verb = found["verb"]
    if verb not in REFUSALS:
        raise BadClause(f'could not parse formatting clause: unrecognized formatting clause "{verb}"')
    return verb, precision, found.end()


def format_string(template: str, arguments: Any) -> str:
    """Evaluate string.format.

    Raises:
        CelError: The arguments don't fit.
    """
    values = unfold(arguments)
    try:
        return walk(template, len(values), lambda verb, precision, index: _write(verb, precision, values[index]))[0]
    except BadClause as bad:
        raise CelError(str(bad)) from bad


def _write(verb: str, precision: int | None, value: Any) -> str:
    text = _WRITERS[verb](value, _PRECISION if precision is None else precision)
    if text is None:
        raise BadArgument(REFUSALS[verb].format(type_name(value)))
    return text


def _string(value: Any, _: int) -> str | None:
    kind = type(value)
    if kind is str:
        return str(value)
    if value is None:
        return "null"
    if kind is TypeValue:
        return str(value.name)
    if kind is list or kind is Concat:
        return f"[{', '.join([_nested(element) for element in _bounded(unfold(value))])}]"
    if is_map(value):
        return _map(value)
    return _as_text(value) if kind in {bool, int, Uint, float, bytes, Duration, Timestamp} else None


def _as_text(value: Any) -> str:
    try:
        return str(CONVERSIONS["string"][(type(value),)](value))
    except CelError as error:
        raise BadArgument(f'could not convert argument "{error.text}" to string') from error


def _bounded(values: list[Any]) -> list[Any]:
    if len(values) > MAX_TEXT // 16:
        raise CelAbort(COST_EXCEEDED)
    count_work(len(values))
    return values


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _nested(value: Any) -> str:
    """Format a value inside a list or map as a CEL literal."""
    kind = type(value)
    if kind is str:
        return _quoted(value)
    if kind is bytes:
        return f"b{_quoted(_as_text(value))}"
    if kind is float:
        if math.isfinite(value):
            return f"{value:.6f}"
        return f'"{"NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"}"'
    if kind is Timestamp or kind is Duration:
        word = "timestamp" if kind is Timestamp else "duration"
        return f'{word}("{CONVERSIONS["string"][(kind,)](value)}")'
    text = _string(value, 0)
    if text is None:
        raise BadArgument(f"no formatting function for {type_name(value)}")
    return text


def _map(value: Any) -> str:
    pairs = []
    for key, item in _bounded(map_items(value)):
        if type(key) not in {str, bool, int, Uint}:
            raise BadArgument(f"no formatting function for map key of type {type_name(key)}")
        pairs.append((_nested(key), _nested(item)))
    pairs.sort(key=lambda pair: pair[0])
    return f"{{{', '.join(f'{key}:{item}' for key, item in pairs)}}}"


def _decimal(value: Any, _: int) -> str | None:
    return str(int(value)) if type(value) in {int, Uint} else None


def _double(value: Any) -> float | None:
    if type(value) is float:
        return value
    if type(value) is str and value in _SPECIAL:
        return math.nan if value == "NaN" else -math.inf if value.startswith("-") else math.inf
    return None


def _infinite(number: float) -> str:
    return "NaN" if math.isnan(number) else "∞" if number > 0 else "-∞"


def _fixed(value: Any, precision: int) -> str | None:
    number = _double(value)
    if number is None:
        return None
    if precision // 10 > _READABLE:
        return _NO_VERB
    if not math.isfinite(number):
        return _infinite(number)
    text = f"{Decimal(number or 0.0):,.{min(precision, _MOST_DIGITS)}f}"  # zero has no sign
    if precision < _DIGITS:
        return text
    whole, _, fraction = text.partition(".")
    fraction = fraction.rstrip("0").ljust(precision % _DIGITS, "0")
    return f"{whole}.{fraction}" if fraction else whole


def _scientific(value: Any, width: int) -> str | None:
    """Write a number with six decimals: the server takes what is meant as the precision for the width."""
    number = _double(value)
    if number is None:
        return None
    if width // 10 > _READABLE:
        return _NO_VERB
    width %= _WIDTHS
    if not math.isfinite(number):
        return _infinite(number).rjust(width)
    mantissa, _, exponent = f"{number or 0.0:.{_PRECISION}e}".partition("e")
    power = int(exponent)
    raised = f"{'-' if power < 0 else ''}{abs(power):02d}".translate(_SUPERSCRIPTS)
    return f"{mantissa}×10{raised}".rjust(width)  # noqa: RUF001  (the multiplication sign is what is printed)


def _binary(value: Any, _: int) -> str | None:
    if type(value) is bool:
        return "1" if value else "0"
    return f"{int(value):b}" if type(value) in {int, Uint} else None


def _hex(*, upper: bool) -> Callable[[Any, int], str | None]:
    def write(value: Any, _: int) -> str | None:
        if type(value) in {int, Uint}:
            text = f"{int(value):x}"
        elif type(value) is str:
            text = value.encode("utf-8", "surrogatepass").hex()
        elif type(value) is bytes:
            text = value.hex()
        else:
            return None
        return text.upper() if upper else text

    return write


def _octal(value: Any, _: int) -> str | None:
    return f"{int(value):o}" if type(value) in {int, Uint} else None


_WRITERS: dict[str, Callable[[Any, int], str | None]] = {
    "s": _string,
    "d": _decimal,
    "f": _fixed,
    "e": _scientific,
    "b": _binary,
    "x": _hex(upper=False),
    "X": _hex(upper=True),
    "o": _octal,
}

FORMATS: dict[str, dict[tuple[type, ...], Any]] = {
    "format": {(str, kind): format_string for kind in (list, Concat)},
}


# Run-time values as short text for output, close to CEL literals.

_MAX_ENTRIES = 4
_LONGEST = 60


def render(value: Any) -> str:
    """Format a value in one short line."""
    return _shortened(_render(value, 2))


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _render(value: Any, depth: int) -> str:
    kind = type(value)
    if value is None:
        return "null"
    if kind is bool:
        return "true" if value else "false"
    if kind is str:
        return json.dumps(value, ensure_ascii=False)
    if kind is Uint:
        return f"{int(value)}u"
    if kind is CelQuantity:
        return str(value.number)
    if kind is Semver or kind is int:
        return str(value)
    if kind is TypeValue or kind is NamedFormat:
        return str(value.name)
    if kind is Url:
        return str(value.text)
    if kind is Optional:
        return f"optional({_render(value.value, depth)})" if value.present else "optional.none()"
    if is_list(value):
        return _list(value, depth)
    if is_map(value):
        return _rendered_map(value, depth)
    convert = CONVERSIONS["string"].get((kind,))
    return str(convert(value)) if convert is not None and kind is not bytes else repr(value)


def _list(value: Any, depth: int) -> str:
    count = list_size(value)
    if depth == 0 or type(value) is not list:
        return f"[{count} elements]"
    shown = [_render(element, depth - 1) for element in value[:_MAX_ENTRIES]]
    return f"[{', '.join(shown)}{', …' if count > _MAX_ENTRIES else ''}]"


def _rendered_map(value: Any, depth: int) -> str:
    count = map_size(value)
    if depth == 0:
        return f"{{{count} entries}}"
    shown = [f"{_render(key, 0)}: {_render(item, depth - 1)}" for key, item in map_items(value)[:_MAX_ENTRIES]]
    return f"{{{', '.join(shown)}{', …' if count > _MAX_ENTRIES else ''}}}"
