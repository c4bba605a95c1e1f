"""The embedded API server, and a client of it, each over real HTTP."""

import pytest

from dra_driver.embedded.api.server import EmbeddedApi
from dra_driver.kube import credentials
from dra_driver.kube.api import KubeApi


@pytest.fixture
def embedded():
    with EmbeddedApi() as server:
        yield server


@pytest.fixture
def api(embedded, tmp_path):
    return KubeApi(credentials.load(str(embedded.write_kubeconfig(tmp_path / "config"))))
