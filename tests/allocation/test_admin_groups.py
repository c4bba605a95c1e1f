"""A device with compatibility groups that one request takes and another gets with admin access, on Kubernetes 1.37.

What is expected was asked of Kubernetes' own allocator (`python -m cluster.oracle`).
"""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from cluster.oracle.outcomes import our_outcomes
from cluster.oracle.written.parts import apart, make_claim, make_device, world

Wire = dict[str, Any]
ADMIN = {"adminAccess": True}
ALIKE, APART, CHAIN, SOME = [["a"], ["a"]], [["a"], ["b"]], [["a", "b"], ["b", "c"], ["c"]], [["a", "b"], ["a"], ["b"]]


def outcome(groups: list[list[str]], claims: list[list[Wire]], *, gpus: int = 1, slots: int = 4) -> Any:
    """Return the devices of each claim, and "+" with those of admin access; or why there are none."""
    names = [f"gpu-{gpu}" for gpu in range(gpus)]
    counters = {"slot": {"value": "1"}}
    devices = [
        make_device(
            f"part-{index}",
            shared=False,
            consumesCounters=[{"counterSet": one, "counters": counters, "compatibilityGroups": named} for one in names],
        )
        for index, named in enumerate(groups)
    ]
    wished = [make_claim(*wishes, name=f"claim-{index}") for index, wishes in enumerate(claims)]
    made = world(*devices, claims=wished, features={"CompatibilityGroups": True})
    sets = [{"name": one, "counters": {"slot": {"value": str(slots)}}} for one in names]
    made["slices"] = apart(made["slices"][0], {"sharedCounters": sets})
    (found,) = our_outcomes(made, "1.37").values()
    return found.get("category") or [
        [one["device"] + ("+" if one.get("adminAccess") else "") for one in result["devices"]["results"]]
        for result in found["results"]
    ]


@pytest.mark.parametrize(
    ("groups", "claims", "expected"),
    [
        ([["a"]], [[{}], [ADMIN]], [["part-0"], ["part-0+"]]),
        ([["a"]], [[{}], [ADMIN | {"count": 2}]], "no-fit"),
        ([["a"]], [[{}], [ADMIN], [{}]], "no-fit"),
        (ALIKE, [[{}], [ADMIN | {"count": 2}]], [["part-0"], ["part-0+", "part-1+"]]),
        (CHAIN, [[{}], [ADMIN | {"count": 2}]], [["part-0"], ["part-0+", "part-1+"]]),
        (APART, [[{}], [ADMIN | {"count": 2}]], "no-fit"),
        (APART, [[{}], [ADMIN, {}]], "no-fit"),
    ],
)
def test_a_search_that_takes_both_back_goes_on(
    groups: list[list[str]], claims: list[list[Wire]], expected: Any
) -> None:
    assert outcome(groups, claims) == expected


def test_no_mixture_of_requests_ends_the_search_with_an_error() -> None:
    wishes: list[Wire] = [{}, ADMIN, ADMIN | {"count": 2}, {"count": 2}, ADMIN | {"allocationMode": "All", "count": 0}]
    for groups, first, second, gpus, slots in product(([["a"]], ALIKE, APART, SOME), wishes, wishes, (1, 2), (1, 2, 4)):
        for claims in ([[first], [second]], [[first, second]], [[first], [second, {}]]):
            found = outcome(groups, claims, gpus=gpus, slots=slots)
            assert isinstance(found, list) or found in {"no-fit", "all-constraint-unsatisfied"}, found
