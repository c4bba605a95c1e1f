"""The embedded kubelet with a stand-in plugin over real sockets."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from dra_driver.simulator.api_server import EmbeddedApi
from dra_driver.simulator.kubelet import EmbeddedKubelet
from tests.simulator.support.kubelet_pods import DRIVER
from tests.support.plugin.stand_in_plugin import StandInPlugin


@pytest.fixture
def folder():
    made = Path(tempfile.mkdtemp(prefix="k-", dir="/tmp"))
    yield made
    shutil.rmtree(made)


@pytest.fixture
def api():
    return EmbeddedApi()


@pytest.fixture
def kubelet(folder, api):
    made = EmbeddedKubelet(folder, api, node="n1", wipe_after_s=0.3)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def plugin(folder, kubelet):
    made = StandInPlugin(folder).start()
    kubelet.wait_registered(DRIVER, 60)
    yield made
    made.stop()
