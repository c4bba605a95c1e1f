"""The pages of the site: the documents of the repository, each as a page, with links that lead to pages.

In: the repository. Out: files below a folder. What a document links to becomes a page, too: other documents, manifests,
folders. A link to nothing, or to a heading that no page has, fails the build. All addresses are relative, so the folder
may lie anywhere, also below a version, and opens as files.
"""

from __future__ import annotations

import html
import json
import os
import posixpath
import re
import shutil
from pathlib import Path
from string import Template

from documents import Document, folder, listing, rendered

import dra_driver

ROOT = Path(__file__).resolve().parents[2]
STATIC = Path(__file__).with_name("static")
CONSOLE = ROOT / "dra_driver" / "tools" / "console" / "static"
BEGIN = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
CONTENTS = "docs/README.md"
_PICTURES = (".png", ".svg")
_MAX_WORDS = 1_200  # characters of a section that the search shows and finds; a listing of a file has no end otherwise
_POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'"


class BrokenLinkError(Exception):
    """Links that lead nowhere, one on a line."""


def address_of(path: str) -> str:
    """Return where the page of a file or folder of the repository lies in the site.

    >>> [address_of(path) for path in ("README.md", "docs/README.md", "docs/mig.md", "examples/a.yaml")]
    ['index.html', 'docs/index.html', 'docs/mig.html', 'examples/a.yaml.html']
    """
    if path.endswith(_PICTURES):
        return path
    if posixpath.basename(path) == "README.md":
        return posixpath.join(posixpath.dirname(path), "index.html")
    if path.endswith(".md"):
        return f"{path.removesuffix('.md')}.html"
    return posixpath.join(path, "index.html") if (ROOT / path).is_dir() else f"{path}.html"


class Pages:
    """All pages, found from the first documents by their links."""

    def __init__(self) -> None:
        self.documents: dict[str, Document] = {}
        self.pictures: set[str] = set()
        self._links: list[tuple[str, str, str]] = []  # from a path, to a path, to an anchor
        self._faults: list[str] = []
        self._waiting = [*BEGIN, *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]
        while self._waiting:
            self._add(self._waiting.pop(0))
        self._check()

    def _add(self, path: str) -> None:
        if path in self.documents:
            return
        if (ROOT / path).is_dir():
            self.documents[path] = folder(path, self._entries(path))
        elif path.endswith(".md"):
            self.documents[path] = rendered((ROOT / path).read_text("utf-8"), lambda link: self._target(path, link))
        else:
            self.documents[path] = listing(path, (ROOT / path).read_text("utf-8"))

    def _entries(self, path: str) -> list[tuple[str, str]]:
        found = []
        for one in sorted((ROOT / path).iterdir()):
            if one.is_file() and one.suffix in {".md", ".yaml", ".json", ".py"}:
                found.append((one.name, self._target(f"{path}/README.md", one.name)))
            elif one.is_dir() and not one.name.startswith(("_", ".")):
                found.append((f"{one.name}/", ""))
        return found

    def _target(self, origin: str, link: str) -> str:
        """Return the address to which a link of a document leads, and wait for that page."""
        if re.match(r"[a-z]+:", link):
            return link
        named, _, anchor = link.partition("#")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), named)) if named else origin
        if path.startswith("..") or not (ROOT / path).exists():
            self._faults.append(f"{origin}: {link}: there is no such file")
            return link
        if (ROOT / path / "README.md").exists():
            path = posixpath.join(path, "README.md")
        if path.endswith(_PICTURES):
            self.pictures.add(path)
        else:
            self._waiting.append(path)
            self._links.append((origin, path, anchor))
        address = posixpath.relpath(address_of(path), posixpath.dirname(address_of(origin)) or ".")
        return f"{address}#{anchor}" if anchor else address

    def _check(self) -> None:
        for origin, path, anchor in self._links:
            if anchor and anchor not in self.documents[path].anchors:
                self._faults.append(f"{origin}: {path}#{anchor}: there is no such heading")
        if self._faults:
            raise BrokenLinkError("\n".join(self._faults))


