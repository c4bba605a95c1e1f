"""Pod worker: a thread that is the kubelet and the users of some claims, and does one thing at a time.

Pods come with a claim of their own or join one that is prepared; they end, or are deleted by force while their
processes live on; Prepare and Unprepare are repeated. All choices come from one random number generator.
"""

from __future__ import annotations

import random
import threading
import time
from typing import Protocol

from dra_driver.base.errors import NodeError
from tests.storm.support.eyes.hours import Hours
from tests.storm.support.eyes.observer import Observer
from tests.storm.support.hands.calls import Calls
from tests.storm.support.node.cluster import Claim, Cluster, Pod
from tests.storm.support.node.container_host import Container
from tests.storm.support.node.kubelet import StormKubelet

MAX_CLAIMS = 3
STUCK_S = 150.0  # longer than a container that can't be killed may hold a device
OUTLIVES_S = (0.05, 4.0)  # how long processes live on after their pod was deleted by force
PAUSE_S = (0.0, 0.2)  # before a refused call is repeated; a kubelet waits longer
TRIES = 12  # how often a pod's Prepare is tried before the pod is given up
JOINED_AT_ONCE = 0.4  # the share of claims that a second pod joins as soon as they are prepared
MISSING = "hardware.partition-missing"
# Refusals that are over by themselves: another claim has the device, or the agent is busy, or just restarting.
PATIENT = (
    "claim.device-in-use",
    "claim.device-unknown",
    "claim.gpu-lost",
    "claim.hardware-waiting",
    "claim.sharing-differs",  # the rules changed while other claims have a share
    "claim.sharing-namespaces",  # another claim under MPS ends, and its daemon is still there
    "claim.cancelled",
    "prepare.locked",
    "prepare.device-gone",
    "ledger.busy",
    "hardware.insufficient-resources",
    "hardware.partition-in-use",
    "hardware.gpu-in-use",
    "hardware.gpu-lost",
    "hardware.node-missing",
    "hardware.not-answering",
    "hardware.not-checked",
    "hardware.library-busy",
    "sharing.mps-",  # its supervisor is busy, or its daemon is not ready
    "api.timeout",
    "api.unreachable",
)
HOPELESS = ("claim.gpu-lost", "claim.sharing-differs", "claim.device-unknown")  # a user deletes such a pod


class Surroundings(Protocol):
    """What a worker asks the storm."""

    def has_more(self) -> bool: ...

    def tolerates(self, claim: Claim, error: str) -> bool:
        """Return whether a refusal is due to what the storm does to the node now."""

    def failed(self, what: str) -> None:
        """Report what is wrong."""

    def did(self, what: str) -> None:
        """Count an operation that is not a call."""


