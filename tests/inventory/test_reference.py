from pathlib import Path

from dra_driver.inventory.attributes import ROWS
from dra_driver.inventory.reference import render, render_amd

PAGE = Path(__file__).parents[2] / "docs" / "attributes.md"


def test_the_page_is_what_the_table_gives():
    assert PAGE.read_text() == render(), "run make docs"
    assert PAGE.with_name("attributes-amd.md").read_text() == render_amd(), "run make docs"


def test_every_published_name_stands_on_the_page():
    page = render()
    assert all(f"| `{row.name}` |" in page for rows in ROWS.values() for row in rows)
    assert "| `memorySlice<i>` |" in page
