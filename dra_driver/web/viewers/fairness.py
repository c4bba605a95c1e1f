"""Fairness between viewers when there is no more room: whoever holds most gives up what was used least recently.

In: who holds each entry, and when it was used. Out: the entry to give up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TypeVar

_ACCOUNT = "system:serviceaccount:"
Key = TypeVar("Key")


def owner_of_user(user: str) -> str:
    """Return to whom what a user holds is counted: all ServiceAccounts of a namespace count as one.

    Whoever may create one ServiceAccount in a namespace may create a thousand there.

    >>> owner_of_user("system:serviceaccount:team-a:train"), owner_of_user("alice")
    ('system:serviceaccount:team-a', 'alice')
    """
    return user.rpartition(":")[0] if user.startswith(_ACCOUNT) else user


def to_give_up(held: Mapping[Key, tuple[str, float]]) -> Key:
    """Return the least recently used entry of the owner who has most; `held` is the owner and the time of each."""
    counts = Counter(owner for owner, _ in held.values())
    return min(held, key=lambda key: (-counts[held[key][0]], held[key][1]))
