"""The cases on which the policy is compared with the node (lane) hold both kinds of answer, and many."""

from __future__ import annotations

from dra_driver.claims.config import validate
from tests.support.webhook.config_cases import PARAMETERS


def test_there_are_many_cases_of_both_kinds():
    refused = [one for one in PARAMETERS if validate(one)]
    assert len(refused) > 100
    assert len(PARAMETERS) - len(refused) > 40
