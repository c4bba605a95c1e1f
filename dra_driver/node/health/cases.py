"""RemediationCase: the state of one GPU's remediation, as a value that is on disk after every change.

Times are in boot time (`model.machine`), and seconds since 1970 on disk. The stages follow each other in the order of
`Stage`; a failed attempt leads back to DRAIN_ASKED, or to ESCALATED if no further one is allowed.
"""

from __future__ import annotations

import enum
import json
import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Protocol, Self

from dra_driver.base.machine import PeopleTime
from dra_driver.hardware.facts import GpuFacts
from dra_driver.node.health.faults import Fault, FaultKey
from dra_driver.node.health.validation import ValidationResult
from dra_driver.node.ledger.state import Part, StatePart

# RemediationPolicy: which action each fault gets, and how often it may be tried.


class RemediationMode(enum.StrEnum):
    """The values of `--remediation`."""

    OFF = "off"
    DRY_RUN = "dry-run"  # logs what it would do, without doing or writing anything
    ON = "on"


class RemediationAction(enum.StrEnum):
    """The action that is taken against a fault."""

    NONE = "none"
    RESET = "reset"  # nvidia-smi --gpu-reset
    REBOOT = "reboot"  # a reboot of the machine is asked for; the agent itself never reboots
    COMMAND = "command"  # the administrator's program


class PeerRule(enum.StrEnum):
    """Whether the GPUs that are linked to a GPU are drained with it."""

    AUTO = "auto"  # if the driver asks for it, or if linked GPUs can't be reset one by one
    ALWAYS = "always"
    NEVER = "never"


class CommandRoot(enum.StrEnum):
    """Where the administrator's program is run."""

    AGENT = "agent"  # in the agent's container
    DRIVER = "driver"  # below the driver root, as nvidia-smi


@dataclass(frozen=True, slots=True)
class SiteCommand:
    """The administrator's program: an absolute path, and arguments in which {uuid} and {pci} stand for the GPU."""

    argv: tuple[str, ...]
    timeout_s: float = 600.0
    root: CommandRoot = CommandRoot.AGENT

    def argv_for(self, uuid: str, pci: str) -> tuple[str, ...]:
        """Return the arguments for one GPU."""
        return tuple(one.replace("{uuid}", uuid).replace("{pci}", pci) for one in self.argv)


RESETTABLE = frozenset(
    [
        FaultKey.NEEDS_RESET,
        FaultKey.XID,
        FaultKey.ECC_UNCORRECTABLE,
        FaultKey.ROW_REMAP_PENDING,
        FaultKey.NVLINK,
        FaultKey.FABRIC,
    ]
)
"""Faults that a reset of the GPU may end."""
TREATABLE = RESETTABLE | {FaultKey.NEEDS_REBOOT, FaultKey.GPU_LOST, FaultKey.NOT_ANSWERING, FaultKey.NEEDS_ATTENTION}
"""Faults that an action may end; a reboot may end any of them."""
DEFAULT_ACTIONS: Mapping[FaultKey, RemediationAction] = {
    **dict.fromkeys(TREATABLE, RemediationAction.NONE),
    FaultKey.NEEDS_RESET: RemediationAction.RESET,
    FaultKey.ECC_UNCORRECTABLE: RemediationAction.RESET,
    FaultKey.NEEDS_REBOOT: RemediationAction.REBOOT,
    FaultKey.GPU_LOST: RemediationAction.REBOOT,
}


@dataclass(frozen=True, slots=True)
class RemediationPolicy:
    """The rules of a node. Times are in seconds.

    `nodes` is how many nodes of the cluster may act at the same time, and `tries` how many actions one fault gets;
    `weekly_gpu` and `weekly_node` limit the actions on one GPU and on all GPUs of a node within seven days.
    `reboot_file` is the file that asks for a reboot; None means the one in the agent's own folder.
    """

    actions: Mapping[FaultKey, RemediationAction] = field(default_factory=lambda: DEFAULT_ACTIONS)
    nodes: int = 1
    tries: int = 2
    weekly_gpu: int = 3
    weekly_node: int = 6
    peers: PeerRule = PeerRule.AUTO
    reset_timeout_s: float = 120.0
    reboot_within_s: float = 86400.0
    reboot_file: Path | None = None
    command: SiteCommand | None = None


SUPPORT, EXAMINED = "support", "examined"


