"""The table of every value in docs/install.md, made from the chart's schema and defaults.

    python deploy/values_table.py [--check]

In: values.schema.json (what each value is for), values.yaml (its default). Out: the part of the page between its two
marks. `--check` writes nothing and exits with 1 if the page is not up to date.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "install.md"
BEGIN, END = "<!-- values: begin (deploy/values_table.py) -->\n", "<!-- values: end -->\n"


def main() -> int:
    """Write the table, or check it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    is_check = parser.parse_args().check
    before = PAGE.read_text()
    head, rest = before.split(BEGIN)
    after = head + BEGIN + table() + END + rest.split(END)[1]
    if not is_check:
        PAGE.write_text(after)
    elif after != before:
        print("the table in docs/install.md is out of date: run deploy/values_table.py", file=sys.stderr)
    return int(is_check and after != before)


def table() -> str:
    """Return the table as Markdown."""
    schema = json.loads((HERE / "helm" / "values.schema.json").read_text())
    values = yaml.safe_load((HERE / "helm" / "values.yaml").read_text())
    rows = [f"| `{name}` | {_text(default)} | {meaning} |" for name, default, meaning in _rows(schema, values, "")]
    return "\n".join(["| value | default | for |", "|---|---|---|", *rows]) + "\n"


def _rows(schema: dict[str, Any], values: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any, str]]:
    for name, value in values.items():
        known = schema["properties"][name]
        if "properties" in known:
            yield from _rows(known, value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value, known["description"]


def _text(value: Any) -> str:
    if value in ("", [], {}):
        return "none"
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


if __name__ == "__main__":
    sys.exit(main())
