"""What the console answers to any request: documents that conform to their schemas, within the limits."""

import json
import os
import re
import threading
from pathlib import Path

import jsonschema
import pytest

from dra_driver.tools.main import run
from dra_driver.tools.schemas import schema_of
from dra_driver.tools.world.access import DocumentKind
from tests.support.console.process import running_console
from tests.support.waiting import until

STATIC = Path(__file__).resolve().parents[3] / "dra_driver" / "tools" / "console" / "static"
NINE = "[1,2,3,4,5,6,7,8,9]"
BOMB = "a + b + c + d + e + f + g > 0"
for name in "gfedcba":
    BOMB = f"{NINE}.all({name}, {BOMB})"
PLACE = {"node": "demo-node", "driver": "gpu.nvidia.com", "pool": "demo-node", "device": "gpu-0000-1b-00-0"}


def valid(reply, kind):
    assert reply.status == 200, reply.body
    jsonschema.validate(reply.json, schema_of(kind))
    return reply.json


def test_the_summary_of_the_fleet_conforms_to_its_schema(console):
    found = valid(console.ask("summary"), DocumentKind.FLEET_SUMMARY)
    assert (found["nodes"], found["gpus"], found["states"]["free"]) == (1, 8, 8)


def test_a_page_of_the_map_has_partitions_to_scale(console):
    found = valid(console.ask("fleet"), DocumentKind.FLEET_PAGE)
    [node] = found["nodes"]
    partitioned = next(one for one in node["tiles"] if len(one["parts"]) > 1)
    assert [(part["label"], part["start"], part["size"]) for part in partitioned["parts"]] == [
        ("2g.20gb", 0.0, 0.25),
        ("1g.10gb", 0.25, 0.125),
        ("1g.10gb", 0.375, 0.125),
        ("3g.40gb", 0.5, 0.5),
    ]


def test_a_selector_filters_the_map_and_marks_what_it_accepts(console):
    asked = '?expression=device.driver%3D%3D"gpu.nvidia.com"%26%26device.attributes["gpu.nvidia.com"].numaNode%3D%3D1'
    [node] = valid(console.ask("fleet", asked), DocumentKind.FLEET_PAGE)["nodes"]
    marks = {
        tile["numa"]: {part["matches"] for part in tile["parts"]} for tile in node["tiles"] if tile["kind"] == "gpu"
    }
    assert marks == {"0": {False}, "1": {True}}


def test_a_filter_that_distinguishes_equal_nodes_is_judged_on_as_many_as_time_allows():
    from dra_driver.tools.console.board import Board
    from dra_driver.tools.console.fleet_filter import selector_matches
    from dra_driver.tools.world.world import World, add_profiles, apply_rules

    world = World()
    rules = apply_rules(world, "1.35", {})
    add_profiles(world, ["dgx-h100=600"])
    board = Board.of_world(world, rules, "test")
    names = list(board.slices_by_node())
    apart = 'device.attributes["gpu.nvidia.com"].uuid.contains("7")'
    none = selector_matches(board, apart, names, seconds=-1)
    assert (none.accepted, none.note.partition(": ")[2]) == ({}, "judged on the first 0 of 600 nodes")
    some = selector_matches(board, apart, names[:60], seconds=600)
    assert some.note == ""
    uuids = {(name, one["name"]) for name in names[:60] for wire in board.slices_by_node()[name]
             for one in wire["spec"]["devices"] if "7" in one["attributes"]["uuid"]["string"]}  # fmt: skip
    assert {(node, name) for node, found in some.accepted.items() for _, _, name in found} == uuids
    alike = selector_matches(board, 'device.driver == "gpu.nvidia.com"', names, seconds=-1)
    assert len(alike.accepted) == 600, "one node of each kind is judged for all of them"


@pytest.mark.parametrize(
    ("query", "count"), [("?model=h100", 1), ("?model=t4", 0), ("?name=demo", 1), ("?state=held", 0)]
)
def test_the_map_is_filtered_by_name_model_and_state(console, query, count):
    assert valid(console.ask("fleet", query), DocumentKind.FLEET_PAGE)["matching"] == count


def test_the_list_of_what_deserves_attention_conforms_to_its_schema(console):
    assert valid(console.ask("attention"), DocumentKind.ATTENTION)["flags"] == []


def test_a_device_has_its_attributes_and_holders(console):
    query = "?" + "&".join(f"{name}={value}" for name, value in PLACE.items())
    found = valid(console.ask("device", query), DocumentKind.DEVICE_PAGE)
    assert {"name": "architecture", "value": "Hopper"} in found["attributes"]
    missing = console.ask("device", query.replace(PLACE["device"], "nothing")).json
    assert missing["error"]["code"] == "input.no-device"


def test_a_device_of_another_driver_on_the_same_node_with_an_equal_name_is_another_device(console):
    query = "?" + "&".join(f"{name}={value}" for name, value in {**PLACE, "driver": "gpu.amd.com"}.items())
    assert console.ask("device", query).json["error"]["code"] == "input.no-device"


def test_a_selector_is_judged_on_every_device_with_cost_findings_and_position(console):
    found = valid(
        console.post("selector", {"expression": 'device.attributes["gpu.nvidia.com"].type == "gpu"'}),
        DocumentKind.SELECTOR_PLAY,
    )
    assert found["counts"] == {"match": 6, "noMatch": 8, "abort": 8}
    assert found["selector"]["maxCost"] < found["costLimit"]
    assert "unguarded-attribute" in [one["rule"] for one in found["findings"]]
    broken = valid(console.post("selector", {"expression": "device.driver =="}), DocumentKind.SELECTOR_PLAY)
    assert broken["position"] == {"line": 1, "column": 17}


