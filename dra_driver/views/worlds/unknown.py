"""What can't be known about a cluster of which only some objects may be read.

In: a world with what could not be read. Out: why nothing can be judged, or whether a verdict holds nevertheless.
"""

from __future__ import annotations

from dra_driver.views.access import VIEWER, kinds_word
from dra_driver.views.worlds.world import World

_NEEDED = ("ResourceSlice", "DeviceClass")  # without these, nothing can be judged
_TAKERS = frozenset({"ResourceClaim", "Pod", "ResourceClaimTemplate"})  # those unseen can only hold more devices


def not_known(world: World) -> str:
    """Return why nothing can be judged; "" if it can."""
    missing = [kinds_word(kind) for kind in _NEEDED if world.is_unseen(kind)]
    return f"{' and '.join(missing)} may not be read (bind ClusterRole {VIEWER})" if missing else ""


def holds_nevertheless(world: World, *, ok: bool) -> bool:
    """Return whether a verdict would be the same if everything were seen: unseen claims can only hold more devices."""
    return not world.unseen or (not ok and all(one.kind in _TAKERS for one in world.unseen))
