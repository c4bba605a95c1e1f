"""Labels of the node in the file of Node Feature Discovery: true of all GPUs, replaced at once, and they expire."""

from __future__ import annotations

import os
import stat
from dataclasses import replace

import pytest

from dra_driver.base.errors import NodeError
from dra_driver.hardware.facts import Facts
from dra_driver.hardware.nvidia.published import NvidiaGpu, feature_labels
from dra_driver.hardware.port import Roots
from dra_driver.hardware.simulated import SimulatedHardware
from dra_driver.node.daemon.node_labels import EXPIRY_SECONDS, FEATURE_FILE_REFRESH_SECONDS, FeatureFile
from tests.support.agents.agent_process import stage
from tests.support.waiting import until

NOWHERE = Roots(sys="/nonexistent")


def labels(profile: str, roots: Roots = NOWHERE) -> dict[str, str]:
    return short(feature_labels(SimulatedHardware(profile, Roots(), node_name="n1").discover(), roots))


def short(found: dict[str, str]) -> dict[str, str]:
    assert all(name.startswith("nvidia.com/") for name in found)
    return {name.removeprefix("nvidia.com/"): value for name, value in found.items()}


def test_a_node_of_equal_gpus_has_the_labels_of_feature_discovery():
    assert labels("dgx-h100") == {
        "cuda.driver-version.full": "580.126.20",
        "cuda.driver-version.major": "580",
        "cuda.driver-version.minor": "126",
        "cuda.driver-version.revision": "20",
        "cuda.driver.major": "580",
        "cuda.driver.minor": "126",
        "cuda.driver.rev": "20",
        "cuda.runtime-version.full": "13.0",
        "cuda.runtime-version.major": "13",
        "cuda.runtime-version.minor": "0",
        "cuda.runtime.major": "13",
        "cuda.runtime.minor": "0",
        "gpu.compute.major": "9",
        "gpu.compute.minor": "0",
        "gpu.count": "8",
        "gpu.family": "hopper",
        "gpu.memory": "81559",
        "gpu.product": "NVIDIA-H100-80GB-HBM3",
        "mig.capable": "true",
    }


def test_a_mixed_node_has_only_labels_that_are_true_of_all_its_gpus():
    found = labels("mixed")
    assert not {"gpu.product", "gpu.count", "gpu.memory", "gpu.family", "gpu.compute.major"} & set(found)
    assert found["cuda.driver-version.major"] == "580"
    assert found["mig.capable"] == "true", "true of any GPU, as in feature discovery"


def test_the_clique_is_a_label_only_where_all_gpus_are_in_one_clique_of_a_fabric():
    assert labels("gb200-tray")["gpu.clique"] == "5a3c1f0e-7b42-4d8a-9c61-2e0f8d7b6a54.1"
    facts = SimulatedHardware("gb200-tray", Roots(), node_name="n1").discover()
    other = replace(facts.gpus[0], link_domain="5a3c1f0e-7b42-4d8a-9c61-2e0f8d7b6a54.2")
    assert "gpu.clique" not in short(feature_labels(replace(facts, gpus=(other, *facts.gpus[1:])), NOWHERE))
    assert "gpu.clique" not in labels("dgx-h100"), "the links of one machine are no clique"


def test_the_driver_s_own_spelling_of_its_version_is_kept(tmp_path):
    (tmp_path / "module/nvidia").mkdir(parents=True)
    (tmp_path / "module/nvidia/version").write_text("535.54.03\n")
    (tmp_path / "class/dmi/id").mkdir(parents=True)
    (tmp_path / "class/dmi/id/product_name").write_text("Super (C) Server/8 way\n")
    found = labels("dgx-h100", Roots(sys=str(tmp_path)))
    assert (found["cuda.driver-version.full"], found["cuda.driver-version.revision"]) == ("535.54.03", "03")
    assert found["gpu.machine"] == "Super-C-Server8-way"


