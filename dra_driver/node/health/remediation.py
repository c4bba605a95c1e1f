"""Remediation: the thread that decides which case is next, and keeps each GPU out of use during its remediation.

In: the faults of a node. Out: steps for one GPU at a time, and the faults that keep GPUs from claims until they are
healthy. Other GPUs wait; the one with the most important fault is next. It runs in the instance that holds the node's
role.
"""

from __future__ import annotations

import enum
import logging
import math
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from dra_driver.base.errors import DriverError, InputError, LedgerError
from dra_driver.base.machine import PeopleTime, boot_time
from dra_driver.base.names import gpu_name, normal_pci_address
from dra_driver.base.telemetry.logs import Loop, fields
from dra_driver.base.wire import DeviceTaints
from dra_driver.node.devices.agent_part import AgentPart
from dra_driver.node.health.actions import GpuAction, GpuDrain, StoredCases, opened
from dra_driver.node.health.cases import RemediationCase, RemediationJournal, RemediationNode, RemediationPolicy, Stage
from dra_driver.node.health.faults import Fault, FaultKey, Subject
from dra_driver.node.health.recovery import ActionChoice, CaseOutcomes, GpuRecovery, choose_action
from dra_driver.node.ledger.ledger import Ledger

# Remediation requests: what an administrator asks the agent to do about a GPU in remediation.

FILE_NAME = "remediation-requests"
MAX_BYTES = 1 << 16


class RemediationRequest(enum.StrEnum):
    """The possible requests."""

    RETRY = "retry"  # begin again, as if nothing had been tried; weekly budgets still apply
    GIVE_UP = "give-up"  # try nothing more, and keep the GPU out of use
    DONE = "done"  # a person has repaired the GPU: test it and return it


