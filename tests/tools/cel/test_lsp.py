"""`dra-driver cel lsp` with a real client: a process, and the messages of an editor over its standard streams."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from dra_driver.base.errors import ExitCode
from dra_driver.tools import main

ROOT = Path(__file__).parents[3]
DRIVER = "gpu.nvidia.com"
A = f'device.attributes["{DRIVER}"]'
HEAD = "apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {name: c}\nspec:\n selectors:\n - cel:\n"
UNGUARDED = f'device.driver == "{DRIVER}" && {A}.nvlinkCount >= 12'


class Client:
    """An editor: it opens texts, asks, and waits for answers."""

    def __init__(self, *options: str) -> None:
        command = [sys.executable, "-m", "dra_driver", "cel", "lsp", *options]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        self.number = 0
        self.uri = "file:///nowhere/selectors.yaml"
        units = {"general": {"positionEncodings": ["utf-16"]}}
        self.abilities = self.ask("initialize", {"processId": None, "rootUri": None, "capabilities": units})
        self.tell("initialized", {})

    def tell(self, method, params, **more):
        body = json.dumps({"jsonrpc": "2.0", "method": method, "params": params, **more}).encode()
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self.process.stdin.flush()

    def read(self):
        """Return the next message of the server."""
        length = 0
        while line := self.process.stdout.readline().strip():
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        assert length, "the server has ended"
        return json.loads(self.process.stdout.read(length))

    def ask(self, method, params):
        self.number += 1
        self.tell(method, params, id=self.number)
        while (message := self.read()).get("id") != self.number:
            assert message["method"] == "textDocument/publishDiagnostics", message
        assert "error" not in message, message
        return message["result"]

    def diagnostics(self, version):
        """Return the diagnostics of a version of the text."""
        while True:
            message = self.read()
            if (
                message.get("method") == "textDocument/publishDiagnostics"
                and message["params"].get("version") == version
            ):
                return message["params"]["diagnostics"]

    def open(self, text, version=1):
        document = {"uri": self.uri, "languageId": "yaml", "version": version, "text": text}
        self.tell("textDocument/didOpen", {"textDocument": document})
        return self.diagnostics(version)

    def change(self, text, version):
        params = {"textDocument": {"uri": self.uri, "version": version}, "contentChanges": [{"text": text}]}
        self.tell("textDocument/didChange", params)

    def at(self, text, index):
        row = text.rfind("\n", 0, index) + 1
        units = len(text[row:index].encode("utf-16-le")) // 2
        position = {"line": text.count("\n", 0, index), "character": units}
        return {"textDocument": {"uri": self.uri}, "position": position}

    def completions(self, text, index):
        self.change(text, 2)
        return self.ask("textDocument/completion", self.at(text, index))["items"]

    def end(self):
        self.ask("shutdown", None)
        self.tell("exit", None)
        assert self.process.wait(timeout=60) == 0


@pytest.fixture(scope="module")
def server():
    client = Client("--fleet", "demo-h100")
    yield client
    client.end()


@pytest.fixture
def client(server):
    """The server with no text open."""
    yield server
    server.tell("textDocument/didClose", {"textDocument": {"uri": server.uri}})


def written(text, part):
    """Return the part of a text between two positions."""
    lines = text.split("\n")

    def index(position):
        line = lines[position["line"]].encode("utf-16-le")[: 2 * position["character"]].decode("utf-16-le")
        return sum(len(row) + 1 for row in lines[: position["line"]]) + len(line)

    return index(part["start"]), index(part["end"])


def edited(text, edit):
    start, end = written(text, edit["range"])
    return text[:start] + edit["newText"] + text[end:]


STYLES = [
    f"    expression: {UNGUARDED}\n",
    f"    expression: '{UNGUARDED}'\n",
    f"    expression: {json.dumps(UNGUARDED)}\n",
    f"    expression: |\n      {UNGUARDED.replace('&& ', '&&' + chr(10) + '        ')}\n",
    f"    expression: >-\n      {UNGUARDED.replace('&& ', '&&' + chr(10) + '      ')}\n",
]


@pytest.mark.parametrize("style", STYLES, ids=["plain", "single", "double", "block", "folded"])
def test_diagnostics_are_those_of_lint_at_the_same_place_and_the_fix_leaves_none(client, tmp_path, capsys, style):
    text = HEAD.replace("name: c", "name: c\U0001f600") + style
    path = tmp_path / "c.yaml"
    path.write_text(text, encoding="utf-8")
    main.run(["cel", "lint", str(path), "--fleet", "demo-h100", "-o", "json"])
    (finding,) = [one for selector in json.loads(capsys.readouterr().out)["selectors"] for one in selector["findings"]]
    (found,) = client.open(text)
    start, end = written(text, found["range"])
    place = {"line": text.count("\n", 0, start) + 1, "column": start - text.rfind("\n", 0, start)}
    assert (place, found["message"], found["code"]) == (finding["position"], finding["message"], finding["rule"])
    assert (found["severity"], found["source"]) == (1, "dra-driver")
    assert text[start:end].startswith("device.attributes")
    assert text[start:end].endswith("nvlinkCount >= 12")

    params = {"textDocument": {"uri": client.uri}, "range": found["range"], "context": {"diagnostics": []}}
    (action,) = client.ask("textDocument/codeAction", params)
    assert action["title"].startswith("Write: ")
    (edit,) = action["edit"]["changes"][client.uri]
    client.change(edited(text, edit), 2)
    assert client.diagnostics(2) == []


def test_a_compile_error_has_its_remedy_as_a_fix(client):
    text = HEAD + f"    expression: device.driver == '{DRIVER}' && device.productName = 'NVIDIA L40S'\n"
    (found,) = client.open(text)
    assert found["code"] == "does-not-compile"
    assert "CEL has no operator =" in found["message"]
    assert text[written(text, found["range"])[0] :].startswith("= 'NVIDIA")
    params = {"textDocument": {"uri": client.uri}, "range": found["range"], "context": {"diagnostics": []}}
    (action,) = client.ask("textDocument/codeAction", params)
    fixed = edited(text, action["edit"]["changes"][client.uri][0]).replace("'", '"')
    assert f'{A}.productName == "NVIDIA L40S"' in fixed


def test_values_of_a_chart_and_json_are_checked_though_they_are_no_objects(client):
    values = f"classes:\n- name: x\n  selectors:\n  - cel:\n      expression: {UNGUARDED}\n"
    assert [one["code"] for one in client.open(values)] == ["unguarded-attribute"]
    wire = {"selectors": [{"cel": {"expression": "device.nothing"}}]}
    client.change(json.dumps(wire, indent="\t"), 2)
    assert [one["code"] for one in client.diagnostics(2)] == ["does-not-compile"]


def test_an_object_that_an_api_server_refuses_is_marked_and_its_selectors_still_checked(client):
    text = HEAD.replace("spec:", "spec:\n selektors: []") + f"    expression: {UNGUARDED}\n"
    found = client.open(text)
    assert {one["code"] for one in found} == {"input.object", "unguarded-attribute"}
    bad = next(one for one in found if one["code"] == "input.object")
    assert text[written(text, bad["range"])[0] :].startswith("selektors")


def test_a_text_that_is_no_yaml_yet_is_marked_and_its_selectors_still_checked(client):
    text = HEAD + f"    expression: {UNGUARDED}\n - cel: {{expression: 'device.x'}}\n - cel: {{expression: \"devi"
    codes = [one["code"] for one in client.open(text)]
    assert codes.count("input.not-yaml") == 1
    assert codes.count("unguarded-attribute") == 1
    assert codes.count("does-not-compile") == 2


@pytest.mark.parametrize(
    ("line", "label", "detail", "taken"),
    [
        ('expression: device.attributes["|', DRIVER, "names", f'device.attributes["{DRIVER}"]'),
        ('expression: device.attributes["gpu|"] == 1', DRIVER, "names", f'device.attributes["{DRIVER}"] == 1'),
        ("expression: 'device.attributes[\"gp|'", DRIVER, "names", f"'device.attributes[\"{DRIVER}\"]'"),
        ('expression: "device.attributes[\\"gp|', DRIVER, "names", f'"device.attributes[\\"{DRIVER}\\"]'),
        (f"expression: |\n      true &&\n      {A}.smCl|", "smClockMax", "int (MHz): ", f"{A}.smClockMax"),
        (f"expression: {A}.produ|", "productName", 'string: "NVIDIA', f"{A}.productName"),
        (f'expression: device.capacity["{DRIVER}"].mem|', "memory", "(bytes): ", f'"{DRIVER}"].memory'),
        (f'expression: device.capacity["{DRIVER}"].memory.comp|', "compareTo", "(Quantity): int", "memory.compareTo("),
        ("expression: semv|", "semver", "(string): Semver", "semver("),
    ],
)
def test_names_are_completed_in_every_style_also_while_the_text_is_no_yaml(client, line, label, detail, taken):
    text = f"{HEAD}    {line}\n"
    index = text.index("|", len(HEAD) + (20 if "|\n" in line else 0))
    text = text[:index] + text[index + 1 :]
    client.open("", 1)
    found = [one for one in client.completions(text, index) if one["label"] == label]
    assert len(found) == 1
    assert detail in found[0]["detail"]
    assert taken in edited(text, found[0]["textEdit"])


def test_nothing_is_completed_outside_of_selectors(client):
    client.open("", 1)
    assert client.completions("metadata:\n  name: devi\n", 21) == []


def test_the_hover_has_type_cost_and_matches(client):
    expression = f'"\U0001f600" != "" && {A}.productName == "x"'
    text = f"{HEAD}    expression: '{expression}'\n"
    client.open(text)
    found = client.ask("textDocument/hover", client.at(text, text.index("productName") + 2))
    assert f'`{A}.productName`: string: "NVIDIA H100' in found["contents"]["value"]
    assert "matches 0 of 22 devices of profile demo-h100, and 8 of them would abort" in found["contents"]["value"]
    assert "worst-case cost is " in found["contents"]["value"]
    start, end = written(text, found["range"])
    assert text[start:end] == f"{A}.productName"
    assert client.ask("textDocument/hover", client.at(text, 3)) is None


def test_classes_come_from_the_files_that_are_named(tmp_path):
    (tmp_path / "class.yaml").write_text(HEAD + f"    expression: device.driver == '{DRIVER}'\n")
    client = Client("--fleet", "demo-h100", "-f", str(tmp_path / "class.yaml"))
    request = {"name": "r", "exactly": {"deviceClassName": "c", "selectors": [{"cel": {"expression": f"{A}.mig > 1"}}]}}
    claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "x"}}
    codes = [one["code"] for one in client.open(json.dumps({**claim, "spec": {"devices": {"requests": [request]}}}))]
    assert "unknown-name" in codes
    assert "input.no-class" not in codes
    client.end()


@pytest.mark.long
def test_no_half_typed_text_ends_the_server(client):
    whole = HEAD + "".join(f"{style} - cel:\n" for style in STYLES) + "    expression: true\n"
    source = random.Random(7)
    client.open(whole, 0)
    for version in range(1, 150):
        cut = source.randrange(len(whole))
        odd = whole[:cut] + source.choice("\"'|>{}[]:-#&*!\\\t\0é") + whole[cut:]
        text = source.choice([whole[:cut], whole[cut:], odd])
        client.change(text, version)
        client.ask("textDocument/hover", client.at(text, min(cut, len(text))))
        client.ask("textDocument/completion", client.at(text, min(cut, len(text))))
        params = {"textDocument": {"uri": client.uri}, "context": {"diagnostics": []}}
        end = client.at(text, len(text))["position"]
        client.ask("textDocument/codeAction", {**params, "range": {"start": {"line": 0, "character": 0}, "end": end}})


def test_a_text_that_is_too_large_is_said_to_be(client):
    (found,) = client.open(HEAD + "    expression: 'true'\n" + "# x\n" * (1 << 18))
    assert found["code"] == "too-much"
    assert "dra-driver cel lint" in found["message"]


def test_without_the_extra_the_command_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "pygls", None)
    monkeypatch.setitem(sys.modules, "pygls.lsp.server", None)
    monkeypatch.delitem(sys.modules, "dra_driver.tools.cel.lsp", raising=False)
    assert main.run(["cel", "lsp"]) == ExitCode.USAGE
    assert "pip install 'dra-driver[lsp]'" in capsys.readouterr().err


def test_standard_input_is_not_a_file_of_the_server(capsys):
    assert main.run(["cel", "lsp", "-f", "-"]) == ExitCode.USAGE
    assert "usage.stdin" in capsys.readouterr().err
