"""Manifests written for the device plugin, as they occur in practice, and what they are expected to become.

The shapes lie in tests/tools/migrate/shapes. `python -m tests.support.migrate_shapes` writes what the
migration makes of them now into tests/tools/migrate/expected: to be looked at, line by line, before it is committed.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from dra_driver.tools.migrate import SourceText, migrate

HERE = Path(__file__).resolve().parents[1] / "tools" / "migrate"
SHAPES = sorted((HERE / "shapes").iterdir())


def expected(shape: Path) -> Path:
    """Return the file with what a shape is to become."""
    return HERE / "expected" / shape.name


@cache
def migrated(shape: Path):
    """Migrate a shape."""
    (done,) = migrate([SourceText(shape.name, shape.read_text())])
    return done


if __name__ == "__main__":
    for each in SHAPES:
        expected(each).write_text(migrated(each).new)
