"""Whether a node has cgroups v2, in which daemons outlive their supervisor's container."""

from pathlib import Path

import pytest

from dra_driver.node.mps import daemon

V1 = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n"
V2 = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n"


@pytest.mark.parametrize(
    ("mounts", "expected"), [(V1, False), (V2, True), (V1 + V2.replace("cgroup ", "unified "), True)]
)
def test_a_node_without_a_mount_of_cgroups_v2_has_none(tmp_path: Path, mounts: str, expected: bool) -> None:
    (tmp_path / "mounts").write_text(mounts)
    assert daemon.has_version_2(tmp_path / "cgroup" / "daemons", tmp_path / "mounts") is expected


def test_a_node_has_cgroups_v2_if_the_folder_is_in_one_or_the_mounts_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "mounts").write_text(V1)
    (tmp_path / "cgroup").mkdir()
    (tmp_path / "cgroup" / daemon.PROCESSES).touch()
    assert daemon.has_version_2(tmp_path / "cgroup" / "daemons", tmp_path / "mounts")
    assert daemon.has_version_2(tmp_path / "elsewhere", tmp_path / "none")


def test_a_path_that_is_too_long_is_not_in_a_cgroup(tmp_path: Path) -> None:
    (tmp_path / "mounts").write_text(V1)
    assert not daemon.has_version_2(tmp_path / ("x" * 300), tmp_path / "mounts")
