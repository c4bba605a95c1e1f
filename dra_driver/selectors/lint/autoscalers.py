"""Autoscalers: whether an autoscaler could start a node for a selector when no node of the kind is there.

In: a selector, the devices that reach it, and an autoscaler. Out: findings. Of a node that does not exist yet, an
autoscaler knows only what its own table or template says; for a selector that reads anything else it starts no node.

Source: Karpenter's AWS provider (1.15, `settings.enableDRA`: its table of instance types); Cluster Autoscaler's
cluster-api provider (annotations of a node group that is scaled to zero).
"""

from __future__ import annotations

import enum
from collections.abc import Iterator

from dra_driver.selectors.lint.findings import LintFinding, LintSubject, outcomes

RULE = "unknown-before-launch"
_DOMAIN = "gpu.nvidia.com"
_TYPE = "type"


class Autoscaler(enum.StrEnum):
    """An autoscaler that can start nodes for claims."""

    KARPENTER_AWS = "karpenter-aws"
    CLUSTER_AUTOSCALER = "cluster-autoscaler"


# What a selector may read of a device on a node that does not exist yet: field, name.
_KNOWN = {
    Autoscaler.KARPENTER_AWS: frozenset(
        {
            *(
                ("attributes", name)
                for name in (_TYPE, "productName", "architecture", "brand", "cudaComputeCapability")
            ),
            ("capacity", "memory"),
        }
    ),
    Autoscaler.CLUSTER_AUTOSCALER: frozenset({("attributes", _TYPE)}),
}


def autoscaler_findings(subject: LintSubject, autoscaler: Autoscaler) -> Iterator[LintFinding]:
    """Report what the autoscaler does not know of a node that it could start."""
    unknown = sorted({name for name in _names(subject) if name not in _known(autoscaler)})
    for _, _, name in unknown:
        yield LintFinding(
            RULE,
            f"{autoscaler} does not know {name} before a node is there, and starts none for this selector; "
            f"it knows {_listed(autoscaler)} (docs/autoscalers.md)",
        )
    if not unknown and subject.is_last and (found := _only_parts(subject)):
        yield LintFinding(RULE, f"only {found} match, and of a node to start {autoscaler} knows whole GPUs alone")


def _names(subject: LintSubject) -> Iterator[tuple[str, str, str]]:
    """Yield what the selector reads: field, domain, and how a person writes it."""
    for read in subject.selector.read_set.reads:
        if read.field == "driver":
            continue
        if read.domain is None or read.name is None:
            yield read.field, read.domain or "", f"all of device.{read.field}"
        else:
            yield read.field, read.domain, f"{read.domain}/{read.name}"


def _known(autoscaler: Autoscaler) -> frozenset[tuple[str, str, str]]:
    return frozenset((field, _DOMAIN, f"{_DOMAIN}/{name}") for field, name in _KNOWN[autoscaler])


def _listed(autoscaler: Autoscaler) -> str:
    return ", ".join(sorted(name for _, name in _KNOWN[autoscaler]))


def _only_parts(subject: LintSubject) -> str:
    """Return the types of all devices that match if none of them is a whole GPU, else ""."""
    found = outcomes(subject.selector, subject.views)
    matching = [view for view, one in zip(subject.views, found, strict=True) if one is True]
    types = {str(view.attributes.get(view.driver, {}).get(_TYPE, "")) for view in matching}
    return "" if not types or types & {"gpu", ""} else f"devices of type {', '.join(sorted(types))}"
