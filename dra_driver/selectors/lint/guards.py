"""The rewrites that lint proposes, made in the text: guards before clauses, calls in place of operators.

In: a checked tree and its text. Out: a new text. Nothing is evaluated here.
"""

from __future__ import annotations

from dra_driver.selectors.syntax.excerpts import all_nodes, terms_below, text_of
from dra_driver.selectors.syntax.nodes import Call, Comprehension, Ident, Literal, Node, Select, children

_STEPS = frozenset({"_[_]"})
_LOGICAL = frozenset({"_&&_", "_||_"})
_LOOSE = frozenset({"_||_", "_?_:_"})


def clauses(root: Node) -> list[Node]:
    """List the clauses below the outermost && and ||, looking through bindings."""
    return terms_below(root, _LOGICAL)


def reads_of(root: Node, name: str) -> list[Node]:
    """List the plain reads of a name in a clause, which can fail with "no such key: name"."""
    found: list[Node] = []
    pending = [root]
    while pending:
        node = pending.pop()
        if (type(node) is Select and not node.test and node.field == name) or _reads_key(node, name):
            found.append(node)
        pending.extend(children(node))
    return found


def with_presence_tests(root: Node, expression: str, name: str) -> str | None:
    """Put a presence test before every clause that reads a name; return None where that is impossible."""
    inserts: dict[int, tuple[int, str, bool]] = {}
    for leaf in clauses(root):
        inner = reads_of(leaf, name)
        if not inner:
            continue
        if any(_is_local(access, leaf) for access in inner) or not hasattr(leaf, "start"):
            return None
        guards = list(dict.fromkeys(_guard(access, expression) for access in inner))
        if "" in guards:
            return None
        loose = type(leaf) is Call and leaf.function in _LOOSE
        inserts[leaf.start] = (leaf.end, " && ".join(guards), loose)
    if not inserts:
        return None
    text = expression
    for start in sorted(inserts, reverse=True):
        end, guard, loose = inserts[start]
        clause = expression[start:end]
        text = f"{text[:start]}{guard} && {f'({clause})' if loose else clause}{text[end:]}"
    return text


def _reads_key(node: Node, name: str) -> bool:
    return (
        type(node) is Call
        and node.function in _STEPS
        and type(node.args[1]) is Literal
        and type(node.args[1].value) is str
        and node.args[1].value == name
    )


def _guard(access: Node, expression: str) -> str:
    if not hasattr(access, "start"):
        return ""
    if type(access) is Select:
        return f"has({text_of(access, expression)})"
    assert type(access) is Call  # noqa: S101  (as `reads_of` returns)
    held, key = access.args
    if not hasattr(held, "start") or not hasattr(key, "start"):
        return ""
    return f"{text_of(key, expression)} in {text_of(held, expression)}"


def _is_local(access: Node, leaf: Node) -> bool:
    """Return whether an access depends on a variable that exists only inside the clause."""
    bound: set[str] = set()
    for node in all_nodes(leaf):
        if type(node) is Comprehension:
            bound |= {node.var, node.var2, node.accu}
    return any(type(node) is Ident and node.name in bound for node in all_nodes(access))
