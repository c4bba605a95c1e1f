"""The edits that change a document part by part until it holds another value.

In: a document as written, and its changed value, which must derive from `value_of` so that the origin of each part is
known. Out: edits. The content of an alias or a merge key is written out only if it must differ from what the alias or
key refers to. Entries are removed and added in block mappings and lists, where each is on lines of its own, and within
braces and brackets together with their commas; a value may be replaced as a whole. Comments on removed entries stay, on
lines of their own, and so do an anchor and the comments of a replaced value.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from dra_driver.base.text.alignment import REMOVED, Alignment, is_same, value_of
from dra_driver.base.text.rendering import (
    Comments,
    EditList,
    TextStyle,
    above_comments,
    after_comments,
    block,
    column,
    dash_before,
    flow,
    line_end,
    scalar,
    shares_line,
)
from dra_driver.base.text.written import Alias, Mapping, Scalar, Sequence, YamlNode, is_merge, key_of

_LITERAL = re.compile(r"[|>][-+0-9]*$", re.MULTILINE)  # the indicator before the lines of a block scalar


@dataclass(frozen=True, slots=True)
class BlockEntries:
    """The entries of one block: `spans` from a key or dash to the end of the value."""

    text: str
    comments: Comments
    newline: str
    spans: list[tuple[int, int]]

    @property
    def _pad(self) -> str:
        return " " * column(self.text, self.spans[0][0])

    def change(self, edits: EditList, kept: list[bool], added: dict[int, list[str]], *, above: bool) -> None:
        """Remove the entries that are not `kept` (at least one must be), and insert the rows of `added`.

        `added` holds rows by the index of the entry that they follow (-1: before the first); all lines of a row but the
        first are indented already. With `above`, rows before the first entry also precede its comments.
        """
        first = kept.index(True)
        lifted = 0
        if first > 0 and shares_line(self.text, self.spans[0][0]):
            lifted = first
            self._lift(edits, first, added.get(-1, []))
        elif added.get(-1):
            self._put_first(edits, added[-1], is_kept=first == 0, above=above)
        for (start, end), stays in list(zip(self.spans, kept, strict=True))[lifted:]:
            if not stays:
                self._remove_lines(edits, start, end)
        for index, rows in added.items():
            if index >= 0:
                self._put_after(edits, self.spans[index][1], rows)

    def _lift(self, edits: EditList, first: int, rows: list[str]) -> None:
        """Remove the first entries of a block that begins on the line of a dash; the next one moves up to the dash."""
        start, following = self.spans[0][0], self.spans[first][0]
        lines = [*self.comments.within(start, following), *rows]
        edits.add(start, following, "".join(f"{line}{self.newline}{self._pad}" for line in lines))

    def _put_first(self, edits: EditList, rows: list[str], *, is_kept: bool, above: bool) -> None:
        start = self.spans[0][0]
        if shares_line(self.text, start) or (is_kept and not above):
            edits.add(start, start, "".join(f"{row}{self.newline}{self._pad}" for row in rows))
            return
        at = start - column(self.text, start)
        at = above_comments(self.text, at, column(self.text, start)) if above else at
        edits.add(at, at, "".join(f"{self._pad}{row}{self.newline}" for row in rows))

    def _put_after(self, edits: EditList, end: int, rows: list[str]) -> None:
        at = after_comments(self.text, end, len(self._pad))
        lines = self.newline.join(f"{self._pad}{row}" for row in rows)
        is_open = at > 0 and self.text[at - 1] != "\n"
        edits.add(at, at, f"{self.newline if is_open else ''}{lines}{self.newline}")

    def _remove_lines(self, edits: EditList, start: int, end: int) -> None:
        """Remove whole lines, but keep their comments."""
        first, last = start - column(self.text, start), line_end(self.text, end)
        comments = self.comments.within(start, last)
        edits.add(first, last, "".join(f"{self._pad}{comment}{self.newline}" for comment in comments))


@dataclass(frozen=True, slots=True)
class FlowEntries:
    """The entries of one flow collection, whose content is `text[inner:close]`."""

    text: str
    comments: Comments
    newline: str
    spans: list[tuple[int, int]]
    inner: int
    close: int

    @property
    def is_wide(self) -> bool:
        """Whether the first entry begins on a line of its own."""
        return bool(self.spans) and "\n" in self.text[self.inner : self.spans[0][0]]

    @property
    def indent(self) -> int:
        """The column of the entries if they are on lines of their own, otherwise 0."""
        return column(self.text, self.spans[0][0]) if self.is_wide else 0

    def change(self, edits: EditList, kept: list[bool], added: dict[int, list[str]]) -> None:
        """Remove the entries that are not `kept`; add rows by the index of the entry before them (-1: at the front)."""
        comma = f",{self.newline}{' ' * self.indent}" if self.is_wide else ", "
        if not any(kept):
            content = comma.join(row for position in sorted(added) for row in added[position])
            if content or kept:
                self._refill(edits, content)
            return
        self._remove_runs(edits, kept)
        for position, rows in added.items():
            at = next((index for index in range(position, -1, -1) if kept[index]), None)
            if at is None:
                first = self.spans[kept.index(True)][0]
                edits.add(first, first, comma.join([*rows, ""]))
            else:
                edits.add(self.spans[at][1], self.spans[at][1], "".join(comma + row for row in rows))

    def _refill(self, edits: EditList, content: str) -> None:
        """Replace everything between the braces."""
        pad = f"{self.newline}{' ' * (self.indent or column(self.text, self.inner))}"
        comments = "".join(f" {comment}{pad}" for comment in self.comments.within(self.inner, self.close))
        lead, tail = "", ""
        if content and self.is_wide and not comments:
            inside = self.text[self.inner : self.close]
            lead, tail = self.text[self.inner : self.spans[0][0]], inside[len(inside.rstrip()) :]
        edits.add(self.inner, self.close, f"{lead}{comments}{content}{tail}")

    def _remove_runs(self, edits: EditList, kept: list[bool]) -> None:
        """Remove entries, each run of them together with one comma."""
        index = 0
        while index < len(self.spans):
            if kept[index]:
                index += 1
                continue
            first = index
            while index < len(self.spans) and not kept[index]:
                index += 1
            if index < len(self.spans):
                start, end = self.spans[first][0], self.spans[index][0]
                pad = " " * column(self.text, start)
                comments = "".join(f" {one}{self.newline}{pad}" for one in self.comments.within(start, end))
            else:
                start, end = self.spans[first - 1][1], self.spans[-1][1]
                pad = " " * column(self.text, self.inner)
                comments = "".join(f" {one}{self.newline}{pad}" for one in self.comments.within(start, end))
            edits.add(start, end, comments)


@dataclass(frozen=True, slots=True)
class NodePlace:
    """Where a value is: the column of its key or dash (-1: the whole document), and whether it is in braces."""

    indent: int = -1
    is_item: bool = False
    is_flow: bool = False


@dataclass(frozen=True, slots=True)
class Replacement:
    """Replaces values in one document."""

    text: str
    comments: Comments
    text_style: TextStyle

    def replace(self, edits: EditList, node: YamlNode, new: Any, place: NodePlace) -> None:
        """Add the edits that replace a node's text by the new value."""
        is_nested = isinstance(new, dict | list) and bool(new) and not place.is_flow and not self.text_style.is_json
        if is_nested:
            self._by_block(edits, node, new, place)
        elif isinstance(node, Mapping | Sequence) and not node.is_flow:
            self._block_by_inline(edits, node, new)
        else:
            self._by_inline(edits, node, new, is_flow=place.is_flow)

    def _anchor(self, node: YamlNode) -> str:
        return f"&{node.anchor} " if node.anchor else ""

    def _inline(self, node: YamlNode, new: Any) -> str:
        if isinstance(new, dict | list):
            return self._anchor(node) + flow(new, self.text_style, 0, is_wide=False)
        return self._anchor(node) + scalar(new, self.text_style, node.style if isinstance(node, Scalar) else None)

    def _by_inline(self, edits: EditList, node: YamlNode, new: Any, *, is_flow: bool) -> None:
        """Replace a scalar, an alias or braces by one line; its comments follow or, within braces, precede it."""
        start, end = node.start, node.end
        blank = " " if start == end and start > 0 and self.text[start - 1] not in " \n" else ""
        pad = f"{self.text_style.newline}{' ' * column(self.text, start)}"
        comments = self.comments.within(start, end)
        if is_flow:
            leading = "".join(f" {comment}{pad}" for comment in comments)
            edits.add(start, end, f"{blank}{leading}{self._inline(node, new)}")
            return
        trailing = "".join(f"  {comment}{pad}" for comment in comments)
        if self.text[start:end].endswith("\n"):
            trailing = trailing.rstrip(" ") if trailing else self.text_style.newline
        elif trailing and not self.text[end : line_end(self.text, end)].strip():
            trailing = trailing.removesuffix(pad)
        edits.add(start, end, f"{blank}{self._inline(node, new)}{trailing}")

    def _block_by_inline(self, edits: EditList, node: YamlNode, new: Any) -> None:
        """Replace a block by one line; the comments of the block stay above it."""
        start, end = node.start, node.end
        comments = self.comments.within(start, end)
        tail = self.text_style.newline if self.text[start:end].endswith("\n") else ""
        opening = self.text[:start].rstrip()
        if not comments and opening and "#" not in opening[opening.rfind("\n") + 1 :]:
            edits.add(len(opening), end, f" {self._inline(node, new)}{tail}")
            return
        pad = self.text_style.newline + " " * column(self.text, start)
        edits.add(start, end, f"{''.join(f'{comment}{pad}' for comment in comments)}  {self._inline(node, new)}{tail}")

    def _by_block(self, edits: EditList, node: YamlNode, new: Any, place: NodePlace) -> None:
        """Replace a value by a block; the comments in it are put above the block."""
        indent, is_below = self._indent(node, new, place)
        written = block(new, self.text_style, indent)
        start, end, tail = node.start, node.end, ""
        if self.text[start:end].endswith("\n"):
            tail = self.text_style.newline
        elif end == len(self.text) or _LITERAL.search(written):  # the rest of the line would become text
            end, tail = line_end(self.text, end), self.text_style.newline
        pad = self.text_style.newline + " " * indent
        lead = f" {self._anchor(node).rstrip()}" if node.anchor else ""
        if is_below:
            start -= len(self.text[:start]) - len(self.text[:start].rstrip(" "))
            lead += pad
        elif shares_line(self.text, start):
            start -= len(self.text[:start]) - len(self.text[:start].rstrip(" "))
            lead = " " * max(indent - column(self.text, start), 1)
        else:
            lead = " " * (indent - column(self.text, start))
        comments = "".join(f"{comment}{pad}" for comment in self.comments.within(node.start, end))
        edits.add(start, end, f"{lead}{comments}{written}{tail}")

    def _indent(self, node: YamlNode, new: Any, place: NodePlace) -> tuple[int, bool]:
        """Return the column of a new block, and whether it begins on a line below its key, dash or anchor."""
        least = place.indent if isinstance(new, list) and not place.is_item else place.indent + 1
        is_block = isinstance(node, Mapping | Sequence) and not node.is_flow
        if node.anchor or (not is_block and not place.is_item):
            step = self.text_style.dash if isinstance(new, list) and not place.is_item else self.text_style.step
            return max(place.indent, 0) + (step if place.indent >= 0 else 0), shares_line(self.text, node.start)
        at = column(self.text, node.start)
        if node.start == node.end:
            at = place.indent + 2
        return (at if at >= least else place.indent + self.text_style.step), False


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
