"""docs/new-vendor.md: its code passes the contract suite, and its list of modules is complete."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import dra_driver.hardware
from dra_driver.base import flags
from dra_driver.hardware import vendors
from dra_driver.node.devices import describing
from tests.support.vendor_contract import VendorContract

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/new-vendor.md").read_text()
MODULE, BENCH = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
LINE = re.search(r"^    (RegisteredVendor\(\"toy\".*\)),$", PAGE, re.MULTILINE)[1]

VENDOR_FOLDERS = re.compile(r"hardware/(nvidia|amd|intel|gaudi|simulated)/")
NAMES = re.compile(r"nvidia|(?<![a-z])amd(?![a-z0-9])|radeon|rocm|(?<![a-z])intel(?![a-z])|gaudi|habana", re.IGNORECASE)
ROUGHLY = re.compile(re.sub(r"\(\?.*?\)", "", NAMES.pattern), re.IGNORECASE)

names_of_page = {"__name__": __name__}
exec(compile(BENCH, "docs/new-vendor.md", "exec"), names_of_page)


@pytest.fixture(autouse=True)
def toy(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put the page's vendor into the package and the registry."""
    folder = tmp_path_factory.mktemp("hardware")
    (folder / "toy").mkdir()
    (folder / "toy/__init__.py").write_text('"""Toy cards."""')
    (folder / "toy/vendor.py").write_text(MODULE)
    monkeypatch.setattr(dra_driver.hardware, "__path__", [*dra_driver.hardware.__path__, str(folder)])
    monkeypatch.setattr(flags, "VENDORS", (*flags.VENDORS, eval(LINE, vars(flags))))
    yield
    vendors.load_vendor.cache_clear()
    describing.rows_of.cache_clear()
    for name in [name for name in sys.modules if name.startswith("dra_driver.hardware.toy")]:
        del sys.modules[name]


class TestToy(names_of_page["TestToy"]):
    """The page's test, on the page's code."""


def test_the_pages_test_is_the_contract_suite() -> None:
    assert issubclass(TestToy, VendorContract)


def test_the_module_on_the_page_is_short() -> None:
    assert len(MODULE.splitlines()) <= 120


def test_the_modules_that_name_a_vendor_are_those_on_the_page() -> None:
    listed = set(re.findall(r"`([a-z_/]+\.py)`", PAGE.partition("## Where vendors are named")[2]))
    package = ROOT / "dra_driver"
    paths = (path for path in package.rglob("*.py") if "_proto" not in path.parts)
    naming = {str(path.relative_to(package)) for path in paths if _names_a_vendor(path)}
    assert {path for path in naming if not VENDOR_FOLDERS.match(path)} == listed


def _names_a_vendor(path: Path) -> bool:
    text = path.read_text()
    if not ROUGHLY.search(text):  # most modules, which need not be parsed
        return False
    tree = ast.parse(text)
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)]
    docstrings = {id(body[0].value) for body in bodies if body and isinstance(body[0], ast.Expr)}
    return any(NAMES.search(word) for node in ast.walk(tree) if id(node) not in docstrings for word in _words(node))


def _words(node: ast.AST) -> Iterator[str]:
    for name in ("id", "attr", "name", "arg", "module", "value"):
        if isinstance(word := getattr(node, name, None), str):
            yield word
