"""Remediations of this node as rows, from what its agent has recorded.

In: the agent's data folder. Out: one row for each GPU that was ever remediated, with the keys of the document
`NodeRemediation`. It only reads.
"""

from __future__ import annotations

from pathlib import Path

from dra_driver.model.names import gpu_name
from dra_driver.model.wire import Wire
from dra_driver.remediation.case import RemediationCase
from dra_driver.remediation.journal import RemediationJournal
from dra_driver.views.node.fault_rows import time_text


def remediation_rows(folder: Path) -> list[Wire]:
    """Return the last remediation of each GPU. Raises: LedgerError."""
    return [_row(case) for case in RemediationJournal(folder).cases()]


def action_rows(folder: Path) -> list[Wire]:
    """Return the actions that the journal has, the oldest first. Raises: LedgerError."""
    rows = RemediationJournal(folder).actions()
    return [
        {"at": time_text(row.at), "uuid": row.uuid, "action": row.action, "outcome": row.outcome or None}
        for row in rows
    ]


def _row(case: RemediationCase) -> Wire:
    return {
        "device": gpu_name(case.gpu),
        "uuid": case.uuid,
        "fault": str(case.key),
        "value": case.value,
        "stage": str(case.stage),
        "action": str(case.action),
        "tries": case.tries,
        "peers": [gpu_name(peer) for peer in case.peers],
        "since": time_text(case.began),
        "stageSince": time_text(case.stage_at),
        "message": case.waits_for,
    }
