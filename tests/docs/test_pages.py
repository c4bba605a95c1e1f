"""All pages: every error code is in docs/troubleshooting.md, and every link and every named file and value exists."""

import re
from pathlib import Path

import pytest

from tests.docs.support.error_codes import SOURCE, error_codes

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
TROUBLES = ROOT / "docs" / "troubleshooting.md"
ROW = re.compile(r"^\| `([a-z]+\.[a-z-]+)` \| (.+?) \| (.+?) \|$", re.MULTILINE)


def test_every_error_code_of_the_source_is_explained():
    explained = {row[0] for row in ROW.findall(TROUBLES.read_text())}
    missing = {code: place for code, place in error_codes().items() if code not in explained}
    assert not missing, f"not in {TROUBLES.name}: {missing}"


def test_every_explained_code_is_in_the_source_and_explained_once():
    explained = [row[0] for row in ROW.findall(TROUBLES.read_text())]
    assert len(explained) == len(set(explained))
    source = "\n".join(path.read_text() for path in SOURCE.rglob("*.py"))
    for code in explained:
        assert f'"{code}"' in source or f'"{code.partition(".")[2]}"' in source, code


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_and_named_files_exist(page):
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (page.parent / target).exists(), target
    for name in re.findall(r"(?<![\w/])`?((?:deploy|examples|docs|deviceclasses)/[\w./-]*\w)", text):
        assert (ROOT / name).exists(), name


def test_every_value_that_a_page_names_exists_in_the_chart():
    import yaml

    values = yaml.safe_load((ROOT / "deploy/helm/values.yaml").read_text())
    named = set()
    for page in PAGES:
        named |= set(
            re.findall(r"`((?:agent|deviceClasses|driverManager|metrics|networkPolicy)\.[\w.]+)[`:=]", page.read_text())
        )
    assert named
    for name in named:
        level = values
        for part in name.split("."):
            assert part in level, name
            level = level[part]
