"""GpuRecovery: the steps after an action: the same GPU is found again, tested, and offered again.

In: a case. Out: the same case one stage further, before another attempt, or with what it waits for.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dra_driver.base.errors import DriverError, NodeError, Retry
from dra_driver.base.names import gpu_name
from dra_driver.base.telemetry.logs import Loop, fields
from dra_driver.base.wire import DeviceTaints
from dra_driver.hardware.facts import GpuFacts
from dra_driver.node.devices.agent_part import AgentPart
from dra_driver.node.health.cases import (
    PeerRule,
    RemediationAction,
    RemediationCase,
    RemediationJournal,
    RemediationNode,
    RemediationPolicy,
    Stage,
    spent,
)
from dra_driver.node.health.faults import Fault, FaultKey
from dra_driver.node.health.validation import ValidationVerdict

# Action choice: what to do about the faults of one GPU.

DRAIN_P2P, BUS_RESET = "drain-p2p", "bus-reset"  # values of needs-reset (node/health/xids.py)


@dataclass(frozen=True, slots=True)
class ActionChoice:
    """The fault that decides, and the action against it. `peers` are PCI addresses of GPUs that are drained too.

    `awaits_driver`: the driver reports the action only once the peers are drained.
    """

    fault: Fault
    action: RemediationAction
    peers: tuple[str, ...] = ()
    awaits_driver: bool = False


def choose_action(
    gpu: GpuFacts, faults: Iterable[Fault], policy: RemediationPolicy, gpus: Sequence[GpuFacts] = ()
) -> ActionChoice | None:
    """Return what to do about the faults of a GPU; None if there is nothing to do. `gpus` are all GPUs of the node."""
    own = [one for one in faults if one.subject.gpu == gpu.pci_address and not one.is_mild]
    for fault in sorted(own, key=lambda one: (one.key.rank, one.since)):
        action = action_for(fault, policy)
        if action is RemediationAction.NONE:
            continue
        awaits = action is RemediationAction.RESET and fault.value == DRAIN_P2P
        return ActionChoice(fault, action, _peers(gpu, fault, action, policy, gpus), awaits)
    return None


def action_for(fault: Fault, policy: RemediationPolicy) -> RemediationAction:
    """Return the action that a fault gets. A reset through nvidia-smi does not replace a reset of the bus."""
    action = policy.actions.get(fault.key, RemediationAction.NONE)
    is_other_reset = fault.key is FaultKey.NEEDS_RESET and fault.value == BUS_RESET
    return RemediationAction.REBOOT if action is RemediationAction.RESET and is_other_reset else action


def _peers(
    gpu: GpuFacts, fault: Fault, action: RemediationAction, policy: RemediationPolicy, gpus: Sequence[GpuFacts]
) -> tuple[str, ...]:
    if action is not RemediationAction.RESET or policy.peers is PeerRule.NEVER or gpu.link_domain is None:
        return ()
    if policy.peers is PeerRule.AUTO and fault.value != DRAIN_P2P and not gpu.is_reset_with_peers:
        return ()
    linked = (one for one in gpus if one.link_domain == gpu.link_domain)
    return tuple(sorted(one.pci_address for one in linked if one.pci_address != gpu.pci_address))


# Action wording: the texts for claims, processes and actions in Events and logs, and the reasons of the Events.

MAX_NAMED = 5  # claims or processes in one sentence
DRAIN, BLOCKED, GAVE_UP = "RemediationDrain", "RemediationBlocked", "RemediationEscalated"
RETURNED, ACTION = "RemediationReturned", "RemediationAction"
_PLURALS = {"claim": "claims", "process": "processes"}
_NOUNS = {"reset": "a reset", "reboot": "a reboot", "command": "the site's command", "none": "an examination"}
_VERBS = {"reset": "done", "reboot": "asked for", "command": "run"}


def listed(kind: str, names: Sequence[str]) -> str:
    """Return the names of claims or processes as a text; of many, only the first ones."""
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return f"{kind if len(names) == 1 else _PLURALS[kind]} {', '.join(names[:MAX_NAMED])}{more}"


def noun_of(action: RemediationAction) -> str:
    """Return the noun for an action, such as "a reset"."""
    return _NOUNS.get(str(action), "nothing")


def verb_of(action: RemediationAction) -> str:
    """Return the verb for an action that was carried out, such as "asked for" for a reboot."""
    return _VERBS.get(str(action), "done")


# CaseOutcomes: what follows if a step did not help: another attempt, or escalation to a person.

log = logging.getLogger(__name__)

PAUSE_SECONDS = 60.0  # seconds between two attempts


class CaseOutcomes:
    """How the cases of one node continue or end after a step that did not help."""

    def __init__(
        self,
        node: RemediationNode,
        journal: RemediationJournal,
        policy: RemediationPolicy,
        *,
        boot_id: str,
        clock: Callable[[], float],
    ) -> None:
        self._node, self._journal, self._policy = node, journal, policy
        self._boot_id, self._clock = boot_id, clock

    def failed(self, case: RemediationCase, why: str) -> RemediationCase:
        """Return the case after an attempt that did not help: before another one, or escalated."""
        now = self._clock()
        again = case.at(Stage.DRAIN_ASKED, now, is_acting=False, not_before=now + PAUSE_SECONDS, waits_for=why)
        self._journal.write(again, outcome=f"failed: {why}")
        if spent(again, self._journal.actions(), self._policy, now):
            return self.escalated(again, why)
        self._node.release_slot()
        return again

    def escalated(
        self, case: RemediationCase, why: str, *, keeps_request: bool = False, is_alone: bool = True
    ) -> RemediationCase:
        """Return the case as escalated to a person. A request for a reboot is withdrawn unless `keeps_request`.

        Without `is_alone`, another GPU of the node is acted on, and the slot and the request are for that one.
        """
        if is_alone and not keeps_request:
            self._node.withdraw_reboot()
        if is_alone:
            self._node.release_slot()
        self._node.send_event(GAVE_UP, f"{gpu_name(case.gpu)} stays out of use until a person has examined it: {why}")
        return case.at(Stage.ESCALATED, self._clock(), is_acting=False, boot=self._boot_id, waits_for=why)

    def restored(self, case: RemediationCase) -> RemediationCase:
        """Switch persistence mode on again for the GPUs that had it, and return the case."""
        known = {one.pci_address: one for one in self._node.gpus() if not one.is_lost}
        for gpu in filter(None, map(known.get, case.persistence)):
            try:
                self._node.set_persistence(gpu, enabled=True)
            except DriverError as error:  # only logged: the GPU works without persistence mode
                keys = fields(device=gpu.pci_address, code=error.code, err=str(error))
                log.warning("persistence mode can't be switched on again", extra=keys)
        return replace(case, persistence=())


FOUND_SECONDS = 300.0  # a GPU may scrub its memory after a reset
SETTLED_SECONDS, FLAPPING_SECONDS = 180.0, 900.0  # a fault that comes and goes ends only after ten good minutes


class GpuRecovery:
    """The recovery of one node's GPUs."""

    def __init__(
        self,
        node: RemediationNode,
        policy: RemediationPolicy,
        outcomes: CaseOutcomes,
        *,
        boot_id: str,
        clock: Callable[[], float],
    ) -> None:
        self._node, self._policy, self._outcomes = node, policy, outcomes
        self._boot_id, self._clock, self._began_at = boot_id, clock, clock()

    def find(self, case: RemediationCase) -> RemediationCase:
        """Wait until the same GPU is found again, after the reboot if one was requested."""
        if case.action is RemediationAction.REBOOT and case.boot == self._boot_id:
            if self._clock() - case.stage_at > self._policy.reboot_within_s:
                return self._outcomes.escalated(case, "the machine was not rebooted in time", keeps_request=True)
            return case.waiting("a reboot of the machine")
        self._node.withdraw_reboot()
        since = max(case.stage_at, self._began_at)
        here = case.gpu_among(self._node.gpus()) if self._node.was_seen_since(since) else None
        if here is not None and not here.is_lost:
            return self._found(case, here)
        if self._clock() - since > FOUND_SECONDS:
            return self._outcomes.failed(case, "the GPU was not found again")
        return case.waiting("the GPU to be found again")

    def _found(self, case: RemediationCase, here: GpuFacts) -> RemediationCase:
        if here.uuid != case.uuid:
            return self._outcomes.escalated(case, f"another GPU, {here.uuid}, is at its address")
        self._node.forget_errors(case.gpu)
        return self._outcomes.restored(case).at(Stage.SAME_UUID_FOUND, self._clock())

    def validate(self, case: RemediationCase) -> RemediationCase:
        """Wait until the GPU's readings are good, and then test it."""
        now = self._clock()
        gpu = case.gpu_among(self._node.gpus())
        is_read = self._node.was_read_since(case.gpu, case.stage_at)
        faults = [one for one in self._node.faults() if one.subject.gpu == case.gpu]  # asked last
        choice = choose_action(gpu, faults, self._policy) if gpu else None
        is_here = gpu is not None and not gpu.is_lost and is_read
        is_examined = case.action is RemediationAction.NONE  # nothing was done to it, so no attempt can have failed
        if is_examined and choice is not None:
            return replace(case, action=choice.action).at(Stage.DETECTED, now)
        if is_examined and gpu is not None and now - case.stage_at > SETTLED_SECONDS:
            is_here = True  # what can't be read of its health does not keep it out for good
        if gpu is None or not is_here or choice is not None:
            is_flapping = any(one.is_flapping for one in faults)
            if now - max(case.stage_at, self._began_at) > (FLAPPING_SECONDS if is_flapping else SETTLED_SECONDS):
                what = choice.fault.sentence if choice else "its health can't be read"
                why = f"the GPU is not healthy: {what}"
                return self._outcomes.escalated(case, why) if is_examined else self._outcomes.failed(case, why)
            return case.waiting("the GPU's health to be read as good")
        found = self._node.validate(gpu)
        if found.verdict is ValidationVerdict.FAILED:
            why = f"validation failed: {found.reason} {found.detail}".rstrip()
            if is_examined:
                return self._outcomes.escalated(case, why)
            return self._outcomes.failed(replace(case, is_unproven=True), why)
        return case.at(Stage.VALIDATED, now)

    def give_back(self, case: RemediationCase) -> RemediationCase:
        """Offer the GPU to claims again."""
        self._node.withdraw_reboot()
        self._node.release_slot()
        text = f"{gpu_name(case.gpu)} is healthy and offered again after {noun_of(case.action)}"
        self._node.send_event(RETURNED, text)
        return case.at(Stage.RETURNED, self._clock(), waits_for=f"after {noun_of(case.action)}")


