"""`dra-driver devices` on simulated hardware: the same devices in every format, flags, exit statuses."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from dra_driver.base.errors import ExitCode
from dra_driver.base.flags import FLAGS
from dra_driver.hardware.facts import Facts, Problem
from dra_driver.hardware.nvidia.published import NvidiaGpu
from dra_driver.hardware.simulated import profile_names
from dra_driver.tools import main


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for flag in FLAGS:
        monkeypatch.delenv(flag.variable, raising=False)
    for name in ("FORCE_COLOR", "KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)


class FakeHardware:
    """Hardware that reports what a test sets."""

    vendor = "nvidia"

    def __init__(self, facts=None, problems=()):
        self.facts = facts or Facts("nvidia")
        self.problems = problems
        self.is_closed = False

    def discover(self):
        return self.facts

    def edit_problems(self):
        return self.problems

    def close(self):
        self.is_closed = True


@pytest.fixture
def hardware(monkeypatch):
    made = FakeHardware()
    monkeypatch.setattr("dra_driver.tools.options.choose", lambda *_, **__: made)
    return made


@pytest.mark.parametrize("profile", profile_names())
def test_every_shipped_profile_is_shown(profile, capsys):
    assert main.run(["devices", "--hardware", f"simulated:{profile}", "--node-name", "n1", "-o", "wide"]) == ExitCode.OK
    table = capsys.readouterr().out
    assert main.run(["devices", "--hardware", f"simulated:{profile}", "--node-name", "n1", "-o", "json"]) == ExitCode.OK
    document = json.loads(capsys.readouterr().out)
    assert document["pool"] == "n1/gpu.nvidia.com"
    assert document["devices"]
    for device in (*document["devices"], *document["devicesWithoutCounters"]):
        assert device["name"] in table
        assert device["attributes"].get("uuid", {"string": ""})["string"] in table


def test_a_simulated_node_has_one_option_in_all_commands(capsys):
    shown = []
    for words in (["--hardware", "simulated:t4"], ["--fleet", "t4"], ["--profile", "t4"]):
        assert main.run(["devices", *words, "--node-name", "n1", "-o", "json"]) == ExitCode.OK
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1] == shown[2]
    assert main.run(["devices", "--fleet", "t4", "--hardware", "nvidia"]) == ExitCode.USAGE
    names = {("devices",), ("demo",), ("slices",), ("claims",), ("explain",), ("simulate",), ("console",), ("migrate",)}
    for command in (*names, ("cel", "test"), ("cel", "repl")):
        assert main.run([*command, "--help"]) == ExitCode.OK
        assert "--fleet, --profile" in capsys.readouterr().out, command


def test_json_and_yaml_have_the_same_content(capsys):
    main.run(["devices", "--hardware", "simulated:mixed", "-o", "json"])
    as_json = json.loads(capsys.readouterr().out)
    main.run(["devices", "--hardware", "simulated:mixed", "-o", "yaml"])
    assert yaml.safe_load(capsys.readouterr().out) == as_json
    assert any(gpu["migEnabled"] for gpu in as_json["gpus"])
    assert as_json["leftOut"]


def test_a_flag_overrides_its_environment_variable_and_that_the_default(monkeypatch, capsys):
    monkeypatch.setenv("HARDWARE", "simulated:t4")
    monkeypatch.setenv("NODE_NAME", "from-environment")
    main.run(["devices", "-o", "json"])
    assert json.loads(capsys.readouterr().out)["node"] == "from-environment"
    main.run(["devices", "-o", "json", "--node-name", "from-flag", "--driver-name", "gpu.example.com"])
    assert json.loads(capsys.readouterr().out)["pool"] == "from-flag/gpu.example.com"


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["--hardware", "quantum"], ExitCode.USAGE),
        (["--hardware", "simulated:no-such-profile"], ExitCode.BAD_INPUT),
        (["--hardware", "simulated:t4", "--node-name", "Not A Name"], ExitCode.USAGE),
        (["--hardware", "simulated:t4", "--driver-name", "Not A Name"], ExitCode.USAGE),
    ],
)
def test_wrong_flags_and_profiles_have_their_own_status(words, status, capsys):
    assert main.run(["devices", *words]) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("dra-driver: ")
    assert "Traceback" not in err


def test_the_exit_status_is_1_if_there_is_nothing_to_publish(hardware, capsys):
    assert main.run(["devices", "--node-name", "n1", "--exit-code"]) == ExitCode.NO_MATCH
    assert "Nothing to publish on n1." in capsys.readouterr().out
    assert hardware.is_closed


def test_the_exit_status_is_5_with_the_reason_if_the_hardware_does_not_answer(hardware, capsys):
    hardware.facts = Facts("nvidia", waiting_for="the nvidia kernel module is not loaded")
    assert main.run(["devices"]) == ExitCode.ENVIRONMENT
    assert "waiting for: the nvidia kernel module is not loaded" in capsys.readouterr().out


def test_problems_and_what_is_left_out_are_listed(hardware, capsys):
    gpu = NvidiaGpu(uuid="GPU-1", pci_address="0000:65:00.0", minor=0, memory_bytes=1 << 30)
    problem = Problem("hardware.fact-unreadable", "0000:65:00.0", "serial [can't] be read")
    hardware.facts, hardware.problems = Facts("nvidia", (gpu,), problems=(problem,)), ("no hook binary",)
    assert main.run(["devices"]) == ExitCode.OK
    text = capsys.readouterr().out
    assert "0000:65:00.0: serial [can't] be read [hardware.fact-unreadable]" in text
    assert "no hook binary" in text
    main.run(["devices", "-o", "json"])
    document = json.loads(capsys.readouterr().out)
    assert document["problems"][0]["code"] == "hardware.fact-unreadable"
    assert document["leftOut"] == ["no hook binary"]


def test_a_narrow_terminal_wraps_text_and_drops_no_number(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    main.run(["devices", "--hardware", "simulated:demo-h100"])
    text = capsys.readouterr().out
    assert "79.2 GiB (81152Mi)" in text
    assert "9.8 GiB (9984Mi)" in text
    assert "25 placements" in text
    assert "7\u00d71g.10gb (9984Mi)" in text, "the amount that goes into a selector"
    assert all(len(line) <= 80 for line in text.splitlines())
    assert all(line == line.rstrip() for line in text.splitlines()), "no trailing blanks"


def test_output_that_is_not_on_a_terminal_has_no_colour_and_is_not_wrapped(capsys, monkeypatch):
    main.run(["devices", "--hardware", "simulated:demo-h100", "-o", "wide"])
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert any("gpu-0000-df-00-0-mig-1g10gb-me-20-0" in line and "MIG-" in line for line in text.splitlines())
    monkeypatch.setenv("FORCE_COLOR", "1")
    main.run(["devices", "--hardware", "simulated:demo-h100", "-o", "wide"])
    text = capsys.readouterr().out
    assert "\x1b" in text
    assert any("gpu-0000-df-00-0-mig-1g10gb-me-20-0" in line and "MIG-" in line for line in text.splitlines())
    monkeypatch.setenv("NO_COLOR", "1")
    main.run(["devices", "--hardware", "simulated:demo-h100"])
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]", capsys.readouterr().out)


# -- how GPUs are offered ----------------------------------------------------------------------------------------------


def document(capsys, *words):
    assert main.run(["devices", "--hardware", "simulated:demo-h100", "-o", "json", *words]) == ExitCode.OK
    return json.loads(capsys.readouterr().out)


def as_they_stand(found):
    return {one["pciAddress"]: one["reason"] for one in found["mig"]["asTheyStand"]}


def test_without_an_api_server_both_offers_are_shown_with_their_conditions(capsys):
    found = document(capsys)
    assert (len(found["devices"]), len(found["devicesWithoutCounters"])) == (164, 14)
    assert len(found["sharedCounters"]) == 6
    assert found["mig"]["onDemand"]
    assert found["mig"]["countersKept"] is None
    assert "an administrator has partitioned it" in as_they_stand(found)["0000:d1:00.0"]
    main.run(["devices", "--hardware", "simulated:demo-h100"])
    text = capsys.readouterr().out
    assert "This is published if the API server keeps shared counters (no API server was asked" in text
    assert "if it drops them (gate DRAPartitionableDevices off): 14 devices" in text


def test_the_mig_setting_decides_what_is_shown(capsys, monkeypatch):
    found = document(capsys, "--mig", "static")
    assert (len(found["devices"]), found["sharedCounters"], found["mig"]["onDemand"]) == (14, [], False)
    assert as_they_stand(found)["0000:1b:00.0"] == "whole: --mig=static"
    monkeypatch.setenv("MIG", "static")
    assert len(document(capsys)["devices"]) == 14
    assert len(document(capsys, "--mig", "dynamic")["devices"]) == 164


@pytest.mark.parametrize(("version", "kept", "count"), [("1.36", True, 164), ("1.35", False, 14), ("1.34", False, 14)])
def test_the_api_server_is_asked_what_it_keeps_and_nothing_is_stored(version, kept, count, capsys, tmp_path):
    from dra_driver.simulator.api_server import EmbeddedApi
    from dra_driver.simulator.store import SLICES

    with EmbeddedApi(version=version) as api:
        api.write_kubeconfig(tmp_path / "kubeconfig")
        found = document(capsys, "--kubeconfig", str(tmp_path / "kubeconfig"))
        assert api.items(SLICES) == []
        main.run(["devices", "--hardware", "simulated:demo-h100", "--kubeconfig", str(tmp_path / "kubeconfig")])
    assert (found["mig"]["countersKept"], len(found["devices"]), bool(found["sharedCounters"])) == (kept, count, kept)
    assert f"v{version}" in found["mig"]["how"]
    assert f"{'keeps' if kept else 'drops'} shared counters" in capsys.readouterr().out


def test_a_server_that_does_not_answer_is_not_an_error(capsys, tmp_path):
    from dra_driver.simulator.api_server import EmbeddedApi

    with EmbeddedApi(version="1.36") as api:
        api.write_kubeconfig(tmp_path / "kubeconfig")
    found = document(capsys, "--kubeconfig", str(tmp_path / "kubeconfig"))
    assert found["mig"]["countersKept"] is None
    assert "did not answer" in found["mig"]["how"]
    assert len(found["devices"]) == 164


def test_partitions_that_the_agent_has_made_do_not_count_as_an_administrators(capsys, tmp_path):
    from tests.support.plugin.mig_parts import MigRig, small

    rig = MigRig(tmp_path)
    rig.now_prepare("u1", small(3))
    rig.ledger.close()
    plugins = rig.data.parent
    words = ["--hardware", f"simulated:{tmp_path / 'profile.yaml'}", "--node-name", "n1", "-o", "json"]
    words += ["--proc-root", str(rig.proc), "--kubelet-plugins-directory-path", str(plugins)]
    assert main.run(["devices", *words]) == ExitCode.OK
    found = json.loads(capsys.readouterr().out)
    assert found["gpus"][0]["partitions"] != []
    assert (len(found["devices"]), found["mig"]["asTheyStand"]) == (52, [])


def test_shared_devices_are_shown_with_what_replaces_them_on_other_servers(tmp_path, capsys):
    config = tmp_path / "sharing.yaml"
    config.write_text(
        "version: rules/v1\nrules:\n"
        '  - {match: {devices: ["gpu-0000-1b-*"]}, replicas: 4, sharing: {strategy: TimeSlicing}}\n'
        '  - {match: {devices: ["gpu-0000-43-*"]}, memory: {default: 10Gi, step: 1Gi}, sharing: {strategy: MPS}}\n'
        '  - {match: {devices: ["gpu-0000-52-*"]}, compute: {default: 25}, replicas: 2}\n'
    )
    given = ["devices", "--hardware", "simulated:demo-h100", "--node-name", "n1", "--sharing-config", str(config)]
    assert main.run(given) == ExitCode.OK
    table = capsys.readouterr().out
    for line in (
        "gpu-0000-1b-00-0: 4 replicas of 19.9 GiB (20389Mi); strategy TimeSlicing, enforcement none; without",
        "without DRAConsumableCapacity: 4 replicas gpu-0000-1b-00-0-share-0",
        "gpu-0000-43-00-0: shares of 1.0 GiB (1Gi) to 79.0 GiB (79Gi) in steps of 1.0 GiB (1Gi), 10.0 GiB (10Gi)",
        "strategy MPS, enforcement cooperative; without DRAConsumableCapacity: the whole device",
        "gpu-0000-52-00-0: shares of 1 to 100 % in steps of 1, 25 % if none is asked for; strategy none",
    ):
        assert line in table
    assert main.run([*given, "-o", "json"]) == ExitCode.OK
    document = json.loads(capsys.readouterr().out)
    shared = [device for device in document["devices"] if device.get("allowMultipleAllocations")]
    assert [len(document["instead"][device["name"]]) for device in shared] == [4, 1, 2]


def test_a_sharing_configuration_that_is_wrong_is_bad_input(tmp_path, capsys):
    config = tmp_path / "sharing.yaml"
    config.write_text("version: rules/v1\nrules: [{replicas: 1}]\n")
    given = ["devices", "--hardware", "simulated:demo-h100", "--sharing-config", str(config)]
    assert main.run(given) == ExitCode.BAD_INPUT
    assert "line 2: rules[0].replicas" in capsys.readouterr().err
