"""A document changed to hold another value while the rest of its text stays: comments, quotes, order, blank lines.

In: a document as written, and its changed value, which must derive from `value_of` so that the origin of each part is
known. Out: edits, each a piece of the text and its replacement. The content of an alias or a merge key is written out
only where it is to differ from what the alias or key refers to. Comments on removed parts stay, on lines of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from dra_driver.yamltext.edits import Edit, above_comments, after_comments, comments_in, is_same, line_end
from dra_driver.yamltext.rendering import Manner, block, column, dash_before, flow, scalar
from dra_driver.yamltext.written import (
    Alias,
    Mapping,
    Origins,
    Scalar,
    Sequence,
    YamlNode,
    is_merge,
    key_of,
    merge_sources,
    value_of,
)

_GONE = object()


class Rewriter:
    """Computes the edits for one document."""

    def __init__(self, text: str, origins: Origins, manner: Manner) -> None:
        self._text = text
        self._origins = origins
        self._manner = manner
        self._finals: dict[int, Any] = {}
        self._edits: list[Edit] = []
        self._rank = 0

    def edits(self, root: YamlNode, new: Any) -> list[Edit]:
        """Return the edits that make the document hold `new`."""
        self._note(root, new)
        self._visit(root, new, is_flow=False)
        return self._edits

    # Anchored nodes: what each will hold. An alias follows it, or is written out if it is to hold something else.

    def _note(self, node: YamlNode, new: Any) -> None:
        if node.anchor:
            self._finals[id(node)] = new
        if isinstance(node, Mapping) and isinstance(new, dict):
            for key, (_, value) in node.own().items():
                if key in new:
                    self._note(value, new[key])
        elif isinstance(node, Sequence) and isinstance(new, list):
            for item, value in self._aligned(node, new):
                if item is not None and value is not _GONE:
                    self._note(item, value)

    def _aligned(self, node: Sequence, new: list[Any]) -> Iterator[tuple[YamlNode | None, Any]]:
        """Pair old items with new values, in the new order: a removed item with `_GONE`, None with a new value."""
        sources = [self._source(node, one, new, position) for position, one in enumerate(new)]
        kept = {id(source) for source in sources if source is not None}
        waiting = list(node.items)
        for value, source in zip(new, sources, strict=True):
            while source is not None and waiting and waiting[0] is not source:
                first = waiting.pop(0)
                if id(first) not in kept:
                    yield first, _GONE
            if source is not None and waiting:
                waiting.pop(0)
            yield source, value
        yield from ((item, _GONE) for item in waiting if id(item) not in kept)

    def _source(self, node: Sequence, value: Any, new: list[Any], position: int) -> YamlNode | None:
        if isinstance(value, dict | list):
            found = self._origins.nodes.get(id(value))
            return found if any(found is item for item in node.items) else None
        if len(new) == len(node.items) and not isinstance(node.items[position], Mapping | Sequence):
            return node.items[position]
        return None

    def _visit(self, node: YamlNode, new: Any, *, is_flow: bool) -> None:
        if isinstance(node, Alias):
            if not is_same(self._finals.get(id(node.target), _GONE), new):
                self._replace(node, new, is_flow=is_flow)
        elif isinstance(node, Mapping) and isinstance(new, dict) and (new or node.is_flow):
            self._mapping(node, new)
        elif isinstance(node, Sequence) and isinstance(new, list) and self._fits(node, new):
            self._sequence(node, new)
        elif not is_same(value_of(node), new):
            self._replace(node, new, is_flow=is_flow)

    def _fits(self, node: Sequence, new: list[Any]) -> bool:
        """Return whether a list can be changed item by item."""
        if not new and not node.is_flow:
            return False
        if is_same(value_of(node), new) and not self._finals:
            return True
        plain = [one for one in new if not isinstance(one, dict | list)]
        return not plain or len(new) == len(node.items)

    def _mapping(self, node: Mapping, new: dict[str, Any]) -> None:
        own = node.own()
        brought = self._brought(node)
        broken = any(key not in new and key not in own for key in brought)
        inherited = {} if broken else brought
        gone = [pair for pair in node.pairs if (broken if is_merge(pair[0]) else key_of(pair[0]) not in new)]
        for key, (_, value) in own.items():
            if key in new:
                self._visit(value, new[key], is_flow=node.is_flow)
        added: list[tuple[str | None, dict[str, Any]]] = []
        before: str | None = None
        for key, value in new.items():
            if key in own:
                before = key
            elif not (key in inherited and is_same(inherited[key], value)):
                if not added or added[-1][0] != before:
                    added.append((before, {}))
                added[-1][1][key] = value
        if node.is_flow:
            self._flow_pairs(node, gone, added)
        else:
            self._block_pairs(node, gone, added, new)

    def _brought(self, node: Mapping) -> dict[str, Any]:
        """Return what the merge key of a mapping will contribute after the changes."""
        made: dict[str, Any] = {}
        for source in reversed(merge_sources(node)):
            target = source.target if isinstance(source, Alias) else source
            final = self._finals.get(id(target), value_of(target) if target is source else _GONE)
            made.update(final if isinstance(final, dict) else {})
            if final is _GONE:
                made.update(dict.fromkeys(value_of(target), _GONE))
        return made

    def _block_pairs(self, node: Mapping, gone: list[Any], added: list[Any], new: dict[str, Any]) -> None:
        pairs = node.pairs
        indent = column(self._text, pairs[0][0].start)
        is_first_gone = bool(gone) and pairs[0] in gone and self._shares_line(pairs[0][0])
        if is_first_gone or (len(gone) == len(pairs) and not self._is_plain(gone, added)):
            kept = [pair for pair in pairs if pair not in gone]
            if not kept or len(gone) > 1:
                self._restart(node, new, indent)
                return
            self._lift(pairs, kept)
        else:
            renamed = self._rename(pairs, gone, added)
            for key, value in gone:
                if key not in renamed:
                    self._take_lines(key.start, value.end)
        for before, values in added:
            anchor = node.own()[before] if before is not None else pairs[0]
            self._insert_pairs(anchor, values, indent, is_first=before is None and anchor not in gone)

    def _is_plain(self, gone: list[Any], added: list[Any]) -> bool:
        """Return whether every removed pair is a scalar with a new scalar to take its place."""
        values = [value for _, rows in added for value in rows.values()]
        is_plain = all(isinstance(value, Scalar) for _, value in gone)
        return is_plain and len(values) == len(gone) and not any(isinstance(value, dict | list) for value in values)

    def _rename(self, pairs: Any, gone: list[Any], added: list[Any]) -> list[YamlNode]:
        """Write new scalars over the removed pairs that they replace, so that the comments stay beside them."""
        renamed: list[YamlNode] = []
        keys = [key_of(key) for key, _ in pairs]
        for before, values in added:
            position = keys.index(before) + 1 if before is not None else 0
            for name in list(values):
                pair = pairs[min(position, len(pairs) - 1)]
                if (
                    position == len(pairs)
                    or pair not in gone
                    or not isinstance(pair[1], Scalar)
                    or isinstance(values[name], dict | list)
                ):
                    break
                self._add(pair[0].start, pair[0].end, flow(name, self._manner, 0, is_wide=False))
                self._add(pair[1].start, pair[1].end, scalar(values.pop(name), self._manner, pair[1].style))
                renamed.append(pair[0])
                position += 1
        added[:] = [(before, values) for before, values in added if values]
        return renamed

    def _insert_pairs(self, pair: Any, values: dict[str, Any], indent: int, *, is_first: bool) -> None:
        written = block(values, self._manner, indent)
        line_break = self._manner.newline
        if is_first:
            self._add(pair[0].start, pair[0].start, f"{written}{line_break}{' ' * indent}")
            return
        at = after_comments(self._text, pair[1].end, indent)
        lead = "" if self._text[:at].endswith("\n") else line_break
        self._add(at, at, f"{lead}{' ' * indent}{written}{'' if lead else line_break}")

    def _shares_line(self, key: YamlNode) -> bool:
        """Return whether something precedes a key on its line, such as the dash of an item."""
        return bool(self._text[self._text.rfind("\n", 0, key.start) + 1 : key.start].strip())

    def _take_lines(self, start: int, end: int) -> None:
        """Remove whole lines, but keep their comments."""
        first = self._text.rfind("\n", 0, start) + 1
        last = line_end(self._text, end)
        pad = self._text[first:start]
        self._add(
            first, last, "".join(f"{pad}{one}{self._manner.newline}" for one in comments_in(self._text, start, last))
        )

    def _lift(self, pairs: Any, kept: Any) -> None:
        """Remove the first pair of a list item, and move the next pair up to the dash."""
        start, following = pairs[0][0].start, kept[0][0].start
        pad = " " * column(self._text, start)
        kept_notes = "".join(f"{one}{self._manner.newline}{pad}" for one in comments_in(self._text, start, following))
        self._add(start, following, kept_notes)

    def _restart(self, node: Mapping, new: dict[str, Any], indent: int) -> None:
        """Rewrite a whole mapping of which nothing or little stays."""
        notes = "".join(
            f"{one}{self._manner.newline}{' ' * indent}" for one in comments_in(self._text, node.start, node.end)
        )
        start, end = node.pairs[0][0].start, node.end
        tail = self._manner.newline if self._text[:end].endswith("\n") else ""
        inside = [edit for edit in self._edits if start <= edit.start and edit.end <= end]
        self._edits = [edit for edit in self._edits if edit not in inside]
        self._add(start, end, f"{notes}{block(new, self._manner, indent)}{tail}")

    def _sequence(self, node: Sequence, new: list[Any]) -> None:
        rows = list(self._aligned(node, new))
        if node.is_flow:
            self._flow_items(node, rows)
            return
        dash = column(self._text, dash_before(self._text, node.items[0].start))
        last: YamlNode | None = None
        waiting: list[Any] = []
        for item, value in rows:
            if item is None:
                waiting.append(value)
                continue
            if waiting:
                self._insert_items(waiting, dash, after=last, before=item)
                waiting = []
            if value is _GONE:
                self._take_item(item)
            else:
                self._visit(item, value, is_flow=False)
            last = item
        if waiting:
            self._insert_items(waiting, dash, after=last, before=None)

    def _take_item(self, item: YamlNode) -> None:
        at = dash_before(self._text, item.start)
        if self._text[
            self._text.rfind("\n", 0, at) + 1 : at
        ].strip():  # a nested list whose first item shares the line of the outer dash
            self._add(item.start, item.end, "null")
        else:
            self._take_lines(at, item.end)

    def _insert_items(self, values: list[Any], dash: int, *, after: YamlNode | None, before: YamlNode | None) -> None:
        pad, line_break = " " * dash, self._manner.newline
        rows = [f"{pad}- {block(value, self._manner, dash + 2)}" for value in values]
        if after is None and before is not None:
            at = self._text.rfind("\n", 0, dash_before(self._text, before.start)) + 1
            at = above_comments(self._text, at, dash)
            self._add(at, at, "".join(row + line_break for row in rows))
            return
        assert after is not None  # noqa: S101  (a block list has an item)
        at = after_comments(self._text, after.end, dash)
        lead = "" if self._text[:at].endswith("\n") else line_break
        self._add(at, at, lead + line_break.join(rows) + ("" if lead else line_break))

    def _flow_pairs(self, node: Mapping, gone: list[Any], added: list[Any]) -> None:
        spans = [(key.start, value.end) for key, value in node.pairs]
        keys = [key_of(key) for key, _ in node.pairs]
        kept = [pair not in gone for pair in node.pairs]
        inserted: dict[int, list[str]] = {}
        indent, is_wide = self._flow_place(node, spans)
        for before, values in added:
            position = keys.index(before) if before is not None else -1
            rows = [
                f"{self._flow_key(key)}: {flow(value, self._manner, indent, is_wide=is_wide)}"
                for key, value in values.items()
            ]
            inserted.setdefault(position, []).extend(rows)
        self._flow_edits(node, spans, kept, inserted, is_wide=is_wide)

    def _flow_key(self, key: str) -> str:
        return flow(key, self._manner, 0, is_wide=False)

    def _flow_items(self, node: Sequence, rows: list[tuple[YamlNode | None, Any]]) -> None:
        spans = [(item.start, item.end) for item in node.items]
        kept = [False] * len(spans)
        inserted: dict[int, list[str]] = {}
        indent, is_wide = self._flow_place(node, spans)
        last = -1
        for item, value in rows:
            if item is None:
                inserted.setdefault(last, []).append(flow(value, self._manner, indent, is_wide=is_wide))
                continue
            last = next(index for index, one in enumerate(node.items) if one is item)
            if value is not _GONE:
                kept[last] = True
                self._visit(item, value, is_flow=True)
        self._flow_edits(node, spans, kept, inserted, is_wide=is_wide)

    def _flow_place(self, node: YamlNode, spans: list[tuple[int, int]]) -> tuple[int, bool]:
        """Return the column of the entries in braces, and whether each entry has a line of its own."""
        if spans and "\n" in self._text[node.start : spans[0][0]]:
            return column(self._text, spans[0][0]), True
        return 0, False

    def _flow_edits(
        self,
        node: Mapping | Sequence,
        spans: list[tuple[int, int]],
        kept: list[bool],
        inserted: dict[int, list[str]],
        *,
        is_wide: bool,
    ) -> None:
        comma = ","
        if is_wide:
            comma += self._manner.newline + " " * column(self._text, spans[0][0])
        else:
            comma += " "
        if not any(kept):
            rows = [row for position in sorted(inserted) for row in inserted[position]]
            if spans and (rows or not is_wide):
                self._add(spans[0][0], spans[-1][1], comma.join(rows))
            elif rows or spans:
                self._add(node.inner, node.end - 1, comma.join(rows))
            return
        self._take_flow(spans, kept)
        for position, rows in inserted.items():
            at = next((index for index in range(position, -1, -1) if kept[index]), None)
            if at is None:
                self._add(spans[kept.index(True)][0], spans[kept.index(True)][0], comma.join([*rows, ""]))
            else:
                self._add(spans[at][1], spans[at][1], "".join(comma + row for row in rows))

    def _take_flow(self, spans: list[tuple[int, int]], kept: list[bool]) -> None:
        """Remove entries from braces, each run of them together with one comma."""
        index = 0
        while index < len(spans):
            if kept[index]:
                index += 1
                continue
            first = index
            while index < len(spans) and not kept[index]:
                index += 1
            if index < len(spans):
                start, end = spans[first][0], spans[index][0]
                pad = " " * column(self._text, start)
                notes = "".join(f"{one}{self._manner.newline}{pad}" for one in comments_in(self._text, start, end))
            else:
                start, end = spans[first - 1][1], spans[-1][1]
                notes = "".join(f" {one}{self._manner.newline}" for one in comments_in(self._text, start, end))
            self._add(start, end, notes)

    def _replace(self, node: YamlNode, new: Any, *, is_flow: bool) -> None:
        """Replace the value at a place by another."""
        is_block = isinstance(node, Mapping | Sequence) and not node.is_flow
        is_nested = isinstance(new, dict | list) and bool(new) and not is_flow and not self._manner.is_json
        line = self._text.rfind("\n", 0, node.start) + 1
        before = self._text[line : node.start]
        if is_block or (is_nested and not before.strip(" -")):
            self._replace_block(node, new, is_nested=is_nested)
        elif is_nested:
            opening = re.match(r"[ -]*", before)
            assert opening is not None  # noqa: S101  (matches everything)
            indent = opening.end() + (self._manner.dash if isinstance(new, list) else self._manner.step)
            start = line + len(before.rstrip(" "))
            written = block(new, self._manner, indent)
            self._add(start, node.end, f"{self._manner.newline}{' ' * indent}{written}")
        else:
            blank = " " if node.start == node.end and not before.endswith(" ") else ""
            self._add(node.start, node.end, blank + self._inline(node, new))

    def _replace_block(self, node: YamlNode, new: Any, *, is_nested: bool) -> None:
        """Replace a block by another value; the comments of the block stay above it."""
        indent = column(self._text, node.start)
        pad = self._manner.newline + " " * indent
        notes = "".join(f"{one}{pad}" for one in comments_in(self._text, node.start, node.end))
        tail = self._manner.newline if self._text[node.start : node.end].endswith("\n") else ""
        written = block(new, self._manner, indent) if is_nested else f"  {self._inline(node, new)}"
        self._add(node.start, node.end, f"{notes}{written}{tail}")

    def _inline(self, node: YamlNode, new: Any) -> str:
        if isinstance(new, dict | list):
            return flow(new, self._manner, 0, is_wide=False)
        return scalar(new, self._manner, node.style if isinstance(node, Scalar) else None)

    def _add(self, start: int, end: int, new: str) -> None:
        self._rank += 1
        self._edits.append(Edit(start, end, self._rank, new))
