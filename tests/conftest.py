"""Hypothesis judges what is found, never how long it took: a busy machine is no fault of a strategy or of ours."""

import gc

# pytest imports it in whatever thread meets a warning first, and a second thread then finds it half-made.
import tracemalloc  # noqa: F401
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect without looking for garbage: what is built here lives until the end, and is never looked at again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
