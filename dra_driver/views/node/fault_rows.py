"""Faults and cordons of this node as rows, from what its agent has recorded.

In: the agent's data folder. Out: one row for each fault and each cordon in force, with the keys of the document
`NodeHealth`; None if no agent has recorded anything. It only reads.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from dra_driver.doctor.node_faults import read_faults
from dra_driver.health.cordons import Cordon
from dra_driver.health.fault import Fault, FaultKey
from dra_driver.model.names import gpu_name
from dra_driver.model.wire import Wire
from dra_driver.remediation.case import RemediationCase
from dra_driver.views.envelope import DocumentKind, OutputDocument


def fault_rows(folder: Path, now: float) -> list[Wire] | None:
    """Return the rows at a time in seconds since 1970, the most important fault first.

    Raises: LedgerError, InputError, PermissionError.
    """
    recorded = read_faults(folder, now)
    if recorded is None:
        return None
    rows = [
        *map(_fault_row, recorded.faults),
        *map(_cordon_row, recorded.cordons),
        *map(_case_row, recorded.remediations),
    ]
    return sorted(rows, key=lambda row: FaultKey(row["fault"]).rank)


def cordon_document(device: str, cordon: Cordon | None) -> OutputDocument:
    """Return the document of a device's cordon; `cordon` is None if the device has none."""
    content = {
        "device": device,
        "isCordoned": cordon is not None,
        "reason": cordon.reason if cordon else None,
        "since": time_text(cordon.since) if cordon else None,
        "until": time_text(cordon.until) if cordon and cordon.until is not None else None,
    }
    return OutputDocument(DocumentKind.CORDON, content)


def fault_place(row: Wire) -> str:
    """Return the device of a row, and its partition if the fault is about one, as text for people."""
    part = row["partition"]
    return f"{row['device']} (profile {part['profileId']}, slice {part['start']})" if part else str(row["device"])


def _fault_row(fault: Fault) -> Wire:
    partition = None
    if fault.subject.partition:
        profile, start = fault.subject.partition
        partition = {"profileId": profile, "start": start}
    return {
        "device": gpu_name(fault.subject.gpu),
        "partition": partition,
        "fault": str(fault.key),
        "value": fault.value,
        "since": time_text(fault.since),
        "message": fault.sentence,
    }


def _cordon_row(one: Cordon) -> Wire:
    return {
        "device": one.device,
        "partition": None,
        "fault": str(FaultKey.CORDONED),
        "value": None,
        "since": time_text(one.since),
        "message": one.reason,
    }


def _case_row(case: RemediationCase) -> Wire:
    value = case.reason
    waits = f"{case.stage}: {case.waits_for}" if case.waits_for else str(case.stage)
    return {
        "device": gpu_name(case.gpu),
        "partition": None,
        "fault": str(FaultKey.REMEDIATION),
        "value": value,
        "since": time_text(case.began),
        "message": waits,
    }


def time_text(at: float) -> str:
    """Return a time in seconds since 1970 as text, in UTC and whole seconds."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