# RebootRequest: a file that asks other software to reboot this machine; the agent itself never does.

FILE_NAME = "reboot-required"
MARK = "dra-driver asks for a reboot in boot "
_BYTES = 4096
MAX_LINKS = 64  # the most parts of a path that are followed, including those of links


class RebootRequest:
    """The request of one node, in the file `path` of the host, which this process sees below `host`."""

    def __init__(self, path: Path, boot_id: str, *, host: str = "/") -> None:
        self._wanted, self._boot_id, self._host = path, boot_id, host

    def ask(self, text: str) -> None:
        """Ask for a reboot in this boot. Raises: NodeError("node.reboot-request")."""
        if self._exists() and not self._is_ours():
            return  # another program has asked for a reboot already
        line = "".join(one if one.isprintable() else "?" for one in text)
        new = self._path.with_name(f".{self._path.name}.new")
        try:
            new.write_text(f"{MARK}{self._boot_id}\n{line}\n", "utf-8")
            new.replace(self._path)
        except OSError as error:
            message = f"{self._path} can't be written: {error.strerror}"
            hint = "the folder must exist and be writable for the agent (docs/health.md)"
            raise NodeError("reboot-request", message, hint=hint, retry=Retry.LATER) from error

    @property
    def _path(self) -> Path:
        return Path(self._host, *_inside(self._host, self._wanted.parent), self._wanted.name)

    def withdraw(self) -> None:
        """Remove our request; do nothing if there is none."""
        if self._is_ours():
            self._path.unlink(missing_ok=True)

    @property
    def is_asked(self) -> bool:
        """Whether we have requested a reboot in this boot."""
        try:
            with self._path.open("rb") as file:
                return file.read(_BYTES).startswith(f"{MARK}{self._boot_id}\n".encode())
        except OSError:
            return False

    def _exists(self) -> bool:
        return self._path.exists()

    def _is_ours(self) -> bool:
        try:
            with self._path.open("rb") as file:
                return file.read(_BYTES).startswith(MARK.encode())
        except OSError:
            return False


