"""Socket paths: names, lengths, and which sockets may be replaced."""

import os
import socket
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.model.errors import NodeError
from dra_driver.plugin.kubelet.sockets import SocketPaths, bind_privately, choose_paths, free_path, is_refused, sweep

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
