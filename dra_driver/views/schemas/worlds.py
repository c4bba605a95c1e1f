"""The schemas of documents about claims and pods: explanations, and moments of a simulation.

In: nothing. Out: schemas of records, for `documents`.
"""

from __future__ import annotations

from dra_driver.allocation.explaining.funnel import STAGES
from dra_driver.allocation.outcome import Category
from dra_driver.allocation.simulation.events import KINDS
from dra_driver.model.wire import Wire
from dra_driver.views.schemas.parts import (
    ALLOCATION,
    COUNT,
    FLAG,
    MAYBE_COUNT,
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

_REFUSED = list_of(record(device=TEXT, reason=TEXT))
_FUNNEL = record(
    claim=TEXT,
    request=TEXT,
    wants=MAYBE_COUNT,
    devices=COUNT,
    stages=list_of(record(name=one_of(*STAGES), left=COUNT, lost=_REFUSED)),
    fits=COUNT,
    errors=_REFUSED,
)
_OUTCOME = record(
    category=one_of(*map(str, Category)),
    results=maybe(list_of(ALLOCATION)),
    error=MAYBE_TEXT,
    othersPossible=FLAG,
    timesOut=FLAG,
)
EXPLANATION: dict[str, Wire] = {
    "subject": record(kind=TEXT, namespace=MAYBE_TEXT, name=TEXT),
    "ok": FLAG,
    "sentence": TEXT,
    "nodes": list_of(
        record(
            node=TEXT,
            like=TEXTS,
            ok=FLAG,
            sentence=TEXT,
            notes=TEXTS,
            skipped=MAYBE_TEXT,
            outcome=maybe(_OUTCOME),
            funnels=list_of(_FUNNEL),
        )
    ),
    "aborts": FLAG,
    "kubernetes": TEXT,
    "exact": FLAG,
    "notes": TEXTS,
    "gates": map_of(record(on=FLAG, how=TEXT)),
}
MOMENT = record(
    event=record(kind=one_of(*KINDS), target=MAYBE_TEXT, jobs=TEXTS),
    message=TEXT,
    placed=list_of(record(job=TEXT, node=TEXT, devices=TEXTS)),
    waiting=list_of(record(job=TEXT, reason=TEXT)),
    evicted=TEXTS,
    usage=record(devices=COUNT, held=SHARE, freeElsewhere=SHARE),
)
REARRANGEMENT = record(
    job=TEXT,
    node=TEXT,
    devices=TEXTS,
    moves=list_of(record(job=TEXT, source=TEXT, target=TEXT, leaves=TEXTS, gets=TEXTS)),
)
