"""The modules of the pages: the origin of third-party ones, and what the console's own must not do."""

import hashlib
import json
import re
from pathlib import Path

import pytest

STATIC = Path(__file__).resolve().parents[2] / "dra_driver" / "web" / "static"
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


def test_every_question_has_an_answer_and_a_time_limit():
    from dra_driver.web.worker.bounds import SECONDS
    from dra_driver.web.worker.questions import ANSWERS

    assert SECONDS.keys() == ANSWERS.keys()
