"""The schemas of migrated files, the demo, checked files, findings of the doctor, and a node's faults and tests.

In: nothing. Out: schemas of records, for `documents`.
"""

from __future__ import annotations

from dra_driver.remediation.case import Stage
from dra_driver.views.schemas.parts import (
    COUNT,
    FLAG,
    MAYBE_COUNT,
    MAYBE_TEXT,
    TEXT,
    TEXTS,
    list_of,
    map_of,
    maybe,
    one_of,
    record,
)

_TIME = {"type": "string", "format": "date-time"}
_ROW = {"code": TEXT, "subject": TEXT, "path": TEXT, "what": TEXT}
MIGRATED = record(
    {"diff": TEXT},
    file=TEXT,
    changed=FLAG,
    changes=list_of(record(**_ROW, why=TEXT)),
    losses=list_of(record(**_ROW, remedy=TEXT)),
    templates=TEXTS,
    text=TEXT,
)
CHECK = record(
    template=TEXT,
    request=TEXT,
    wanted=COUNT,
    selectors=TEXTS,
    devices=MAYBE_COUNT,
    nodes=COUNT,
    nodesWithEnough=COUNT,
    aborts=COUNT,
    problem=TEXT,
    message=TEXT,
)
FAULT = record(
    device=TEXT,
    partition=maybe(record(profileId=COUNT, start=COUNT)),
    fault=TEXT,
    value=MAYBE_TEXT,
    since=_TIME,
    message=TEXT,
)
CORDON = {"device": TEXT, "isCordoned": FLAG, "reason": MAYBE_TEXT, "since": maybe(_TIME), "until": maybe(_TIME)}
DEMO_RUN = {
    "examples": list_of(record(file=TEXT, intent=TEXT, isGood=FLAG, unmet=TEXTS, left=TEXTS)),
    "problems": TEXTS,
}
REMEDIATION = record(
    device=TEXT,
    uuid=TEXT,
    fault=TEXT,
    value=TEXT,
    stage=one_of(*Stage),
    action=one_of("none", "reset", "reboot", "command"),
    tries=COUNT,
    peers=TEXTS,
    since=_TIME,
    stageSince=_TIME,
    message=TEXT,
)
ACTION_ROW = record(at=_TIME, uuid=TEXT, action=TEXT, outcome=MAYBE_TEXT)
TESTED = record(
    device=TEXT,
    uuid=TEXT,
    level=COUNT,
    verdict=one_of("passed", "failed", "could-not-run"),
    code=MAYBE_TEXT,
    message=TEXT,
    seconds={"type": "number"},
    figures=map_of(COUNT),
)
FINDING = record(
    id=TEXT,
    subject=TEXT,
    message=TEXT,
    how=TEXT,
    remedy=TEXT,
    severity=one_of("error", "warning", "note"),
    title=TEXT,
    page=TEXT,
)
CHECKED_FILE = record(
    file=TEXT,
    usedBy=MAYBE_TEXT,
    version=MAYBE_TEXT,
    notes=TEXTS,
    fault=maybe(record(code=TEXT, message=TEXT, remedy=TEXT)),
)
