"""String functions: charAt, indexOf, substring, split, replace, join, quote and the rest.

In: strings and ints. Out: strings, ints, lists, or a `CelError`. All indices count code points.

Source: cel-go's strings extension (version 2) and its standard string functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dra_driver.selectors.values.arithmetic import MAX_TEXT, checked_text
from dra_driver.selectors.values.containers import Concat, unfold
from dra_driver.selectors.values.equality import NO_SUCH_OVERLOAD
from dra_driver.selectors.values.quoting import ESCAPES
from dra_driver.selectors.values.values import COST_EXCEEDED, CelAbort, CelError
from dra_driver.selectors.values.work import COPIED_AT_ONCE, count_work

_ASCII_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
_ASCII_UPPER = {code: code - 32 for code in range(ord("a"), ord("z") + 1)}
_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"  # noqa: E501  (Unicode's White_Space property)
_QUOTED = str.maketrans(ESCAPES)


def _out_of_range(index: int) -> CelError:
    return CelError(f"index out of range: {index}")


def _char_at(text: str, index: int) -> str:
    if not 0 <= index <= len(text):
        raise _out_of_range(index)
    return text[index : index + 1]


def _index_of(text: str, part: str, offset: int = 0) -> int:
    if not part:
        return offset
    if offset < 0:
        raise _out_of_range(offset)
    return text.find(part, offset)


def _last_index_of(text: str, part: str) -> int:
    if not part:
        return len(text)
    if len(text.encode("utf-8", "surrogatepass")) < len(part.encode("utf-8", "surrogatepass")):
        return -1
    return _last_index_from(text, part, len(text) - 1)


def _last_index_from(text: str, part: str, offset: int) -> int:
    if not part:
        return offset
    if offset < 0:
        raise _out_of_range(offset)
    if offset >= len(text):
        return -1
    return text.rfind(part, 0, offset + len(part))


def _clamped(search: Callable[[str, str, int], int]) -> Callable[[str, str, int], int]:
    """Make a search as it is since 1.37: an empty part is found at the end of the text at the latest."""

    def search_clamped(text: str, part: str, offset: int) -> int:
        if offset < 0:
            raise _out_of_range(offset)
        return search(text, part, offset) if part else min(offset, len(text))

    return search_clamped


def _substring(text: str, start: int) -> str:
    if not 0 <= start <= len(text):
        raise _out_of_range(start)
    return text[start:]


def _substring_to(text: str, start: int, end: int) -> str:
    if start > end:
        raise CelError(f"invalid substring range. start: {start}, end: {end}")
    for index in (start, end):
        if not 0 <= index <= len(text):
            raise _out_of_range(index)
    return text[start:end]


def _replace(text: str, old: str, new: str, count: int = -1) -> str:
    pieces = text.count(old) if count < 0 else min(text.count(old), count)
    if len(text) + pieces * max(0, len(new) - len(old)) > MAX_TEXT:
        raise CelAbort(COST_EXCEEDED)
    return text.replace(old, new, max(count, -1))


def _split(text: str, separator: str, count: int = -1) -> list[str]:
    if count == 0:
        return []
    if separator:
        return text.split(separator, count - 1 if count > 0 else -1)
    if 0 < count < len(text):
        return [*text[: count - 1], text[count - 1 :]]
    return list(text)


def _join(parts: Any, *rest: str) -> str:
    elements = unfold(parts)
    if elements and type(elements[0]) is not str:
        names = ", ".join(["list", "string"][: 2 if rest else 1])
        raise CelError(f"{NO_SUCH_OVERLOAD}: join({names})")
    separator = rest[0] if rest else ""
    count_work(len(elements) // COPIED_AT_ONCE)
    size = 0
    for element in elements:
        if type(element) is not str:
            raise CelError(f"join: invalid input: {element}")
        size += len(element) + len(separator)
    if size > MAX_TEXT:
        raise CelAbort(COST_EXCEEDED)
    return separator.join(elements)


def _quote(text: str) -> str:
    return f'"{text.translate(_QUOTED)}"'


STRINGS: dict[str, dict[tuple[type, ...], Any]] = {
    "charAt": {(str, int): _char_at},
    "contains": {(str, str): lambda text, part: part in text},
    "startsWith": {(str, str): str.startswith},
    "endsWith": {(str, str): str.endswith},
    "indexOf": {(str, str): _index_of, (str, str, int): _index_of},
    "lastIndexOf": {(str, str): _last_index_of, (str, str, int): _last_index_from},
    "indexOf since 1.37": {(str, str): _index_of, (str, str, int): _clamped(_index_of)},
    "lastIndexOf since 1.37": {(str, str): _last_index_of, (str, str, int): _clamped(_last_index_from)},
    "lowerAscii": {(str,): lambda text: text.lower() if text.isascii() else text.translate(_ASCII_LOWER)},
    "upperAscii": {(str,): lambda text: text.upper() if text.isascii() else text.translate(_ASCII_UPPER)},
    "replace": {(str, str, str): _replace, (str, str, str, int): _replace},
    "split": {(str, str): _split, (str, str, int): _split},
    "substring": {(str, int): _substring, (str, int, int): _substring_to},
    "trim": {(str,): lambda text: text.strip(_SPACE)},
    "join": {(kind, *separator): _join for kind in (list, Concat) for separator in ((), (str,))},
    "strings.quote": {(str,): lambda text: checked_text(_quote(text))},
}
