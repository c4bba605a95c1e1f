"""What the agent of this node has recorded about health: faults, cordons, and when it last wrote.

In: the agent's data folder. Out: `NodeFaults`, or None if nothing was recorded. Nothing is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dra_driver.health.cordons import Cordon, CordonFile
from dra_driver.health.fault import Fault
from dra_driver.health.record import HealthRecord
from dra_driver.health.record_wire import record_among
from dra_driver.health.store import HealthStore
from dra_driver.model.errors import InputError
from dra_driver.remediation.case import RemediationCase, Stage
from dra_driver.remediation.journal import RemediationJournal
from dra_driver.store.state import FILE_NAME
from dra_driver.validation.records import UntestedDevice, untested_among


@dataclass(frozen=True, slots=True)
class NodeFaults:
    """Faults and cordons in force. `silent_s` is how many seconds ago the agent last wrote.

    `remediations` are the GPUs that are under remediation or wait for a person, and `untested` the devices whose tests
    could not run.
    """

    faults: tuple[Fault, ...] = ()
    cordons: tuple[Cordon, ...] = ()
    silent_s: float = 0.0
    remediations: tuple[RemediationCase, ...] = ()
    untested: tuple[UntestedDevice, ...] = ()


def read_faults(folder: Path, now: float) -> NodeFaults | None:
    """Read what is recorded; return None if there is nothing. Raises: LedgerError, InputError, PermissionError."""
    cases = tuple(one for one in RemediationJournal(folder).cases() if one.stage is not Stage.RETURNED)
    cordons = tuple(one for one in CordonFile(folder).read() if one.is_in_force(now))
    store = HealthStore(folder)
    if (written := store.written_at()) is None:  # an agent that ended may have removed it, but never the cordons
        return NodeFaults(cordons=cordons, remediations=cases) if cordons or cases else None
    try:
        documents = store.read()
        record = record_among(documents) or HealthRecord()
    except ValueError as error:
        raise InputError("health-record", f"{folder / FILE_NAME}: {error}") from error
    return NodeFaults(
        record.faults(now), cordons, max(0.0, now - written), cases, untested_among(documents, record.boot)
    )
