"""How the evaluation of a compiled selector differs between Kubernetes versions.

In: a version. Out: a `Behaviour`. What a version declares (functions, types) is data in `tables/`; this module says how
the same functions behave. Each flag names what the version does.

Source: Kubernetes 1.34 to 1.36 are built with cel-go 0.26, 1.37 with 0.29; 1.36 and 1.37 with Go 1.26.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dra_driver.model.kubernetes import Since, minor_of
from dra_driver.selectors.syntax.nodes import Call, Ident, Node, Select
from dra_driver.selectors.values.types import is_optional

_ACCESS = frozenset({"_[_]", "_[?_]", "_?._", "_?_:_"})


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How one version evaluates. `names` maps functions that this version implements differently to table entries."""

    changes_receivers: bool  # add() and sub() change a quantity in place once it no longer fits an int64
    copies_branches: bool  # an optional from a variable or a ternary is copied and loses Kubernetes' types
    refuses_plain: bool  # or() and orValue() fail on a value that is not an optional
    newer_costs: bool  # matches(a, b), startsWith(), endsWith() and includes() are charged by size
    names: Mapping[str, str] = field(default_factory=dict)

    def copies(self, branch: Node) -> bool:
        """Return whether an optional from this branch of a ternary is copied; chains of accesses copy it themselves."""
        return self.copies_branches and not _is_chain(branch) and may_be_optional(branch)


def may_be_optional(node: Node) -> bool:
    """Return whether the value of a node can be an optional."""
    return is_optional(node.type) or node.type.kind in {"dyn", "any"}


def _is_chain(node: Node) -> bool:
    return type(node) is Ident or type(node) is Select or (type(node) is Call and node.function in _ACCESS)


_SINCE_1_36 = {name: f"{name} since 1.36" for name in ("url", "isURL", "validate")}
_OLDER = Behaviour(changes_receivers=True, copies_branches=True, refuses_plain=False, newer_costs=False)
_MIDDLE = replace(_OLDER, names=_SINCE_1_36)
_NEWER = Behaviour(
    changes_receivers=False,
    copies_branches=False,
    refuses_plain=True,
    newer_costs=True,
    names=_SINCE_1_36 | {name: f"{name} since 1.37" for name in ("lists.range", "includes", "indexOf", "lastIndexOf")},
)
CHANGING = {name: f"{name} up to 1.36" for name in ("quantity", "add", "sub")}


def behaviour_of(kubernetes: str) -> Behaviour:
    """Return how a version evaluates."""
    minor = minor_of(kubernetes)
    if minor < Since.STRICT_URLS:
        return _OLDER
    return _MIDDLE if minor < Since.CEL_GO_29 else _NEWER
