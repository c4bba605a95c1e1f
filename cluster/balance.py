"""The order of the scenarios, which keeps every worker busy to the end.

In: names of scenarios, the number of workers. Out: the names in an order of which each worker gets an equal piece. A
worker that has finished takes scenarios from the end of another's piece, so long scenarios are put at the beginning, in
different pieces.
"""

from __future__ import annotations

from collections.abc import Sequence

# Rough durations in seconds of the long ones, by a part of the scenario's id. Only their order has to be right.
SECONDS = {
    "three_hundred_pods": 300,
    "test_chart": 40,  # each; the chart's scenarios share a cluster
    "test_take_over": 70,
    "fifty_pod_starts": 130,
    "api_server_is_down": 120,
    "upgrade_is_seamless": 90,
    "hanging_library": 70,
    "rebooted_node": 70,
    "while_prepare_waits": 70,
    "one_container_at_a_time": 50,
    "thirty_seconds": 40,
    "broken_driver": 25,
    "test_harness": 20,
    "random_worlds": 20,
}
SHORT = 5
TOGETHER = "test_chart"


def spread(names: Sequence[str], workers: int) -> list[str]:
    """Return the names in an order in which equal pieces take about equal time.

    >>> spread(["a", "b", "c", "rebooted_node", "d", "upgrade_is_seamless"], 2)
    ['upgrade_is_seamless', 'a', 'b', 'rebooted_node', 'c', 'd']
    """
    room = -(-len(names) // workers)
    pieces: list[list[str]] = [[] for _ in range(workers)]
    groups: dict[str, list[str]] = {}
    for name in names:
        if _seconds(name) > SHORT:
            groups.setdefault(TOGETHER if TOGETHER in name else name, []).append(name)
    for group in sorted(groups.values(), key=lambda group: -sum(map(_seconds, group))):
        fitting = [piece for piece in pieces if len(piece) + len(group) <= room]
        min(fitting or pieces, key=lambda piece: sum(map(_seconds, piece))).extend(group)
    # The sizes must match how the names are dealt out: where they can't be equal, the last pieces have one name more.
    sizes = [(len(names) + place) // workers for place in range(workers)]
    short = [name for name in names if _seconds(name) == SHORT]
    for piece, size in zip(pieces, sizes, strict=True):
        piece += [short.pop(0) for _ in range(min(size - len(piece), len(short)))]
    return [name for piece in pieces for name in piece] + short


def _seconds(name: str) -> int:
    return next((seconds for part, seconds in SECONDS.items() if part in name), SHORT)
