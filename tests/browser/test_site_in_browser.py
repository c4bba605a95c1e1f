"""The site in a browser: docs from a folder and from a server, and the playground, whose verdicts are the command's."""

from __future__ import annotations

import json
import os
import random
import sys
import threading
from importlib import import_module
from pathlib import Path

import pytest

from dra_driver.tools.console.playground import try_selector
from dra_driver.tools.console.questions import trial_of
from dra_driver.tools.world.fleet import fleet_of_slices
from tests.support.cel_expressions import DEVICES, Generator

ROOT = Path(__file__).resolve().parents[2]
BUILT = ROOT / "build" / "site"
SHARED = Path(os.environ.get("DRA_SHARED", ROOT.parent / "shared")) / "vectors"
pytestmark = pytest.mark.skipif(
    not (BUILT / "playground" / "engine.zip").is_file(), reason="the site is not built here: make site (node and npm)"
)
# Asks the page's own engine, one question after the other.
ASK = """async (questions) => {
  const { ask, paste } = await import("./common/api.js");
  const found = [];
  for (const [name, question] of questions) {
    const answer = name === "paste" ? paste(question.text) : ask(name, question);
    found.push(await answer.catch((error) => ({ error: error.message })));
  }
  return found;
}"""
GENERATED = 1000
PATTERNS = (
    *("H100", "^NV.*3$", "(?i)nvidia", r"\d+GB", "[^a-z]+", r"\bHBM", "a|b|c", "(N)(V)", r"\p{L}+", "x{2,3}"),
    *("", "(", "a**", "[z-a]", "(?P<n>s)", r"\1", "(?=a)"),
)


@pytest.fixture(scope="module")
def site():
    sys.path.append(str(ROOT / "deploy" / "site"))
    server = import_module("serve").site_server(str(BUILT))
    sys.path.remove(str(ROOT / "deploy" / "site"))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def playground(open_page, site):
    """Return a function that opens the playground and waits for its first verdict."""

    def opened(state: str = "", **looks):
        page = open_page(f"{site}/playground/index.html{state}", **looks)
        page.wait_for_selector('#link:has-text("ready")', timeout=120_000)
        return page

    return opened


def slices_of(devices):
    spec = {"driver": "dra.example.com", "nodeName": "node", "pool": {"name": "node", "generation": 1}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "one"},
        "spec": {**spec, "devices": devices},
    }


def in_a_page(document):
    """Return a document as a page has it: all numbers are floats there."""
    return json.loads(json.dumps(document), parse_int=float)


def same_here(question, wire):
    """Return the command's document for the same question and devices, as the page would get it."""
    fleet = fleet_of_slices([("ResourceSlice one", wire)], "pasted ResourceSlices")
    return in_a_page(try_selector(fleet, trial_of(question, "1.35")).wire())


def asked(expression):
    gates = {"DRAConsumableCapacity": True}
    return {"expression": expression, "kubernetes": "1.35", "environment": "stored", "gates": gates}


def compare(page, expressions, devices):
    """Judge expressions in the page and here, and return those whose documents differ, and how many can't be judged."""
    wire = slices_of(devices)
    questions = [["paste", {"text": json.dumps(wire)}], *(["selector", asked(one)] for one in expressions)]
    _, *found = page.evaluate(ASK, questions)
    differing, not_here = [], 0
    for expression, document in zip(expressions, found, strict=True):
        if "can't be judged in a browser" in document.get("error", ""):
            not_here += 1
        elif in_a_page(document) != same_here(asked(expression), wire):
            differing.append((expression, document))
    return differing, not_here


def test_generated_selectors_have_the_commands_verdicts_costs_errors_and_advice(playground):
    generator = Generator(random.Random(7))
    expressions = [generator.of("bool") for _ in range(GENERATED)]
    differing, not_here = compare(playground(), expressions, DEVICES)
    assert differing == []
    assert not_here == 0


def test_patterns_match_as_those_of_the_command_do(playground):
    a = 'device.attributes["dra.example.com"].model'
    uses = ("matches({})", "find({}) != ''", "findAll({}).size() == 1")
    expressions = [f"{a}.{use.format(json.dumps(one))}" for one in PATTERNS for use in uses]
    differing, not_here = compare(playground(), expressions, DEVICES[:1])
    assert differing == []
    assert not_here == 0
    assert compare(playground(), [f"{a}.matches('\\\\B')"], DEVICES[:1]) == ([], 1)


@pytest.mark.skipif(not SHARED.is_dir(), reason="recordings beside the repository are not here (DRA_SHARED)")
def test_a_thousand_recorded_verdicts_are_those_that_kubernetes_gave(playground):
    lines = [json.loads(line) for line in (SHARED / "cel-generated.jsonl").read_text("utf-8").splitlines()]
    lines += [json.loads(line) for line in (SHARED / "cel.jsonl").read_text("utf-8").splitlines()[1:]]
    header, cases = lines[0], [one for one in lines[1:] if "1.35" in one][:1000]
    wire = slices_of(header["devices"])
    questions = [["paste", {"text": json.dumps(wire)}], *(["selector", asked(one["expression"])] for one in cases)]
    _, *found = playground().evaluate(ASK, questions)
    differing = []
    for case, document in zip(cases, found, strict=True):
        want, error = case["1.35"], document["selector"]["compileError"]
        if (error is None) is not ("compileError" not in want):
            differing.append((case["expression"], error))
        elif error is None:
            results = [
                ("match" if one["match"] else "noMatch") if "match" in one else "abort" for one in want["results"]
            ]
            counts = {kind: results.count(kind) for kind in ("match", "noMatch", "abort")}
            if (document["counts"], float(document["selector"]["maxCost"])) != (counts, float(want["maxCost"])):
                differing.append((case["expression"], document["counts"], counts))
    assert len(cases) == 1000
    assert differing == []


