"""The change of a document's value while the rest of its text stays: comments, quotes, order, blank lines.

In: a document as written, and its changed value. Out: edits, each a piece of the text and its replacement, and what
could not stay. Never: edits whose result does not read back as the intended value. If a part can't be changed in place,
the smallest part around it for which rewriting gives that value is rewritten as a whole.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from dra_driver.base.errors import InputError
from dra_driver.base.text.alignment import REMOVED, Alignment, Origins, is_same, value_of
from dra_driver.base.text.change_writer import ChangeWriter
from dra_driver.base.text.rendering import Comments, Edit, OverlapError, TextStyle, applied
from dra_driver.base.text.written import DocumentText, Mapping, Sequence, YamlNode, documents_of, key_of

NodePath = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Rewriting:
    """The edits of one document; the paths of the parts that are rewritten as a whole; the comments that are lost."""

    edits: list[Edit]
    rewritten: tuple[NodePath, ...] = ()
    lost: tuple[str, ...] = ()


def rewriting(text: str, document: DocumentText, origins: Origins, text_style: TextStyle, new: Any) -> Rewriting:
    """Return edits that make one document of a text hold `new`.

    `new` must be made from `value_of(document.root, origins)`, so that the origin of each part is known.
    Raises: AssertionError if not even the whole rewritten document reads back as `new`.
    """
    return Rewriter(text, document, origins, text_style).rewriting(new)


class Rewriter:
    """Finds the edits for one document, and reads back what they make."""

    def __init__(self, text: str, document: DocumentText, origins: Origins, text_style: TextStyle) -> None:
        self._text = text
        self._document = document
        self._origins = origins
        self._text_style = text_style
        self._comments = Comments(text, [document.root])

    def rewriting(self, new: Any) -> Rewriting:
        """Return edits that are known to make the document hold `new`."""
        found = self._tried(new, {})
        if found is None:
            found = self._with_rewritten_parts(new)
        return found

    def edits(self, new: Any, whole: dict[int, NodePath]) -> list[Edit]:
        """Return the edits that should make the document hold `new`, with the nodes in `whole` rewritten."""
        root = self._document.root
        alignment = Alignment(self._origins, root, new, frozenset(whole))
        return ChangeWriter(self._text, self._comments, self._text_style, alignment).written(root, new).edits

    def _tried(self, new: Any, whole: dict[int, NodePath]) -> Rewriting | None:
        """Return the rewriting with some nodes rewritten, or None if it does not read back as `new`."""
        edits = self.edits(new, whole)
        if not edits:
            return Rewriting([]) if is_same(value_of(self._document.root), new) else None
        start, end = self._document.head, self._document.end
        try:
            made = applied(self._text[start:end], [replace(e, start=e.start - start, end=e.end - start) for e in edits])
            documents = documents_of(made, "")
        except (OverlapError, InputError):
            return None
        if len(documents) != 1 or not is_same(value_of(documents[0].root), new):
            return None
        before = Counter(self._comments.within(start, end))
        after = Counter(Comments(made, [documents[0].root]).within(0, len(made)))
        return Rewriting(edits, tuple(whole.values()), tuple((before - after).elements()))

    def _with_rewritten_parts(self, new: Any) -> Rewriting:
        """Return the rewriting that rewrites as little as possible, looking from the innermost parts outwards."""
        levels = self._changed(new)
        for nodes in reversed(levels):
            found = self._tried(new, nodes)
            if found is not None:
                return self._tried(new, self._needed(new, nodes, {})) or found
        raise AssertionError("a document that was rewritten as a whole does not read back as its value")

    def _needed(self, new: Any, nodes: dict[int, NodePath], others: dict[int, NodePath]) -> dict[int, NodePath]:
        """Return those of `nodes` that must be rewritten in addition to `others`, found by halving."""
        if self._tried(new, others) is not None:
            return {}
        if len(nodes) == 1:
            return nodes
        rows = list(nodes.items())
        left, right = dict(rows[: len(rows) // 2]), dict(rows[len(rows) // 2 :])
        kept = self._needed(new, left, {**others, **right})
        return {**kept, **self._needed(new, right, {**others, **kept})}

    def _changed(self, new: Any) -> list[dict[int, NodePath]]:
        """Return the paths of the collections that change, by identity of their nodes, for each level of nesting."""
        root = self._document.root
        alignment = Alignment(self._origins, root, new, frozenset())
        levels: list[dict[int, NodePath]] = []
        stack: list[tuple[YamlNode, Any, NodePath]] = [(root, new, ())]
        while stack:
            node, value, path = stack.pop()
            if not isinstance(node, Mapping | Sequence) or (path and is_same(value_of(node), value)):
                continue
            while len(levels) <= len(path):
                levels.append({})
            levels[len(path)][id(node)] = path
            if isinstance(node, Mapping) and alignment.changes_pairs(node, value):
                own = [(key_of(key), inner) for key, inner in node.pairs if key_of(key) in value]
                stack += [(inner, value[key], (*path, key)) for key, inner in own]
            elif isinstance(node, Sequence) and alignment.changes_items(node, value):
                rows = [row for row in alignment.rows(node, value) if row[1] is not REMOVED]
                stack += [(item, one, (*path, at)) for at, (item, one) in enumerate(rows) if item is not None]
        return levels
