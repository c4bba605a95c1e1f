"""The site: its pages lead to each other and to nothing else, and what its playground loads is what it may load."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from dra_driver.base.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "deploy" / "site"
CONSOLE = ROOT / "dra_driver" / "tools" / "console" / "static"


@pytest.fixture
def site_module(monkeypatch):
    """Return a function that imports a module of the builder."""
    for folder in (SITE, SITE.parent):
        monkeypatch.syspath_prepend(str(folder))
    before = set(sys.modules)
    yield import_module
    for name in set(sys.modules) - before:
        if name in {"documents", "pages", "playground", "vendor"}:
            del sys.modules[name]


@pytest.fixture(scope="module")
def docs(tmp_path_factory):
    out = tmp_path_factory.mktemp("site") / "docs"
    subprocess.run([sys.executable, str(SITE), "--out", str(out), "--without-playground"], cwd=ROOT, check=True)
    return out


class Page(HTMLParser):
    """The addresses and anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.policy = ""
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        assert not [name for name in values if name.startswith("on") or name == "style"], tag
        if "id" in values:
            assert values["id"] not in self.anchors, values["id"]
            self.anchors.add(values["id"])
        if tag == "a":
            self.links.append(values["href"])
        elif "src" in values or tag == "link":
            self.loaded.append(values.get("src") or values["href"])
        if values.get("http-equiv") == "Content-Security-Policy":
            self.policy = values["content"]


def test_every_link_leads_to_a_page_of_the_site_and_to_a_heading_that_it_has(docs):
    pages = {path: Page(path) for path in docs.rglob("*.html")}
    assert docs / "docs" / "selectors.html" in pages
    assert docs / "docs" / "decisions" / "index.html" in pages
    for path, page in pages.items():
        for link in [*page.links, *page.loaded]:
            if re.match(r"https?:", link):
                assert link in page.links, f"{path} loads {link}"
                continue
            address, _, anchor = link.partition("#")
            target = (path.parent / address).resolve() if address else path
            assert target.is_relative_to(docs.resolve()), f"{path}: {link}"
            assert target.is_file(), f"{path}: {link}"
            assert not anchor or anchor in pages[target].anchors, f"{path}: {link}"


def test_no_page_may_load_anything_that_is_not_of_the_site_or_run_code_in_it(docs):
    for path in docs.rglob("*.html"):
        policy = Page(path).policy
        assert policy.startswith("default-src 'none'"), path
        assert "unsafe" not in policy
        assert not re.search(r"<script(?![^>]*\bsrc=)", path.read_text())
    playground = (SITE / "playground.py").read_text()
    assert re.findall(r"'(?:unsafe|wasm-unsafe)-\w+'", playground) == ["'wasm-unsafe-eval'"]


def test_docs_without_a_playground_do_not_lead_to_one(docs):
    assert "playground/index.html" not in (docs / "index.html").read_text()


def test_the_search_knows_every_section_by_an_address_that_exists(docs):
    text = (docs / "search-index.js").read_text()
    sections = json.loads(text.removeprefix("window.searchIndex = ").rstrip(";\n"))
    assert {address.partition("#")[0] for address, *_ in sections} >= {"index.html", "docs/mig.html"}
    assert ["docs/selectors.html#which-devices-match", "Which devices match"] in [one[:3:2] for one in sections]
    for address, *_ in sections:
        assert (docs / address.partition("#")[0]).is_file(), address


def test_an_earlier_site_is_replaced_and_any_other_folder_is_kept(tmp_path, site_module):
    pages = site_module("pages")
    (tmp_path / "mine").write_text("")
    with pytest.raises(SystemExit, match="is no site"):
        pages.empty(tmp_path)
    (tmp_path / "search-index.js").write_text("")
    pages.empty(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("link", "fault"),
    [
        ("gone.md", "docs/a.md: gone.md: there is no such file"),
        ("../../etc/passwd", "docs/a.md: ../../etc/passwd: there is no such file"),
        ("b.md#there", "docs/a.md: docs/b.md#there: there is no such heading"),
        ("#there", "docs/a.md: docs/a.md#there: there is no such heading"),
    ],
)
def test_a_broken_link_fails_the_build(link, fault, tmp_path, site_module, monkeypatch):
    pages = site_module("pages")
    (tmp_path / "docs").mkdir()
    for name in (*pages.BEGIN, "docs/README.md", "docs/b.md"):
        (tmp_path / name).write_text("# A page\n")
    (tmp_path / "docs" / "a.md").write_text(f"# Another\n[a link]({link})\n")
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    with pytest.raises(pages.BrokenLinkError) as caught:
        pages.Pages()
    assert str(caught.value) == fault


