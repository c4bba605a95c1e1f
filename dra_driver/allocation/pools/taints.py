"""Taints: whether a device's taints prevent its allocation to a request.

In: a device's taints and a request's tolerations, as wire dicts. Out: the first taint that is not tolerated.

Source: Kubernetes DeviceTaint and DeviceToleration, package dynamic-resource-allocation/resourceclaim.
"""

from __future__ import annotations

from collections.abc import Sequence

from dra_driver.model.wire import Wire

_HARMFUL = {"NoSchedule", "NoExecute"}


def blocking_taint(taints: Sequence[Wire], tolerations: Sequence[Wire], *, only_harmful: bool = True) -> Wire | None:
    """Return the first taint that prevents allocation, or None if there is none."""
    for taint in taints:
        if only_harmful and taint.get("effect") not in _HARMFUL:
            continue
        if not any(tolerates(toleration, taint) for toleration in tolerations):
            return taint
    return None


def tolerates(toleration: Wire, taint: Wire) -> bool:
    """Return whether one toleration covers one taint."""
    effect = toleration.get("effect")
    if effect and effect != taint.get("effect"):
        return False
    key = toleration.get("key")
    if key and key != taint.get("key"):
        return False
    operator = toleration.get("operator") or "Equal"
    if operator == "Equal":
        return (toleration.get("value") or "") == (taint.get("value") or "")
    return bool(operator == "Exists")


def taint_text(taint: Wire) -> str:
    """Return a taint as people write it, key=value:effect, and the time at which it was added, if that is known."""
    value = f"={taint['value']}" if taint.get("value") else ""
    since = f" since {taint['timeAdded']}" if taint.get("timeAdded") else ""
    return f"{taint.get('key', '')}{value}:{taint.get('effect', '')}{since}"
