"""A big List, or many documents, in YAML as kubectl writes them, read without holding the text in memory.

In: an open file. Out: its documents, exactly as `load_yaml` reads them. The text is divided at the entries of a List,
or at the lines `---`. An entry that is like an earlier one is recognised by its text; any other is parsed separately.
The result is the same as that of parsing the whole text: a complete entry leaves nothing open for the next one, an
entry that refers to another one can't be parsed separately, and the text around the entries is parsed with a
placeholder instead of them. A text that can't be divided in this way is refused, and is left to `load_yaml`.
"""

from __future__ import annotations

import codecs
import re
from typing import Any, BinaryIO

from dra_driver.documents.json_stream import Entries
from dra_driver.documents.yaml_text import open_yaml
from dra_driver.documents.yaml_values import load_yaml

_CHUNK = 1 << 20  # bytes
_MAX_HEAD = 4096  # characters before the first entry
_MAX_TAIL = 65_536  # characters after the last one
_HEAD = re.compile(r"(?:[^\n]*\n){0,50}?items:[ ]*\n(?P<indent> *)- ")
_MARK = "---\n"
_PLACEHOLDER = 0


class _YamlText:
    """The part of the text that is in memory, and the current position in it (`place`)."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._decode = codecs.getincrementaldecoder("utf-8-sig")()
        self.text, self.place, self.is_whole = "", 0, False
        self._longest = 0

    def more(self) -> None:
        """Read more: as much again as is left, at least a chunk."""
        raw = self._file.read(max(_CHUNK, len(self.text) - self.place))
        self.is_whole = not raw
        self.text = self.text[self.place :] + self._decode.decode(raw, final=self.is_whole)
        self.place = 0

    def begins(self, mark: str, ahead: int = 0) -> bool:
        """Return whether a mark begins at the current position, or `ahead` characters after it."""
        while len(self.text) - self.place < ahead + len(mark) and not self.is_whole:
            self.more()
        return self.text.startswith(mark, self.place + ahead)

    def known(self, entries: Entries, mark: str) -> Any:
        """Return and skip the entry at the current position if it is recognised and a mark follows; otherwise None."""
        if len(self.text) - self.place < self._longest and not self.is_whole:
            self.more()  # an entry that is only half in memory can't be recognised
        found = entries.take(self.text, self.place)
        if found is None:
            return None
        length = found[1] - self.place
        if not self.begins(mark, length):
            return None
        self.place += length
        return found[0]

    def until(self, end: re.Pattern[str]) -> str:
        """Return and skip the text up to the next match of `end`; all of it if there is none."""
        ahead = 1
        while not (found := end.search(self.text, self.place + ahead)) and not self.is_whole:
            ahead = max(1, len(self.text) - self.place - _MAX_HEAD)
            self.more()
        until = found.end() if found else len(self.text)
        text, self.place = self.text[self.place : until], until
        self._longest = min(max(self._longest, 2 * len(text)), _CHUNK)
        return text

    def rest(self) -> str:
        """Return the rest of the text. Raises: ValueError if it is long."""
        while not self.is_whole and len(self.text) - self.place <= _MAX_TAIL:
            self.more()
        if len(self.text) - self.place > _MAX_TAIL:
            raise ValueError("more than a few lines after the list")
        return self.text[self.place :]


def load_yaml_stream(file: BinaryIO, entries: Entries) -> list[Any]:
    """Read the documents of a file; `entries` decides what is kept of the entries of a List, or of the documents.

    Raises: ValueError for a file that can't be read piece by piece, yaml.YAMLError, TooDeepError. `load_yaml` may still
    be able to read such a file.
    """
    text = _YamlText(file)
    text.more()
    head = _HEAD.match(text.text, 0, _MAX_HEAD)
    return [_list(text, head, entries)] if head else _documents(text, entries)


def _list(text: _YamlText, head: re.Match[str], entries: Entries) -> Any:
    """Read a List whose first entry begins where `head` ends."""
    indent = head["indent"]
    before, mark = text.text[: head.start("indent")], f"{indent}- "
    end = re.compile(rf"\n(?= {{0,{len(indent)}}}[^ \n\r#])")
    text.place = head.start("indent")
    items: list[Any] = []
    while text.begins(mark):
        if (found := text.known(entries, mark)) is None:
            found = _entry(text.until(end), entries)
        items.append(found)
    around = list(load_yaml(f"{before}{mark}{_PLACEHOLDER}\n{text.rest()}"))
    if len(around) != 1 or not isinstance(around[0], dict) or around[0].get("items") != [_PLACEHOLDER]:
        raise ValueError("not a List")
    return {**around[0], "items": items}


def _entry(text: str, entries: Entries) -> Any:
    found = list(load_yaml(text))
    if len(found) != 1 or not isinstance(found[0], list) or len(found[0]) != 1:
        raise ValueError("not one entry")
    return entries.parsed(text, found[0][0], open_yaml)


def _documents(text: _YamlText, entries: Entries) -> list[Any]:
    """Read documents that begin with a line `---`; the first may begin without one."""
    end = re.compile(r"\n(?=---\n)")
    found: list[Any] = []
    if not text.begins(_MARK):
        found += list(load_yaml(text.until(end)))
        if len(found) > 1:
            raise ValueError("documents that do not begin with a line ---")
    while text.begins(_MARK):
        if (one := text.known(entries, _MARK)) is None:
            one = _document(text.until(end), entries)
        found.append(one)
    if text.rest():
        raise ValueError("no line --- where a document ends")
    return found


def _document(text: str, entries: Entries) -> Any:
    found = list(load_yaml(text))
    if len(found) != 1:
        raise ValueError("not one document")
    return entries.parsed(text, found[0], open_yaml)
