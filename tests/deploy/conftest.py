"""The helm program that the tests of the chart use: that of this machine, or the lane's."""

from __future__ import annotations

import shutil

import pytest

from cluster.components import parts


@pytest.fixture(scope="session")
def helm() -> str:
    found = shutil.which("helm") or (str(parts.HELM.path / "helm") if parts.HELM.built() else "")
    if not found:
        pytest.skip("helm is neither on PATH nor built (make cluster-binaries)")
    return found
