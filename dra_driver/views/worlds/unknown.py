"""What can't be known of a cluster whose objects may be read in part only.

In: a world with what could not be seen. Out: why nothing can be judged, or whether a verdict holds nevertheless.
"""

from __future__ import annotations

from dra_driver.views.access import VIEWER
from dra_driver.views.worlds.world import World

_NEEDED = ("ResourceSlice", "DeviceClass")  # without these there is nothing to judge
_TAKERS = frozenset({"ResourceClaim", "Pod", "ResourceClaimTemplate"})  # seen in part, they can only hold more devices


def not_known(world: World) -> str:
    """Return why nothing can be judged, "" where it can."""
    missing = [f"{kind}s" if not kind.endswith("s") else f"{kind}es" for kind in _NEEDED if world.is_unseen(kind)]
    return f"{' and '.join(missing)} may not be read (bind ClusterRole {VIEWER})" if missing else ""


def holds_nevertheless(world: World, *, ok: bool) -> bool:
    """Return whether a verdict would be the same if everything were seen: unseen claims can only hold more devices."""
    return not world.unseen or (not ok and all(one.kind in _TAKERS for one in world.unseen))
