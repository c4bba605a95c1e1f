"""What the tests of the chart share: the lane's helm, or that of this machine."""

from __future__ import annotations

import shutil

import pytest

from lane import binaries


@pytest.fixture(scope="session")
def helm() -> str:
    found = shutil.which("helm") or (str(binaries.HELM.path / "helm") if binaries.HELM.built() else "")
    if not found:
        pytest.skip("helm is neither on PATH nor built (make cluster-binaries)")
    return found
