"""The report of a migration as a document: what was changed and why, and what is lost; and a file's changes as a diff.

In: migrated files and checks. Out: text and plain dicts.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from dra_driver.migrate import Migrated
from dra_driver.views.envelope import DocumentKind, OutputDocument, plain
from dra_driver.views.migration.check import Check


def diff_of(one: Migrated) -> str:
    """Return the changes as a unified diff; "" if there are none."""
    old, new = one.old.splitlines(keepends=True), one.new.splitlines(keepends=True)
    name = one.origin.lstrip("/")
    rows = difflib.unified_diff(old, new, f"a/{name}", f"b/{name}")
    return "".join(row if row.endswith("\n") else f"{row}\n\\ No newline at end of file\n" for row in rows)


def migration_document(done: Sequence[Migrated], checks: Sequence[Check], *, diff: bool) -> OutputDocument:
    """Return the document of the report; with `diff`, each file has its changes as a unified diff."""
    content = {
        "files": [_file_document(one, diff=diff) for one in done],
        "checks": [_check_document(check) for check in checks],
    }
    return OutputDocument(DocumentKind.MIGRATION, content)


def _file_document(one: Migrated, *, diff: bool) -> dict[str, Any]:
    return {
        "file": one.origin,
        "changed": one.new != one.old,
        "changes": [plain(row) for row in one.changes],
        "losses": [plain(row) for row in one.losses],
        "templates": list(one.templates),
        "text": one.new,
        **({"diff": diff_of(one)} if diff else {}),
    }


def _check_document(check: Check) -> dict[str, Any]:
    return {
        "template": check.template,
        "request": check.request,
        "wanted": check.wanted,
        "selectors": list(check.expressions),
        "devices": check.devices,
        "nodes": check.nodes,
        "nodesWithEnough": check.nodes_with_enough,
        "aborts": check.aborts,
        "problem": check.problem,
        "message": check.words,
    }