class RequestFile:
    """The requests of one node."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME

    def ask(self, gpu: str, request: RemediationRequest) -> None:
        """Add a request about a GPU, by PCI address. Raises: InputError("input.remediation-request")."""
        try:
            with self._path.open("a", encoding="ascii") as file:
                file.write(f"{request} {gpu}\n")
        except OSError as error:
            hint = "is the agent's data folder on this node, and may you write there?"
            message = f"{self._path} can't be written: {error.strerror}"
            raise InputError("remediation-request", message, hint=hint) from error

    def take(self) -> dict[str, RemediationRequest]:
        """Remove the requests, and return the last one for each GPU; lines that are not requests are ignored."""
        taken = self._path.with_name(f"{FILE_NAME}.taken")
        try:
            os.replace(self._path, taken)  # noqa: PTH105 - faster, as the file hardly ever exists in a turn
            with taken.open("rb") as file:
                lines = file.read(MAX_BYTES).decode("ascii", "replace").splitlines()
            taken.unlink()
        except OSError:
            return {}
        found = {}
        for line in lines:
            word, _, gpu = line.partition(" ")
            with suppress(ValueError):
                found[normal_pci_address(gpu)] = RemediationRequest(word)
        return found


# RemediationSteps: the next step for one case.


class RemediationSteps:
    """The steps of one node's cases. `outcomes` decides how a case continues after a step that did not help.

    `begun` is called with each case whose action is counted on disk and about to begin.
    """

    def __init__(
        self,
        node: RemediationNode,
        journal: RemediationJournal,
        policy: RemediationPolicy,
        *,
        boot_id: str,
        begun: Callable[[RemediationCase], None],
        clock: Callable[[], float],
    ) -> None:
        self._journal = journal
        self.outcomes = CaseOutcomes(node, journal, policy, boot_id=boot_id, clock=clock)
        drain = GpuDrain(node, journal, policy, self.outcomes, clock=clock)
        action = GpuAction(node, journal, policy, self.outcomes, drain, boot_id=boot_id, clock=clock, begun=begun)
        recovery = GpuRecovery(node, policy, self.outcomes, boot_id=boot_id, clock=clock)
        self._steps = {
            Stage.DETECTED: drain.await_taint,
            Stage.TAINTED: drain.ask,
            Stage.DRAIN_ASKED: drain.await_end,
            Stage.DRAINED: action.act,
            Stage.NVML_LET_GO: action.act,
            Stage.ACTED: recovery.find,
            Stage.SAME_UUID_FOUND: recovery.validate,
            Stage.VALIDATED: recovery.give_back,
        }

    def step(self, case: RemediationCase) -> RemediationCase:
        """Take the next step and return the case, which is on disk if it has changed. Raises: DriverError."""
        after = self._steps[case.stage](case)
        if after != case:
            self._journal.write(after)
        return after


log = logging.getLogger(__name__)

TURN_SECONDS, IDLE_SECONDS, STOP_SECONDS = 2.0, 5.0, 20.0
PEER = "peer"
_UPDATABLE = (Stage.DETECTED, Stage.TAINTED, Stage.DRAIN_ASKED, Stage.DRAINED)
_ACTING = (Stage.DRAINED, Stage.NVML_LET_GO, Stage.ACTED, Stage.SAME_UUID_FOUND, Stage.VALIDATED)


class Remediation(AgentPart):
    """The remediation of one node's GPUs. `folder` is the agent's data folder. Any thread may call any method.

    `clock` is the boot time, `wall` the time that people read; by default the same as a given `clock`.
    """

    def __init__(
        self,
        node: RemediationNode,
        folder: Path,
        policy: RemediationPolicy,
        *,
        boot_id: str,
        clock: Callable[[], float] = boot_time,
        wall: Callable[[], float] | None = None,
    ) -> None:
        self._people = PeopleTime(clock, wall or clock)
        self._node, self._policy, self._clock = node, policy, clock
        self._journal, self._requests = RemediationJournal(folder, self._people, boot_id), RequestFile(folder)
        self._boot_id = boot_id
        self._steps = RemediationSteps(node, self._journal, policy, boot_id=boot_id, begun=self._accept, clock=clock)
        self._cases: dict[str, RemediationCase] = {}  # by PCI address; replaced as a whole
        self._stored = StoredCases(node, self._journal, boot_id=boot_id, clock=clock)
        self._is_loaded = False
        self._may_have_slot = False  # whether a process before this one may have left a slot behind
        self._actions: Mapping[tuple[str, str], int] = {}
        self._loop = Loop("remediation", self.turn, failure="remediation failed", hang_s=math.inf)

    def load(self) -> None:
        """Read the cases on disk, and keep the GPUs under remediation from claims.

        While that is impossible, no GPU is offered that was not offered before, and every turn tries again.
        """
        self._is_loaded = False
        self._stored.begin()
        self._node.hold(None)
        self._load_again()

    def _load_again(self) -> None:
        cases = self._stored.read()
        if cases is not None:
            self._cases, self._is_loaded = cases, True
            self._may_have_slot = bool(cases)  # that it could not be released is not on disk
            self._count_actions()
            self._hold()

    def start(self) -> None:
        """Continue the cases that were begun."""
        self._loop.start()

    def stop(self) -> None:
        """Stop.

        A step that is under way, such as a reset, has some time to end; after that the next instance continues it.
        """
        self._loop.stop(STOP_SECONDS)

    def health_changed(self, taints: DeviceTaints) -> None:
        """Take a turn soon."""
        del taints
        self._loop.wake()

    def claim_ended(self) -> None:
        """Take a turn soon, because the claim may have been the last one of a faulty GPU."""
        self._loop.wake()

    @property
    def is_needed(self) -> bool:
        """Whether the journal holds something that must survive the end of the agent, or can't be read."""
        return bool(self._cases) or not self._is_loaded

    def is_reboot_asked(self) -> bool:
        """Return whether a reboot of this machine was requested in this boot."""
        return self._node.is_reboot_asked()

    def counts(self) -> Mapping[str, int]:
        """Return the number of GPUs in each stage; those that were returned are left out."""
        return Counter(str(case.stage) for case in self._cases.values() if case.stage is not Stage.RETURNED)

    def figures(self) -> Mapping[str, Mapping[str, int] | Mapping[tuple[str, str], int]]:
        """Return the counts for the metrics."""
        return {"remediations": self.counts(), "remediation_actions": self.action_counts()}

    def action_counts(self) -> Mapping[tuple[str, str], int]:
        """Return how many actions the journal has, by action and outcome."""
        return self._actions

    def turn(self) -> float:
        """Take a step for each GPU that may take one; return the seconds until the next turn. Raises: DriverError."""
        if not self._is_loaded:
            self._load_again()
            if not self._is_loaded:
                return TURN_SECONDS
        self._take_requests()
        self._find_cases()
        self._review_escalated()
        acting = self._acting()
        if acting is None and (self._may_have_slot or self._node.is_slot_left):
            self._node.release_slot()
        self._may_have_slot = False
        if acting is not None:
            self._node.renew_slot()
        self._hold()
        is_progress = False
        for case in self._in_order(acting):
            after = self._stepped(case)
            is_progress |= after.stage is not case.stage
            if acting is None and after.stage in _ACTING:
                break  # one GPU of a node is acted on at a time
        self._hold()
        is_busy = any(case.stage.is_open for case in self._cases.values())
        return 0.0 if is_progress else TURN_SECONDS if is_busy else IDLE_SECONDS

    def _acting(self) -> RemediationCase | None:
        """Return the case whose GPU is drained and not yet returned; there is at most one."""
        return next((case for case in self._cases.values() if case.stage in _ACTING), None)

    def _in_order(self, acting: RemediationCase | None) -> list[RemediationCase]:
        """Return the cases that may take a step now, the most important fault first.

        While one GPU is acted on, the drain of other GPUs is announced, but they are not acted on.
        """
        begun = [case for case in self._cases.values() if self._is_begun(case)]
        early = [case for case in begun if case.stage in (Stage.DETECTED, Stage.TAINTED)]
        chosen = [case for case in begun if case.stage not in _ACTING] if acting is None else [acting, *early]
        return sorted(chosen, key=lambda case: (case is not acting, case.key.rank, case.since))

    def _is_begun(self, case: RemediationCase) -> bool:
        """Return whether a case is open and does not have to wait for other GPUs.

        A GPU that still works (a row will be remapped) is not taken out of use while another one is out of use.
        """
        if case.stage is not Stage.DETECTED or case.key is not FaultKey.ROW_REMAP_PENDING:
            return case.stage.is_open
        others = [one for one in self._cases.values() if one is not case]
        is_first = all(one.stage is not Stage.DETECTED or case.gpu < one.gpu for one in others)
        return is_first and not any(one.stage.is_being_repaired for one in others)

    def _stepped(self, case: RemediationCase) -> RemediationCase:
        """Take a case's next step. A step that fails is tried again, and delays no other case."""
        try:
            after = self._steps.step(case)
        except DriverError as error:
            log.warning(
                "a step of a remediation failed", extra=fields(device=case.gpu, code=error.code, err=str(error))
            )
            after = self._cases[case.gpu].waiting(str(error))  # the action may have begun
        if after != case:
            self._accept(after)
        return after

    # -- cases ---------------------------------------------------------------------------------------------------------

    def _find_cases(self) -> None:
        """Open a case for each GPU that needs one, and update the cases whose action has not begun."""
        gpus = self._node.gpus()
        # Until a GPU was read by this process, no fault of it is known to be over.
        read = {gpu.pci_address for gpu in gpus if self._node.was_read_since(gpu.pci_address, self._stored.began_at)}
        faults = self._node.faults()  # asked last, so that the faults of the GPUs that were read are among them
        for gpu in gpus:
            choice, case = choose_action(gpu, faults, self._policy, gpus), self._cases.get(gpu.pci_address)
            if case is not None and case.uuid == gpu.uuid and case.stage is Stage.ESCALATED:
                continue
            if case is None or not case.stage.is_open:
                if choice is not None:
                    self._write(opened(gpu, choice, boot=self._boot_id, now=self._clock()))
            elif case.stage in _UPDATABLE and not case.is_acting:
                self._update(case, choice, is_read=gpu.pci_address in read)

    def _update(self, case: RemediationCase, choice: ActionChoice | None, *, is_read: bool) -> None:
        if choice is None:
            if not case.is_unproven and is_read:
                self._cancel(case)
            return
        fault = choice.fault
        updated = replace(
            case,
            key=fault.key,
            value=fault.value,
            action=choice.action,
            peers=tuple(sorted({*case.peers, *choice.peers})),
        )
        if updated != case:
            self._write(updated)

    def _cancel(self, case: RemediationCase) -> None:
        """End a case whose fault is over; a GPU that was remediated is tested first."""
        now = self._clock()
        if case.tries:
            self._write(case.at(Stage.SAME_UUID_FOUND, now))
            return
        if case.stage in _ACTING:
            self._node.release_slot()
        text = "the fault ended by itself"
        self._write(self._steps.outcomes.restored(case).at(Stage.RETURNED, now, waits_for=text))

    def _review_escalated(self) -> None:
        """End escalated cases whose GPU was replaced, and test GPUs whose fault ended with a reboot."""
        gpus = {gpu.pci_address: gpu for gpu in self._node.gpus() if not gpu.is_lost}
        for case in tuple(self._cases.values()):
            gpu = gpus.get(case.gpu)
            if case.stage is not Stage.ESCALATED or gpu is None:
                continue
            if gpu.uuid != case.uuid:
                text = f"another GPU, {gpu.uuid}, is at its address"
                self._write(case.at(Stage.RETURNED, self._clock(), waits_for=text))
                continue
            if case.persistence:
                self._write(self._steps.outcomes.restored(case))
            if case.boot != self._boot_id and choose_action(gpu, self._node.faults(), self._policy) is None:
                self._write(case.at(Stage.SAME_UUID_FOUND, self._clock(), boot=self._boot_id))

    def _take_requests(self) -> None:
        for gpu, request in self._requests.take().items():
            case = self._cases.get(gpu)
            if case is None or case.stage is Stage.RETURNED:
                log.warning("a request for a GPU without a case", extra=fields(device=gpu, reason=str(request)))
                continue
            log.warning("remediation changed by hand", extra=fields(device=gpu, reason=str(request)))
            is_alone = self._acting() in (None, case)  # otherwise slot and request for a reboot are another GPU's
            if request is RemediationRequest.GIVE_UP:
                self._write(self._steps.outcomes.escalated(case, "given up by hand", is_alone=is_alone))
                continue
            if is_alone:
                self._node.withdraw_reboot()
            if request is RemediationRequest.RETRY and case.stage in _ACTING:
                self._node.release_slot()
            if request is RemediationRequest.DONE:
                self._node.forget_errors(gpu)
            stage = Stage.DETECTED if request is RemediationRequest.RETRY else Stage.SAME_UUID_FOUND
            self._write(case.at(stage, self._clock(), tries=0, not_before=0.0, is_acting=False, is_unproven=False))

    def _write(self, case: RemediationCase) -> None:
        """Write a case that no step has written."""
        self._journal.write(case)
        self._accept(case)

    def _accept(self, case: RemediationCase) -> None:
        """Take over a case that is on disk, and log its stage if it has changed."""
        before = self._cases.get(case.gpu)
        self._cases = {**self._cases, case.gpu: case}
        self._count_actions()
        if before is None or (before.stage, before.waits_for) != (case.stage, case.waits_for):
            why = {"reason": case.waits_for} if case.waits_for else {}
            what = f"{case.key} {case.value}".rstrip()
            log.warning("remediation", extra=fields(device=case.gpu, problem=what, step=str(case.stage), **why))

    def _count_actions(self) -> None:
        with suppress(LedgerError):  # they are counted again with the next change
            rows = self._journal.actions()
            self._actions = Counter((row.action, row.outcome.partition(":")[0] or "begun") for row in rows)

    # -- GPUs that are kept from claims --------------------------------------------------------------------------------

    def _hold(self) -> None:
        """Keep the GPUs under remediation, their peers, and those that wait for a person from new claims."""
        uuids = {gpu.pci_address: gpu.uuid for gpu in self._node.gpus()}
        found: dict[str, Fault] = {}
        for case in self._cases.values():
            is_other = uuids.get(case.gpu, case.uuid) != case.uuid
            if case.stage is Stage.ESCALATED and not is_other:
                found[case.gpu] = self._held(case, case.gpu, case.reason)
            elif self._is_begun(case):
                found.update({peer: self._held(case, peer, PEER) for peer in case.peers if peer not in found})
                found[case.gpu] = self._held(case, case.gpu, case.reason)
        self._node.hold(tuple(found[gpu] for gpu in sorted(found)))

    def _held(self, case: RemediationCase, gpu: str, value: str) -> Fault:
        read = case.shifted(self._people.offset)
        return Fault(FaultKey.REMEDIATION, Subject(gpu), value, read.began, read.stage_at, boot=case.boot)


