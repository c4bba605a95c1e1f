"""The replacement of a written value as a whole.

In: a node, its place, and the new value. Out: an edit. The node's anchor and its comments stay.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from dra_driver.yamltext.comments import Comments
from dra_driver.yamltext.edits import EditList, column, line_end, shares_line
from dra_driver.yamltext.rendering import TextStyle, block, flow, scalar
from dra_driver.yamltext.written import Mapping, Scalar, Sequence, YamlNode

_LITERAL = re.compile(r"[|>][-+0-9]*$", re.MULTILINE)  # the indicator before the lines of a block scalar


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
