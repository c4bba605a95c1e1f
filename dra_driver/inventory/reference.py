"""Reference: what every vendor's devices are published with, as pages for users, and their classes as files.

In: the tables and texts that vendors declare. Out: Markdown below docs/ and YAML below deviceclasses/, written by
`make docs` (`python -m dra_driver.inventory.reference`). A test checks that files and tables agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from dra_driver.hardware.published import COMPUTE, MEMORY_SLICES_TABLED, Owner, Published, ValueKind
from dra_driver.hardware.vendors import Vendor, VendorClass, load_vendor
from dra_driver.inventory.vendors import Rows, rows_of
from dra_driver.model.shares import DeviceType
from dra_driver.model.vendors import VENDORS


def files() -> Iterator[tuple[str, str]]:
    """Yield the path below the repository and the text of each file that is made from what vendors declare."""
    for registered in VENDORS:
        vendor = load_vendor(registered.name)
        yield f"docs/{vendor.page.file}", render_page(vendor, rows_of(registered.name))
        for one in vendor.generated_classes:
            yield f"deviceclasses/{one.name}.yaml", render_class(one)


def render_page(vendor: Vendor, rows: Rows) -> str:
    """Return the page of a vendor's devices."""
    shown = set().union(*rows.values())
    table = [row for row in (*vendor.rows, *vendor.page.more) if row in shown or row in vendor.page.more]
    parts = [
        vendor.page.introduction,
        _table("Attributes", vendor, rows, (row for row in table if row.kind is not ValueKind.QUANTITY)),
        _table("Capacities", vendor, rows, (row for row in table if row.kind is ValueKind.QUANTITY)),
        *([_closing(vendor, rows)] if vendor.page.closing else []),
    ]
    return "\n".join(parts)


def _table(title: str, vendor: Vendor, rows: Rows, table: Iterable[Published]) -> str:
    lines = [
        f"## {title}",
        "",
        "| name | kind | unit | on | from | rank | since | meaning |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in table:
        owner = vendor.title if row.owner is Owner.VENDOR else row.owner
        values = (f"`{row.name}`", row.kind, row.unit, _carriers(row, rows), owner, row.rank or "", row.since)
        lines.append(f"| {' | '.join(map(str, values))} | {row.meaning} |")
    return "\n".join(lines) + "\n"


def _carriers(row: Published, rows: Rows) -> str:
    """Return the types of devices that carry a row. A share has room for fewer names than a whole device."""
    types = [kind for kind in DeviceType if row in rows[kind]] or row.types
    return "all" if len(types) == sum(bool(carried) for carried in rows.values()) else ", ".join(types)


def _closing(vendor: Vendor, rows: Rows) -> str:
    counts = {kind.replace("-", "_"): sum(row.name != COMPUTE for row in carried) for kind, carried in rows.items()}
    return vendor.page.closing.format(**counts, slices=MEMORY_SLICES_TABLED)


def render_class(declared: VendorClass) -> str:
    """Return the file of a DeviceClass."""
    notes = "\n".join(f"# {line}".rstrip() for line in declared.notes.rstrip().splitlines())
    return f"""{notes}
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata:
  name: {declared.name}
spec:
  selectors:
    - cel:
        expression: {declared.expression}
"""


if __name__ == "__main__":
    for path, text in files():
        Path(path).write_text(text)
