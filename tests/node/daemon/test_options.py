"""How the agent checks its flags."""

import os
from pathlib import Path

import pytest

from dra_driver.base.errors import ExitCode, UsageError
from dra_driver.base.flags import FLAGS, resolve
from dra_driver.node.daemon.main import main
from dra_driver.node.daemon.options import drivers_of, options_of


def options(**given):
    return options_of(resolve({"node_name": "n1", **given}, {}, FLAGS))


def test_relative_folders_become_absolute_because_other_processes_get_their_paths():
    given = options(
        cdi_root="cdi",
        kubelet_registrar_directory_path="reg",
        kubelet_plugins_directory_path="plugins",
        dev_root="dev",
        nvidia_driver_root="driver",
    )
    here = Path.cwd()
    assert (given.cdi_root, given.registrar_dir, given.plugins_dir) == (here / "cdi", here / "reg", here / "plugins")
    assert given.roots.dev == os.fspath(here / "dev")
    assert (given.roots.driver, given.roots.driver_mount) == (os.fspath(here / "driver"),) * 2


def test_absolute_folders_stay_as_they_are_written():
    assert options().roots.driver == "/"
    assert options(dev_root="/host/dev").roots.dev == "/host/dev"
    assert options(
        nvidia_driver_root="/run/nvidia/driver", nvidia_driver_root_mount="/driver-root"
    ).roots.driver_mount == ("/driver-root")


def test_an_invalid_address_is_a_usage_error_before_anything_starts():
    assert options(metrics_address=":9400").status.metrics_address == ":9400"
    with pytest.raises(UsageError, match="HOST:PORT"):
        options(metrics_address="9400")


def test_a_file_of_features_is_absolute_and_not_hidden():
    assert options().feature_file is None
    default = Path("/etc/kubernetes/node-feature-discovery/features.d/dra-driver")
    assert options(node_labels="file").feature_file == default
    for path in ("features.d/file", "/features.d/.file"):
        with pytest.raises(UsageError, match="--feature-file"):
            options(node_labels="file", feature_file=path)


def test_a_flag_is_not_guessed_from_its_first_letters(capsys):
    assert main(["--node", "n1"]) == ExitCode.USAGE
    assert "unrecognized arguments: --node n1" in capsys.readouterr().err


def test_an_empty_flag_is_a_usage_error_and_an_empty_environment_variable_means_the_default():
    for flag in FLAGS:
        if flag.default:
            with pytest.raises(UsageError, match=f"{flag.name}"):
                options(**{flag.field: ""})
        assert resolve({}, {flag.variable: ""}, [flag]) == {flag.field: flag.default}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"remediation": "on"}, "can't reset AMD's GPUs"),
        ({"remediation": "dry-run"}, "can't reset AMD's GPUs"),
        ({"validate": "1"}, "no test for AMD's GPUs"),
        ({"validate": "2"}, "no test for AMD's GPUs"),
    ],
)
def test_what_a_vendor_s_gpus_can_t_do_is_refused_with_its_name(given, says):
    with pytest.raises(UsageError, match=says) as refused:
        options(hardware="amd", **given)
    assert refused.value.code == "usage.hardware"


def test_what_one_vendor_s_gpus_can_t_do_is_done_for_other_vendors_beside_it():
    flags = {"node_name": "n1", "hardware": "nvidia,amd", "remediation": "on", "validate": "1"}
    nvidia, amd = drivers_of(resolve(flags, {}, FLAGS), is_named=False)
    assert (nvidia.remediation, nvidia.validation.level) == ("on", 1)
    assert (amd.remediation, amd.validation.level) == ("off", 0)


def test_a_command_of_the_administrator_s_tests_any_vendor_s_gpus():
    assert options(hardware="amd", validate="/opt/test {pci}").validation.command == ("/opt/test", "{pci}")


def test_a_condition_without_health_is_refused():
    with pytest.raises(UsageError, match="--health=off finds none"):
        options(node_condition="on", health="off")


def test_every_vendor_reads_the_file_of_gpus_for_virtual_machines(tmp_path):
    flags = {"node_name": "n1", "hardware": "nvidia,amd,intel,gaudi", "passthrough": str(tmp_path / "gpus.yaml")}
    found = drivers_of(resolve(flags, {}, FLAGS), is_named=False)
    assert [one.passthrough for one in found] == [tmp_path / "gpus.yaml"] * 4
