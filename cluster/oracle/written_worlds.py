"""Worlds written by hand: one for each rule of the allocator that random worlds reach too rarely.

In: nothing. Out: worlds, by the rule that they are about.
"""

from __future__ import annotations

from cluster.oracle.written.capacity import held_worlds, ranges_worlds
from cluster.oracle.written.constraints import lists_worlds
from cluster.oracle.written.derived import derived_worlds, skipping_worlds
from cluster.oracle.written.gates import gates_worlds
from cluster.oracle.written.groups import groups_worlds
from cluster.oracle.written.parts import Wire
from cluster.oracle.written.searches import limits_worlds, orders_worlds, searches_worlds


def written_worlds() -> dict[str, Wire]:
    """Return the worlds, by name."""
    return {
        **ranges_worlds(),
        **held_worlds(),
        **gates_worlds(),
        **groups_worlds(),
        **lists_worlds(),
        **derived_worlds(),
        **skipping_worlds(),
        **orders_worlds(),
        **limits_worlds(),
        **searches_worlds(),
    }
