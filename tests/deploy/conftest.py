"""What the tests of the chart share: the lane's helm, or that of this machine."""

from __future__ import annotations

import shutil

import pytest

from lane.components import parts


@pytest.fixture(scope="session")
def helm() -> str:
    found = shutil.which("helm") or (str(parts.HELM.path / "helm") if parts.HELM.built() else "")
    if not found:
        pytest.skip("helm is neither on PATH nor built (make cluster-binaries)")
    return found
