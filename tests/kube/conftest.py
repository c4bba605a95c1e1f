"""The embedded API server and a client for it, over real HTTP."""

import time
from dataclasses import fields

import pytest

from dra_driver.kube.api import KubeApi
from dra_driver.kube.credentials import load_credentials
from dra_driver.kube.paths import SLICES
from dra_driver.kube.watch import Watch, WatchTimes
from dra_driver.simulator.api_server import EmbeddedApi
from tests.kube.support.following import Follower


@pytest.fixture
def embedded():
    with EmbeddedApi() as server:
        yield server


@pytest.fixture
def api(embedded, tmp_path):
    return KubeApi(load_credentials(str(embedded.write_kubeconfig(tmp_path / "config"))))


@pytest.fixture
def follow():
    followers = []

    def start(api, **options) -> Follower:
        given = {field.name: options.pop(field.name) for field in fields(WatchTimes) if field.name in options}
        times = WatchTimes(**{"wait": lambda seconds: time.sleep(0.001), **given})
        followers.append(Follower(Watch(api, SLICES, times=times, **options)))
        return followers[-1]

    yield start
    for follower in followers:
        follower.stop()
