"""Settings of all tests: Hypothesis without time limits, because a busy machine is no fault, and the order of tests."""

import gc
import itertools
import logging
import os
import signal

# pytest imports it in the thread of the first warning, where another thread may find it half imported.
import tracemalloc  # noqa: F401
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# The same examples each time: a change is judged by what it changes. `--hypothesis-profile=search` looks for new ones.
settings.register_profile("any machine", settings.get_profile("search"), derandomize=True)
settings.load_profile("any machine")
# Hypothesis may spend five minutes on making a failing example small. A timeout in that time would end the process
# (pytest-xdist calls it a crash) before the example is shown.
SHRINKING = 420  # seconds
FULL_COLLECTIONS = 100  # each after so many of the generation below; Python's own number is 10
# Tests that fork run in processes with gRPC servers, whose handlers would write into the forked program's output.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
# A shell that starts the tests in the background makes them, and every command that they start, ignore interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.pop("COLUMNS", None)  # pytest-xdist sets it in its processes, and output is as wide as it says


def pytest_configure() -> None:
    """Keep Hypothesis from trying the constants of our modules, except in a search.

    It would take them from all modules that the process has imported by then. So the tests that ran before it would
    change a test's examples, and each process would read a thousand modules before its first test.
    """
    if settings.get_current_profile_name() == "any machine":
        nothing = Constants()
        providers._get_local_constants = lambda: nothing


@pytest.fixture(autouse=True)
def _log_level_as_before() -> Iterator[None]:
    """Undo what a command that a test called in this process made of the level of the root logger."""
    root = logging.getLogger()
    before = root.level
    yield
    root.setLevel(before)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect tests without garbage collection: what is made here is kept to the end, and is not examined again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        # With so few objects beside the frozen ones, all would be looked at again and again: 7 % of the tests' time.
        gc.set_threshold(*gc.get_threshold()[:2], FULL_COLLECTIONS)


@pytest.hookimpl(trylast=True)  # after the order was made random
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let failing examples shrink, and begin each process's equal part with its share of the long tests.

    So none of the long tests is the last to end.
    """
    for item in items:
        if is_hypothesis_test(getattr(item, "obj", None)) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SHRINKING))
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    long = [item for item in items if item.get_closest_marker("long")]
    rest = iter([item for item in items if not item.get_closest_marker("long")])
    size, larger = divmod(len(items), count)  # where parts can't be equal, the last ones have one test more
    parts = [long[number::count] for number in range(count)]
    for number, part in enumerate(parts):
        part.extend(itertools.islice(rest, size + (number >= count - larger) - len(part)))
    items[:] = [item for part in parts for item in part]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print at the end why tests were skipped, each reason once with its number of tests."""
    skipped = terminalreporter.stats.get("skipped", [])
    if not skipped:
        return
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
    is_all = not {"passed", "failed", "error", "xfailed"} & terminalreporter.stats.keys()
    number = f"{len(skipped)} test{'s were' if len(skipped) > 1 else ' was'} skipped:"
    terminalreporter.write_line(f"\n{'nothing ran: ' if is_all else ''}{number}")
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count:5}  {reason}")
