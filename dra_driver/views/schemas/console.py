"""The schemas of the documents from which the console's pages are drawn.

In: nothing. Out: schemas of records, for `documents`.
"""

from __future__ import annotations

from dra_driver.model.wire import Wire
from dra_driver.views.schemas.fleets import HOLDER, UNSEEN
from dra_driver.views.schemas.parts import (
    COUNT,
    COUNTS,
    FLAG,
    MAYBE_COUNT,
    MAYBE_FLAG,
    MAYBE_TEXT,
    SHARE,
    TEXT,
    TEXTS,
    list_of,
    map_of,
    maybe,
    one_of,
    record,
)
from dra_driver.views.schemas.selectors import FINDING, GIVEN, MISS, SELECTOR
from dra_driver.views.schemas.worlds import MOMENT

_STATE = one_of("free", "held", "tainted", "withheld")
_PART = record(
    device=TEXT,
    label=TEXT,
    start=SHARE,
    size=SHARE,
    state=_STATE,
    holders=TEXTS,
    taints=TEXTS,
    matches=MAYBE_FLAG,
)
_TILE = record(
    name=TEXT,
    driver=TEXT,
    pool=TEXT,
    kind=one_of("gpu", "other"),
    product=TEXT,
    memory=TEXT,
    numa=TEXT,
    pcieRoot=TEXT,
    linkDomain=TEXT,
    state=_STATE,
    parts=list_of(_PART),
)
FLEET_PAGE: dict[str, Wire] = {
    "version": COUNT,
    "total": COUNT,
    "matching": COUNT,
    "offset": COUNT,
    "nodes": list_of(record(node=TEXT, schedulable=FLAG, ready=FLAG, tiles=list_of(_TILE))),
    "notes": TEXTS,
}
FLEET_SUMMARY: dict[str, Wire] = {
    "nodes": COUNT,
    "gpus": COUNT,
    "states": record(free=COUNT, held=COUNT, tainted=COUNT, withheld=COUNT),
    "products": COUNTS,
    "strip": {"type": "string", "pattern": "^[fhtw]*$"},
    "version": COUNT,
    "source": TEXT,
    "live": FLAG,
    "kubernetes": TEXT,
    "gates": TEXT,
    "notes": TEXTS,
    "claims": COUNT,
    "pods": COUNT,
    "namespaces": TEXTS,
    "loading": TEXTS,
    "unseen": UNSEEN,
}
_NAMED = list_of(record(name=TEXT, value=TEXT))
_POD = record(name=TEXT, phase=MAYBE_TEXT, node=MAYBE_TEXT)
DEVICE_PAGE: dict[str, Wire] = {
    "node": TEXT,
    "driver": TEXT,
    "pool": TEXT,
    "device": TEXT,
    "published": FLAG,
    "memory": MAYBE_TEXT,
    "attributes": _NAMED,
    "capacity": _NAMED,
    "taints": list_of(record(key=TEXT, value=MAYBE_TEXT, effect=TEXT, since=MAYBE_TEXT)),
    "placements": COUNTS,
    "holders": list_of(
        record(
            device=TEXT,
            namespace=TEXT,
            claim=TEXT,
            request=TEXT,
            adminAccess=FLAG,
            since=MAYBE_TEXT,
            pods=list_of(_POD),
        )
    ),
}
_COUNTS = record(match=COUNT, noMatch=COUNT, abort=COUNT)
_JUDGED = list_of(record(driver=TEXT, pool=TEXT, device=TEXT, error=MAYBE_TEXT))
SELECTOR_PLAY: dict[str, Wire] = {
    **GIVEN,
    "selector": SELECTOR,
    "position": maybe(record(line=COUNT, column=COUNT)),
    "costLimit": COUNT,
    "counts": _COUNTS,
    "rows": list_of(record(node=TEXT, like=COUNT, counts=_COUNTS, match=_JUDGED, noMatch=_JUDGED, abort=_JUDGED)),
    "moreRows": COUNT,
    "nearestMisses": list_of(MISS),
    "findings": list_of(FINDING),
    "better": MAYBE_TEXT,
}
_ROW: dict[str, Wire] = {
    "subject": one_of("pod", "claim"),
    "namespace": TEXT,
    "name": TEXT,
    "state": one_of("pending", "allocated"),
    "terminating": FLAG,
    "since": MAYBE_TEXT,
    "claims": TEXTS,
    "devices": TEXTS,
    "pods": TEXTS,
}
CLAIMS_PAGE: dict[str, Wire] = {
    "version": COUNT,
    "pending": COUNT,
    "matching": COUNT,
    "offset": COUNT,
    "rows": list_of(record(**_ROW)),
    "unseen": UNSEEN,
}
CLAIM_PAGE: dict[str, Wire] = {
    **_ROW,
    "requests": list_of(record(**{"name": TEXT, "class": TEXT, "count": MAYBE_COUNT, "selectors": TEXTS})),
    "holds": list_of(
        record(
            request=TEXT,
            driver=TEXT,
            pool=TEXT,
            device=TEXT,
            cdiDevice=MAYBE_TEXT,
            taints=TEXTS,
            conditions=TEXTS,
            consumed=map_of(TEXT),
        )
    ),
    "users": TEXTS,
    "containers": list_of(record(pod=TEXT, phase=MAYBE_TEXT, node=MAYBE_TEXT, container=TEXT, health=TEXTS)),
}
WHAT_IF: dict[str, Wire] = {"now": list_of(MOMENT), "then": list_of(MOMENT), "kubernetes": TEXT}
ATTENTION: dict[str, Wire] = {
    "version": COUNT,
    "counts": COUNTS,
    "flags": list_of(record(code=TEXT, message=TEXT, kind=TEXT, place=TEXT, nodes=COUNT)),
    "namespaces": list_of(HOLDER),
    "classes": list_of(HOLDER),
    "unseen": UNSEEN,
}
