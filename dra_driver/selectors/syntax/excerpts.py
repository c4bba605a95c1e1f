"""Excerpts of an expression: the text of a node, and the expression with that text replaced.

In: a tree and its text. Out: texts, and all nodes in order. Nodes that a macro made have no text of their own.
"""

from __future__ import annotations

from collections.abc import Collection

from dra_driver.selectors.syntax.nodes import Call, Comprehension, Node, children


def text_of(node: Node, expression: str) -> str:
    """Return the text of a node, or "" for a node that a macro made."""
    return expression[node.start : node.end] if hasattr(node, "start") else ""


def replaced(expression: str, node: Node, text: str) -> str:
    """Return the expression with the text of a node replaced."""
    return expression[: node.start] + text + expression[node.end :]


def all_nodes(root: Node) -> list[Node]:
    """List all nodes of a tree, in source order of their roots."""
    found: list[Node] = []
    pending = [root]
    while pending:
        node = pending.pop()
        found.append(node)
        pending.extend(reversed(children(node)))
    return found


def terms_below(root: Node, operators: Collection[str]) -> list[Node]:
    """List the terms that the outermost chains of these logical operators join, looking through bindings."""
    found: list[Node] = []
    pending = [root]
    while pending:
        node = pending.pop()
        if type(node) is Comprehension and node.is_bind:
            pending.append(node.result)
        elif type(node) is Call and node.function in operators:
            pending.extend(reversed(node.args))
        else:
            found.append(node)
    return found
