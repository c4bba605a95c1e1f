"""docs/webhook.md: its manifests get the answers that it shows. Not covered: kubectl's output (lane)."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from dra_driver.tools.webhook.fleet import PublishedFleet
from dra_driver.tools.webhook.linting import WARNED_RULES, FleetLinter, ImageAdvisor
from dra_driver.tools.webhook.review import review_configs, review_pods, review_selectors
from dra_driver.tools.world.fleet import fleet_of_profile
from tests.support.webhook.webhook_page import FILES, PAGE, shown
from tests.tools.webhook.support.reviews import DRIVER, review

ROOT = Path(__file__).parents[3]


@pytest.fixture
def fleet():
    """The fleet of the page: one node of the profile demo-h100."""
    fleet = PublishedFleet((DRIVER,))
    found = yaml.safe_load((ROOT / "deviceclasses" / f"{DRIVER}.yaml").read_text())
    fleet.replace_classes((found,))
    devices = [one.wire for one in fleet_of_profile("demo-h100").devices if one.driver == DRIVER]
    fleet.replace_slices(({"metadata": {"uid": "1"}, "spec": {"driver": DRIVER, "devices": devices}},))
    return fleet


@pytest.fixture
def linter(fleet):
    return FleetLinter(fleet, (DRIVER,), kubernetes="1.35")


def test_a_wrong_config_is_refused_as_the_page_shows():
    details = review_configs(review(yaml.safe_load(FILES["wrong.yaml"])), (DRIVER,))["response"]["status"]["details"]
    first, *causes = shown("wrong.yaml")
    assert first == f'The {details["kind"]} "{details["name"]}" is invalid:'
    assert causes == [f"* {one['field']}: {one['message']}" for one in details["causes"]]


def test_doubtful_selectors_get_the_warnings_that_the_page_shows(linter):
    response = review_selectors(review(yaml.safe_load(FILES["doubtful.yaml"])), linter)["response"]
    assert shown("doubtful.yaml")[:-1] == [f"Warning: {one}" for one in response["warnings"]]


def test_an_image_that_needs_a_newer_cuda_gets_the_warnings_that_the_page_shows(fleet):
    response = review_pods(review(yaml.safe_load(FILES["trainer.yaml"])), ImageAdvisor(fleet, (DRIVER,)))["response"]
    assert shown("trainer.yaml")[:-1] == [f"Warning: {one}" for one in response["warnings"]]


def test_the_policy_has_the_message_that_the_page_shows():
    policy, _ = yaml.safe_load_all((ROOT / "deploy/manifests/options/config-policy.yaml").read_text())
    messages = [one["message"] for one in policy["spec"]["validations"]]
    assert any(shown("wrong.yaml", 1)[0].endswith(message) for message in messages)


def test_the_page_names_every_rule_that_leads_to_a_warning():
    assert all(f"`{rule}`" in PAGE for rule in WARNED_RULES)
