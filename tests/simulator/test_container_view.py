"""How a runtime resolves CDI ids: order, conflicts, files that are left out, nodes that are read from the host."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from dra_driver.base.errors import NodeError
from dra_driver.simulator.container_view import ContainerDeviceNode, resolve


def write(folder, name="a.json", *, kind="example.com/gpu", version="0.3.0", common=None, **devices):
    folder.mkdir(exist_ok=True)
    document = {
        "cdiVersion": version,
        "kind": kind,
        "devices": [{"name": device, "containerEdits": edits} for device, edits in devices.items()],
    }
    if common:
        document["containerEdits"] = common
    (folder / name).write_text(json.dumps(document))


NODE = {"path": "/dev/x0", "type": "c", "major": 195, "minor": 7, "permissions": "rw"}


def test_edits_of_the_file_come_once_and_before_those_of_its_devices(tmp_path):
    write(
        tmp_path,
        common={"env": ["A=file", "B=file"], "deviceNodes": [{**NODE, "path": "/dev/ctl"}]},
        one={"env": ["B=one"], "deviceNodes": [NODE]},
        two={
            "mounts": [{"hostPath": "/h", "containerPath": "/c"}],
            "hooks": [{"hookName": "createContainer", "path": "/bin/hook", "args": ["hook", "ldconfig"]}],
        },
    )
    view = resolve(["example.com/gpu=one", "example.com/gpu=two", "example.com/gpu=one"], [tmp_path])
    assert view.env == ("A=file", "B=one")
    assert [node.path for node in view.device_nodes] == ["/dev/ctl", "/dev/x0"]
    assert view.device_nodes[1] == ContainerDeviceNode("/dev/x0", "/dev/x0", "c", 195, 7, "rw")
    assert str(view.device_nodes[1]) == "/dev/x0 c 195:7 rw"
    assert view.mounts == (("/c", "/h"),)
    assert view.hooks == ("createContainer /bin/hook ldconfig",)
    assert view.files == (tmp_path / "a.json",)


def test_no_ids_are_an_empty_view(tmp_path):
    assert resolve([], [tmp_path / "absent"]).env == ()


def test_an_id_that_no_file_has_is_an_error(tmp_path):
    write(tmp_path, one={"env": ["A=1"]})
    with pytest.raises(NodeError, match=r"unresolvable CDI device example\.com/gpu=two"):
        resolve(["example.com/gpu=one", "example.com/gpu=two"], [tmp_path])


def test_two_files_of_one_folder_conflict_and_the_later_folder_wins(tmp_path):
    static, dynamic = tmp_path / "etc", tmp_path / "run"
    write(static, one={"env": ["A=static"]})
    write(dynamic, one={"env": ["A=dynamic"]})
    assert resolve(["example.com/gpu=one"], [static, dynamic]).env == ("A=dynamic",)
    write(dynamic, "b.json", one={"env": ["A=again"]})
    with pytest.raises(NodeError, match="conflicting CDI device"):
        resolve(["example.com/gpu=one"], [static, dynamic])


def test_files_with_other_suffixes_are_not_read(tmp_path):
    write(tmp_path, "a.json.tmp", one={"env": ["A=1"]})
    with pytest.raises(NodeError, match="unresolvable"):
        resolve(["example.com/gpu=one"], [tmp_path])


def test_yaml_files_are_read(tmp_path):
    write(tmp_path, "a.yaml", one={"env": ["A=1"]})  # JSON is YAML
    assert resolve(["example.com/gpu=one"], [tmp_path]).env == ("A=1",)


EDITS = {"env": ["A=1"]}


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ("{", "Expecting"),
        ("[]", "not an object"),
        ({"cdiVersion": "9.9.9"}, "not a released version"),
        ({"kind": "gpu"}, "is not <vendor>/<class>"),
        ({"kind": "-x/gpu"}, "is not <vendor>/<class>"),
        ({"devices": []}, "no devices"),
        ({"devices": [{"name": "a/b", "containerEdits": EDITS}]}, "not allowed"),
        ({"devices": [{"name": "a", "containerEdits": EDITS}] * 2}, "twice"),
        ({"devices": [{"name": "a", "containerEdits": {}}]}, "no container edits"),
        ({"cdiVersion": "0.4.0", "devices": [{"name": "0a", "containerEdits": EDITS}]}, "below 0.5.0"),
        (
            {"cdiVersion": "0.4.0", "containerEdits": {"deviceNodes": [{**NODE, "hostPath": "/dev/y"}]}},
            "below 0.5.0",
        ),
        ({"cdiVersion": "0.5.0", "annotations": {}}, "below 0.6.0"),
        ({"cdiVersion": "0.6.0", "containerEdits": {"additionalGids": [5]}}, "below 0.7.0"),
        (
            {
                "cdiVersion": "0.3.0",
                "containerEdits": {"mounts": [{"hostPath": "/", "containerPath": "/", "type": "x"}]},
            },
            "below 0.4.0",
        ),
    ],
)
def test_a_file_that_is_wrong_is_left_out_and_the_error_says_why(tmp_path, document, why):
    if isinstance(document, dict):
        whole = {
            "cdiVersion": "0.3.0",
            "kind": "example.com/gpu",
            "devices": [{"name": "one", "containerEdits": EDITS}],
        }
        document = json.dumps(whole | document)
    (tmp_path / "bad.json").write_text(document)
    with pytest.raises(NodeError) as caught:
        resolve(["example.com/gpu=one"], [tmp_path])
    assert why in caught.value.hint


def test_device_numbers_that_are_not_in_the_file_are_read_from_the_host(tmp_path):
    write(tmp_path, one={"deviceNodes": [{"path": "/dev/nothing", "hostPath": "/dev/null"}]}, version="0.5.0")
    (node,) = resolve(["example.com/gpu=one"], [tmp_path]).device_nodes
    status = Path("/dev/null").stat()
    assert (node.type, node.major, node.minor) == ("c", os.major(status.st_rdev), os.minor(status.st_rdev))
    assert node.permissions == "rwm"
    write(tmp_path, one={"deviceNodes": [{"path": "/dev/not-there-at-all"}]})
    with pytest.raises(NodeError, match="/dev/not-there-at-all can't be read"):
        resolve(["example.com/gpu=one"], [tmp_path])
