"""Locks are recorded in every test here."""

from tests.support.plugin.lock_order import lock_order  # noqa: F401 - a test fails if locks are taken out of order