class PodWorker(threading.Thread):
    """One worker. Its claims are its own."""

    def __init__(
        self,
        storm: Surroundings,
        seed: int,
        *,
        calls: Calls,
        cluster: Cluster,
        kubelet: StormKubelet,
        observer: Observer,
        hours: Hours,
    ) -> None:
        super().__init__(daemon=True)
        self._storm, self._random = storm, random.Random(seed)
        self._calls, self._cluster, self._kubelet, self._observer = calls, cluster, kubelet, observer
        self._hours = hours
        self._claims: list[Claim] = []
        self._containers: dict[str, list[Container]] = {}  # by the pod's UID
        self._doomed: list[tuple[float, Claim, Pod]] = []  # pods deleted by force, and when their processes end
        self._is_hopeless = False  # whether the last refusal is for good
        self.ended: list[Claim] = []  # claims that are unprepared, of which Unprepare may be repeated

    def run(self) -> None:
        try:
            while self._storm.has_more():
                self._kill_doomed(time.monotonic())
                self._step()
            for claim in list(self._claims):
                self._end(claim)
            self._kill_doomed(float("inf"))
        except Exception as error:
            self._storm.failed(f"the storm itself failed: {type(error).__name__}: {error}")
            raise

    # -- one step

    def _step(self) -> None:
        chance = self._random.random()
        if not self._claims or (chance < 0.35 and len(self._claims) < MAX_CLAIMS):
            self._begin()
        elif chance < 0.50:
            self._join(self._random.choice(self._claims))
        elif chance < 0.60:
            self._prepare(self._random.choice(self._claims))
        elif chance < 0.65 and self.ended:
            self._unprepare_again(self._random.choice(self.ended))
        elif chance < 0.75:
            self._end_pod(self._random.choice(self._claims))
        else:
            self._end(self._random.choice(self._claims))

    def _begin(self) -> None:
        """Let a pod with a claim of its own come, and prepare it until that works or is given up."""
        self._is_hopeless = False
        devices = self._cluster.choose(self._random, self._observer.used)
        if not devices:
            time.sleep(0.02)
            return
        claim = self._cluster.claim(self._random, devices)
        self._storm.did("pod with a claim")
        self._claims.append(claim)
        self._kubelet.admit(claim, claim.pods[0])
        for _ in range(self._random.randint(1, TRIES)):
            if self._prepare(claim):
                self._run_container(claim, claim.pods[0])
                if self._random.random() < JOINED_AT_ONCE:
                    self._join(claim)
                return
            self._kill_doomed(time.monotonic())
            if self._is_hopeless or not self._storm.has_more():
                break
        self._end(claim)

    def _join(self, claim: Claim) -> None:
        """Let a further pod join a claim: the kubelet prepares a claim once, unless it was restarted."""
        if not claim.is_prepared or not claim.pods:
            return
        pod = self._cluster.join(claim)
        self._kubelet.admit(claim, pod)
        self._storm.did("pod joins a claim")
        if self._random.random() < 0.3 and not self._prepare(claim):
            return
        self._run_container(claim, pod)

    def _end_pod(self, claim: Claim) -> None:
        """End one of several pods; the claim stays prepared for the others."""
        if len(claim.pods) < 2:
            return
        pod = self._random.choice(claim.pods)
        self._storm.did("pod leaves a claim")
        self._stop_containers(pod)
        self._kubelet.forget(pod)
        self._cluster.leave(claim, pod)
        self._kubelet.tidy(pod)

    def _end(self, claim: Claim) -> None:
        """End all pods of a claim, some by force, and unprepare it."""
        is_forced = self._random.random() < 0.5
        is_gone_first = self._random.random() < 0.5
        for pod in list(claim.pods):
            self._kubelet.forget(pod)
            if is_forced and self._containers.get(pod.uid) and self._random.random() < 0.8:
                self._storm.did("pod deleted by force")
                self._doomed.append((time.monotonic() + self._random.uniform(*OUTLIVES_S), claim, pod))
            else:
                self._storm.did("pod ends")
                self._stop_containers(pod)
            if is_gone_first:
                self._cluster.leave(claim, pod)
        if is_gone_first and self._random.random() < 0.6:
            self._cluster.delete(claim)
        self._unprepare(claim)
        for pod in list(claim.pods):
            self._cluster.leave(claim, pod)
        self._cluster.delete(claim)

    # -- containers

    def _run_container(self, claim: Claim, pod: Pod) -> None:
        for number in range(self._random.choice((1, 1, 1, 2))):
            try:
                container = self._kubelet.run(claim, pod, is_open=number == 0)
            except NodeError as error:
                self._storm.failed(f"{claim} is prepared, and a runtime refuses its devices: {error}")
                return
            self._containers.setdefault(pod.uid, []).append(container)
            self._observer.started(claim, container)

    def _stop_containers(self, pod: Pod) -> None:
        for container in self._containers.pop(pod.uid, ()):
            container.kill()
            container.wait()

    def _kill_doomed(self, now: float) -> None:
        for entry in [one for one in self._doomed if one[0] <= now]:
            self._doomed.remove(entry)
            self._stop_containers(entry[2])
            self._kubelet.tidy(entry[2])

    # -- calls

    def _prepare(self, claim: Claim) -> bool:
        may_begin = time.monotonic()
        answer = self._calls.make(self._random, "Prepare", claim)
        if answer is None or not answer.error:
            self._hours.note(claim, "may_begin", may_begin)
        if answer is None:
            return False
        if answer.error:
            self._is_hopeless = any(code in answer.error for code in HOPELESS)
            self._refused(claim, answer.error)
            if claim.is_prepared and "device-in-use" in answer.error:
                self._storm.failed(f"{claim} was prepared and is refused now: {answer.error}")
            return False
        claim.cdi_ids = tuple(dict.fromkeys(each for device in answer.devices for each in device.cdi_device_ids))
        claim.is_prepared = True
        claim.asked_at = claim.asked_at or may_begin
        self._hours.note(claim, "began")
        self._observer.prepared(claim, {device.device_name for device in answer.devices})
        return True

    def _unprepare(self, claim: Claim) -> None:
        """Unprepare a claim until that is answered, as a kubelet does."""
        self._observer.leaves(claim)
        claim.is_prepared = False
        self._hours.note(claim, "leaves")
        until = time.monotonic() + STUCK_S
        while (answer := self._calls.make(self._random, "Unprepare", claim)) is None or answer.error:
            self._kill_doomed(time.monotonic())
            if answer is not None:
                self._refused(claim, answer.error)
            if time.monotonic() > until:
                raise AssertionError(f"{claim} is not unprepared within {STUCK_S:.0f} s: {answer}")
        self._hours.note(claim, "ended")
        self._observer.unprepared(claim)
        self._claims.remove(claim)
        self.ended = [*self.ended[-5:], claim]

    def _unprepare_again(self, claim: Claim) -> None:
        answer = self._calls.make(self._random, "Unprepare", claim)
        if answer is not None and answer.error:
            self._refused(claim, answer.error)

    def _refused(self, claim: Claim, error: str) -> None:
        """Judge a refusal, and wait a moment, as a kubelet does before it tries again."""
        time.sleep(self._random.uniform(*PAUSE_S))
        is_known = any(code in error for code in PATIENT) or self._storm.tolerates(claim, error)
        is_known |= MISSING in error and self._observer.may_miss_partition(claim)
        if not is_known:
            self._storm.failed(f"{claim} was refused: {error}")
