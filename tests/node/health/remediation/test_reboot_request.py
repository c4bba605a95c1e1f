"""The file that asks for a reboot: for one boot, below the host's root, and never a file of another program."""

import subprocess
from pathlib import Path

import pytest

from dra_driver.base.errors import NodeError
from dra_driver.node.health.recovery import RebootRequest

BOOT = "1b4e28ba-2fa1-41d2-883f-0016d3cca427"


def would_reboot(path: Path, boot: Path) -> bool:
    """Return whether kured would reboot, by the command that docs/health.md shows."""
    command = (Path(__file__).parents[4] / "docs/health.md").read_text().partition("--reboot-sentinel-command=")[2]
    words = command.partition("\n")[0].strip('"').split()
    words[-2:] = [str(boot), str(path)]
    return subprocess.run(words, check=False).returncode == 0


def test_a_request_is_for_one_boot_and_can_be_withdrawn(tmp_path):
    boot = tmp_path / "boot_id"
    boot.write_text(f"{BOOT}\n")
    path = tmp_path / "reboot-required"
    assert not would_reboot(path, boot)
    RebootRequest(path, BOOT).ask("gpu-lost\nof a GPU")
    assert would_reboot(path, boot)
    assert path.read_text().splitlines()[1] == "gpu-lost?of a GPU"
    boot.write_text("9c858901-8a57-4791-81fe-4c455b099bc9\n")
    assert not would_reboot(path, boot), "a request of an earlier boot"
    RebootRequest(path, "9c858901").withdraw()
    RebootRequest(path, "9c858901").withdraw()
    assert not path.exists()


def test_a_file_of_another_program_is_neither_changed_nor_removed(tmp_path):
    path = tmp_path / "reboot-required"
    path.write_text("")
    RebootRequest(path, BOOT).ask("x")
    RebootRequest(path, BOOT).withdraw()
    assert path.read_text() == ""


def test_links_are_followed_below_the_hosts_root_and_never_out_of_it(tmp_path):
    host = tmp_path / "host"
    (host / "run").mkdir(parents=True)
    (host / "var").mkdir()
    (host / "var/run").symlink_to("/run")
    RebootRequest(Path("/var/run/reboot-required"), BOOT, host=str(host)).ask("x")
    assert (host / "run/reboot-required").exists()


def test_a_request_in_a_missing_folder_is_an_error_that_names_the_file(tmp_path):
    with pytest.raises(NodeError, match="none/reboot-required can't be written") as refused:
        RebootRequest(tmp_path / "none/reboot-required", BOOT).ask("x")
    assert refused.value.code == "node.reboot-request"