class Stage(enum.StrEnum):
    """The stages of a case. A stage is reached once that is recorded on disk."""

    DETECTED = "detected"  # the fault exists; another GPU of the node may be under remediation
    TAINTED = "tainted"  # the slices that keep new claims from the GPU are published
    DRAIN_ASKED = "drain-asked"  # the users of the GPU were informed
    DRAINED = "drained"  # no claim holds it, and the cluster's budget allows this node to act
    NVML_LET_GO = "nvml-let-go"  # no process has it open, not even this agent, and the action is under way
    ACTED = "acted"  # the action was carried out
    SAME_UUID_FOUND = "same-uuid-found"  # the same GPU is in its place again
    VALIDATED = "validated"  # it has passed a test
    RETURNED = "returned"  # it is offered again
    ESCALATED = "escalated"  # a person has to examine it

    @property
    def is_open(self) -> bool:
        """Whether the agent continues the case without a person."""
        return self not in (Stage.RETURNED, Stage.ESCALATED)

    @property
    def is_being_repaired(self) -> bool:
        """Whether something has been done to the GPU, so that some other GPUs of the node have to wait."""
        return self.is_open and self is not Stage.DETECTED


@dataclass(frozen=True, slots=True)
class RemediationCase:
    """The remediation of one GPU. `key` and `value` are those of the fault.

    `since` is when the fault began, a time that people read, also in memory. `tries` counts the actions that were
    begun; `boot` is the boot in which the last one was begun. `persistence` are the GPUs whose persistence mode was
    switched off, `peers` those that were drained too. `waits_for` is a sentence about what the case waits for, or why
    it ended; `not_before` is when the next try may begin. `is_acting` is true from before an action begins until its
    end is on disk, `is_unproven` after a failed validation.
    """

    gpu: str  # PCI address
    uuid: str
    key: FaultKey
    value: str
    since: float
    began: float
    stage: Stage
    stage_at: float
    action: RemediationAction
    tries: int = 0
    boot: str = ""
    peers: tuple[str, ...] = ()
    persistence: tuple[str, ...] = ()
    waits_for: str = ""
    not_before: float = 0.0
    is_acting: bool = False
    is_unproven: bool = False

    @property
    def reason(self) -> str:
        """Why the GPU is kept from claims: its action, EXAMINED if there is none, SUPPORT if it waits for a person."""
        if self.stage is Stage.ESCALATED:
            return SUPPORT
        return EXAMINED if self.action is RemediationAction.NONE else str(self.action)

    def at(self, stage: Stage, now: float, **changes: Any) -> Self:
        """Return the case at another stage, with other changes. It no longer waits for anything."""
        return replace(self, stage=stage, stage_at=now, **{"waits_for": "", **changes})

    def shifted(self, seconds: float) -> Self:
        """Return the case with other times, as those of another clock."""
        times = {name: getattr(self, name) + seconds for name in ("began", "stage_at")}
        return replace(self, **times, not_before=self.not_before + seconds if self.not_before else 0.0)

    def gpu_among(self, gpus: Iterable[GpuFacts]) -> GpuFacts | None:
        """Return the case's GPU as last read; None if it is gone."""
        return next((one for one in gpus if one.pci_address == self.gpu), None)

    def acted_on_among(self, gpus: Sequence[GpuFacts]) -> tuple[GpuFacts, ...]:
        """Return the case's GPU as last read, with peers that can only be reset together; empty if it is gone."""
        gpu = self.gpu_among(gpus)
        if gpu is None:
            return ()
        peers = [one for one in gpus if one.pci_address in self.peers] if gpu.is_reset_with_peers else []
        return (gpu, *peers)

    def waiting(self, text: str) -> Self:
        """Return the case with a text about what it waits for."""
        return replace(self, waits_for=text)

    def to_wire(self) -> dict[str, Any]:
        """Return the case as JSON values."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Return the case that `to_wire` described; fields that a newer agent added are left out.

        Raises: KeyError, TypeError, ValueError for anything else.
        """
        values = {one.name: wire[one.name] for one in fields(cls) if one.name in wire}
        kinds = {"key": FaultKey, "stage": Stage, "action": RemediationAction, "peers": tuple, "persistence": tuple}
        return cls(**{**values, **{name: kind(wire[name]) for name, kind in kinds.items()}})


# RemediationNode: the interface of the node that remediation works on.