def test_the_verdicts_of_the_page_are_those_of_the_command(console, capsys):
    expression = 'device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].numaNode == 1'
    run(["cel", "test", "-e", expression, "--fleet", "demo-h100", "-o", "json"])
    counts = json.loads(capsys.readouterr().out)["queries"][0]["counts"]
    assert console.post("selector", {"expression": expression}).json["counts"] == counts


def test_one_device_is_explained_part_by_part(console):
    asked = {"expression": 'device.driver == "gpu.nvidia.com" && device.driver == "x"', **PLACE}
    found = valid(console.post("selector/explain", asked), DocumentKind.SELECTOR_EXPLANATIONS)
    tree = found["queries"][0]["groups"][0]["explanations"][0]["tree"]
    assert [part["value"] for part in tree["parts"]] == ["true", "false"]


def test_completions_come_from_the_devices_of_the_fleet(console):
    found = console.post("selector/completions", {"before": 'device.attributes["gpu.nvidia.com"].arch'}).json
    assert found["candidates"] == [{"text": "architecture", "replaces": 4, "meaning": 'string: "Hopper"'}]


def test_the_examples_of_the_gallery_compile_and_fail_on_no_device(console):
    examples = re.findall(r"expression: `([^`]*)`", (STATIC / "playground" / "gallery.js").read_text())
    assert len(examples) > 5
    for expression in examples:
        found = console.post("selector", {"expression": expression}).json
        assert found["selector"]["compileError"] is None
        assert found["counts"]["abort"] == 0
        assert found["findings"] == [], expression


def test_a_very_costly_selector_ends_in_time_and_delays_no_other_request(console):
    costly = {"expression": BOMB, "environment": "stored"}

    def is_answered_meanwhile():
        """Ask both; on a busy machine any question may take as long as the costly one is allowed to."""
        answers = []
        bomb = threading.Thread(target=lambda: answers.append(console.post_once("selector", costly)))
        bomb.start()
        other = console.post("selector", {"expression": "true"})
        is_first = bomb.is_alive()
        bomb.join()
        assert other.json["counts"]["match"] == 22
        assert answers[0].status in {200, 422}
        if answers[0].status == 422:
            assert answers[0].json["error"]["code"] == "question.too-slow"
        return is_first

    until(is_answered_meanwhile, "an answer that does not wait for the costly selector")


@pytest.mark.parametrize(
    ("name", "question", "status"),
    [
        ("selector", {"expression": "x" * 40_000}, 422),
        ("selector", {"expression": 5}, 422),
        ("selector", {"expression": "true", "kubernetes": "1.99"}, 422),
        ("selector", {"expression": "true", "gates": {"Nonsense": True}}, 422),
        ("selector", {"expression": "true", "gates": [1]}, 422),
        ("selector", {"expression": "true", "environment": "none"}, 422),
        ("selector", [], 400),
        ("selector/explain", {"expression": "true", "node": "a", "driver": "d", "pool": "b", "device": "c"}, 422),
        ("nothing", {}, 404),
        ("fleet", {"offset": "-1"}, 422),
        ("fleet", {"offset": "1e9"}, 422),
        ("fleet", {"labels": "a=b=c="}, 422),
        ("fleet", {"expression": "nonsense("}, 422),
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_an_invalid_request_gets_an_error_with_a_code_and_a_message(console, name, question, status):
    reply = console.post(name, question)
    assert reply.status == status
    error = reply.json["error"]
    assert error["code"]
    assert error["message"]


def test_a_body_that_is_too_long_is_not_read(console):
    refused = console.send(
        "POST", "/api/v1/selector", b"{", cookie=console.cookie, origin=console.origin, content_length="99999999"
    )
    assert refused.status == 413


def test_deep_nesting_does_not_end_the_console(console):
    console.send("POST", "/api/v1/selector", b"[" * 100_000, cookie=console.cookie, origin=console.origin)
    console.post("selector", {"expression": "(" * 10_000})
    assert console.ask("summary").status == 200


def test_a_new_stream_of_events_begins_with_state_and_version(console):
    import http.client

    line = http.client.HTTPConnection("127.0.0.1", console.port, timeout=60)
    line.request("GET", "/api/v1/events", headers={"host": f"127.0.0.1:{console.port}", "cookie": console.cookie})
    reply = line.getresponse()
    assert reply.getheader("content-type").startswith("text/event-stream")
    seen = b""
    while b"event: version" not in seen:
        seen += reply.readline()
    line.close()
    assert b"event: state" in seen


def test_a_fleet_that_can_not_be_read_ends_the_command_with_its_reason(tmp_path):
    path = tmp_path / "broken.yaml"
    path.write_text("kind: ResourceSlice\nmetadata: [")
    with running_console("-f", str(path)) as console:
        assert console.process.wait(60) == 3


def test_a_console_whose_worker_was_killed_ends_with_status_5():
    with running_console("--fleet", "demo-h100") as console:
        console.ready()
        pid = console.process.pid
        [worker] = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        os.kill(int(worker), 9)
        assert console.process.wait(60) == 5
