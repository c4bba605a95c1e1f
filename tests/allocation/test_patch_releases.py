from __future__ import annotations

import pytest

from dra_driver.allocation.rules import Features, choose_rules


@pytest.mark.parametrize(
    ("last", "first"), [("1.34.11", "1.34.12"), ("1.35.8", "1.35.9"), ("1.36.4", "1.36.5"), ("1.37.0", "1.37.1")]
)
def test_the_limit_of_32_devices_is_checked_for_each_request_from_a_patch_release_on(last: str, first: str) -> None:
    assert not choose_rules(last, Features()).limit_per_request
    assert choose_rules(f"v{first}", Features()).limit_per_request
    assert choose_rules(f"{first}-gke.100", Features()).limit_per_request


@pytest.mark.parametrize(
    ("release", "account"), [("1.36.3", "pool name"), ("1.36.4", "pool"), ("1.36", "pool"), ("1.37.0", "pool")]
)
def test_counters_belong_to_a_driver_and_pool_from_1_36_4_on(release: str, account: str) -> None:
    assert choose_rules(release, Features()).counters_of == account
