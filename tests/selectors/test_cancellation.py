"""Work on selectors is cancelled when its check raises; a check never changes a verdict."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from dra_driver.selectors.advice.findings import LintSubject
from dra_driver.selectors.advice.lint import lint
from dra_driver.selectors.evaluate.program import prepare_device
from dra_driver.selectors.kubernetes import KubernetesEngine
from dra_driver.selectors.values.values import QUICK_COST, EvaluationCancelledError, cancellable

DRIVER = "gpu.nvidia.com"
TEN = "[1,2,3,4,5,6,7,8,9,10]"
FOLD = f"{TEN}.all(a,{TEN}.all(b,{TEN}.all(c,{TEN}.all(d,a+b+c+d>0))))"
NEST = "[1,1,1,1,1,1,1,1]"
for name in "abcde":
    NEST = f"cel.bind({name}, {NEST}, [{', '.join([name] * 8)}])"
COMPARE = f"cel.bind(f, {NEST}, f == [f][0])"
VIEW = prepare_device({"attributes": {"model": {"string": "x"}}}, DRIVER)


class StoppedByCheck(EvaluationCancelledError):
    pass


class Counted:
    """A check that stops the work when it is called for the n-th time."""

    def __init__(self, maximum):
        self.calls, self._maximum = 0, maximum

    def __call__(self):
        self.calls += 1
        if self.calls >= self._maximum:
            raise StoppedByCheck


@pytest.fixture
def engine():
    return KubernetesEngine("1.35")


@pytest.mark.parametrize("expression", [FOLD, COMPARE])
def test_an_evaluation_that_takes_long_is_stopped(engine, expression):
    selector = engine.compile(expression)
    with cancellable(Counted(20)), pytest.raises(StoppedByCheck):
        selector.matches_view(VIEW)


def test_linting_is_stopped_between_devices(engine):
    selector = engine.compile(f'device.attributes["{DRIVER}"].model == "x"')
    check = Counted(30)
    with cancellable(check), pytest.raises(StoppedByCheck):
        lint(LintSubject(selector, engine, [VIEW] * 100, [1] * 100))


def test_tracing_is_stopped_too(engine):
    selector = engine.compile(FOLD)
    with cancellable(Counted(20)), pytest.raises(StoppedByCheck):
        selector.trace(VIEW)


@pytest.mark.parametrize("expression", [FOLD, "true", f'device.attributes["{DRIVER}"].model == "y"'])
def test_a_check_that_stops_nothing_changes_no_verdict(engine, expression):
    selector = engine.compile(expression)
    quick = selector.matches_view(VIEW)
    with cancellable(lambda: None):
        assert selector.matches_view(VIEW) is quick
    assert engine.compile(FOLD).max_cost > QUICK_COST


def test_a_check_applies_only_within_its_block_and_its_thread(engine):
    with cancellable(Counted(1)):
        with pytest.raises(StoppedByCheck):
            engine.compile("true")
        with ThreadPoolExecutor(1) as other:
            assert other.submit(engine.compile, "true").result().matches_view(VIEW)
    assert engine.compile("true").matches_view(VIEW)
