"""Migration of manifests from NVIDIA's device plugin to claims: new manifests, what changed and why, and what is lost.

    from dra_driver.tools.migrate import SourceText, migrate

    [done] = migrate([SourceText("pod.yaml", text)])
    done.new, done.changes, done.losses

Pure: it reads no file and asks no cluster. Text that no change concerns stays as it was written, byte for byte.
"""

from __future__ import annotations

from dra_driver.tools.migrate.migration import Migrated, SourceText, migrate
from dra_driver.tools.migrate.pods import TemplateNames

__all__ = ["Migrated", "SourceText", "TemplateNames", "migrate"]
