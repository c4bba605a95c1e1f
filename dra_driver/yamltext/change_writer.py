"""The edits that change a document part by part until it holds another value.

In: a document as written, and its changed value, which must derive from `value_of` so that the origin of each part is
known. Out: edits. The content of an alias or a merge key is written out only if it must differ from what the alias or
key refers to.
"""

from __future__ import annotations

from typing import Any

from dra_driver.yamltext.alignment import REMOVED, Alignment
from dra_driver.yamltext.block_entries import BlockEntries
from dra_driver.yamltext.comments import Comments
from dra_driver.yamltext.edits import EditList, column
from dra_driver.yamltext.flow_entries import FlowEntries
from dra_driver.yamltext.rendering import TextStyle, block, dash_before, flow, scalar
from dra_driver.yamltext.replacement import NodePlace, Replacement
from dra_driver.yamltext.values import is_same, value_of
from dra_driver.yamltext.written import Alias, Mapping, Sequence, YamlNode, is_merge, key_of


class ChangeWriter:
    """Computes the edits for one document."""

    def __init__(self, text: str, comments: Comments, text_style: TextStyle, alignment: Alignment) -> None:
        self._text = text
        self._comments = comments
        self._text_style = text_style
        self._alignment = alignment
        self._replacement = Replacement(text, comments, text_style)
        self._edits = EditList()

    def written(self, root: YamlNode, new: Any) -> EditList:
        """Return the edits that make the document hold `new`."""
        self._visit(root, new, NodePlace())
        return self._edits

    def _visit(self, node: YamlNode, new: Any, place: NodePlace) -> None:
        if isinstance(node, Alias):
            if not is_same(self._alignment.held(node), new):
                self._replacement.replace(self._edits, node, new, place)
        elif isinstance(node, Mapping) and self._alignment.changes_pairs(node, new):
            self._change_mapping(node, new)
        elif isinstance(node, Sequence) and self._alignment.changes_items(node, new):
            self._change_sequence(node, new)
        elif not is_same(value_of(node), new):
            self._replacement.replace(self._edits, node, new, place)

    def _change_mapping(self, node: Mapping, new: dict[str, Any]) -> None:
        changes = self._alignment.pairs(node, new)
        for index, (key, value) in enumerate(node.pairs):
            if index in changes.renamed:
                name, made = changes.renamed[index]
                self._edits.add(key.start, key.end, flow(name, self._text_style, 0, is_wide=False))
                self._edits.add(value.start, value.end, scalar(made, self._text_style, getattr(value, "style", None)))
            elif changes.kept[index] and not is_merge(key):
                place = NodePlace(column(self._text, key.start), is_flow=node.is_flow)
                self._visit(value, new[key_of(key)], place)
        spans = [(key.start, value.end) for key, value in node.pairs]
        if node.is_flow:
            entries = self._flow(node, spans)
            pairs = {at: [self._flow_pair(entries, *one) for one in more.items()] for at, more in changes.added.items()}
            entries.change(self._edits, changes.kept, pairs)
            return
        indent = column(self._text, spans[0][0])
        rows = {at: [block(more, self._text_style, indent)] for at, more in changes.added.items()}
        kept = [stays or index in changes.renamed for index, stays in enumerate(changes.kept)]
        self._block(spans).change(self._edits, kept, rows, above=False)

    def _flow_pair(self, entries: FlowEntries, key: str, value: Any) -> str:
        return f"{flow(key, self._text_style, 0, is_wide=False)}: {self._flow_value(entries, value)}"

    def _flow_value(self, entries: FlowEntries, value: Any) -> str:
        return flow(value, self._text_style, entries.indent, is_wide=entries.is_wide)

    def _change_sequence(self, node: Sequence, new: list[Any]) -> None:
        positions = {id(item): index for index, item in enumerate(node.items)}
        dashes = [] if node.is_flow else [dash_before(self._text, item.start) for item in node.items]
        kept = [False] * len(node.items)
        added: dict[int, list[Any]] = {}
        last = -1
        for item, value in self._alignment.rows(node, new):
            if item is None:
                added.setdefault(last, []).append(value)
                continue
            last = positions[id(item)]
            if value is not REMOVED:
                kept[last] = True
                place = NodePlace(is_flow=True) if node.is_flow else NodePlace(column(self._text, dashes[last]), True)
                self._visit(item, value, place)
        spans = [(item.start, item.end) for item in node.items]
        if node.is_flow:
            entries = self._flow(node, spans)
            items = {at: [self._flow_value(entries, one) for one in more] for at, more in added.items()}
            entries.change(self._edits, kept, items)
            return
        spans = [(dash, item.end) for dash, item in zip(dashes, node.items, strict=True)]
        indent = column(self._text, dashes[0])
        rows = {at: [f"- {block(one, self._text_style, indent + 2)}" for one in more] for at, more in added.items()}
        self._block(spans).change(self._edits, kept, rows, above=True)

    def _block(self, spans: list[tuple[int, int]]) -> BlockEntries:
        return BlockEntries(self._text, self._comments, self._text_style.newline, spans)

    def _flow(self, node: Mapping | Sequence, spans: list[tuple[int, int]]) -> FlowEntries:
        return FlowEntries(self._text, self._comments, self._text_style.newline, spans, node.inner, node.end - 1)
