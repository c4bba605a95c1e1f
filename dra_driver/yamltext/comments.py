"""The comments of a text, and their places.

In: a text and its nodes. Out: comments and offsets. A `#` inside a scalar does not begin a comment, however the scalar
is written.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator

from dra_driver.yamltext.edits import line_end
from dra_driver.yamltext.written import Alias, Mapping, Scalar, Sequence, YamlNode

_COMMENT = re.compile(r"(?:(?<=\s)|^)#[^\n]*", re.MULTILINE)
_COMMENT_LINE = re.compile(r"( *)#[^\n]*(\n|\Z)")


class Comments:
    """The comments of one document, or of all documents of a text."""

    def __init__(self, text: str, roots: list[YamlNode]) -> None:
        self._text = text
        self._scalars = sorted(span for root in roots for span in _scalar_spans(root, text))

    def within(self, start: int, end: int) -> list[str]:
        """Return the comments that begin in `text[start:end]`, in order."""
        found = _COMMENT.finditer(self._text, start, end)
        return [comment[0].rstrip() for comment in found if not self._is_in_scalar(comment.start())]

    def _is_in_scalar(self, at: int) -> bool:
        """Return whether an offset lies in a scalar."""
        index = bisect_right(self._scalars, (at, len(self._text))) - 1
        return index >= 0 and at < self._scalars[index][1]


def _scalar_spans(root: YamlNode, text: str) -> Iterator[tuple[int, int]]:
    """Yield the span of each scalar; a block scalar's begins after its first line, which may hold a comment."""
    stack = [root]
    while stack:
        node = stack.pop()
        if isinstance(node, Mapping):
            stack += [one for pair in node.pairs for one in pair]
        elif isinstance(node, Sequence):
            stack += node.items
        elif isinstance(node, Scalar) and node.style in {"|", ">"}:
            yield line_end(text, node.start + 1), node.end
        elif isinstance(node, Scalar | Alias) and node.start < node.end:
            yield node.start, node.end


def after_comments(text: str, end: int, indent: int) -> int:
    """Return the start of the line after a value and the comments that belong to it."""
    at = line_end(text, end)
    while (found := _COMMENT_LINE.match(text, at)) and len(found[1]) > indent:
        at = found.end()
    return at


def above_comments(text: str, at: int, indent: int) -> int:
    """Return the start of the comment lines above a line that are indented by at least `indent` columns."""
    while at > 0:
        line = text.rfind("\n", 0, at - 1) + 1
        words = text[line:at]
        if not words.strip().startswith("#") or len(words) - len(words.lstrip(" ")) < indent:
            return at
        at = line
    return at
