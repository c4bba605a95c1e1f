"""One driver of the process: it is ready once it works or has nothing to do, and not before."""

from dra_driver.base.flags import FLAGS, resolve
from dra_driver.node.daemon.node_process import DriverLifecycle
from dra_driver.node.daemon.options import options_of
from tests.support.waiting import until


def test_a_driver_that_has_only_begun_to_start_is_not_ready(tmp_path):
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    places = {"sysfs_root": str(tmp_path / "sys"), "proc_root": str(tmp_path), "dev_root": str(tmp_path)}
    folders = {"kubelet_plugins_directory_path": str(tmp_path), "nvidia_driver_root": str(tmp_path)}
    given = {"node_name": "n1", "hardware": "nvidia", **places, **folders}
    life = DriverLifecycle(options_of(resolve(given, {}, FLAGS)), changed=lambda: None)
    assert life.problems() == ("it is starting",), "a roll-out would go on to the next node"
    life.start()
    until(lambda: life.is_idle, what="nothing to do")
    assert life.problems() == ()
    life.end()
