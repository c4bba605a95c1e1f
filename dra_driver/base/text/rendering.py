"""New values as text, formatted like the text around them: indentation, dashes, braces, JSON.

In: plain values and a `TextStyle`. Out: text without a final line break. Never: a look at the old text, except in
`text_style_of`.
"""

from __future__ import annotations

import io
import json
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from dra_driver.base.text.alignment import Verbatim, is_ambiguous
from dra_driver.base.text.written import Alias, Mapping, Scalar, Sequence, YamlNode

# Edits of a text, which are applied together, and functions that locate lines and columns.


@dataclass(frozen=True, slots=True, order=True)
class Edit:
    """Replace `text[start:end]` by `new`. Edits at the same place apply in the order of `rank`."""

    start: int
    end: int
    rank: int
    new: str = field(compare=False)


@dataclass(frozen=True, slots=True)
class EditList:
    """A list of edits under construction; edits at the same place apply in the order in which they were added."""

    edits: list[Edit] = field(default_factory=list)

    def add(self, start: int, end: int, new: str) -> None:
        """Replace `text[start:end]` by `new`."""
        self.edits.append(Edit(start, end, len(self.edits), new))


class OverlapError(ValueError):
    """Two edits change the same part of a text."""


def applied(text: str, edits: list[Edit]) -> str:
    """Return the text with all edits applied. Raises: OverlapError."""
    parts, at = [], 0
    for edit in sorted(edits):
        if edit.start < at:
            raise OverlapError(f"two edits of the text at {edit.start}")
        parts += [text[at : edit.start], edit.new]
        at = edit.end
    return "".join([*parts, text[at:]])


def column(text: str, index: int) -> int:
    """Return the column of an index, counted from 0."""
    return index - (text.rfind("\n", 0, index) + 1)


def shares_line(text: str, index: int) -> bool:
    """Return whether anything but blanks precedes an index on its line, such as the dash of an item."""
    return bool(text[index - column(text, index) : index].strip())


def line_end(text: str, at: int) -> int:
    """Return the start of the next line, or `at` itself if a line starts there."""
    if at > 0 and text[at - 1] == "\n":
        return at
    found = text.find("\n", at)
    return len(text) if found < 0 else found + 1


WIDTH = 4096  # never fold lines: it is hard to search for a folded selector


@dataclass(frozen=True, slots=True)
class TextStyle:
    """The formatting of a file: by how many columns a nested mapping (`step`) and the dash of a list are indented."""

    step: int = 2
    dash: int = 0
    is_json: bool = False
    newline: str = "\n"


def text_style_of(text: str, roots: list[YamlNode]) -> TextStyle:
    """Return how documents are formatted, judged by the first nested mapping and by the column of most dashes."""
    newline = "\r\n" if "\r\n" in text else "\n"
    steps: list[int] = []
    dashes: list[int] = []
    for root in roots:
        _measure(root, text, steps, dashes)
    is_json = bool(roots) and all(isinstance(root, Mapping | Sequence) and root.is_flow for root in roots)
    if is_json:
        found = re.search(r"[{\[]\r?\n( +)", text)
        return TextStyle(len(found[1]) if found else 0, 0, True, newline)
    return TextStyle(steps[0] if steps else 2, _most_frequent(dashes), False, newline)


def _most_frequent(found: list[int]) -> int:
    return max(sorted(set(found)), key=found.count) if found else 0


def _measure(root: YamlNode, text: str, steps: list[int], dashes: list[int]) -> None:
    """Collect how far nested block mappings and dashes are indented below their keys."""
    stack = [root]
    while stack:
        node = stack.pop()
        if isinstance(node, Mapping):
            for key, value in node.pairs:
                stack.append(value)
                if isinstance(value, Mapping) and not value.is_flow and value.pairs:
                    _add_distance(steps, column(text, value.pairs[0][0].start) - column(text, key.start), 1)
                if isinstance(value, Sequence) and not value.is_flow and value.items:
                    _add_distance(
                        dashes, column(text, dash_before(text, value.items[0].start)) - column(text, key.start), 0
                    )
        elif isinstance(node, Sequence):
            stack.extend(node.items)


def _add_distance(found: list[int], distance: int, least: int) -> None:
    if distance >= least:
        found.append(distance)


def dash_before(text: str, index: int) -> int:
    """Return the index of a list item's dash; comments and anchors may come between."""
    at = text.rfind("-", 0, index)
    while at > 0 and not _is_dash(text, at, index):
        at = text.rfind("-", 0, at)
    return max(at, 0)


