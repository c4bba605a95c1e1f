"""New values as text, formatted like the text around them: indentation, dashes, braces, JSON.

In: plain values and a `TextStyle`. Out: text without a final line break. Never: a look at the old text, except in
`text_style_of`.
"""

from __future__ import annotations

import io
import json
import re
from dataclasses import dataclass
from typing import Any

from dra_driver.yamltext.edits import column
from dra_driver.yamltext.values import Verbatim, is_ambiguous
from dra_driver.yamltext.written import Mapping, Sequence, YamlNode

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
