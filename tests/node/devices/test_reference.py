from pathlib import Path

import pytest

from dra_driver.base.flags import VENDORS
from dra_driver.hardware.vendors import load_vendor
from dra_driver.node.devices.describing import files, rows_of

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("path", [path for path, _ in files()])
def test_every_page_and_class_is_what_its_vendor_declares(path: str) -> None:
    assert (ROOT / path).read_text() == dict(files())[path], "run make docs"


@pytest.mark.parametrize("vendor", [vendor.name for vendor in VENDORS])
def test_every_published_name_is_on_the_page(vendor: str) -> None:
    declared = load_vendor(vendor)
    page = dict(files())[f"docs/{declared.page.file}"]
    rows = (*declared.page.more, *(row for carried in rows_of(vendor).values() for row in carried))
    assert all(f"| `{row.name}` |" in page for row in rows)
