"""Which containers have a device node, or have it open, and that the next claim of the device waits for them.

Containers are real processes here, in mount namespaces of their own; /dev/full and /dev/zero stand for GPUs.
"""

import errno
import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.base.errors import ClaimError, PrepareError
from dra_driver.base.wire import DeviceType
from dra_driver.node.devices.describing import Device
from dra_driver.node.devices.offering import Inventory, Offering
from dra_driver.node.ledger import unreleased
from dra_driver.node.ledger.record import ClaimState
from dra_driver.node.prepare import node_users
from dra_driver.node.prepare.node_users import look_at_nodes
from dra_driver.tools.main import run as main
from dra_driver.tools.node import report
from tests.node.support.running_pods import OLD, OTHER
from tests.support.kept_files import without_descriptors
from tests.support.plugin.containers import Container
from tests.support.plugin.parts import Rig, claim_wire, gpu, in_thread, result
from tests.support.waiting import until

FULL, ZERO = os.makedev(1, 7), os.makedev(1, 5)
NODES = {"/dev/nvidia0": FULL, "/dev/nvidia1": ZERO}
OPEN = "exec 7</dev/nvidia0"
SHARED = "11111111-2222-4333-8444-555555555555"

Start = Callable[..., Container]


@pytest.fixture
def here(rig: Rig) -> Iterator[Rig]:
    """A node on which gpu-0 is /dev/full, gpu-1 is /dev/zero, and the processes are the real ones."""
    one_at_a_time = (Path(tempfile.gettempdir()) / "dra-driver-node-users.lock").open("w")
    fcntl.flock(one_at_a_time, fcntl.LOCK_EX)  # tests beside this one would see its containers
    (rig.root / "proc/1").rmdir()
    (rig.root / "proc").rmdir()
    (rig.root / "proc").symlink_to("/proc")
    (rig.root / "pods").mkdir()
    rig.hardware.major = 1
    gpus = [replace(gpu(0), minor=7), replace(gpu(1), minor=5)]
    devices = [Device(f"gpu-{index}", DeviceType.GPU, {}, {}, facts) for index, facts in enumerate(gpus)]
    rig.inventory = Inventory(Offering(tuple(devices)))
    yield rig
    one_at_a_time.close()


@pytest.fixture
def start(here: Rig) -> Iterator[Start]:
    started: list[Container] = []

    def run(*args: object, **more: object) -> Container:
        started.append(Container(here.root, *args, **more))
        return started[-1]

    yield run
    for container in started:
        if container.process.poll() is None:
            container.end()


def end_claim(rig: Rig, **share: str) -> None:
    """Prepare the claim "old" for a pod that ends at once, and unprepare it."""
    rig.api.put(claim_wire("old", result("gpu-0", **share), pods=(OLD,)))
    rig.prepare("old")
    rig.unprepare("old")
    rig.allocate("new", "gpu-0")


def test_a_pod_that_joined_a_claim_later_keeps_the_device_as_long_as_it_has_it_open(
    here: Rig, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unreleased, "BOUND_SECONDS", 0.0)
    joined = start(OTHER, NODES, OPEN)
    end_claim(here)
    for _ in range(2):
        with pytest.raises(ClaimError) as caught:
            here.prepare("new", 1.0)
        here.preparer.close()
        here.restart()  # the next agent looks at the processes itself
    assert caught.value.code == "claim.device-in-use"
    assert f"process {joined.process.pid} (sleep) of pod {OTHER}" in str(caught.value)
    assert "dra-driver release gpu-0 --force" in str(caught.value)
    assert "claim-old" in here.ledger.holders(["gpu-0"])["gpu-0"], "nobody may reset it, either"
    joined.end()
    assert here.prepare("new")[0].device == "gpu-0"


