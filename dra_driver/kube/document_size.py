"""Document size: how much memory a JSON document takes once it is parsed, estimated before it is parsed.

In: the document's bytes. Out: bytes of memory. A document of 8 MiB can become 300 MiB of Python objects (`[],[],…`), so
its length alone is no limit. Counting single characters takes about a thousandth of the time of parsing; characters
within strings are counted too, so the estimate is rather too high.
"""

from __future__ import annotations

# What each character may stand for in CPython 3.11 to 3.14 on 64 bits, in bytes: an object with its first entries, a
# list, an entry's share of a table, a value and its place in a list, half of a string's header.
_COSTS = ((b"{", 184), (b":", 64), (b"[", 80), (b",", 40), (b'"', 28))
COSTLIEST = 1 + max(cost for _, cost in _COSTS)  # bytes of memory that a byte of a document takes at most
_WIDEST_CHARACTER = 4  # bytes that each character of a string takes if one of them is outside the basic plane


def memory_of(document: bytes) -> int:
    """Return about how many bytes of memory a document takes once it is parsed, the text itself included."""
    is_plain = document.isascii() and b"\\u" not in document
    text = len(document) if is_plain else _WIDEST_CHARACTER * len(document)
    return text + sum(document.count(character) * cost for character, cost in _COSTS)
