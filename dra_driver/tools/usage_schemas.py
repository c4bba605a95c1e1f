"""The schemas of documents about the use of GPUs.

In: nothing. Out: schemas of records, for `documents`.
"""

from __future__ import annotations

from dra_driver.base.wire import Wire
from dra_driver.tools.schema_parts import COUNT, FLAG, MAYBE_TEXT, SHARE, TEXT, TEXTS, list_of, maybe, one_of, record
from dra_driver.tools.usage.usage_document import Grouping

_MONEY = maybe({"type": "number"})
_ROW = record(
    name=TEXT,
    allocatedHours=SHARE,
    busyHours=SHARE,
    idleHours=SHARE,
    unmeasuredHours=SHARE,
    unclaimedHours=SHARE,
    gpuHours=SHARE,
    cost=_MONEY,
    idleCost=_MONEY,
    unclaimedCost=_MONEY,
)
_CLAIM = {"namespace": TEXT, "name": TEXT, "model": TEXT, "profile": TEXT}
_TIME: Wire = {"type": "string", "format": "date-time"}
_POINT: Wire = {"type": "array", "prefixItems": [{"type": "number"}, {"type": ["number", "null"]}], "minItems": 2}
DASHBOARD: dict[str, Wire] = {
    "name": TEXT,
    "title": TEXT,
    "about": TEXT,
    "begin": _TIME,
    "end": _TIME,
    "panels": list_of(
        record(
            row=TEXT,
            title=TEXT,
            kind=one_of("figure", "lines"),
            unit=TEXT,
            note=TEXT,
            stacked=FLAG,
            series=list_of(record(name=TEXT, points=list_of(_POINT))),
            more=COUNT,
            fault=MAYBE_TEXT,
        )
    ),
    "others": list_of(record(name=TEXT, title=TEXT)),
}
USAGE: dict[str, Wire] = {
    "source": TEXT,
    "begin": maybe(_TIME),
    "end": _TIME,
    "by": one_of(*map(str, Grouping)),
    "currency": TEXT,
    "rows": list_of(_ROW),
    "total": _ROW,
    "idleClaims": list_of(record(**_CLAIM, devices=COUNT, hours=SHARE, cost=_MONEY)),
    "sizes": list_of(record(**_CLAIM, advice=MAYBE_TEXT, reason=TEXT, gpusSaved=SHARE, savedPerHour=_MONEY)),
    "whatIf": maybe(record(changes=COUNT, gpus=COUNT, nodes=TEXTS, unplaced=TEXTS)),
    "unpriced": TEXTS,
    "notes": TEXTS,
}