def test_a_container_that_only_has_the_node_keeps_the_device_for_the_bound_and_no_longer(
    here: Rig, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(OTHER, {"/dev/hidden/below": FULL})
    end_claim(here)
    with pytest.raises(ClaimError, match="containers that may have it"):
        here.prepare("new", 0.6)
    monkeypatch.setattr(unreleased, "BOUND_SECONDS", 0.0)
    assert here.prepare("new")


def test_other_nodes_and_paths_that_were_only_looked_up_keep_nothing(here: Rig, start: Start) -> None:
    start(OTHER, NODES, "exec 7</dev/nvidia1; rm /dev/nvidia0")
    start(
        OTHER,
        NODES,
        "exec python3 -c \"import os, time; os.open('/dev/nvidia0', os.O_PATH); os.unlink('/dev/nvidia0'); "
        "print('up', flush=True); time.sleep(300)\"",
    )
    end_claim(here)
    assert here.prepare("new", 5.0)


def test_a_mapping_of_the_device_counts_as_open(here: Rig, start: Start) -> None:
    start(
        OTHER,
        {"/dev/zero": ZERO},
        "exec python3 -c \"import ctypes, os, time; fd = os.open('/dev/zero', os.O_RDWR); "
        "ctypes.CDLL(None).mmap(None, ctypes.c_size_t(4096), 3, 2, fd, ctypes.c_long(0)); "
        "os.close(fd); os.unlink('/dev/zero'); print('up', flush=True); time.sleep(300)\"",
    )
    (user,) = look_at_nodes({ZERO}).users
    assert (user.pod, user.number) == (OTHER, ZERO)
    assert user.pid
    assert look_at_nodes({FULL}).users == set()


def test_a_process_whose_first_thread_has_ended_still_has_its_files_open(here: Rig, start: Start) -> None:
    start(
        OTHER,
        NODES,
        "exec python3 -c \"import ctypes, threading, time; file = open('/dev/nvidia0'); "
        "threading.Thread(target=lambda: (time.sleep(0.2), print('up', flush=True), time.sleep(300))).start(); "
        'ctypes.CDLL(None).pthread_exit(None)"',
    )
    assert any(user.pid for user in look_at_nodes({FULL}).users)


def test_a_process_that_appears_during_the_look_is_seen(
    here: Rig, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = start(OTHER, NODES, OPEN)
    names, listed = os.listdir, []

    def listing(path: object) -> list[str]:
        found = names(path)
        if str(path) == "/proc" and not listed:
            listed.append(path)
            found.remove(str(container.process.pid))  # it starts as the list has just been read
        return found

    monkeypatch.setattr(node_users.os, "listdir", listing)
    assert any(user.pid == container.process.pid for user in look_at_nodes({FULL}).users)


def test_a_thread_with_open_files_of_its_own_is_seen(here: Rig, start: Start) -> None:
    start(
        OTHER,
        NODES,
        'exec python3 -c "import ctypes, threading, time; libc = ctypes.CDLL(None)\n'
        "def run():\n libc.unshare(0x400); file = open('/dev/nvidia0'); print('up', flush=True); time.sleep(300)\n"
        'threading.Thread(target=run).start()"',
    )
    assert any(user.pid for user in look_at_nodes({FULL}).users)


def test_containers_of_the_host_and_with_admin_access_keep_nothing(here: Rig, start: Start) -> None:
    start(OTHER, NODES, OPEN, limits="-net_raw")  # a privileged one, which may administer the host
    admin = "0f9f7b1c-0000-4000-8000-000000000003"
    start(admin, NODES, OPEN)
    here.api.put(claim_wire("admin", result("gpu-0", adminAccess=True)))
    here.prepare("admin")
    here.api.put(claim_wire("admin", result("gpu-0", adminAccess=True), pods=(admin,)))  # the pod joined it later
    end_claim(here)
    assert here.prepare("new", 5.0)


def test_only_a_claim_of_the_whole_device_waits_for_a_process_that_has_it_open_through_an_ended_share(
    here: Rig, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unreleased, "BOUND_SECONDS", 0.0)
    left = start(OTHER, NODES, OPEN)
    end_claim(here, shareID=SHARED)
    here.api.put(claim_wire("share", result("gpu-0", shareID=SHARED.replace("1", "2"))))
    assert here.prepare("share", 0.0)
    here.unprepare("share")
    with pytest.raises(ClaimError, match=rf"gpu-0 by process {left.process.pid} \(sleep\) of pod {OTHER}"):
        here.prepare("new", 1.0)
    left.end()
    assert here.prepare("new", 60)


def test_pods_of_other_shares_of_a_device_do_not_keep_an_ended_share(here: Rig, start: Start) -> None:
    here.api.put(claim_wire("share", result("gpu-0", shareID=SHARED.replace("1", "2")), pods=(OTHER,)))
    here.prepare("share")
    start(OTHER, NODES, OPEN)
    end_claim(here, shareID=SHARED)
    until(lambda: not here.ledger.unreleased.has_any())


def test_a_claim_whose_undoing_was_interrupted_after_its_file_was_removed_keeps_its_nodes(
    here: Rig, start: Start
) -> None:
    joined = start(OTHER, NODES, OPEN)
    here.api.put(claim_wire("old", result("gpu-0"), pods=(OLD,)))
    here.prepare("old")
    here.ledger.unreleased.note_nodes("old", here.boot_id, [FULL])
    here.ledger.set_state("old", ClaimState.UNPREPARING)
    here.store.remove(here.file_of("old"))
    here.preparer.close()
    here.restart()
    here.repair.run()
    with pytest.raises(ClaimError, match=f"of pod {OTHER}"):
        here.prepare(here.allocate("new", "gpu-0"), 1.0)
    joined.end()
    assert here.prepare("new")


def test_a_claim_with_a_file_alone_keeps_its_nodes_if_the_agent_is_killed_after_its_file_was_removed(
    here: Rig, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def kill(*_: object) -> None:
        raise Killed

    joined = start(OTHER, NODES, OPEN)
    here.api.put(claim_wire("old", result("gpu-0"), pods=(OLD,)))
    here.prepare("old")
    with monkeypatch.context() as context:
        context.setattr(here.ledger, "forget", kill)
        with pytest.raises(Killed):
            here.unprepare("old")
    assert not here.files()
    here.preparer.close()
    here.restart()
    here.unprepare("old")
    with pytest.raises(ClaimError, match=f"of pod {OTHER}"):
        here.prepare(here.allocate("new", "gpu-0"), 1.0)
    joined.end()
    assert here.prepare("new")


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EACCES, errno.EIO])
def test_what_cannot_be_looked_at_keeps_the_device_for_the_bound_and_is_reported_once(
    here: Rig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> list[str]:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(node_users.os, "listdir", refuse)
    end_claim(here)
    with pytest.raises(ClaimError, match="containers that may have it"):
        here.prepare("new", 1.0)
    monkeypatch.setattr(unreleased, "BOUND_SECONDS", 0.0)
    assert here.prepare("new")
    reports = [one.message for one in caplog.records if "may not see the processes" in one.message]
    assert len(reports) == (1 if number == errno.EACCES else 0)
    until(lambda: "device released although it can't be seen whether a pod uses it" in caplog.text)


def test_a_claim_whose_file_cannot_be_read_now_keeps_its_nodes(here: Rig, start: Start) -> None:
    joined = start(OTHER, NODES, OPEN)
    here.api.put(claim_wire("old", result("gpu-0"), pods=(OLD,)))
    here.prepare("old")
    with without_descriptors(), pytest.raises(PrepareError, match="Too many open files"):
        here.unprepare("old")
    here.unprepare("old")
    with pytest.raises(ClaimError, match=f"of pod {OTHER}"):
        here.prepare(here.allocate("new", "gpu-0"), 1.0)
    joined.end()
    assert here.prepare("new")


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EACCES])
def test_a_process_that_cannot_be_opened_may_have_the_device_open(
    here: Rig, start: Start, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    joined, opened = start(OTHER, NODES, OPEN), node_users._opened_process

    def refuse(path: str) -> object:
        if path.endswith(f"/{joined.process.pid}"):
            raise OSError(number, os.strerror(number))
        return opened(path)

    monkeypatch.setattr(node_users, "_opened_process", refuse)
    end_claim(here)
    with pytest.raises(ClaimError, match="containers that may have it"):
        here.prepare("new", 1.0)
    joined.end()
    assert here.prepare("new")


def test_a_person_sees_why_a_device_is_not_released_and_can_release_it(
    here: Rig, start: Start, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report, "read_boot_id", lambda _proc: here.boot_id)
    where = ["--driver-name", here.driver, "--kubelet-plugins-directory-path", str(here.data.parent)]
    start(OTHER, NODES, OPEN)
    end_claim(here)
    thread, outcome = in_thread(here.prepare, "new")
    until(lambda: here.ledger.unreleased.of_boot(here.boot_id)[0].users)
    assert main(["release", *where]) == 1
    assert "gpu-0: claim ns/claim-old has ended, but it is open in process" in capsys.readouterr().out
    assert main(["release", "gpu-1", "--force", *where]) == 3
    assert main(["release", "gpu-0", *where]) == 2
    assert main(["release", "gpu-0", "--force", *where]) == 0
    thread.join(60)
    assert outcome[0][0].device == "gpu-0"
    assert main(["release", *where]) == 0
