"""What one viewer may read, kind by kind, if the console serves several viewers.

In: a verdict for each kind, in all namespaces or in one. Out: `Rights`, which decide what is read for the viewer.
Viewers with equal rights share what was read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dra_driver.model.names import is_dns_label
from dra_driver.views.access import UnseenObjects
from dra_driver.web.kinds import KINDS, WatchedKind

MAX_NAMESPACES = 20  # namespaces watched for a viewer who may not read all of them; each has watches of its own


@dataclass(frozen=True, slots=True)
class Rights:
    """`everywhere` are the kinds of which all objects may be read, `within` pairs of a kind and a namespace."""

    everywhere: frozenset[str] = frozenset()
    within: frozenset[tuple[str, str]] = frozenset()

    def sees(self, kind: str, namespace: str) -> bool:
        """Return whether objects of a kind in a namespace may be read."""
        return kind in self.everywhere or (kind, namespace) in self.within

    def places(self, kind: str) -> tuple[str, ...]:
        """Return the namespaces in which a kind may be read; "" stands for all of them."""
        return ("",) if kind in self.everywhere else tuple(sorted(name for one, name in self.within if one == kind))

    def unseen(self) -> list[UnseenObjects]:
        """Return the kinds that may not be read."""
        hidden = [one for one in KINDS if one.name not in self.everywhere]
        return [UnseenObjects(one.name, "", is_partial=bool(self.places(one.name))) for one in hidden]


def rights_of(may: Callable[[WatchedKind, str], bool], namespaces: Callable[[], Sequence[str]]) -> Rights:
    """Return what may be read: `may` is called for each kind in all namespaces, then for single namespaces.

    `namespaces` is called only for a viewer who may not read all of them. Raises: what these two functions raise.
    """
    everywhere = frozenset(one.name for one in KINDS if may(one, ""))
    others = [one for one in KINDS if one.has_namespaces and one.name not in everywhere]
    known = [name for name in namespaces() if is_dns_label(name)][:MAX_NAMESPACES] if others else ()
    return Rights(everywhere, frozenset((one.name, name) for name in known for one in others if may(one, name)))
