"""`dra-driver devices`, `doctor` and `cel` on machines with GPUs of any vendor, read from trees without root."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from dra_driver.base.errors import ExitCode
from dra_driver.base.flags import FLAGS, registered_as
from dra_driver.base.wire import DeviceType
from dra_driver.hardware.simulated import load_profile
from dra_driver.hardware.vendors import ValueKind
from dra_driver.node.devices.describing import rows_of
from dra_driver.simulator.example import load_example
from dra_driver.tools import main
from tests.support.nodes.amd_tree import AmdCard, AmdTree
from tests.support.nodes.intel_tree import IntelCard, IntelTree

EXAMPLES = Path(__file__).parents[3] / "examples/vendors"
APU = AmdCard("0000:c1:00.0", modes=None, memory_bytes=512 << 20, host_bytes=16 << 30, bank_bytes=16 << 30, unique_id=0)
ARC = IntelCard("0000:03:00.0", 1)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for flag in FLAGS:
        monkeypatch.delenv(flag.variable, raising=False)
    for name in ("FORCE_COLOR", "KUBECONFIG", "KUBERNETES_SERVICE_HOST", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


def run(folder: Path, *words: str) -> int:
    roots = [f"--{name}-root={folder / place}" for name, place in (("sysfs", "sys"), ("proc", "proc"), ("dev", "dev"))]
    return main.run([*words, "--node-name", "laptop", *roots])


def test_the_only_gpu_of_a_laptop_an_apu_is_shown_without_a_flag(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    AmdTree(tmp_path).write(APU)
    assert run(tmp_path, "devices", "-o", "json") == ExitCode.OK
    shown = json.loads(capsys.readouterr().out)
    assert (shown["pool"], [device["name"] for device in shown["devices"]]) == (
        "laptop/gpu.amd.com",
        ["gpu-0000-c1-00-0"],
    )
    assert shown["devices"][0]["attributes"]["integrated"] == {"bool": True}
    assert shown["devices"][0]["capacity"]["memory"] == {"value": "16Gi"}
    assert run(tmp_path, "doctor", "--only", "node") == ExitCode.OK
    assert "hardware" in capsys.readouterr().out


def test_gpus_of_two_vendors_are_shown_as_two_pools_and_two_documents(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    AmdTree(tmp_path).write(APU)
    IntelTree(tmp_path).add(ARC)
    assert run(tmp_path, "devices") == ExitCode.OK
    table = capsys.readouterr().out
    assert table.index("pool laptop/gpu.amd.com") < table.index("pool laptop/gpu.intel.com")
    assert run(tmp_path, "devices", "-o", "yaml") == ExitCode.OK
    documents = list(yaml.safe_load_all(capsys.readouterr().out))
    assert [one["driver"] for one in documents] == ["gpu.amd.com", "gpu.intel.com"]
    assert run(tmp_path, "devices", "--hardware", "intel,amd", "-o", "yaml") == ExitCode.OK
    documents = list(yaml.safe_load_all(capsys.readouterr().out))
    assert [one["driver"] for one in documents] == ["gpu.intel.com", "gpu.amd.com"]


def test_slices_of_a_machine_are_read_by_every_command_that_reads_slices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    AmdTree(tmp_path / "node").write(APU, replace(APU, address="0000:c2:00.0", number=8, render_minor=136))
    IntelTree(tmp_path / "node").add(ARC)
    assert run(tmp_path / "node", "devices", "-o", "slices") == ExitCode.OK
    slices, claim = tmp_path / "slices.yaml", tmp_path / "claim.yaml"
    slices.write_text(capsys.readouterr().out)
    requests = [{"name": "any", "exactly": {"deviceClassName": "accelerator.example.com", "count": 3}}]
    spec = {"devices": {"requests": requests}}
    wanted = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "a"}, "spec": spec}
    examples = yaml.safe_load_all((EXAMPLES / "02-any-accelerator.yaml").read_text())
    classes = [one for one in examples if one["kind"] == "DeviceClass"]
    claim.write_text(yaml.safe_dump_all([wanted, *classes]))
    for words in (
        ["explain", "-f", str(claim), "--slices", str(slices)],
        ["cel", "test", str(slices), str(claim)],
        ["simulate", "-f", str(slices), "-f", str(claim)],
        ["slices", "-f", str(slices)],
    ):
        assert main.run(words) == ExitCode.OK, words
        assert "laptop" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("modes", "expected", "parts"),
    [
        (("DPX", "NPS1"), "2 GPUs: 2 free as a whole (or 2", "dpx_nps1)"),
        (None, "2 GPUs: 1 free as a whole (or 2", "partition)"),
    ],
)
def test_partitions_that_the_hardware_made_are_counted_as_parts_of_their_gpu(
    modes: tuple[str, str] | None, expected: str, parts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    divided = AmdCard("0000:05:00.0", modes=modes, partitions=(128, 129))
    AmdTree(tmp_path).write(divided, AmdCard("0000:06:00.0", number=8, render_minor=136, unique_id=2))
    assert run(tmp_path, "devices", "-o", "slices") == ExitCode.OK
    (tmp_path / "slices.yaml").write_text(capsys.readouterr().out)
    assert main.run(["slices", "-f", str(tmp_path / "slices.yaml")]) == ExitCode.OK
    shown = " ".join(capsys.readouterr().out.split())
    assert expected in shown, shown
    assert parts in shown


def test_a_list_with_a_word_that_is_no_vendor_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "devices", "--hardware", "amd,other") == ExitCode.USAGE
    assert "nvidia, amd, intel" in capsys.readouterr().err


def test_auto_with_a_drivers_name_shows_that_driver_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    AmdTree(tmp_path).write(APU)
    assert run(tmp_path, "devices", "--driver-name", "gpu.nvidia.com") == ExitCode.OK
    assert "Nothing to publish" in capsys.readouterr().out


@pytest.mark.parametrize("vendor", ["amd", "intel", "gaudi"])
def test_the_examples_node_publishes_what_the_vendors_driver_would(vendor: str) -> None:
    profile = load_profile(str(EXAMPLES / "node/profile.yaml"))
    (driver,) = (one for one in profile.foreign if one.driver == registered_as(vendor).driver)
    rows = {row.name: row.kind for row in rows_of(vendor)[DeviceType.GPU]}
    kinds = {"string": ValueKind.STRING, "bool": ValueKind.BOOL, "int": ValueKind.INT, "version": ValueKind.VERSION}
    for device in driver.devices:
        for name, value in device["attributes"].items():
            assert rows[name] is kinds[next(iter(value))], name
        assert {rows[name] for name in device["capacity"]} == {ValueKind.QUANTITY}


def test_every_example_has_expectations() -> None:
    for path in EXAMPLES.glob("*.yaml"):
        assert load_example(path).expects, path.name


def test_a_folder_that_is_no_copy_of_sysfs_is_refused_and_not_shown_as_a_machine_without_gpus(tmp_path, capsys):
    tree = AmdTree(tmp_path).write(AmdCard("0000:05:00.0"))
    assert main.run(["devices", "--hardware", "amd", "--sysfs-root", tree.roots.sys]) == 0
    capsys.readouterr()
    for wrong, hint in ((tmp_path, f"try {tree.roots.sys}"), (tmp_path / "typo", "name the folder that was /sys")):
        assert main.run(["devices", "--hardware", "amd", "--sysfs-root", str(wrong)]) == 2
        err = capsys.readouterr().err
        assert "[usage.sysfs-root]" in err
        assert hint in err.replace("\n", "")


def test_one_name_for_the_drivers_of_several_vendors_is_refused_as_by_the_agent(capsys):
    assert main.run(["devices", "--hardware", "amd,intel", "--driver-name", "x.example.com"]) == 2
    assert "[usage.driver-name]" in capsys.readouterr().err
