"""The modules of the pages: the origin of third-party ones, and what the console's own must not do."""

import hashlib
import json
import re
from pathlib import Path

import pytest

from dra_driver.tools.schemas import schema_of
from dra_driver.tools.world.access import DocumentKind

STATIC = Path(__file__).resolve().parents[3] / "dra_driver" / "tools" / "console" / "static"
VENDOR = STATIC / "vendor"
OURS = sorted(path for path in STATIC.rglob("*.js") if VENDOR not in path.parents)


def test_every_vendored_file_is_pinned_and_there_are_no_others():
    packages = json.loads((VENDOR / "vendor.json").read_text())["packages"]
    pinned = {name: digest for one in packages for name, digest in one["sha256"].items()}
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in VENDOR.iterdir()}
    found.pop("vendor.json")
    assert found == pinned
    for one in packages:
        assert one["integrity"].startswith("sha512-")
        assert one["license"] == "MIT"
        assert any(name.endswith(".LICENSE") for name in one["files"])


@pytest.mark.parametrize("path", [*OURS, *sorted(VENDOR.glob("*.js"))], ids=lambda path: path.name)
def test_a_module_imports_files_only(path):
    for name in re.findall(r"""^\s*(?:import|export)[^;'"]*?from\s*['"]([^'"]+)['"]""", path.read_text(), re.MULTILINE):
        assert name.startswith(("./", "../")), name
        imported = (path.parent / name).resolve()
        assert imported.is_relative_to(STATIC), name
        assert imported.is_file(), name


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_no_module_of_ours_makes_elements_from_markup_or_code_from_text(path):
    text = path.read_text()
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "DOMParser",
    ):
        assert word not in text


def test_no_page_contains_the_address_of_another_host():
    for path in [*OURS, STATIC / "index.html", *STATIC.glob("*.css")]:
        assert re.findall(r"(?:https?:)?//[\w.-]+\.\w+", path.read_text()) == [], path.name


_NO_DOCUMENTS = {"selector/completions", "offers"}
_KINDS = {
    "summary": DocumentKind.FLEET_SUMMARY,
    "attention": DocumentKind.ATTENTION,
    "fleet": DocumentKind.FLEET_PAGE,
    "device": DocumentKind.DEVICE_PAGE,
    "claims": DocumentKind.CLAIMS_PAGE,
    "claim": DocumentKind.CLAIM_PAGE,
    "explanation": DocumentKind.EXPLANATION,
    "what-if": DocumentKind.WHAT_IF,
    "selector": DocumentKind.SELECTOR_PLAY,
    "selector/explain": DocumentKind.SELECTOR_EXPLANATIONS,
    "doctor": DocumentKind.DOCTOR_REPORT,
    "usage": DocumentKind.USAGE_REPORT,
    "dashboard": DocumentKind.DASHBOARD,
    "readings": DocumentKind.READINGS,
    "history": DocumentKind.HISTORY,
}
_TYPES = {"array": "list", "object": "object", "string": "text", "integer": "number", "boolean": "boolean"}


def _type_of(shape):
    found = "string" if all(isinstance(one, str) for one in shape.get("enum", [None])) else shape.get("type")
    return _TYPES.get(found) if isinstance(found, str) else None


def test_pages_rely_on_the_fields_that_the_schemas_of_their_answers_require():
    text = (STATIC / "common" / "answers.js").read_text()
    table = json.loads(text.partition("const FIELDS = ")[2].partition(";\n")[0])
    asked = {name for path in OURS for name in re.findall(r"""\bask\("([\w/-]+)\"""", path.read_text())}
    assert table.keys() == _KINDS.keys() | _NO_DOCUMENTS == asked
    for question, kind in _KINDS.items():
        shapes = {name: _type_of(shape) for name, shape in schema_of(kind)["properties"].items()}
        assert table[question] == {name: found for name, found in shapes.items() if found}, question


def test_every_question_has_an_answer_and_a_time_limit():
    from dra_driver.tools.console.worker import ANSWERS, SECONDS

    assert SECONDS.keys() == ANSWERS.keys()