def _is_dash(text: str, at: int, index: int) -> bool:
    """Return whether a dash opens the item.

    Only blanks or further dashes may precede it on its line, and only blanks, comments, tags and anchors may follow it.
    """
    line = text[text.rfind("\n", 0, at) + 1 : at]
    after = re.sub(r"#[^\n]*|[&!]\S+", "", text[at + 1 : index])
    return not line.strip("- \t") and not after.strip() and text[at + 1 : at + 2] in {" ", "\n", "\r", "\t"}


def block(value: Any, text_style: TextStyle, indent: int, dash: int | None = None) -> str:
    """Return a value in block style; every line but the first is indented by `indent` columns."""
    lines = _emitted(value, text_style, dash).splitlines()
    pad = " " * indent
    return text_style.newline.join([lines[0], *(f"{pad}{line}" if line else "" for line in lines[1:])])


def _emitted(value: Any, text_style: TextStyle, dash: int | None) -> str:
    from ruamel.yaml import YAML  # noqa: PLC0415
    from ruamel.yaml.representer import RoundTripRepresenter  # noqa: PLC0415

    class Representer(RoundTripRepresenter):  # type: ignore[misc]
        """Writes `Verbatim` scalars exactly as they were, since readers of YAML disagree on them."""

    Representer.add_representer(Verbatim, lambda self, text: self.represent_scalar("tag:yaml.org,2002:str", text))
    yaml = YAML(pure=True)
    yaml.Representer = Representer
    offset = text_style.dash if dash is None else dash
    yaml.indent(mapping=text_style.step, sequence=offset + 2, offset=offset)
    yaml.width = WIDTH
    out = io.StringIO()
    yaml.dump(_prepared(value), out)
    made = out.getvalue().rstrip("\n")
    return made.removesuffix("\n...")


_LINES = re.compile(
    r"([!-~][ -~]*[!-~]\n|[!-~]\n)([ -~]*[!-~]\n)*"
)  # text that a literal block (|) keeps without indicators or escapes


def _prepared(value: Any) -> Any:
    """Quote texts that some readers of YAML would take for another type."""
    from ruamel.yaml.scalarstring import DoubleQuotedScalarString, LiteralScalarString  # noqa: PLC0415

    if isinstance(value, dict):
        return {_prepared(key): _prepared(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_prepared(one) for one in value]
    if isinstance(value, Verbatim):
        return value
    if isinstance(value, str) and _LINES.fullmatch(value):
        return LiteralScalarString(value)
    if isinstance(value, str) and (is_ambiguous(value) or value == ""):
        return DoubleQuotedScalarString(value)
    return value


def flow(value: Any, text_style: TextStyle, indent: int, *, is_wide: bool) -> str:
    """Return a value in flow style (braces): on several lines if it is JSON and `is_wide`, otherwise on one."""
    if text_style.is_json and is_wide and text_style.step:
        lines = _quoted(value, text_style.step).split("\n")
        return text_style.newline.join([lines[0], *(" " * indent + line for line in lines[1:])])
    if text_style.is_json:
        return _quoted(value)
    if isinstance(value, dict):
        inner = ", ".join(f"{_plain(key)}: {flow(one, text_style, 0, is_wide=False)}" for key, one in value.items())
        return f"{{{inner}}}"
    if isinstance(value, list):
        return f"[{', '.join(flow(one, text_style, 0, is_wide=False) for one in value)}]"
    return _plain(value)


_FLOW_SAFE = re.compile(r"[A-Za-z_/][-A-Za-z0-9_./]*")


def _plain(value: Any) -> str:
    """Return a scalar as flow style writes it."""
    if isinstance(value, Verbatim):
        return value
    if isinstance(value, str) and _FLOW_SAFE.fullmatch(value) and not is_ambiguous(value):
        return value
    return _quoted(value)


# Characters that YAML forbids or reads as line breaks, and halves of surrogate pairs. JSON escapes all others itself.
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")


def _quoted(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON that a reader of YAML takes for the same value."""
    written = json.dumps(value, indent=indent, ensure_ascii=False)
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", written)


def scalar(value: Any, text_style: TextStyle, style: str | None) -> str:
    """Return a scalar for the place of an old one that was written in `style`."""
    if isinstance(value, Verbatim) and not text_style.is_json:
        return value
    if text_style.is_json or style == '"':
        return _quoted(value)
    if style == "'" and isinstance(value, str) and value.isprintable():
        return "'" + value.replace("'", "''") + "'"
    return _plain(value)


# The comments of a text, and their places.

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