def test_a_selector_is_judged_while_it_is_typed_and_a_device_is_explained(playground):
    page = playground()
    page.locator(".cm-content").click()
    page.keyboard.press("Control+A")
    page.keyboard.insert_text('device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].numaNode == 1')
    page.wait_for_selector('.outcome:has-text("10 match")')
    page.get_by_label("gpu-0000-1b-00-0: do not match").click()
    page.wait_for_selector(".tree .decides")


def test_a_link_has_the_selector_and_the_profile_and_leads_back_to_both(playground, site):
    page = playground("#/playground?fleet=l40s&kubernetes=1.36&expression=device.driver%20%3D%3D%20%22x%22")
    page.wait_for_selector('.outcome:has-text("0 match")')
    assert page.locator("#fleet").input_value() == "l40s"
    assert "fleet=l40s" in page.url
    page.locator("#fleet").select_option("t4")
    page.wait_for_selector('.verdicts:has-text("t4-1")')
    assert "fleet=t4" in page.url


def test_a_link_is_data_whatever_it_contains(playground):
    hostile = "%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E"
    page = playground(
        f"#/playground?fleet={hostile}&kubernetes={hostile}&environment={hostile}&gates={hostile}%3Dtrue&expression={hostile}"
    )
    page.wait_for_selector(".outcome .message, .outcome .bad")
    assert page.locator("main img").count() == 0
    assert page.locator("#fleet").input_value() == "demo-h100"


def test_pasted_slices_are_judged_and_are_in_no_link(playground):
    page = playground()
    page.get_by_role("button", name="Use my cluster's devices").click()
    page.locator("#slices").fill("kind: Pod")
    page.get_by_role("button", name="Judge on these devices").click()
    page.wait_for_selector('#told:has-text("no ResourceSlice")')
    devices = [{"name": f"secret-{number}"} for number in range(3)]
    page.locator("#slices").fill(json.dumps({"kind": "List", "items": [slices_of(devices)]}, indent=1))
    page.get_by_role("button", name="Judge on these devices").click()
    page.wait_for_selector('.verdicts:has-text("secret-2")')
    assert "secret" not in page.url
    assert "fleet" not in page.url
    page.locator(".cm-content").click()
    page.keyboard.press("Control+A")
    page.keyboard.insert_text('device.driver == "dra.example.com"')
    page.wait_for_selector('.outcome:has-text("3 match")')


def test_a_selector_that_takes_too_long_is_ended_and_the_next_one_is_judged(playground):
    page = playground()
    devices = [{"name": f"gpu-{number}", "attributes": {"n": {"int": number}}} for number in range(120)]
    digits = str(list(range(10)))
    slow = 'a + b + c + d + e + device.attributes["dra.example.com"].n >= 0'
    for name in "edcba":
        slow = f"{digits}.all({name}, {slow})"
    questions = [
        ["paste", {"text": json.dumps(slices_of(devices))}],
        ["selector", asked(slow)],
        ["selector", asked("true")],
    ]
    _, ended, judged = page.evaluate(ASK, questions)
    assert "takes too long" in ended["error"]
    assert judged["counts"] == {"match": 120, "noMatch": 0, "abort": 0}  # the pasted slices are there again


def test_the_engine_may_ask_no_other_host_and_run_no_text_as_code(browser, site):
    page = browser.new_page()  # not one that fails its test on a violation of its policy
    page.goto(f"{site}/playground/index.html")
    page.wait_for_selector('#link:has-text("ready")', timeout=120_000)
    [worker] = page.workers
    other = site.replace("127.0.0.1", "localhost")
    for attempt in (f"fetch('{other}/index.html')", "import('data:text/javascript,1')"):
        assert worker.evaluate(f"() => {attempt}.then(() => 'allowed', () => 'refused')") == "refused"
    assert worker.evaluate(f"() => fetch('{site}/index.html').then((one) => one.status)") == 200
    made = "try { Function('return 1')(); done('allowed'); } catch (error) { done(error.name); }"
    later = (
        f"() => new Promise((done) => setTimeout(() => {{ {made} }}))"  # a debugger may do it, what it starts may not
    )
    assert worker.evaluate(later) == "EvalError"
    page.close()


LOOKS = [("light", 390), ("light", 1280), ("dark", 390), ("dark", 1280)]


@pytest.mark.parametrize("look", LOOKS, ids=str)
@pytest.mark.parametrize("path", ["index.html", "docs/selectors.html", "playground/index.html"])
def test_axe_finds_nothing(path, look, open_page, site, axe):
    page = open_page(f"{site}/{path}", scheme=look[0], width=look[1])
    if "playground" in path:
        page.wait_for_selector(".device", timeout=120_000)
    page.evaluate(axe)
    violations = page.evaluate("axe.run(document)")["violations"]
    assert [(one["id"], [node["html"][:200] for node in one["nodes"]]) for one in violations] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= look[1]


def test_the_docs_open_as_files_and_are_searched(browser):
    page = browser.new_page()  # files have an origin to which no permission can be given
    faults = []
    page.on("console", lambda message: faults.append(message.text))
    page.on("request", lambda request: None if request.url.startswith("file:") else faults.append(request.url))
    page.goto(f"{BUILT.as_uri()}/index.html")
    page.keyboard.press("/")
    page.keyboard.insert_text("mig partition")
    page.locator(".found a").first.click()
    page.wait_for_selector("main h1")
    assert "/docs/" in page.url
    page.get_by_role("link", name="Selectors", exact=True).click()
    page.wait_for_selector('h1:has-text("Selectors")')
    assert faults == []
    page.close()