# Holders: the claims that prevent an action on a GPU, and pods that outlive their claims.


class UnpreparedDevices(Protocol):
    """The devices that are allocated to claims which the ledger does not know."""

    def names(self, *, is_patient: bool = True) -> frozenset[str]:
        """Return the names of these devices. Raises: DriverError."""


def claims_on(gpus: Collection[str], ledger: Ledger, allocated: UnpreparedDevices, boot_id: str) -> tuple[str, ...]:
    """Return the claims that hold GPUs, by PCI addresses, or parts of them, and pods that outlive their claims.

    Devices with admin access are not held. Raises: DriverError.
    """
    roots = tuple(map(gpu_name, gpus))
    found = [one.full_name for one in ledger.records() if _touches(one.owned_names(), roots)]
    kept = (one for one in ledger.unreleased.of_boot(boot_id) if one.is_in_force and _touches(one.devices, roots))
    found += [f"{one.namespace}/{one.name} (its pod still runs)" for one in kept]
    if not found:  # asked last, because it may cost a request
        names = [name for name in sorted(allocated.names()) if _touches([name], roots)]
        found = [f"of {name}, which is not prepared yet" for name in names]
    return tuple(sorted(found))


def _touches(names: Iterable[str], roots: tuple[str, ...]) -> bool:
    return any(name == root or name.startswith((f"{root}-", f"{root}/")) for name in names for root in roots)