class RemediationNode(Protocol):
    """The node, as the steps of a remediation see it. Only the remediation's thread calls it."""

    def gpus(self) -> tuple[GpuFacts, ...]:
        """Return the GPUs as last read, including those that are lost."""

    def faults(self) -> tuple[Fault, ...]:
        """Return the current faults, without those that `hold` has set."""

    def was_seen_since(self, at: float) -> bool:
        """Return whether the hardware was looked at after a time (boot time)."""

    def was_read_since(self, gpu: str, at: float) -> bool:
        """Return whether the GPU's health was read after a time (boot time)."""

    def hold(self, faults: tuple[Fault, ...] | None) -> None:
        """Keep new claims from the subjects of these faults by taints, and from no others.

        None means that it is not known which they are: until it is, no GPU is offered that was not offered before.
        """

    def is_published(self) -> bool:
        """Return whether the taints that `hold` has set are published."""

    def users(self, gpus: Collection[str]) -> tuple[str, ...]:
        """Return the claims that hold one of these GPUs, or a part of one, and pods that outlive theirs.

        Raises: DriverError when they can't be determined.
        """

    def clients(self, gpu: GpuFacts) -> tuple[str, ...]:
        """Return the processes that have the GPU open, with their pods, but none of this agent."""

    def send_event(self, reason: str, text: str, gpus: Collection[str] = ()) -> None:
        """Send an Event about the node, and about the pods that use these GPUs."""

    def end_sharing(self, gpu: GpuFacts) -> None:
        """End our MPS daemons of a GPU that no claim holds. Raises: DriverError."""

    def persistence(self, gpu: GpuFacts) -> bool | None:
        """Return whether the GPU is in persistence mode; None if that is not known."""

    def set_persistence(self, gpu: GpuFacts, *, enabled: bool) -> None:
        """Switch persistence mode. Raises: DriverError."""

    def closed(self, gpus: Collection[str]) -> AbstractContextManager[str]:
        """Return a context that keeps Prepare from these GPUs, and in which this agent does not use its library.

        Calls about other GPUs wait meanwhile. The context yields "", or why this is not possible now. However it ends,
        the GPUs and the library are usable again after it, and the hardware is looked at.
        """

    def reset(self, gpus: Sequence[GpuFacts], timeout_s: float) -> None:
        """Reset these GPUs together. Raises: HardwareError."""

    def run(self, command: SiteCommand, gpu: GpuFacts) -> None:
        """Run the administrator's program. Raises: NodeError."""

    def ask_reboot(self, text: str) -> None:
        """Ask for a reboot of this machine in this boot. Raises: NodeError."""

    def withdraw_reboot(self) -> None:
        """Withdraw the request of this or an earlier boot; do nothing if there is none."""

    def is_reboot_asked(self) -> bool:
        """Return whether a reboot of this machine was requested in this boot."""

    def forget_errors(self, gpu: str) -> None:
        """Forget the errors that were reported for a GPU before it was remediated; lasting ones are found again."""

    def validate(self, gpu: GpuFacts) -> ValidationResult:
        """Validate a GPU that no claim and no process uses."""

    def acquire_slot(self) -> float:
        """Acquire a slot. Return 0 if this node may act now, otherwise the seconds until another node's slot may end.

        Raises: ApiError.
        """

    def renew_slot(self) -> None:
        """Keep the slot that was taken. A failure is logged."""

    def release_slot(self) -> None:
        """Return the slot before its time is over. If that fails, `is_slot_left` is true."""

    @property
    def is_slot_left(self) -> bool:
        """Return whether a slot could not be returned: other nodes go without it until it expires."""


# Budgets: whether another action may be tried, given the actions of the last seven days.

WEEK_SECONDS = 7 * 86400.0


@dataclass(frozen=True, slots=True)
class ActionRow:
    """One action that was begun: when (boot time; below 0 in an earlier boot), on which GPU, which, how it ended."""

    at: float
    uuid: str
    action: str
    outcome: str = ""


def spent(case: RemediationCase, rows: Iterable[ActionRow], policy: RemediationPolicy, now: float) -> str:
    """Return a sentence about the budget that forbids another action for this case; "" if none does."""
    if case.tries >= policy.tries:
        times = "once" if case.tries == 1 else f"{case.tries} times"
        return f"{case.key} was remediated {times} and is still there"
    recent = [one for one in rows if now - one.at < WEEK_SECONDS]
    mine = sum(one.uuid == case.uuid for one in recent)
    if mine >= policy.weekly_gpu:
        return f"the GPU was remediated {mine} times within seven days, and {policy.weekly_gpu} are allowed"
    if len(recent) >= policy.weekly_node:
        return f"{len(recent)} treatments on this node within seven days, and {policy.weekly_node} are allowed"
    return ""


