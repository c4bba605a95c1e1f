"""Pages of the site from Markdown: what one document becomes, with its sections for the search.

In: Markdown, and a function that says where a link leads. Out: HTML, the title, the anchors of its headings, and the
words of each section. Markup in a document is text: only its comments are left out.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markdown_it import MarkdownIt
from markdown_it.token import Token

Target = Callable[[str], str]  # from a link as it is written to the one of the site
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with the words below it. `anchor` is "" for what stands before the first heading."""

    anchor: str
    heading: str
    words: str


@dataclass(frozen=True, slots=True)
class Document:
    """A document as HTML. `sections` are in order; the first heading is the title."""

    title: str
    body: str
    sections: tuple[Section, ...]

    @property
    def anchors(self) -> frozenset[str]:
        """The anchors that links may name."""
        return frozenset(one.anchor for one in self.sections if one.anchor)


def rendered(markdown: str, target: Target) -> Document:
    """Return a document as HTML, with links and pictures that lead to where `target` says."""
    reader = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    tokens = list(_without_markup(reader.parse(markdown)))
    _anchor(tokens)
    for token in _all(tokens):
        for name in ("href", "src"):
            if name in token.attrs:
                token.attrs[name] = target(str(token.attrs[name]))
        if token.type == "image":
            token.attrSet("loading", "lazy")
    sections = tuple(_sections(tokens))
    title = next((one.heading for one in sections if one.anchor), "")
    return Document(title, _scrollable(reader.renderer.render(tokens, reader.options, {})), sections)


def _all(tokens: Sequence[Token]) -> Iterator[Token]:
    for token in tokens:
        yield token
        yield from _all(token.children or ())


def _without_markup(tokens: Sequence[Token]) -> Iterator[Token]:
    """Yield the tokens; markup among them becomes text, and comments are left out."""
    for token in tokens:
        if token.type in {"html_block", "html_inline"}:
            token.content = _COMMENT.sub("", token.content)
            if not token.content.strip():
                continue
            token.type = "text"
        if token.children:
            token.children = list(_without_markup(token.children))
        yield token


def _anchor(tokens: Sequence[Token]) -> None:
    """Add an anchor to every heading, as GitHub does."""
    known: dict[str, int] = {}
    for token, inline in pairwise(tokens):
        if token.type == "heading_open":
            name = anchor_of(_text(inline))
            known[name] = known.get(name, -1) + 1
            token.attrSet("id", f"{name}-{known[name]}" if known[name] else name)


def anchor_of(heading: str) -> str:
    """Return the anchor of a heading.

    >>> anchor_of("What `cel test` says, and why")
    'what-cel-test-says-and-why'
    """
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def _text(token: Token) -> str:
    return "".join(one.content if one.type in {"text", "code_inline"} else " " for one in token.children or ())


def _sections(tokens: Sequence[Token]) -> Iterator[Section]:
    anchor = heading = ""
    words: list[str] = []
    for at, token in enumerate(tokens):
        if token.type == "heading_open":
            yield Section(anchor, heading, " ".join(" ".join(words).split()))
            anchor, heading, words = str(token.attrs["id"]), _text(tokens[at + 1]).strip(), []
        elif token.type == "inline" and (at == 0 or tokens[at - 1].type != "heading_open"):
            words.append(_text(token))
        elif token.type in {"fence", "code_block"}:
            words.append(token.content)
    yield Section(anchor, heading, " ".join(" ".join(words).split()))


def _scrollable(body: str) -> str:
    """Make wide tables and code scroll alone, also by keys."""
    body = body.replace("<pre>", '<pre tabindex="0">')
    body = body.replace("<table>", '<div class="wide" role="group" aria-label="Table" tabindex="0"><table>')
    return body.replace("</table>", "</table></div>")


def listing(path: str, content: str) -> Document:
    """Return the document of a file that is no Markdown, such as a manifest: its text."""
    body = f'<h1 id="file">{html.escape(path)}</h1>\n<pre tabindex="0"><code>{html.escape(content)}</code></pre>\n'
    return Document(path, body, (Section("file", path, " ".join(content.split())),))


def folder(path: str, entries: Sequence[tuple[str, str]]) -> Document:
    """Return the document of a folder: the names of its entries with their addresses, "" for one without a page."""
    lines = (
        f'<li><a href="{html.escape(address)}">{html.escape(name)}</a></li>'
        if address
        else f"<li>{html.escape(name)}</li>"
        for name, address in entries
    )
    body = f'<h1 id="folder">{html.escape(path)}/</h1>\n<ul>{"".join(lines)}</ul>\n'
    return Document(f"{path}/", body, (Section("folder", path, " ".join(name for name, _ in entries)),))