def test_markup_in_a_document_is_text_and_a_comment_is_nothing(site_module):
    documents = site_module("documents")
    text = "# A <b>title</b>\n<!-- hidden -->\n<script>alert(1)</script>\n\n[x](javascript:alert(1)) `<i>`\n"
    document = documents.rendered(text, lambda link: link)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in document.body
    assert "hidden" not in document.body
    assert not re.search(r"<(?:script|b|i)\b|href=", document.body)


def test_headings_of_one_name_have_anchors_of_their_own(site_module):
    documents = site_module("documents")
    document = documents.rendered("# One\n## Two `x`, three\nwords\n## Two x three\n", lambda link: link)
    assert document.anchors == {"one", "two-x-three", "two-x-three-1"}
    assert [(one.heading, one.words) for one in document.sections][2] == ("Two x, three", "words")


# What the playground loads.


def test_packages_are_pinned_by_hash():
    for one in json.loads((SITE / "packages.json").read_text())["packages"]:
        assert len(base64.b64decode(one["integrity"].removeprefix("sha512-"))) == 64
        assert re.fullmatch(r"\d+\.\d+\.\d+", one["version"])


def imported(repository: Path) -> subprocess.CompletedProcess[str]:
    package = str(Path(yaml.__file__).parent)
    command = [sys.executable, "-I", "-S", str(SITE / "browser" / "imported.py"), str(repository), package]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_engine_in_the_browser_imports_the_standard_library_and_pyyaml_alone():
    done = imported(ROOT)
    assert done.returncode == 0, done.stderr
    assert "dra_driver.selectors.kubernetes" in done.stdout.split()
    ours = [name for name in done.stdout.split() if name.startswith("dra_driver.")]
    assert not [name for name in ours if name.startswith(("dra_driver.hardware.simulated", "dra_driver.node.daemon"))]


def test_an_engine_that_imports_another_package_is_refused(tmp_path):
    (tmp_path / "dra_driver" / "base").mkdir(parents=True)
    (tmp_path / "dra_driver" / "base" / "errors.py").write_text("import click\n")
    done = imported(tmp_path)
    assert done.returncode == 1
    assert "No module named 'click'" in done.stderr


def test_re2_is_imported_by_one_function_alone():
    pattern = re.compile(r"^\s*(?:import re2|from re2 import)\b", re.MULTILINE)
    found = [path for path in (ROOT / "dra_driver").rglob("*.py") for _ in pattern.findall(path.read_text())]
    assert found == [ROOT / "dra_driver" / "selectors" / "functions" / "strings.py"]


def test_the_modules_in_place_of_the_consoles_export_what_its_page_imports():
    names = {"api.js", "address.js"}
    named = re.compile(r"^export .*?(\w+)(?: =|\(| extends)", re.MULTILINE)
    exported = {name: set(named.findall((SITE / "static" / "playground" / name).read_text())) for name in names}
    paths = [*(CONSOLE / "playground").glob("*.js"), *(CONSOLE / "common" / name for name in ("visit.js", "faults.js"))]
    seen = set()
    for path in paths:
        for wanted, name in re.findall(r'import \{ ([^}]*) \} from "[./a-z]*/(\w+\.js)"', path.read_text()):
            if name in names:
                seen.add(name)
                assert set(wanted.split(", ")) <= exported[name], path
    assert seen == names


@pytest.fixture
def ported(monkeypatch):
    """Return a function that compiles a pattern with a port that answers with a message."""

    def compiled(pattern: str, message: str = ""):
        program = SimpleNamespace(next=lambda text: ["b", 1, 2], all=lambda text: [["b", 1, 2]])
        port = SimpleNamespace(compile=lambda _: (program, message))
        monkeypatch.setitem(sys.modules, "re2_port", port)
        spec = spec_from_file_location("ported_re2", SITE / "browser" / "re2.py")
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        try:
            return module.compile(pattern, module.Options())
        except module.error as fault:
            return str(fault)

    return compiled


def test_the_ported_re2_answers_with_the_interface_of_the_other(ported):
    program = ported("b")
    assert program.search("abc").group() == "b"
    assert [(one.start(), one.end()) for one in program.finditer("abc")] == [(1, 2)]


@pytest.mark.parametrize("pattern", [r"a\B", r"\pL{1000}", "(a{20}){20}", "a" * 1001])
def test_a_pattern_on_which_the_port_may_differ_is_not_judged(pattern, ported):
    with pytest.raises(InputError, match="can't be judged in a browser"):
        ported(pattern)
    assert ported("a{100}")


def test_the_messages_of_the_port_are_those_of_re2(ported):
    assert ported("[", "error parsing regexp: missing closing ]: `[`") == "missing closing ]: ["
    assert ported("(?<!a)", "error parsing regexp: invalid named capture: `(?<!a)`") == "invalid perl operator: (?<!"
    with pytest.raises(InputError):
        ported("(?P<n>a)(?<n>b)", "error parsing regexp: duplicate capture group name: `n`")
