"""The objects that are left out of a board, because they do not have the shape of their kind.

In: the kind and the key of each object, and whether it has the shape. Out: how many are left out, kind by kind.
"""

from __future__ import annotations

from typing import Any

from dra_driver.views.board.board import Key

_MAX = 10_000  # of each kind; more are not counted


def key_of(wire: Any) -> Key | None:
    """Return the namespace and the name of an object; None if it has no name."""
    metadata = wire.get("metadata") if isinstance(wire, dict) else None
    name = metadata.get("name") if isinstance(metadata, dict) else None
    namespace = (metadata.get("namespace") or "") if isinstance(metadata, dict) else ""
    return (namespace, name) if isinstance(name, str) and name and isinstance(namespace, str) else None


class LeftOut:
    """The keys of all odd objects. An object without a name counts as one more."""

    def __init__(self) -> None:
        self._keys: dict[str, set[Key]] = {}

    def begin_list(self, kind: str, namespace: str) -> None:
        """Forget the objects of a kind in a namespace ("": in all), of which a new list begins."""
        kept = {key for key in self._keys.get(kind, ()) if namespace and key[0] != namespace}
        self._keys[kind] = kept

    def add(self, kind: str, namespace: str, key: Key | None) -> None:
        """Leave an object out; without a key, it is one of a list of a namespace."""
        keys = self._keys.setdefault(kind, set())
        if len(keys) < _MAX:
            keys.add(key or (namespace, f"?{len(keys)}"))

    def discard(self, kind: str, key: Key) -> None:
        """Count an object no longer: it has the shape of its kind now, or is gone."""
        self._keys.get(kind, set()).discard(key)

    def count(self, kind: str) -> int:
        """Return how many objects of a kind are left out."""
        return len(self._keys.get(kind, ()))