def _inside(host: str, folder: Path) -> list[str]:
    """Return the parts of a folder below the host's root, with links followed as if that root were `/`."""
    done: list[str] = []
    todo = list(reversed(folder.parts[1:]))
    for _ in range(MAX_LINKS):
        if not todo:
            break
        part = todo.pop()
        if part == "..":
            del done[-1:]
            continue
        try:
            target = Path(host, *done, part).readlink()
        except OSError:  # it is not a link, or does not exist, which the write will report
            done.append(part)
            continue
        done = [] if target.is_absolute() else done
        todo += [one for one in reversed(target.parts) if one != "/"]
    return done


# DryRun: logs what a remediation would do, without doing or writing anything.

TURN_SECONDS = 5.0
WOULD = "would-"  # prefix of an action; the result is reported in place of a remediation's stage


class DryRun(AgentPart):
    """The dry run of one node. Any thread may call any method."""

    def __init__(self, node: RemediationNode, policy: RemediationPolicy) -> None:
        self._node, self._policy = node, policy
        self._logged: Mapping[str, str] = {}
        self._counts: Mapping[str, int] = {}
        self._loop = Loop("remediation", self.turn, failure="the dry run of remediation failed")

    def start(self) -> None:
        """Start to log what would be done."""
        self._loop.start()

    def stop(self) -> None:
        """Log nothing any more."""
        self._loop.stop()

    def health_changed(self, taints: DeviceTaints) -> None:
        """Take a turn soon."""
        del taints
        self._loop.wake()

    def claim_ended(self) -> None:
        """Take a turn soon, because the claim may have been the last one of a faulty GPU."""
        self._loop.wake()

    def is_reboot_asked(self) -> bool:
        """Return False, because a dry run requests no reboot."""
        return False

    def counts(self) -> Mapping[str, int]:
        """Return the number of GPUs for which each action would be tried."""
        return self._counts

    def figures(self) -> Mapping[str, Mapping[str, int]]:
        """Return the counts for the metrics."""
        return {"remediations": self._counts}

    def turn(self) -> float:
        """Log what would be done now, unless it was logged before."""
        gpus, faults = self._node.gpus(), self._node.faults()
        would = {gpu.pci_address: (gpu, choose_action(gpu, faults, self._policy, gpus)) for gpu in gpus}
        needed = {address: (gpu, one) for address, (gpu, one) in would.items() if one is not None}
        texts = {address: self._text(gpu, one) for address, (gpu, one) in needed.items()}
        for address, text in texts.items():
            if self._logged.get(address) != text:
                log.warning("remediation, dry run", extra=fields(device=address, reason=text))
        self._logged = texts
        self._counts = Counter(f"{WOULD}{one.action}" for _, one in needed.values())
        return TURN_SECONDS

    def _text(self, gpu: GpuFacts, choice: ActionChoice) -> str:
        verb = {RemediationAction.RESET: "reset", RemediationAction.REBOOT: "ask for a reboot for"}
        peers = f", with {', '.join(map(gpu_name, choice.peers))} drained too" if choice.peers else ""
        text = f"would {verb.get(choice.action, 'run the command for')} {gpu.whole_name}{peers}"
        try:
            claims = self._node.users((gpu.pci_address, *choice.peers))
            clients = self._node.clients(gpu)
        except DriverError as error:
            return f"{text}; its users are not known: {error.message}"
        waits = [f"claim {one}" for one in claims[:5]] + [f"process {one}" for one in clients[:5]]
        return f"{text}, because of {choice.fault.key}" + (f"; would wait for {', '.join(waits)}" if waits else "")
