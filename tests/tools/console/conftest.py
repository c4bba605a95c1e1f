"""One console for all tests that do not change it."""

from collections.abc import Iterator

import pytest

from tests.support.console.process import RunningConsole, running_console


@pytest.fixture(scope="session")
def console() -> Iterator[RunningConsole]:
    with running_console("--fleet", "demo-h100") as running:
        running.ready()
        yield running