@pytest.mark.parametrize("word", ["", "-", "x" * 64, "\N{SNOWMAN}"])
def test_what_can_t_be_a_label_is_left_out(tmp_path, word):
    (tmp_path / "class/dmi/id").mkdir(parents=True)
    (tmp_path / "class/dmi/id/product_name").write_text(word)
    assert "gpu.machine" not in labels("dgx-h100", Roots(sys=str(tmp_path)))


def test_lost_gpus_are_not_counted_and_without_gpus_there_is_no_label():
    gpu = NvidiaGpu("GPU-1", "0000:01:00.0", 0, 80 << 30, product_name="A", is_lost=True)
    assert feature_labels(Facts("nvidia", (gpu,), "580.1.2"), NOWHERE) == {}
    assert feature_labels(Facts("nvidia"), NOWHERE) == {}


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Labels:
    value: dict[str, str] | None = {"nvidia.com/gpu.count": "8"}  # noqa: RUF012

    def now(self) -> dict[str, str] | None:
        return self.value


@pytest.fixture
def feature(tmp_path):
    labels, clock = Labels(), Clock()
    path = tmp_path / "features.d" / "dra-driver"
    return FeatureFile(path, labels, clock=clock), labels, clock, path


def test_the_file_has_the_labels_and_expires_a_day_later(feature):
    file, _, clock, path = feature
    assert file.tidy() == 1
    assert path.read_text() == "# +expiry-time=1970-01-02T00:16:40Z\nnvidia.com/gpu.count=8\n"
    assert EXPIRY_SECONDS == 24 * 3600
    assert [one.name for one in path.parent.iterdir()] == ["dra-driver"], "no half-written file is left"
    before = path.stat().st_mtime_ns
    assert file.tidy() == 0
    assert path.stat().st_mtime_ns == before
    clock.now += FEATURE_FILE_REFRESH_SECONDS
    assert file.tidy() == 0, "the labels are the same"
    assert "1970-01-02T12:16:40Z" in path.read_text()


def test_changes_are_written_and_a_removed_file_is_written_again(feature):
    file, labels, _, path = feature
    file.tidy()
    labels.value = {"nvidia.com/gpu.count": "7"}
    assert file.tidy() == 1
    assert "count=7" in path.read_text()
    path.unlink()
    file.tidy()
    assert "count=7" in path.read_text()


def test_unknown_labels_leave_the_file_as_it_is_and_an_empty_set_removes_it(feature):
    file, labels, clock, path = feature
    file.tidy()
    labels.value = None
    clock.now += 10 * EXPIRY_SECONDS
    assert file.tidy() == 0
    assert "1970-01-02T00:16:40Z" in path.read_text(), "unconfirmed labels must end with the file's expiry"
    labels.value = {}
    file.tidy()
    assert not path.exists()
    assert file.tidy() == 0


def test_a_folder_that_can_t_be_written_is_an_error_and_tried_again(feature, tmp_path):
    file, _, _, path = feature
    path.parent.write_text("a file")
    with pytest.raises(NodeError) as caught:
        file.tidy()
    assert caught.value.code == "node.feature-file"
    path.parent.unlink()
    assert file.tidy() == 1


def test_a_link_in_the_folder_is_not_followed(feature, tmp_path):
    file, _, _, path = feature
    path.parent.mkdir()
    victim = tmp_path / "victim"
    victim.write_text("mine")
    path.with_name(f".{path.name}").symlink_to(victim)
    path.symlink_to(victim)
    file.tidy()
    assert victim.read_text() == "mine"
    assert not path.is_symlink()


def test_every_user_can_read_the_file_as_the_worker_of_node_feature_discovery_must(feature):
    file, _, _, path = feature
    before = os.umask(0o077)
    try:
        file.tidy()
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_the_agent_writes_the_labels_of_its_node():
    with stage() as here:
        path = here.folder / "features.d" / "dra-driver"
        here.start("simulated:dgx-h100", "--node-labels", "file", "--feature-file", str(path))
        until(path.exists, what="the file")
        assert "nvidia.com/gpu.count=8\n" in path.read_text()