def write_pages(pages: Pages, out: Path, *, has_playground: bool) -> None:
    """Write all pages, the pictures, the search index, and what pages load."""
    template = Template((STATIC / "page.html").read_text("utf-8"))
    first = Template((STATIC / "first.html").read_text("utf-8"))
    for path, document in pages.documents.items():
        address = address_of(path)
        up = "../" * address.count("/")
        body = document.body
        if path == "README.md":
            body = first.substitute(body=body.partition("</h1>")[2], version=dra_driver.__version__)
        content = template.substitute(
            title=html.escape(document.title if path != "README.md" else "GPUs for Kubernetes"),
            version=dra_driver.__version__,
            policy=_POLICY,
            up=up,
            contents=_contents(pages, path, up),
            body=body,
            kind="first" if path == "README.md" else "page",
        )
        file = out / address
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content if has_playground else _without_playground(content), "utf-8")
    for picture in sorted(pages.pictures):
        (out / picture).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / picture, out / picture)
    index = f"window.searchIndex = {json.dumps(search_index(pages), ensure_ascii=True, separators=(',', ':'))};\n"
    (out / "search-index.js").write_text(index)
    write_style(out)


def write_style(out: Path) -> None:
    """Write the styles and scripts of pages. The colours are those of the console, from its own file."""
    colours = (CONSOLE / "style.css").read_text("utf-8").partition("* { box-sizing")[0]
    (out / "site.css").write_text(colours + (STATIC / "site.css").read_text("utf-8"), "utf-8")
    for name in ("theme.js", "search.js"):
        shutil.copyfile(STATIC / name, out / name)
    shutil.copyfile(CONSOLE / "icon.svg", out / "icon.svg")


def _without_playground(content: str) -> str:
    """Leave out what leads to the playground."""
    return re.sub(r"<a [^>]*data-playground[^>]*>.*?</a>", "", content, flags=re.DOTALL)


def _contents(pages: Pages, path: str, up: str) -> str:
    """Return the navigation: the sections of the page of all pages, each with the pages that it leads to."""
    parts = []
    for section in re.split(r"^## ", (ROOT / CONTENTS).read_text("utf-8"), flags=re.MULTILINE)[1:]:
        title, _, rest = section.partition("\n")
        targets = [posixpath.normpath(posixpath.join("docs", one)) for one in re.findall(r"\]\(([^)#:]+\.md)\)", rest)]
        links = "".join(
            f'<li><a href="{up}{address_of(one)}"{_current(one, path)}>{html.escape(_short(pages, one))}</a></li>'
            for one in dict.fromkeys(targets)
        )
        parts.append(f"<h2>{html.escape(title)}</h2><ul>{links}</ul>")
    return "".join(parts)


def _current(one: str, path: str) -> str:
    return ' aria-current="page"' if one == path else ""


def _short(pages: Pages, path: str) -> str:
    """Return a title that fits into the navigation."""
    return re.split(r"[:,.(]| \N{EN DASH} ", pages.documents[path].title)[0].strip()


def search_index(pages: Pages) -> list[list[str]]:
    """Return an entry for each section: the address, the title of the page, the heading, and the words below it."""
    found = []
    for path, document in pages.documents.items():
        for one in document.sections:
            if one.heading or one.words:
                address = f"{address_of(path)}#{one.anchor}" if one.anchor else address_of(path)
                found.append([address, document.title, one.heading, one.words[:_MAX_WORDS]])
    return found


def empty(out: Path) -> None:
    """Remove an earlier site. Exits for a folder that is not one, so that no wrong path removes what somebody needs."""
    if out.exists() and os.listdir(out) and not (out / "search-index.js").exists():  # noqa: PTH208
        raise SystemExit(f"{out} exists and is no site: remove it, or choose another folder")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
