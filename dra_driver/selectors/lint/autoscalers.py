"""Autoscalers: whether an autoscaler would start a node for a selector when no such node exists yet.

In: a selector, the devices that reach it, and an autoscaler. Out: findings. An autoscaler knows of a node that does not
exist yet only what its own table or template says; it starts no node for a selector that reads anything else.

Source: Karpenter's AWS provider (1.15, `settings.enableDRA`: its table of instance types); Cluster Autoscaler's
cluster-api provider (annotations of a node group that is scaled to zero).
"""

from __future__ import annotations

import enum
from collections.abc import Iterator

from dra_driver.model.shares import DeviceType
from dra_driver.selectors.evaluation.device_view import prepare_device
from dra_driver.selectors.lint.findings import LintFinding, LintSubject, outcome, outcomes

RULE = "unknown-before-launch"
_DOMAIN = "gpu.nvidia.com"
_CARDS = "dra.net"
_KARPENTERS_DRIVERS = (_DOMAIN, _CARDS)
_TYPE = "type"


class Autoscaler(enum.StrEnum):
    """An autoscaler that can start nodes for claims."""

    KARPENTER_AWS = "karpenter-aws"
    CLUSTER_AUTOSCALER = "cluster-autoscaler"


# What a selector may read of a device on a node that does not exist yet: field, domain, name.
_KNOWN = {
    Autoscaler.KARPENTER_AWS: frozenset(
        {
            *(
                ("attributes", _DOMAIN, name)
                for name in (_TYPE, "productName", "architecture", "brand", "cudaComputeCapability")
            ),
            ("capacity", _DOMAIN, "memory"),
            *(
                ("attributes", _CARDS, name)  # of its network cards, which a claim may have beside a GPU
                for name in ("pciDevice", "pciVendor", "pciSubsystem", "rdma", "numaNode")
            ),
        }
    ),
    Autoscaler.CLUSTER_AUTOSCALER: frozenset({("attributes", _DOMAIN, _TYPE)}),
}
_STANDARD = "resource.kubernetes.io"
_WHOLE = {"attributes": {_TYPE: {"string": str(DeviceType.GPU)}}}  # the device of the annotations, for any driver


def autoscaler_findings(subject: LintSubject, autoscaler: Autoscaler) -> Iterator[LintFinding]:
    """Report facts that the selector needs and that the autoscaler does not have about a node that it could start."""
    unknown = sorted({(*key, text) for key, text in _names(subject) if not _is_known(key, autoscaler)})
    for *_, text in unknown:
        yield LintFinding(
            RULE,
            f"{autoscaler} does not know {text} before a node exists, so it starts none for this selector; "
            f"it knows {_listed(autoscaler)} (docs/autoscalers.md)",
        )
    others = sorted({domain for (_, domain, name), _ in _names(subject) if name == _TYPE} - {_DOMAIN, _STANDARD})
    if not unknown and subject.is_last and others:
        if not any(outcome(subject.selector, prepare_device(_WHOLE, driver)) is True for driver in (*others, _DOMAIN)):
            yield LintFinding(RULE, f'{autoscaler} knows only GPUs of type "gpu", which the selector excludes')
    elif not unknown and subject.is_last and (found := _only_parts(subject)):
        yield LintFinding(RULE, f"only {found} match, but before a node exists {autoscaler} knows only whole GPUs")
    if autoscaler is Autoscaler.KARPENTER_AWS and _is_of_other_drivers(subject):
        yield LintFinding(RULE, f"{autoscaler} knows only devices of {' and '.join(_KARPENTERS_DRIVERS)}")


def _is_known(key: tuple[str, str, str], autoscaler: Autoscaler) -> bool:
    """Return whether an autoscaler supports a name that a selector reads; annotations give the `type` of any device."""
    is_any = autoscaler is Autoscaler.CLUSTER_AUTOSCALER and key[0] == "attributes" and key[1] != _STANDARD
    return key in _KNOWN[autoscaler] or (is_any and key[2] == _TYPE)


def _names(subject: LintSubject) -> Iterator[tuple[tuple[str, str, str], str]]:
    """Yield what the selector reads: field, domain and name, and how a person writes it."""
    for read in subject.selector.read_set.reads:
        if read.field == "driver":
            continue
        key = read.field, read.domain or "", read.name or ""
        is_one = read.domain is not None and read.name is not None
        yield key, f"{read.domain}/{read.name}" if is_one else f"all of device.{read.field}"


def _listed(autoscaler: Autoscaler) -> str:
    return ", ".join(sorted(name for _, domain, name in _KNOWN[autoscaler] if domain == _DOMAIN))


def _only_parts(subject: LintSubject) -> str:
    """Return which types of devices match, as text, if none of them is a whole GPU, else ""."""
    found = outcomes(subject.selector, subject.views)
    matching = [view for view, one in zip(subject.views, found, strict=True) if one is True]
    types = {str(view.attributes.get(view.driver, {}).get(_TYPE, "")) for view in matching}
    if not types:
        types = _types_not_refused(subject)
    return "" if not types or types & {str(DeviceType.GPU), ""} else f"devices of type {', '.join(sorted(types))}"


def _is_of_other_drivers(subject: LintSubject) -> bool:
    """Return whether the selector reads nothing but the driver, and accepts none that Karpenter supports."""
    return not list(_names(subject)) and all(
        outcome(subject.selector, prepare_device({}, driver)) is False for driver in _KARPENTERS_DRIVERS
    )


def _types_not_refused(subject: LintSubject) -> set[str]:
    """Return the types of devices that the selector does not refuse by their type alone; none if it refuses all."""
    bare = {kind: prepare_device({"attributes": {_TYPE: {"string": str(kind)}}}, _DOMAIN) for kind in DeviceType}
    return {str(kind) for kind, view in bare.items() if outcome(subject.selector, view) is not False}
