"""The values that were stored last are found again, and the cache never exceeds its limit."""

from dra_driver.base.machine import FifoCache


def test_the_value_that_was_stored_the_longest_ago_is_dropped_first() -> None:
    recent: FifoCache[str, int] = FifoCache(2)
    recent.keep("a", 1)
    recent.keep("b", 2)
    recent.keep("a", 3)
    recent.keep("c", 4)
    assert [recent.get(key) for key in "abc"] == [3, None, 4]
