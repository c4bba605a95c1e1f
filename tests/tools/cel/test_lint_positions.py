"""Where `dra-driver cel` says that a fault is, in every style of YAML and JSON; GitHub's annotations and SARIF."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import validate

from dra_driver.base.errors import ExitCode
from dra_driver.base.flags import VENDORS
from dra_driver.hardware.vendors import load_vendor
from dra_driver.tools import main
from dra_driver.tools.world.documents import Document, parse_documents
from dra_driver.tools.world.fleet import shipped_fleet
from dra_driver.tools.world.positions import FilePositions, Position

ROOT = Path(__file__).parents[3]
DRIVER = "gpu.nvidia.com"
HEAD = "apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {name: c}\nspec:\n selectors:\n - cel:\n"
PATH = ("spec", "selectors", 0, "cel", "expression")


def position_of(text: str, wanted: str) -> Position | None:
    """Return the position of a word in the expression of the class in a text."""
    (document,) = [Document("-", one.number, one.path, one.wire, text) for one in parse_documents(text, "-")]
    value = document.wire["spec"]["selectors"][0]["cel"]["expression"]
    return FilePositions().of_character(document, PATH, value, value.index(wanted))


@pytest.mark.parametrize(
    ("written", "place"),
    [
        ("    expression: device.driver == wanted\n", (7, 34)),
        ('    expression: "device.driver == \\"é\\" && wanted"\n', (7, 44)),
        ('    expression: "a \\u00e9\\x41\\U0001F600\\n && \\\n      wanted"\n', (8, 7)),
        ("    expression: 'device.driver == ''x'' && wanted'\n", (7, 44)),
        ("    expression: 'a &&\n\n\n      b && wanted'\n", (10, 12)),
        ("    expression: |\n      device.driver ==\n        wanted\n", (9, 9)),
        ("    expression: |2+  # why\n      \n      a &&\n\n       wanted\n\n", (11, 8)),
        ("    expression: >-\n      a &&\n      b &&\n\n        c && wanted\n", (11, 14)),
        ("    expression: a &&\n      b &&\n     wanted\n", (9, 6)),
        ("    expression: &x a == wanted\n", (7, 25)),
    ],
)
def test_the_character_is_found_in_every_style(written, place):
    assert position_of(HEAD + written, "wanted") == Position(*place)


@pytest.mark.parametrize("indent", [None, 2, "\t"])
def test_the_character_is_found_in_json(indent):
    expression = 'device.driver == "\U0001f600\\"\t" && wanted'
    wire = yaml.safe_load(HEAD + "    expression: x\n")
    wire["spec"]["selectors"][0]["cel"]["expression"] = expression
    text = json.dumps(wire, indent=indent)
    position = position_of(text, "wanted")
    assert position is not None
    assert text.splitlines()[position.line - 1][position.column - 1 :].startswith('wanted"')


@given(
    st.text(st.sampled_from("ab&é\U0001f600'\"\\ \n:#-|>{"), min_size=1), st.sampled_from([None, "'", '"', "|", ">"])
)
def test_every_visible_character_is_found_as_it_was_written(words, style):
    expression = f"x{words}x"
    dumped = yaml.dump(
        {"kind": "X", "e": expression}, default_style=style, allow_unicode=True, width=20, sort_keys=False
    )
    (document,) = parse_documents(dumped, "-")
    document = Document("-", 0, (), document.wire, dumped)
    lines = dumped.split("\n")
    for offset, character in enumerate(expression):
        if not character.isspace():
            position = FilePositions().of_character(document, ("e",), expression, offset)
            found = lines[position.line - 1][position.column - 1 :]
            assert found.startswith((character, "\\"))


def write_class(path, *expressions):
    selectors = [{"cel": {"expression": expression}} for expression in expressions]
    wire = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "c"}}
    path.write_text(yaml.safe_dump({**wire, "spec": {"selectors": selectors}}, width=1000))
    return str(path)


GUARDED = f'device.driver == "{DRIVER}"'
FAILS = f'{GUARDED} && device.attributes["{DRIVER}"].nvlinkCount > 1'
EXACT = f'{GUARDED} && device.capacity["{DRIVER}"].memory == quantity("40Gi")'
FLEET = ["--fleet", "mixed", "--fleet", "l40s", "--fleet", "dgx-h100"]


def at(path, text):
    """Return "LINE:COLUMN" of a text in a file."""
    content = Path(path).read_text(encoding="utf-8")
    index = content.index(text)
    return f"{content.count(chr(10), 0, index) + 1}:{index - content.rfind(chr(10), 0, index)}"


def linted(capsys, *argv):
    status = main.run(["cel", "lint", *argv])
    return status, capsys.readouterr().out


def test_findings_and_refusals_have_the_line_and_column_of_what_they_are_about(tmp_path, capsys):
    path = write_class(tmp_path / "c.yaml", FAILS, "device.driver = 1")
    status, text = linted(capsys, path, *FLEET)
    assert status == ExitCode.BAD_INPUT
    assert f"{path}:{at(path, '= 1')}: class c: selector #1 does not compile" in text
    path = write_class(tmp_path / "c.yaml", FAILS, EXACT)
    _, found = linted(capsys, path, *FLEET, "-o", "json")
    places = {
        finding["rule"]: "{line}:{column}".format(**finding["position"])
        for selector in json.loads(found)["selectors"]
        for finding in selector["findings"]
    }
    assert places["unguarded-attribute"] == at(path, f'device.attributes["{DRIVER}"].nvlinkCount')
    assert places["quantity-equality"] == at(path, f'device.capacity["{DRIVER}"].memory')


def test_github_gets_an_annotation_for_each_fault(tmp_path, capsys):
    path = write_class(tmp_path / "a,b:c%.yaml", EXACT)
    status, text = linted(capsys, path, *FLEET, "-o", "github")
    shown = path.replace("%", "%25").replace(",", "%2C").replace(":", "%3A")
    place = at(path, f'device.capacity["{DRIVER}"].memory').split(":")
    assert status == ExitCode.NO_MATCH
    assert f"::warning file={shown},line={place[0]},col={place[1]},title=quantity-equality::== looks for" in text
    assert all(line.startswith("::") for line in text.splitlines())


TEXT = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string", "minLength": 1}}}
LEVEL = {"enum": ["error", "warning", "note", "none"]}
REGION = {
    "type": "object",
    "additionalProperties": False,
    "required": ["startLine", "startColumn"],
    "properties": {name: {"type": "integer", "minimum": 1} for name in ("startLine", "startColumn")},
}
SARIF = {  # what SARIF 2.1.0 demands of the parts that are written
    "type": "object",
    "additionalProperties": False,
    "required": ["version", "runs"],
    "properties": {
        "$schema": {"type": "string", "format": "uri"},
        "version": {"const": "2.1.0"},
        "runs": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["tool"],
                "properties": {
                    "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
                    "tool": {"type": "object", "required": ["driver"]},
                    "results": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "additionalProperties": False,
                            "required": ["message"],
                            "properties": {
                                "ruleId": {"type": "string"},
                                "ruleIndex": {"type": "integer", "minimum": 0},
                                "level": LEVEL,
                                "message": TEXT,
                                "locations": {
                                    "type": "array",
                                    "items": {
                                        "type": "object",
                                        "properties": {
                                            "physicalLocation": {
                                                "type": "object",
                                                "additionalProperties": False,
                                                "properties": {
                                                    "artifactLocation": {"required": ["uri"]},
                                                    "region": REGION,
                                                },
                                            }
                                        },
                                    },
                                },
                            },
                        },
                    },
                },
            },
        },
    },
}


def test_sarif_names_files_as_they_were_given(tmp_path, capsys, monkeypatch):
    write_class(tmp_path / "a b.yaml", FAILS)
    monkeypatch.chdir(tmp_path)
    _, text = linted(capsys, "a b.yaml", *FLEET, "-o", "sarif")
    (run,) = json.loads(text)["runs"]
    places = [place["physicalLocation"]["artifactLocation"] for one in run["results"] for place in one["locations"]]
    assert places
    assert all(place == {"uri": "a%20b.yaml"} for place in places)


def test_sarif_is_a_log_that_its_readers_accept(tmp_path, capsys):
    path = write_class(tmp_path / "a b.yaml", FAILS, EXACT, "device.driver = 1")
    status, text = linted(capsys, path, "-e", "1 +", *FLEET, "-o", "sarif")
    log = json.loads(text)
    validate(log, SARIF)
    (run,) = log["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert status == ExitCode.BAD_INPUT
    assert all(rules[result["ruleIndex"]] == result["ruleId"] for result in run["results"])
    broken = [result for result in run["results"] if result["ruleId"] == "does-not-compile"]
    assert [len(result["locations"]) for result in broken] == [0, 1]  # -e is in no file
    places = [place["physicalLocation"] for result in broken for place in result["locations"]]
    line, column = map(int, at(path, "= 1").split(":"))
    wanted = {"uri": f"file://{path.replace(' ', '%20')}"}, {"startLine": line, "startColumn": column}
    assert [(place["artifactLocation"], place["region"]) for place in places] == [wanted]


@pytest.mark.parametrize(
    ("expression", "fail_on", "status"),
    [
        (EXACT, "note", ExitCode.NO_MATCH),
        (EXACT, "warning", ExitCode.NO_MATCH),
        (EXACT, "error", ExitCode.OK),
        (FAILS, "error", ExitCode.NO_MATCH),
        (FAILS, "never", ExitCode.OK),
        ("1 +", "never", ExitCode.BAD_INPUT),
    ],
)
def test_the_severity_that_fails_is_chosen(expression, fail_on, status, capsys):
    assert linted(capsys, "-e", expression, *FLEET, "--fail-on", fail_on)[0] == status


def rules_of(text):
    return [
        (finding["severity"], finding["rule"]) for one in json.loads(text)["selectors"] for finding in one["findings"]
    ]


def test_our_own_classes_have_no_findings_on_everything_that_we_publish(capsys):
    status, text = linted(capsys, str(ROOT / "deviceclasses"), "-o", "json")
    assert (status, rules_of(text)) == (ExitCode.OK, [])
    assert json.loads(text)["sources"] == ["every shipped profile and kind of device"]


def test_without_devices_a_selector_that_holds_everywhere_or_nowhere_is_found(capsys):
    _, text = linted(capsys, "-e", 'device.driver.startsWith("")', "-o", "json")
    assert rules_of(text) == [("note", "always-true")] or ("warning", "two-drivers") in rules_of(text)
    _, text = linted(capsys, "-e", f'{GUARDED} && device.attributes["{DRIVER}"].type == "gpv"', "-o", "json")
    assert ("warning", "always-false") in rules_of(text)


@pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor.name)
def test_the_devices_to_lint_against_have_every_name_that_a_driver_publishes(vendor):
    names = {
        name
        for device in shipped_fleet(36).devices
        if device.driver == vendor.driver
        for name in (*device.wire.get("attributes", {}), *device.wire.get("capacity", {}))
    }
    assert {row.name for row in load_vendor(vendor.name).rows} - names == set()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (f'has(device.attributes["{DRIVER}"].tenant)', "tenant is published since 0.1.1, but not on these devices"),
        ('has(device.attributes["gpu.amd.com"].type)', "none of these devices is of the driver gpu.amd.com"),
        (f'!has(device.attributes["{DRIVER}"].myOwn)', "no device has the attribute gpu.nvidia.com/myOwn"),
    ],
)
def test_names_that_exist_elsewhere_and_names_that_are_tested_for_are_notes(name, words, capsys):
    _, text = linted(capsys, "-e", f"{GUARDED} && ({name} || true)", "--fleet", "dgx-h100", "-o", "json")
    (selector,) = json.loads(text)["selectors"]
    (found,) = [finding for finding in selector["findings"] if finding["rule"] == "unknown-name"]
    assert (found["severity"], found["fix"]) == ("note", None)
    assert words in found["message"]
