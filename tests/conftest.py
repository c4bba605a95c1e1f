"""Hypothesis judges what is found, never how long it took: a busy machine is no fault of a strategy or of ours."""

from hypothesis import HealthCheck, settings

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
