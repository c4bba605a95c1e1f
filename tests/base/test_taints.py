"""Taints as values."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from dra_driver.base.wire import DeviceTaint, TaintEffect


def test_a_taints_time_is_kept_in_utc_and_whole_seconds_as_the_server_stores_it():
    berlin = timezone(timedelta(hours=1))
    one = DeviceTaint("k", "v", TaintEffect.NO_SCHEDULE, datetime(2026, 1, 1, 1, 2, 3, 900_000, berlin))
    assert one == DeviceTaint("k", "v", TaintEffect.NO_SCHEDULE, datetime(2026, 1, 1, 0, 2, 3, tzinfo=UTC))
    assert one.wire()["timeAdded"] == "2026-01-01T00:02:03Z"


def test_a_time_without_a_time_zone_is_refused():
    with pytest.raises(ValueError, match="no time zone"):
        DeviceTaint("k", "v", TaintEffect.NO_SCHEDULE, datetime(2026, 1, 1))  # noqa: DTZ001 - what is refused


def test_empty_fields_are_left_out_of_the_wire_form():
    assert DeviceTaint("k", "", TaintEffect.NONE).wire() == {"key": "k", "effect": "None"}


def test_every_effect_but_none_blocks():
    assert [e for e in TaintEffect if e.is_blocking] == [TaintEffect.NO_SCHEDULE, TaintEffect.NO_EXECUTE]
