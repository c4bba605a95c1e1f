"""FeatureObject: the labels of this node, in an object from which Node Feature Discovery takes them.

In: the labels that the vendor has for the node. Out: one NodeFeature in the release's namespace, applied at the start,
when the labels change, and once an hour in case the object was removed. If the agent's token names its ServiceAccount,
the object belongs to that account and is removed with the release; Node Feature Discovery removes the objects of nodes
that are gone.
Source: node-feature-discovery v0.19, API nfd.k8s-sigs.io/v1alpha1; Kubernetes, claims of ServiceAccount tokens.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import random
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from dra_driver.base.errors import ApiError, DriverError, NodeError, Retry
from dra_driver.base.flags import registered
from dra_driver.base.machine import Deadline
from dra_driver.base.telemetry.logs import Loop, fields
from dra_driver.base.wire import Wire
from dra_driver.hardware.facts import Facts, Problem
from dra_driver.hardware.port import Roots
from dra_driver.hardware.vendors import load_vendor
from dra_driver.kube.api import KubeApi, PodId, pod_event, send_event
from dra_driver.kube.paths import NODE_FEATURES, named, within
from dra_driver.node.devices.agent_part import AgentPart
from dra_driver.node.prepare.steps.memory_limiter import LostLimit, MemoryLimiter
from dra_driver.node.slices.scanner import InventoryInputs, NodeInventory

if TYPE_CHECKING:
    from dra_driver.hardware.port import ChannelOffering
    from dra_driver.node.daemon.passthrough import NodePassthrough
    from dra_driver.node.slices.scanner import FactsStage


# NodeLabels: the labels that the vendor defines for this node.


class LabelSource(Protocol):
    """The labels of a node, as they are now."""

    def now(self) -> Mapping[str, str] | None:
        """Return the current labels; None while they are not known."""


class NodeLabels:
    """The labels that a vendor has for this node; `vendor` is the one whose GPUs are read."""

    def __init__(self, inventory: NodeInventory, vendor: str, roots: Roots) -> None:
        self._inventory, self._vendor, self._roots = inventory, vendor, roots

    def now(self) -> Mapping[str, str] | None:
        """Return the current labels; None while the hardware has not answered."""
        facts = self._inventory.facts
        if facts is None or facts.waiting_for:
            return None
        name = next((gpu.vendor for gpu in facts.gpus), self._vendor)
        labels_of = load_vendor(name).labels if registered(name) else None
        return labels_of(facts, self._roots) if labels_of else {}


log = logging.getLogger(__name__)

REFRESH_SECONDS = 3600.0
_API_VERSION = "nfd.k8s-sigs.io/v1alpha1"
_NODE_LABEL = "nfd.node.kubernetes.io/node-name"
_APPLY = "application/apply-patch+yaml"
# The option's role is missing, Node Feature Discovery is not installed, or it or a webhook refuses the object.
_LASTING = {400, 403, 404, 413, 422}


class ApplyServer(Protocol):
    """The requests that are needed of the API server."""

    def request(self, method: str, path: str, *, body: Wire, query: Mapping[str, str], content_type: str) -> Wire:
        """Send one request. Raises: ApiError."""

    def authorization(self) -> str:
        """Return the value of the Authorization header; "" for none."""


class FeatureObject:
    """One NodeFeature, kept in a namespace. The instance that has the node's role keeps it up to date."""

    def __init__(
        self,
        api: ApplyServer,
        labels: LabelSource,
        *,
        node: str,
        driver: str,
        namespace: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api, self._labels, self._clock = api, labels, clock
        self._node, self._driver, self._namespace = node, driver, namespace
        self._written: Mapping[str, str] | None = None
        self._due = float("-inf")

    def tidy(self) -> int:
        """Write the current labels into the object; return 1 if they changed.

        Raises: ApiError for errors that may pass.
        """
        labels, now = self._labels.now(), self._clock()
        if labels is None or (now < self._due and labels == self._written):
            return 0
        if self._written is None and now < self._due:
            return 0  # refused a while ago
        try:
            self._apply(labels)
        except ApiError as error:
            self._rest(error, now)
            return 0
        was, self._written, self._due = self._written, dict(labels), now + _spread(REFRESH_SECONDS)
        return int(was != labels)

    def _apply(self, labels: Mapping[str, str]) -> None:
        name = feature_name(self._driver, self._node)
        body = feature_object(name, self._node, labels, owner=_account(self._api.authorization()))
        query = {"fieldManager": f"dra-driver {self._driver}", "force": "true"}
        path = named(within(NODE_FEATURES, self._namespace), name)
        self._api.request("PATCH", path, body=body, query=query, content_type=_APPLY)

    def _rest(self, error: ApiError, now: float) -> None:
        """Wait an hour after a refusal that will last. Raises: the error if it may pass."""
        if error.status not in _LASTING and error.retry is not Retry.NEVER:
            raise error
        self._written, self._due = None, now + _spread(REFRESH_SECONDS)
        text = "labels of this node not written: is Node Feature Discovery installed, and nodeLabels=object set?"
        log.warning(text, extra=fields(code=error.code, err=str(error)))


def feature_name(driver: str, node: str) -> str:
    """Return the name of the object for a driver on a node, as the chart's admission policy expects it."""
    return f"{driver}-{node}"


def feature_object(name: str, node: str, labels: Mapping[str, str], *, owner: Mapping[str, str] | None) -> Wire:
    """Return a NodeFeature that asks for these labels. `owner` is the name and UID of a ServiceAccount beside it."""
    meta: Wire = {"name": name, "labels": {_NODE_LABEL: node}}
    if owner:
        meta["ownerReferences"] = [{"apiVersion": "v1", "kind": "ServiceAccount", **owner}]
    # Empty features are written out: releases up to 0.13 require them.
    nothing: Wire = {"flags": {}, "attributes": {}, "instances": {}}
    spec = {"labels": dict(labels), "features": nothing}
    return {"apiVersion": _API_VERSION, "kind": "NodeFeature", "metadata": meta, "spec": spec}


def _account(authorization: str) -> dict[str, str] | None:
    """Return the name and UID of a token's ServiceAccount, or None for other tokens.

    The token is not verified: it is the agent's own, and the policy compares the name.
    """
    parts = authorization.removeprefix("Bearer ").split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        account = claims["kubernetes.io"]["serviceaccount"]
        return {"name": str(account["name"]), "uid": str(account["uid"])}
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


def _spread(seconds: float) -> float:
    """Return a random time near `seconds`, so that agents that start together do not all write at the same moment."""
    return seconds * random.uniform(0.75, 1.25)  # noqa: S311 - jitter


# Stages: what completes the facts of a scan before and after the offer decides about them.


def _unchanged(facts: Facts) -> Facts:
    return facts


@dataclass(frozen=True, slots=True)
class FactsChange:
    """What one part of the agent leaves out of the facts before the offer, and adds to them after it."""

    completed: Callable[[Facts], Facts]
    reported: Callable[[Facts], Facts] = _unchanged
    fingerprint: Callable[[], Hashable] = tuple  # changes when the facts have to be completed again


class StagedFacts:
    """The offer between its stages, for the scanner."""

    def __init__(self, offer: FactsStage, stages: Sequence[FactsChange]) -> None:
        self._offer, self._stages = offer, stages

    @property
    def is_settled(self) -> bool:
        """Return whether the last inputs are final."""
        return self._offer.is_settled

    def fingerprint(self) -> Hashable:
        """Return a value that changes when the inputs of the inventory have to be determined again."""
        return self._offer.fingerprint(), *(stage.fingerprint() for stage in self._stages)

    def assess(self, facts: Facts) -> InventoryInputs:
        """Return the completed facts, and how they are offered. Raises: DriverError."""
        for stage in reversed(self._stages):
            facts = stage.reported(facts)
        inputs = self._offer.assess(facts)
        for stage in self._stages:
            inputs = replace(inputs, facts=stage.completed(inputs.facts))
        return inputs


class LostGpus(Protocol):
    """What is known of the GPUs that are lost."""

    @property
    def is_loaded(self) -> bool:
        """Return whether what was known before could be read."""

    def completed(self, facts: Facts) -> Facts:
        """Return the facts with the lost GPUs."""


def lost_gpus(known: LostGpus) -> FactsChange:
    """Return the stage of the lost GPUs, as `known` knows them.

    A lost GPU that claims hold must stay published: once a device is gone from the slices, nothing can show that it is
    faulty, and the scheduler would allocate the counters that it consumes a second time.
    """

    def reported(facts: Facts) -> Facts:
        return replace(facts, gpus=tuple(gpu for gpu in facts.gpus if not gpu.is_lost))

    return FactsChange(known.completed, reported, lambda: known.is_loaded)


def passed_gpus(passthrough: NodePassthrough) -> FactsChange:
    """Return the stage of the GPUs for virtual machines: the offer decides about what the vendor reports alone."""
    named, returned = passthrough.named, passthrough.returned

    def reported(facts: Facts) -> Facts:
        own = (
            replace(gpu, passthrough=None)
            for gpu in facts.gpus
            if gpu.passthrough is None or not (gpu.passthrough.is_away or gpu.minor < 0)
        )
        return replace(facts, gpus=tuple(own))

    def completed(facts: Facts) -> Facts:
        return returned.checked(named.completed(facts))

    return FactsChange(completed, reported, lambda: (named.fingerprint(), returned.fingerprint()))


def channel(hardware: ChannelOffering) -> FactsChange:
    """Return the stage of the node's IMEX channel."""

    def completed(facts: Facts) -> Facts:
        offered = hardware.channel(facts)
        if isinstance(offered, Problem):
            return replace(facts, problems=(*facts.problems, offered), channel=None)
        return replace(facts, channel=offered)

    return FactsChange(completed)


# LimitWatch: restores memory limits of pods that another process on the node ended, and reports them.

CHECK_SECONDS = 10.0
TURN_SECONDS = 5.0  # time limit of one check
SHOWN_SECONDS = 600.0  # how long a limit that was lost and set again remains a problem, so that metrics show it
REASON = "DeviceMemoryLimitLost"


class LimitWatch(AgentPart):
    """Checks the limits of one node while this instance has the node's role."""

    def __init__(
        self,
        limiter: MemoryLimiter,
        api: KubeApi,
        *,
        node: str,
        driver: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limiter, self._api, self._node, self._driver, self._clock = limiter, api, node, driver, clock
        self._loop = Loop("limits", self._turn, failure="check of memory limits failed", fault_s=CHECK_SECONDS)
        self._lost: dict[tuple[str, str], tuple[float, LostLimit]] = {}

    def start(self) -> None:
        """Begin to check. May be called again after `stop`."""
        self._loop.start()

    def stop(self) -> None:
        """End the thread."""
        self._loop.stop()

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Return the limits that were lost, by pod."""
        now = self._clock()
        recent = [lost for at, lost in self._lost.values() if now - at < SHOWN_SECONDS]
        return tuple(Problem("sharing.limit-lost", lost.pod, lost.sentence) for lost in recent)

    def check(self) -> tuple[LostLimit, ...]:
        """Check once; report and return the limits that were lost. Raises: DriverError."""
        lost = self._limiter.recheck(Deadline.after(TURN_SECONDS))
        now = self._clock()
        kept = {key: one for key, one in self._lost.items() if now - one[0] < SHOWN_SECONDS}
        self._lost = {**kept, **{(one.device, one.pod): (now, one) for one in lost}}
        for one in lost:
            self._send_event(one)
        return lost

    def _turn(self) -> float:
        try:
            self.check()
        except DriverError as error:
            log.warning("memory limits not checked", extra=fields(code=error.code, err=str(error)))
        return CHECK_SECONDS

    def _send_event(self, lost: LostLimit) -> None:
        for record in lost.claims:
            name = dict(record.claim().pod_names).get(lost.pod)
            if name:
                pod = PodId(record.namespace, name, lost.pod)
                send_event(self._api, pod_event(pod, self._node, self._driver, REASON, lost.sentence))
                return


# FeatureFile: the labels of this node, in the file from which Node Feature Discovery takes them.

EXPIRY_SECONDS = 24 * 3600.0
FEATURE_FILE_REFRESH_SECONDS = EXPIRY_SECONDS / 2


class FeatureFile:
    """One file in the folder of features. The instance that has the node's role keeps it up to date."""

    def __init__(self, path: Path, labels: LabelSource, *, clock: Callable[[], float] = time.time) -> None:
        self._path, self._labels, self._clock = path, labels, clock
        self._written: tuple[Mapping[str, str], float] | None = None

    def tidy(self) -> int:
        """Write the current labels into the file; return 1 if it changed. Raises: NodeError("node.feature-file")."""
        labels, now = self._labels.now(), self._clock()
        if labels is None:
            return 0
        if self._written is not None and self._written[0] == labels and self._is_fresh(now) and self._is_there(labels):
            return 0
        was = self._written[0] if self._written else None
        try:
            self._write(labels, now)
        except OSError as exc:
            message = f"the labels of this node can't be written to {self._path}: {exc.strerror or exc}"
            hint = "mount the folder writable, or start the agent with --node-labels off"
            raise NodeError("feature-file", message, hint=hint, retry=Retry.LATER) from exc
        self._written = labels, now
        return int(was != labels)

    def _is_fresh(self, now: float) -> bool:
        return self._written is not None and 0 <= now - self._written[1] < FEATURE_FILE_REFRESH_SECONDS

    def _is_there(self, labels: Mapping[str, str]) -> bool:
        return not labels or self._path.exists()

    def _write(self, labels: Mapping[str, str], now: float) -> None:
        if not labels:
            self._path.unlink(missing_ok=True)
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self._path.with_name(f".{self._path.name}")
        unfinished.unlink(missing_ok=True)
        fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        with os.fdopen(fd, "wb") as file:
            os.fchmod(fd, 0o644)  # whatever the umask
            file.write(feature_text(labels, now + EXPIRY_SECONDS).encode())
        unfinished.replace(self._path)


def feature_text(labels: Mapping[str, str], expiry: float) -> str:
    """Return the content of the file. `expiry` is in seconds since 1970.

    >>> print(feature_text({"nvidia.com/gpu.count": "8"}, 0), end="")
    # +expiry-time=1970-01-01T00:00:00Z
    nvidia.com/gpu.count=8
    """
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(expiry))
    return "".join([f"# +expiry-time={stamp}\n", *(f"{name}={labels[name]}\n" for name in sorted(labels))])
