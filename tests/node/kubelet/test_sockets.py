"""Socket paths: names, lengths, and which sockets may be replaced."""

import os
import re
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.base.errors import NodeError
from dra_driver.node.kubelet import sockets
from dra_driver.node.kubelet.sockets import (
    SocketPaths,
    bind_privately,
    choose_paths,
    free_path,
    hidden_path,
    is_ours,
    is_refused,
    open_socket,
    remove,
    sweep,
)

UID = "0f9f7b1c-1111-2222-3333-444455556666"
REGISTRAR, PLUGINS = Path("/var/lib/kubelet/plugins_registry"), Path("/var/lib/kubelet/plugins")


def listen(path: Path) -> socket.socket:
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen(1)
    return server


def dead(path: Path) -> Path:
    listen(path).close()
    return path


def test_plain_names_without_a_pod_uid() -> None:
    paths = choose_paths("gpu.nvidia.com", REGISTRAR, PLUGINS / "gpu.nvidia.com", "")
    assert paths.registration == REGISTRAR / "gpu.nvidia.com-reg.sock"
    assert paths.service == PLUGINS / "gpu.nvidia.com" / "dra.sock"


def test_names_with_the_pods_uid() -> None:
    paths = choose_paths("gpu.nvidia.com", REGISTRAR, PLUGINS / "gpu.nvidia.com", UID)
    assert paths.registration == REGISTRAR / f"gpu.nvidia.com-{UID}-reg.sock"
    assert paths.service == PLUGINS / "gpu.nvidia.com" / f"dra-{UID}.sock"


def test_long_names_are_shortened_step_by_step() -> None:
    longer = choose_paths("d" * 40, REGISTRAR, PLUGINS / "x", UID).registration.name
    assert longer.startswith("d" * 40 + "-")
    assert longer.endswith("-reg.sock")
    assert UID not in longer
    longest = choose_paths("d" * 63, REGISTRAR, PLUGINS / "x", UID).registration.name
    assert longest.startswith("dra-")
    assert longest != choose_paths("d" * 63, REGISTRAR, PLUGINS / "x", UID[:-1] + "7").registration.name


@given(
    driver=st.text("abc.-", min_size=1, max_size=63),
    uid=st.sampled_from(["", UID]),
    depth=st.integers(0, 120),
)
def test_a_chosen_path_always_fits(driver: str, uid: str, depth: int) -> None:
    folder = Path("/" + "f" * depth)
    try:
        paths = choose_paths(driver, folder, folder, uid)
    except NodeError as error:
        if error.code != "node.socket-path-too-long" or depth <= 60:
            raise
        return
    assert max(len(os.fsencode(p)) for p in (paths.registration, paths.service)) <= 107


def test_a_live_socket_is_never_taken(tmp_path: Path) -> None:
    with listen(tmp_path / "s") as server:
        for _ in range(4):  # the queue runs full, which also means that a process listens
            with pytest.raises(NodeError, match="another process answers"):
                free_path(tmp_path / "s")
        assert (tmp_path / "s").exists()
        assert server.fileno() >= 0


def test_a_dead_socket_is_removed(tmp_path: Path) -> None:
    free_path(dead(tmp_path / "s"))
    assert not (tmp_path / "s").exists()
    free_path(tmp_path / "s")


def test_another_file_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("precious")
    with pytest.raises(NodeError, match="not a socket"):
        free_path(tmp_path / "s")
    assert (tmp_path / "s").read_text() == "precious"


def test_sockets_of_dead_instances_are_swept_and_no_others(short_path: Path) -> None:
    registrar, data = short_path / "r", short_path / "p"
    registrar.mkdir()
    data.mkdir()
    gone = [
        dead(registrar / f"gpu.nvidia.com-{UID}-reg.sock"),
        dead(registrar / "gpu.nvidia.com-reg.sock"),
        dead(registrar / ".gpu.nvidia.com-reg.sock.aside"),
        dead(data / f"dra-{UID}.sock"),
        dead(data / "dra.sock"),
    ]
    kept = [dead(registrar / "nic.example.com-reg.sock"), dead(data / "other.sock"), data / "dra.sock.txt"]
    kept[-1].write_text("")
    with listen(registrar / f"gpu.nvidia.com-{UID[:-1]}7-reg.sock") as alive:
        paths = SocketPaths(registrar / "gpu.nvidia.com-reg.sock", data / "dra.sock")
        assert sweep("gpu.nvidia.com", paths) == 5
        assert Path(alive.getsockname()).exists()
    assert not any(path.exists() for path in gone)
    assert all(path.exists() for path in kept)


def test_refused_means_that_nobody_listens(tmp_path: Path) -> None:
    assert is_refused(dead(tmp_path / "a"))
    assert not is_refused(tmp_path / "missing")


def test_a_socket_is_private_from_its_first_moment(tmp_path: Path) -> None:
    modes = []

    def bind() -> socket.socket:
        server = listen(tmp_path / "s")
        modes.append(stat.S_IMODE((tmp_path / "s").stat().st_mode))
        return server

    before = os.umask(0o022)
    try:
        bind_privately(tmp_path / "s", bind).close()
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)
    assert modes[0] & 0o077 == 0
    assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o600


