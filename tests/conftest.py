"""Hypothesis judges what is found, never how long it took: a busy machine is no fault of a strategy or of ours."""

# pytest imports it in whatever thread meets a warning first, and a second thread then finds it half-made.
import tracemalloc  # noqa: F401

from hypothesis import HealthCheck, settings

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