# RemediationJournal: a part of the state.

_TABLES = {
    "cases": "gpu TEXT PRIMARY KEY, body TEXT NOT NULL",
    "actions": "at REAL NOT NULL, uuid TEXT NOT NULL, action TEXT NOT NULL, outcome TEXT",
}
_PART = Part("remediation", "remediation-damaged", _TABLES, older="remediation.db")


class RemediationJournal:
    """The journal of one node. Its times are seconds since 1970; with `people`, those of the agent are in boot time."""

    def __init__(self, folder: Path, people: PeopleTime | None = None, boot_id: str = "") -> None:
        self._people, self._boot_id = people, boot_id
        self._part = StatePart(folder, _PART)

    def may_have_lost_cases(self) -> bool:
        """Return whether there is no case, although there may have been some in a damaged file. Raises: LedgerError."""
        return not self.cases() and self._part.is_lost()

    def cases(self) -> tuple[RemediationCase, ...]:
        """Return the last case of each GPU, in order of PCI addresses. Raises: LedgerError."""

        def read(connection: sqlite3.Connection) -> tuple[RemediationCase, ...]:
            rows = connection.execute("SELECT body FROM cases ORDER BY gpu").fetchall()
            return tuple(self._case(json.loads(body)) for (body,) in rows)

        return self._part.read(read, ())

    def actions(self) -> tuple[ActionRow, ...]:
        """Return the actions of the last seven days and some older ones, the oldest first. Raises: LedgerError."""

        def read(connection: sqlite3.Connection) -> tuple[ActionRow, ...]:
            rows = connection.execute("SELECT at, uuid, action, outcome FROM actions ORDER BY at, rowid").fetchall()
            ago = self._offset
            return tuple(ActionRow(at - ago, str(uuid), str(what), str(how or "")) for at, uuid, what, how in rows)

        return self._part.read(read, ())

    def write(self, case: RemediationCase, began: ActionRow | None = None, outcome: str = "") -> None:
        """Replace a GPU's case durably.

        With `began`, an action is added in the same transaction; with `outcome`, the outcome of the GPU's last action
        is set. Raises: LedgerError.
        """

        def work(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT OR REPLACE INTO cases VALUES (?, ?)", (case.gpu, self._body(case)))
            if began is not None:
                at = began.at + self._offset
                connection.execute("DELETE FROM actions WHERE at < ?", (at - 5 * WEEK_SECONDS,))
                row = (at, began.uuid, began.action, began.outcome)
                connection.execute("INSERT INTO actions VALUES (?, ?, ?, ?)", row)
            if outcome:
                last = "SELECT rowid FROM actions WHERE uuid = ? ORDER BY at DESC, rowid DESC LIMIT 1"
                connection.execute(f"UPDATE actions SET outcome = ? WHERE rowid = ({last})", (outcome, case.uuid))  # noqa: S608

        self._part.write(work)

    def begin(self, cases: Iterable[RemediationCase]) -> None:
        """Write these cases durably, either all of them or none. Raises: LedgerError."""
        rows = [(case.gpu, self._body(case)) for case in cases]
        self._part.write(lambda connection: connection.executemany("INSERT OR REPLACE INTO cases VALUES (?, ?)", rows))

    def forget(self, gpu: str) -> None:
        """Remove a GPU's case, but not the record of the actions on it. Raises: LedgerError."""
        self._part.write(lambda connection: connection.execute("DELETE FROM cases WHERE gpu = ?", (gpu,)))

    def set_aside(self) -> None:
        """Set a damaged file aside. Raises: LedgerError if that is impossible."""
        self._part.set_aside()

    @property
    def _offset(self) -> float:
        """The difference between the times on disk and those of the cases."""
        return self._people.offset if self._people is not None else 0.0

    def _body(self, case: RemediationCase) -> str:
        clock = {"offset": self._offset, "offset_boot": self._boot_id}
        return json.dumps({**case.shifted(self._offset).to_wire(), **clock}, separators=(",", ":"))

    def _case(self, wire: dict[str, Any]) -> RemediationCase:
        """Return a case; one of this boot has the times with which it was written, although the clock was set since."""
        is_of_boot = self._people is not None and wire.get("offset_boot") == self._boot_id
        return RemediationCase.from_wire(wire).shifted(-(float(wire["offset"]) if is_of_boot else self._offset))
