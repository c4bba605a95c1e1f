"""A gRPC server on a socket of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.plugin.support.served import SECONDS, Served


@pytest.fixture
def served(short_path: Path) -> Iterator[Served]:
    served = Served(short_path / "s")
    yield served
    served.service.gate.set()
    served.channel.close()
    assert served.server.stop(1.0).wait(SECONDS)
