"""Manifests written for the device plugin in, the same manifests with claims out, and what changed, why, what is lost.

    from dra_driver.migrate import Source, migrate

    [done] = migrate([Source("pod.yaml", text)])
    done.new, done.changes, done.losses

Pure: it reads no file and asks no cluster. Text that nothing is said of stays byte for byte as it was written.
"""

from __future__ import annotations

from dra_driver.migrate.migration import Migrated, SourceText, migrate
from dra_driver.migrate.naming import TemplateNames

__all__ = ["Migrated", "SourceText", "TemplateNames", "migrate"]
