"""The CDI folder on a real file system: whole files or none, whichever process is killed and whatever is in the way."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from functools import partial

import pytest

from dra_driver.base.errors import PrepareError, Retry
from dra_driver.node.cdi import CdiStore, record_text

NAME = "k8s.gpu.nvidia.com-claim_7f3a.json"
PREFIX = "k8s.gpu.nvidia.com-claim_"


def encode(document) -> bytes:
    return json.dumps(document).encode()


def names_in(folder):
    """Return the names of everything in a folder, hidden files too."""
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def store(tmp_path):
    return CdiStore(tmp_path / "cdi")


def test_a_document_is_read_back_as_written(store):
    assert store.write(NAME, encode({"kind": "a/b", "n": [1, "ü"]})) is True
    assert store.read(NAME) == {"kind": "a/b", "n": [1, "ü"]}
    assert store.list() == (NAME,)


def test_the_missing_folder_is_made_and_the_file_is_readable_by_all(store):
    old = os.umask(0o077)
    try:
        store.write(NAME, encode({}))
    finally:
        os.umask(old)
    assert stat.S_IMODE((store.root / NAME).stat().st_mode) == 0o644


def test_the_same_document_again_changes_nothing(store):
    store.write(NAME, encode({"a": 1}))
    before = (store.root / NAME).stat()
    assert store.write(NAME, encode({"a": 1})) is False
    after = (store.root / NAME).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_another_document_replaces_the_file_as_a_whole(store):
    store.write(NAME, encode({"a": "x" * 10_000}))
    with (store.root / NAME).open() as reader:
        assert store.write(NAME, encode({"a": 2})) is True
        assert len(reader.read()) > 10_000  # a reader of the old file still gets all of it
    assert store.read(NAME) == {"a": 2}
    assert names_in(store.root) == [NAME]


def test_removing_twice_succeeds(store):
    store.write(NAME, encode({}))
    assert store.remove(NAME) is True
    assert store.remove(NAME) is False
    assert store.list() == ()


def test_a_missing_folder_lists_nothing_and_removes_nothing(store):
    assert store.list() == ()
    assert store.read(NAME) is None
    assert store.remove(NAME) is False
    assert store.sweep(PREFIX) == 0


def test_files_of_others_are_listed_only_when_asked_for_and_never_swept(store):
    store.write(NAME, encode({}))
    for name in ("nvidia.yaml", "vendor.json", ".vendor.json.unfinished", "k8s.gpu.nvidia.com-claim_x.json.bak"):
        (store.root / name).write_text("x")
    assert store.list() == (NAME, "vendor.json")
    assert store.list(PREFIX) == (NAME,)
    assert store.sweep(PREFIX) == 0
    assert len(names_in(store.root)) == 5


@pytest.mark.parametrize("name", ["../x.json", "a/b.json", "/etc/x.json", ".x.json", "x.yaml", "", "x\0.json"])
def test_a_name_that_leads_elsewhere_is_refused(store, name):
    for call in (lambda: store.write(name, encode({})), lambda: store.remove(name), lambda: store.read(name)):
        with pytest.raises(PrepareError) as caught:
            call()
        assert caught.value.code == "prepare.cdi-file-name"


def test_a_file_that_holds_no_json_object_reads_as_none(store):
    store.write(NAME, encode({}))
    for content in (b"{", b"[]", b"\xff"):
        (store.root / NAME).write_bytes(content)
        assert store.read(NAME) is None
    assert store.write(NAME, encode({"a": 1})) is True


def test_a_file_in_place_of_the_folder_is_named_in_the_error(tmp_path):
    (tmp_path / "cdi").write_text("")
    with pytest.raises(PrepareError) as caught:
        CdiStore(tmp_path / "cdi").write(NAME, encode({}))
    assert caught.value.code == "prepare.cdi-write"
    assert caught.value.retry is Retry.LATER
    assert str(tmp_path / "cdi") in caught.value.message
    assert "--cdi-root" in caught.value.hint


def test_a_folder_that_cannot_be_read_is_an_error_with_a_code(tmp_path):
    too_long = CdiStore(tmp_path / ("x" * 300))
    for call in (too_long.list, partial(too_long.sweep, "a")):
        with pytest.raises(PrepareError, match="--cdi-root") as caught:
            call()
        assert (caught.value.code, caught.value.retry) == ("prepare.cdi-read", Retry.LATER)


@pytest.mark.parametrize(("number", "hint"), [(errno.ENOSPC, "free space"), (errno.EROFS, "writable"), (errno.EIO, "")])
def test_a_full_or_read_only_folder_leaves_nothing_and_says_why(store, monkeypatch, number, hint):
    store.write(NAME, encode({"a": 1}))

    def failing(fd, data):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("dra_driver.node.cdi.os.write", failing)
    with pytest.raises(PrepareError) as caught:
        store.write(NAME, encode({"a": 2}))
    assert os.strerror(number) in caught.value.message
    assert hint in caught.value.hint
    assert store.read(NAME) == {"a": 1}
    assert names_in(store.root) == [NAME]


def test_a_really_full_or_read_only_disk_is_reported(tmp_path):
    mount = tmp_path / "small"
    mount.mkdir()
    if (
        os.geteuid()
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", mount], check=False).returncode
    ):
        pytest.skip("mounting a small tmpfs needs root")
    try:
        store = CdiStore(mount)
        store.write(NAME, encode({"a": "x" * 1000}))
        with pytest.raises(PrepareError, match="No space left"):
            store.write("k8s.gpu.nvidia.com-claim_2.json", encode({"a": "x" * 100_000}))
        assert names_in(mount) == [NAME]
        subprocess.run(["mount", "-o", "remount,ro", mount], check=True)
        with pytest.raises(PrepareError, match="Read-only"):
            store.write(NAME, encode({"a": 2}))
        with pytest.raises(PrepareError, match="Read-only"):
            store.remove(NAME)
    finally:
        subprocess.run(["umount", mount], check=True)


def test_what_a_crash_left_is_swept_removed_or_overwritten(store):
    left = f".{NAME}.unfinished"
    store.write("x.json", encode({}))
    (store.root / left).write_text('{"half')
    assert store.list(PREFIX) == ()
    assert store.sweep(PREFIX) == 1
    (store.root / left).write_text('{"half')
    assert store.remove(NAME) is False
    assert not (store.root / left).exists()
    (store.root / left).write_text('{"half of something much longer')
    store.write(NAME, encode({"a": 1}))
    assert store.read(NAME) == {"a": 1}
    assert names_in(store.root) == [NAME, "x.json"]


def test_the_file_of_a_running_writer_is_not_swept(store):
    store.write("x.json", encode({}))
    path = store.root / f".{NAME}.unfinished"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert store.sweep(PREFIX) == 0
        assert path.exists()
    assert store.sweep(PREFIX) == 1


def test_a_link_under_the_hidden_name_is_not_followed(store, tmp_path):
    store.write("x.json", encode({}))
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    (store.root / f".{NAME}.unfinished").symlink_to(victim)
    with pytest.raises(PrepareError):
        store.write(NAME, encode({"a": 1}))
    assert victim.read_text() == "untouched"


def test_many_writers_of_one_file_never_show_half_of_it(store):
    documents = [{"writer": n, "fill": str(n) * 5000} for n in range(4)]
    store.write(NAME, encode(documents[0]))
    stop = threading.Event()
    faults: list[BaseException] = []

    def work(document):
        try:
            while not stop.is_set():
                store.write(NAME, encode(document))
        except BaseException as exc:
            faults.append(exc)

    threads = [threading.Thread(target=work, args=(d,)) for d in documents]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 0.5
    seen = 0
    try:
        while seen == 0 or time.monotonic() < deadline:
            assert json.loads((store.root / NAME).read_bytes()) in documents
            seen += 1
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not faults
    assert names_in(store.root) == [NAME]


def test_a_killed_writer_leaves_whole_files_and_one_sweep_cleans_up(store):
    code = (
        "import sys, itertools, json\n"
        "from dra_driver.node.cdi import CdiStore\n"
        "store = CdiStore(sys.argv[1])\n"
        "for n in itertools.count():\n"
        "    content = json.dumps({'n': n, 'fill': 'x' * 20000}).encode()\n"
        "    store.write(f'k8s.gpu.nvidia.com-claim_{n % 3}.json', content)\n"
        "    if n == 3: print('going', flush=True)\n"
    )
    for _ in range(3):
        with subprocess.Popen([sys.executable, "-c", code, str(store.root)], stdout=subprocess.PIPE) as process:
            process.stdout.readline()
            process.send_signal(signal.SIGKILL)
            process.wait()
        names = store.list(PREFIX)
        assert names == tuple(f"{PREFIX}{n}.json" for n in range(3))
        for name in names:
            assert len(store.read(name)["fill"]) == 20000
        store.sweep(PREFIX)
        assert names_in(store.root) == list(names)


ENTRY = "DRA_DRIVER_PARTITION_GPU=MIG-1/boot"
DOCUMENT = json.dumps({"devices": [{"name": "u-gpu", "containerEdits": {"env": ["A=b"]}}]}).encode()
RECORD = record_text({"u-gpu": [ENTRY]})
WITH_RECORD = {"devices": [{"name": "u-gpu", "containerEdits": {"env": ["A=b", ENTRY]}}]}


def test_records_are_one_json_object_by_device_in_order_of_names():
    assert record_text({"b": ['x="ä\\', "y=1"], "a": ["z=\n"], "none": []}) == (
        '{"a":["z=\\n"],"b":["x=\\"ä\\\\","y=1"]}\n'.encode()
    )
    assert record_text({"none": []}) == record_text({}) == b""


def test_a_record_of_the_driver_is_kept_and_shown_to_no_container(tmp_path):
    store = CdiStore(tmp_path)
    assert store.write("k8s.x-claim_u.json", DOCUMENT, RECORD)
    assert not store.write("k8s.x-claim_u.json", DOCUMENT, RECORD)
    shown = json.loads((tmp_path / "k8s.x-claim_u.json").read_text())
    assert shown["devices"][0]["containerEdits"] == {"env": ["A=b"]}
    assert store.read("k8s.x-claim_u.json") == WITH_RECORD
    assert store.list() == ("k8s.x-claim_u.json",)
    assert stat.S_IMODE((tmp_path / ".k8s.x-claim_u.json.record").stat().st_mode) == 0o600
    assert store.remove("k8s.x-claim_u.json")
    assert list(tmp_path.iterdir()) == []


def test_a_record_is_removed_with_its_document(tmp_path):
    store = CdiStore(tmp_path)
    store.write("k8s.x-claim_u.json", DOCUMENT, RECORD)
    assert store.write("k8s.x-claim_u.json", DOCUMENT)
    assert [path.name for path in tmp_path.iterdir()] == ["k8s.x-claim_u.json"]
    store.write("k8s.x-claim_u.json", DOCUMENT, RECORD)
    (tmp_path / "k8s.x-claim_u.json").unlink()
    assert store.sweep("k8s.x") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_broken_record_is_ignored_and_one_in_the_document_itself_is_read(tmp_path):
    store = CdiStore(tmp_path)
    store.write("k8s.x-claim_u.json", DOCUMENT, RECORD)
    for text in ("", "[1]", '{"u-gpu": 3}', '{"u-gpu": ["PATH=/"]}'):
        (tmp_path / ".k8s.x-claim_u.json.record").write_text(text)
        assert store.read("k8s.x-claim_u.json")["devices"][0]["containerEdits"]["env"] == ["A=b"]
    (tmp_path / "k8s.x-claim_u.json").write_text(json.dumps(WITH_RECORD))  # as earlier versions wrote it
    assert store.read("k8s.x-claim_u.json") == WITH_RECORD


class Killed(BaseException):
    """Ends a writer at once, as a kill would, without any cleaning up."""


@pytest.mark.parametrize("tidy", [lambda store: store.sweep(PREFIX), lambda store: store.remove(NAME)])
def test_what_a_killed_writer_left_of_a_record_is_removed_too(store, monkeypatch, tidy):
    original = os.rename

    def rename(path, target):
        if "record" in str(target):
            raise Killed
        return original(path, target)

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(Killed):
        store.write(NAME, DOCUMENT, RECORD)
    assert any(name.endswith("unfinished") for name in names_in(store.root))
    tidy(store)
    assert [name for name in names_in(store.root) if name != NAME] == []
