"""What can't be known about a cluster of which only some objects may be read.

In: a world, and the kinds of which not all objects may be read. Out: the reason why no verdict is possible, or whether
a verdict holds nevertheless.
"""

from __future__ import annotations

from dra_driver.views.access import VIEWER, kinds_word
from dra_driver.views.worlds.world import World

_NEEDED = ("ResourceSlice", "DeviceClass")  # without these, no verdict is possible
_HOLDERS = frozenset({"ResourceClaim", "Pod", "ResourceClaimTemplate"})  # unseen ones can only hold more devices


def unknown_reason(world: World) -> str:
    """Return the reason why no verdict is possible; "" if one is."""
    missing = [kinds_word(kind) for kind in _NEEDED if world.is_unseen(kind)]
    return f"{' and '.join(missing)} may not be read (bind ClusterRole {VIEWER})" if missing else ""


def is_certain(world: World, *, ok: bool) -> bool:
    """Return whether a verdict would be the same if everything were seen: unseen claims can only hold more devices."""
    return not world.unseen or (not ok and all(one.kind in _HOLDERS for one in world.unseen))
