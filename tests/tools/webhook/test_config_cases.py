"""The cases on which the policy is compared with the node (lane) are many, and some are valid and some are not."""

from __future__ import annotations

from dra_driver.node.claims.config import validate
from tests.support.webhook.config_cases import AMD_PARAMETERS, PARAMETERS


def test_there_are_many_valid_and_many_invalid_cases():
    refused = [one for one in PARAMETERS if validate(one)]
    assert len(refused) > 100
    assert len(PARAMETERS) - len(refused) > 40


def test_there_are_valid_and_invalid_cases_of_amds_own_group_and_none_is_valid_for_another_vendor():
    refused = [one for one in AMD_PARAMETERS if validate(one, driver="gpu.amd.com")]
    assert len(refused) > 20
    assert len(AMD_PARAMETERS) - len(refused) > 10
    assert all(validate(one, driver="gpu.nvidia.com") for one in AMD_PARAMETERS)
