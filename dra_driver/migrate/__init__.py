"""Migration of manifests from NVIDIA's device plugin to claims: new manifests, what changed and why, and what is lost.

    from dra_driver.migrate import SourceText, migrate

    [done] = migrate([SourceText("pod.yaml", text)])
    done.new, done.changes, done.losses

Pure: it reads no file and asks no cluster. Text that no change concerns stays as it was written, byte for byte.
"""

from __future__ import annotations

from dra_driver.migrate.migration import Migrated, SourceText, migrate
from dra_driver.migrate.naming import TemplateNames

__all__ = ["Migrated", "SourceText", "TemplateNames", "migrate"]
