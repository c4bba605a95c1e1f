"""Texts for counts and names, used in the tables, sentences and documents of all views."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches


def plural(count: int, noun: str) -> str:
    """Return a count with its noun, in the singular or plural.

    >>> plural(1, "device"), plural(2, "match")
    ('1 device', '2 matches')
    """
    return f"{number(count)} {noun}{'' if count == 1 else 'es' if noun.endswith(('ch', 's')) else 's'}"


def counted(counts: Iterable[tuple[str, int]]) -> str:
    """Return how many there are of each name.

    >>> counted([("1g.10gb", 7), ("7g.80gb", 1)]).encode("ascii", "replace").decode()
    '7?1g.10gb, 1?7g.80gb'
    """
    return ", ".join(f"{count:,}\u00d7{name}" for name, count in counts)


def number(value: int) -> str:
    """Return a number with thousands separators, or a very large one as a power of ten.

    >>> number(12345), number(10**12)
    ('12,345', '1.0e+12')
    """
    return f"{value:,}" if abs(value) < 10**9 else f"{float(value):.1e}"


def folded(names: Sequence[str]) -> str:
    """Return a short name for several similar nodes.

    >>> folded(["a", "b"]), folded(["a", "b", "c", "d"])
    ('a, b', 'a and 3 nodes like a')
    """
    return ", ".join(names) if len(names) <= 3 else f"{names[0]} and {len(names) - 1:,} nodes like {names[0]}"


def folded_words(names: Sequence[str], more: str) -> str:
    """Return names joined by commas; if there are many, only the first three and how many `more` there are.

    >>> folded_words(["a", "b"], "pods"), folded_words(["a", "b", "c", "d", "e"], "more pods")
    ('a, b', 'a, b, c and 2 more pods')
    """
    if len(names) <= 4:
        return ", ".join(names)
    return f"{', '.join(names[:3])} and {len(names) - 3:,} {more}"


def nearest(name: str, known: Collection[str]) -> str:
    """Return a hint about an unknown name: the name that was probably meant, or else all known names.

    >>> nearest("trian", ["train", "serve"]), nearest("x", ["train", "serve"])
    ('did you mean train?', 'known: train, serve')
    """
    near = get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
