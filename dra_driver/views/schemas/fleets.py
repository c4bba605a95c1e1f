"""The schemas of the trees and figures of a fleet.

In: nothing. Out: schemas of records, for `documents`.
"""

from __future__ import annotations

from dra_driver.model.wire import Wire
from dra_driver.views.schemas.parts import (
    COUNT,
    COUNTS,
    FLAG,
    MAYBE_COUNT,
    MAYBE_TEXT,
    QUANTITY,
    SHARE,
    TAINT,
    TEXT,
    TEXTS,
    list_of,
    map_of,
    maybe,
    one_of,
    record,
)

UNSEEN = list_of(record(kind=TEXT, namespace=MAYBE_TEXT, partial=FLAG))
BRANCHES = list_of({"$ref": "#/$defs/branch"})
_HELD = {"request": TEXT, "adminAccess": FLAG, "consumedCapacity": map_of(QUANTITY)}
_FACTS: dict[str, Wire] = {
    "node": record(),
    "pool": record(driver=TEXT, pool=TEXT, generation=MAYBE_COUNT),
    "set": record(counterSet=MAYBE_TEXT, freePartitions=COUNTS),
    "device": {
        "oneOf": [
            record(
                type=MAYBE_TEXT,
                product=MAYBE_TEXT,
                profile=MAYBE_TEXT,
                memory=maybe(QUANTITY),
                state=one_of("held", "free", "tainted", "blocked"),
                taints=list_of(TAINT),
            ),
            record(driver=TEXT, pool=TEXT, device=TEXT, **_HELD),  # the fields of a claim
        ]
    },
    "claim": record(_HELD, namespace=MAYBE_TEXT, allocated=FLAG, terminating=FLAG),
    "pod": record(phase=MAYBE_TEXT, terminating=FLAG),
}
BRANCH: Wire = {
    "oneOf": [
        record(
            kind={"const": kind},
            name=TEXT,
            like=TEXTS,
            heldFraction=maybe(SHARE),
            flags=list_of(record(code=TEXT, message=TEXT)),
            facts=facts,
            children=BRANCHES,
        )
        for kind, facts in _FACTS.items()
    ]
}
HOLDER = record(name=TEXT, claims=COUNT, devices=COUNT, waiting=COUNT)
NODE_FIGURES = record(
    node=TEXT,
    like=TEXTS,
    gpus=COUNT,
    products=COUNTS,
    otherDevices=COUNT,
    wholeFree=COUNT,
    partitionsFree=COUNTS,
    held=COUNT,
    sick=COUNT,
)
