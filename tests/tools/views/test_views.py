"""Views compute and print nothing: they report progress, and return values that do not change."""

import ast
import dataclasses
import importlib
import re
from pathlib import Path

import pytest

import dra_driver.tools
import dra_driver.tools.world
from dra_driver.allocation.simulation import TimelineEvent
from dra_driver.tools.explain.explanations import SubjectExplainer, subjects_of
from dra_driver.tools.explain.scenario import Scenario, ScenarioRun, arrivals
from dra_driver.tools.world.access import DocumentKind
from dra_driver.tools.world.workloads import world_of_files
from dra_driver.tools.world.world import World, add_profiles, apply_rules

CLAIM = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: one, namespace: default}
spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]}}
"""
# A world grows while it is read, and a branch while its tree is drawn; all other values are never changed.
GROWING = {"World", "Branch", "Board"}


class CountedLine:
    """A progress line that records what it was asked to show."""

    def __init__(self, noun, total=0):
        self.noun, self.total, self.shown, self.is_closed = noun, total, [], False

    def update(self, done):
        self.shown.append(done)

    def close(self):
        self.is_closed = True


class CountedLines:
    def __init__(self):
        self.lines = []

    def __call__(self, noun, total):
        self.lines.append(CountedLine(noun, total))
        return self.lines[-1]


@pytest.fixture
def world(tmp_path):
    path = tmp_path / "claim.yaml"
    path.write_text(CLAIM)
    world = world_of_files([str(path)])
    rules = apply_rules(world, "1.35", {})
    add_profiles(world, ["dgx-h100=3"])
    world.complete()
    return world, rules


FOLDERS = ("world", "cel", "explain", "fleet", "usage", "node")
DRAWS = re.compile(r"^ *(import|from) (click|rich|prompt_toolkit|dra_driver.tools.output)\b", re.MULTILINE)


def modules():
    """Return the modules of the commands that compute and draw nothing."""
    tools = Path(dra_driver.tools.__file__).parent
    paths = [path for folder in FOLDERS for path in sorted((tools / folder).glob("*.py"))]
    names = ("board", "fleet_filter", "fleet_page", "pages_of_claims", "playground", "questions", "what_if")
    paths += [tools / "console" / f"{name}.py" for name in names]
    return [
        importlib.import_module(f"dra_driver.tools.{path.parent.name}.{path.stem}")
        for path in paths
        if path.stem != "__init__" and not DRAWS.search(path.read_text())
    ]


def test_a_simulation_reports_every_event_and_prints_nothing(world, capsys):
    world, rules = world
    lines = CountedLines()
    run = ScenarioRun(Scenario(world, (arrivals(world), TimelineEvent("leave", "default/one"))), rules)
    moments = list(run.moments(run.beginning(), ["dgx-h100-1"], lines))
    [line] = lines.lines
    assert (line.noun, line.total, line.shown, line.is_closed) == ("events", 3, [0, 1, 2], True)
    assert [one.node for one in moments[1].placed] == ["dgx-h100-2"]
    assert capsys.readouterr() == ("", "")


def test_an_explainer_reports_every_node_and_prints_nothing(world, capsys):
    world, rules = world
    lines = CountedLines()
    [subject] = subjects_of(world, ("claim", "one"), "default", lambda *_: "", lambda _: True)
    explanation = SubjectExplainer(world, rules, lines=lines).explain(subject)
    assert explanation.ok
    assert [(line.noun, line.shown, line.is_closed) for line in lines.lines] == [("nodes", [0, 1, 2], True)]
    assert capsys.readouterr() == ("", "")


def test_a_progress_line_is_closed_even_if_the_moments_are_not_read_to_the_end(world):
    world, rules = world
    lines = CountedLines()
    run = ScenarioRun(Scenario(world, (arrivals(world),)), rules)
    moments = run.moments(run.beginning(), (), lines)
    next(moments)
    moments.close()
    assert lines.lines[0].is_closed


def test_what_views_return_is_frozen():
    values = {
        one
        for module in modules()
        for one in vars(module).values()
        if isinstance(one, type) and one.__module__.startswith("dra_driver.tools.") and dataclasses.is_dataclass(one)
    }
    assert len(values) > 20
    assert {one.__name__ for one in values if not one.__dataclass_params__.frozen} == GROWING


def test_views_neither_print_nor_exit():
    for module in modules():
        for node in ast.walk(ast.parse(Path(module.__file__).read_text())):
            called = node.func if isinstance(node, ast.Call) else None
            assert not (isinstance(called, ast.Name) and called.id in {"print", "exit"}), module.__name__
            assert not (isinstance(called, ast.Attribute) and ast.unparse(called) == "sys.exit"), module.__name__


def test_every_kind_of_document_is_made_in_one_place():
    tools = Path(dra_driver.tools.__file__).parent
    text = "".join(path.read_text() for path in sorted(tools.rglob("*.py")) if "schema" not in path.stem)
    assert sorted(re.findall(r"DocumentKind\.([A-Z_]+)", text)) == sorted(DocumentKind.__members__)


def test_objects_of_unknown_kinds_are_refused_by_name():
    World().refuse_unknown_objects()
    with pytest.raises(Exception, match=r"TFJob train") as refused:
        World(unknown_objects=["TFJob train"]).refuse_unknown_objects()
    assert refused.value.code == "input.not-understood"
