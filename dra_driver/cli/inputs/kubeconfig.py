"""The kubeconfig that a command uses if no option names one."""

from __future__ import annotations

import os
from pathlib import Path


def default_kubeconfig() -> str | None:
    """Return the kubeconfig that kubectl would use, or None if there is none."""
    if named := os.environ.get("KUBECONFIG", "").strip(os.pathsep):
        return named  # may be a list of files
    usual = Path.home() / ".kube" / "config"
    return str(usual) if usual.is_file() else None
