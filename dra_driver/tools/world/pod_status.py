"""What a pod's own status says: why it has no node, and what keeps its containers from running.

In: a pod as its wire object. Out: text. Whoever may read the pod may read this, even if slices may not be read.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from dra_driver.base.wire import Wire

PATIENCE_SECONDS = 60.0  # a pod may take this long to start, or to be cleaned up, without anything being wrong
_OVER = frozenset({"Succeeded", "Failed"})
_STARTING = frozenset({"ContainerCreating", "PodInitializing"})  # the reasons of a container that nothing keeps waiting
_QUOTE_CHARS = 400  # how much is quoted of another component's message


def has_ended(pod: Wire) -> bool:
    """Return whether a pod has ended, so that nothing of it runs and its devices are released."""
    return (pod.get("status") or {}).get("phase") in _OVER


def is_bound(pod: Wire) -> bool:
    """Return whether a pod has a node and has not ended."""
    return bool((pod.get("spec") or {}).get("nodeName")) and not has_ended(pod)


def is_terminating(pod: Wire) -> bool:
    """Return whether a pod is being deleted."""
    return bool(pod["metadata"].get("deletionTimestamp"))


def condition_of(pod: Wire, kind: str) -> Wire:
    """Return a condition of a pod; an empty one if it has none of this type."""
    found: list[Wire] = (pod.get("status") or {}).get("conditions") or []
    return next((one for one in found if one.get("type") == kind), {})


def scheduler_message(pod: Wire) -> str:
    """Return why the scheduler found no node for a pod, in its words; "" if the pod has a node or was not tried."""
    condition = condition_of(pod, "PodScheduled")
    is_refused = condition.get("status") == "False" and not (pod.get("spec") or {}).get("nodeName")
    return quoted(str(condition.get("message") or "")) if is_refused else ""


def is_prepared(pod: Wire) -> bool:
    """Return whether a pod's devices are prepared: its sandbox exists, or a container has begun to start."""
    is_ready = condition_of(pod, "PodReadyToStartContainers").get("status") == "True"
    return is_ready or any(reason not in _STARTING for _, reason, _ in _waiting(pod)) or _has_begun(pod)


def container_trouble(pod: Wire) -> str:
    """Return what keeps the containers of a pod from running, such as an image that can't be pulled; "" if nothing."""
    waiting = [
        f"container {name}: {reason}{f': {quoted(message)}' if message else ''}"
        for name, reason, message in _waiting(pod)
        if reason not in _STARTING
    ]
    ended = [
        f"container {container.get('name')}: {state.get('reason') or 'ended'} (exit code {state['exitCode']})"
        for container in _containers(pod)
        if (state := (container.get("state") or {}).get("terminated") or {}).get("exitCode")
    ]
    return "; ".join([*waiting, *ended])


def claim_names(pod: Wire) -> list[str]:
    """Return the names of a pod's claims: made from templates, named directly, or made for extended resources."""
    status = pod.get("status") or {}
    names = [one.get("resourceClaimName") for one in status.get("resourceClaimStatuses") or ()]
    names += [claim.get("resourceClaimName") for claim in (pod.get("spec") or {}).get("resourceClaims") or ()]
    names.append((status.get("extendedResourceClaimStatus") or {}).get("resourceClaimName"))
    return [str(name) for name in dict.fromkeys(names) if name]


def seconds_since(time: str, now: datetime) -> float:
    """Return the seconds since an API timestamp; 0 if the text is not a timestamp."""
    try:
        return (now - datetime.fromisoformat(time).astimezone(UTC)).total_seconds()
    except ValueError:
        return 0.0


def quoted(message: str) -> str:
    """Return a message of another component on one line, shortened if it is long."""
    plain = " ".join(message.split())
    return plain if len(plain) <= _QUOTE_CHARS else f"{plain[: _QUOTE_CHARS - 1]}…"


def _waiting(pod: Wire) -> Iterator[tuple[str, str, str]]:
    """Yield name, reason and message of each container that waits."""
    for container in _containers(pod):
        waiting = (container.get("state") or {}).get("waiting") or {}
        if reason := waiting.get("reason"):
            yield str(container.get("name")), str(reason), str(waiting.get("message") or "")


def _has_begun(pod: Wire) -> bool:
    return any({"running", "terminated"} & (container.get("state") or {}).keys() for container in _containers(pod))


def _containers(pod: Wire) -> list[Wire]:
    status = pod.get("status") or {}
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
