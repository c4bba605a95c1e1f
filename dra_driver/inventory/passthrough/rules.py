"""Passthrough rules: which GPUs of which nodes virtual machines may have.

Pure values. A rule names a GPU by its PCI address or its UUID, and a virtual function by its address; `all` means every
GPU of the node, but no virtual function.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

ALL_GPUS = "all"


@dataclass(frozen=True, slots=True)
class PassthroughRule:
    """One rule. `nodes` are patterns of node names; `driver` is the VFIO driver to use ("" for the usual one).

    With `is_only_passed` containers never get these GPUs.
    """

    nodes: tuple[str, ...]
    gpus: tuple[str, ...]
    is_only_passed: bool = False
    driver: str = ""

    def names(self, address: str, uuid: str, *, is_virtual: bool) -> bool:
        """Return whether the rule names a GPU."""
        return address in self.gpus or (uuid != "" and uuid in self.gpus) or (ALL_GPUS in self.gpus and not is_virtual)


@dataclass(frozen=True, slots=True)
class PassthroughRules:
    """The rules in their order; the first that names a GPU decides about it."""

    rules: tuple[PassthroughRule, ...] = ()

    def of_node(self, node: str) -> PassthroughRules:
        """Return the rules that concern a node."""
        return PassthroughRules(
            tuple(one for one in self.rules if any(fnmatchcase(node, pattern) for pattern in one.nodes))
        )

    def rule_of(self, address: str, uuid: str = "", *, is_virtual: bool = False) -> PassthroughRule | None:
        """Return the rule about a GPU, or None if virtual machines may not have it."""
        return next((one for one in self.rules if one.names(address, uuid, is_virtual=is_virtual)), None)

    @property
    def addresses(self) -> frozenset[str]:
        """Return the PCI addresses that are named."""
        return frozenset(name for one in self.rules for name in one.gpus if ":" in name)
