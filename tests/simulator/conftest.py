"""An embedded API for each test, over real HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dra_driver.simulator.api_server import EmbeddedApi
from tests.support.api.embedded_client import Client


@pytest.fixture
def api() -> Iterator[EmbeddedApi]:
    with EmbeddedApi() as server:
        yield server


@pytest.fixture
def client(api: EmbeddedApi) -> Client:
    return Client(api)
