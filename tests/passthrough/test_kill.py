"""SIGKILL between any two steps of passing a GPU on, and of taking it back: every function ends with its own driver."""

import json

import pytest

from tests.support.progress import output_of

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]  # the program may take its time while it makes progress


def test_a_kill_between_any_two_steps_leaves_no_function_without_its_driver() -> None:
    report = json.loads(output_of("tests.passthrough.support.kill_points", []))
    assert report["wrong"] == []
    assert report["kills"]["prepare"] >= 20
    assert report["kills"]["unprepare"] >= 10