class Listening:
    """Listens on the path that it is called with, as `RpcServer.add_socket` does."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_UNIX)

    def __call__(self, path: Path) -> None:
        self.socket.bind(str(path))
        self.socket.listen(1)


OPEN_SLOWLY = """
import socket, sys
from pathlib import Path
from dra_driver.node.kubelet.sockets import open_socket
def listen(path):
    server.bind(str(path))
    print("bound", flush=True)
    sys.stdin.readline()
    server.listen(8)
for path in sys.argv[1:]:
    server = socket.socket(socket.AF_UNIX)
    open_socket(Path(path), listen)
    globals()[path] = server
print("open", flush=True)
sys.stdin.readline()
"""


def test_a_sweep_never_removes_the_socket_of_a_process_that_has_bound_it_and_not_listened_yet(short_path: Path) -> None:
    driver, registrar, data = "gpu.nvidia.com", short_path / "r", short_path / "p"
    for folder in (registrar, data):
        folder.mkdir()
    new = choose_paths(driver, registrar, data, UID)
    words = [sys.executable, "-c", OPEN_SLOWLY, str(new.service), str(new.registration)]
    root = Path(__file__).parents[3]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        for path in (new.service, new.registration):
            assert process.stdout.readline() == "bound\n"
            assert not path.exists(), "nobody can find a socket on which nobody listens"
            assert sweep(driver, choose_paths(driver, registrar, data, UID[:-1] + "7")) == 0
            process.stdin.write("\n")
            process.stdin.flush()
        assert process.stdout.readline() == "open\n"
        assert sweep(driver, new) == 0
        assert not is_refused(new.service)
        assert not is_refused(new.registration)
        assert sorted(path.name for path in (*registrar.iterdir(), *data.iterdir())) == sorted(
            [new.service.name, new.registration.name]
        )
        process.kill()
    assert sweep(driver, new) == 2


def test_the_sweep_of_the_released_version_does_not_know_the_name_under_which_a_socket_is_made() -> None:
    paths = choose_paths("gpu.nvidia.com", REGISTRAR, PLUGINS, UID)
    uid = r"[0-9A-Za-z_-]{11,36}"
    assert not re.fullmatch(rf"\.?gpu\.nvidia\.com(-{uid})?-reg\.sock(\.aside)?", hidden_path(paths.registration).name)
    assert not re.fullmatch(rf"dra(-{uid})?\.sock", hidden_path(paths.service).name)


def test_a_hidden_socket_of_a_process_that_died_is_removed_once_it_is_old(short_path: Path) -> None:
    paths = choose_paths("gpu.nvidia.com", short_path, short_path, UID)
    left = [dead(hidden_path(path)) for path in (paths.registration, paths.service)]
    assert sweep("gpu.nvidia.com", paths) == 0
    long_ago = sockets.time.time() - 2 * sockets.HIDDEN_SECONDS
    for path in left:
        os.utime(path, (long_ago, long_ago))
    assert sweep("gpu.nvidia.com", paths) == 2
    assert list(short_path.iterdir()) == []


def test_a_socket_can_be_made_wherever_its_path_fits(short_path: Path) -> None:
    folder = short_path / ("f" * (107 - len(os.fsencode(short_path)) - len("//dra.sock")))
    folder.mkdir()
    path, listening = folder / "dra.sock", Listening()
    assert len(os.fsencode(path)) == 107
    made = open_socket(path, listening)
    assert [one.name for one in folder.iterdir()] == ["dra.sock"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not is_refused(path)
    remove(path, made)
    assert list(folder.iterdir()) == []
    listening.socket.close()


@given(name=st.text("abc.-", min_size=8, max_size=90).filter(lambda name: name not in {".", ".."}))
def test_a_hidden_name_begins_with_a_dot_and_fits_wherever_the_name_fits(name: str) -> None:
    path = Path("/" + "f" * (105 - len(name))) / name
    assert hidden_path(path).name.startswith(".")
    assert hidden_path(path) != path
    assert len(os.fsencode(hidden_path(path))) <= 107


def test_only_the_socket_that_was_made_is_removed(short_path: Path) -> None:
    path, first, second = short_path / "dra.sock", Listening(), Listening()
    made = open_socket(path, first)
    first.socket.close()
    replaced = open_socket(path, second)
    assert (is_ours(path, made), is_ours(path, replaced)) == (False, True)
    remove(path, made)
    assert not is_refused(path)
    with pytest.raises(NodeError, match="another process answers"):
        open_socket(path, Listening())
    remove(path, replaced)
    assert not path.exists()
    second.socket.close()


def test_a_socket_that_can_t_be_made_is_an_error_that_names_it_and_leaves_nothing(short_path: Path) -> None:
    def fail(path: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(NodeError, match=r"can't listen on .*dra.sock: No space left") as caught:
        open_socket(short_path / "dra.sock", fail)
    assert caught.value.code == "node.socket"
    assert list(short_path.iterdir()) == []
