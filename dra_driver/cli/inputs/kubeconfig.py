"""The kubeconfig that a command uses where none is named."""

from __future__ import annotations

import os
from pathlib import Path


def default_kubeconfig() -> str | None:
    """Return the kubeconfig that kubectl would use, or None if there is none."""
    for path in os.environ.get("KUBECONFIG", "").split(os.pathsep):
        if path:
            return path
    usual = Path.home() / ".kube" / "config"
    return str(usual) if usual.is_file() else None
