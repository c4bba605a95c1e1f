"""A tree as an image, made with and without an engine. Not covered: running the real image (lane)."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.deploy.support.oci_archive import BUILT, contents, layers, manifests, oci


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "context" / "rootfs"
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/tool").write_text("#!/nothing\n")
    (root / "usr/bin/tool").chmod(0o755)
    (root / "usr/bin/alias").symlink_to("tool")
    (root / "etc").mkdir()
    (root / "etc/names").write_text("é" * 3)
    (root / "etc/names").chmod(0o644)
    (root / ("deep" * 30)).mkdir()
    (root / ("deep" * 30) / "file").write_text("")
    for path in root.rglob("*"):
        if path.is_dir():
            path.chmod(0o755)
    return root


def content(archive: Path, scratch: Path, architecture: str = "amd64") -> str:
    with contextlib.ExitStack() as stack:
        found = layers(archive, scratch, architecture)
        return oci.layers_digest([stack.enter_context(tarfile.open(layer)) for layer in found])


def test_the_same_tree_gives_the_same_bytes(tree: Path, tmp_path: Path) -> None:
    first = oci.write(tmp_path / "a.tar", {"amd64": tree}, "x/y:1", {})
    (tree / "etc/names").touch()
    assert oci.write(tmp_path / "b.tar", {"amd64": tree}, "x/y:1", {}) == first
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()


def test_the_archive_holds_the_tree(tree: Path, tmp_path: Path) -> None:
    oci.write(tmp_path / "a.tar", {"amd64": tree}, "x/y:1", {})
    assert content(tmp_path / "a.tar", tmp_path / "a") == oci.tree_digest(tree)


@pytest.mark.parametrize("change", ["content", "mode", "link", "more"])
def test_a_changed_tree_has_another_digest(tree: Path, change: str) -> None:
    before = oci.tree_digest(tree)
    if change == "content":
        (tree / "etc/names").write_text("other")
    elif change == "mode":
        (tree / "etc/names").chmod(0o600)
    elif change == "link":
        (tree / "usr/bin/alias").unlink()
        (tree / "usr/bin/alias").symlink_to("elsewhere")
    else:
        (tree / "new").mkdir()
    assert oci.tree_digest(tree) != before


@pytest.fixture(params=["small", "real"])
def context(request: pytest.FixtureRequest) -> Path:
    """A build context: the small tree, or what deploy/image/build.py made of this checkout."""
    if request.param == "small":
        folder = request.getfixturevalue("tree").parent
        (folder / "Dockerfile").write_text(contents.dockerfile(contents.configuration("1")))
        return folder
    if not (BUILT / "amd64/digest").exists():
        pytest.skip("the image is not built here: make image")
    return BUILT / "amd64"


@pytest.mark.timeout(300)  # the real image is read four times
def test_an_engine_builds_the_same_content_from_the_dockerfile(context: Path, tmp_path: Path) -> None:
    tree = context / "rootfs"
    engine = shutil.which("buildah")
    if not engine:
        pytest.skip("buildah is not installed")
    build = [engine, "--root", str(tmp_path / "store"), "--runroot", str(tmp_path / "run"), "--storage-driver", "vfs"]
    made = subprocess.run(
        [
            *build,
            "bud",
            "--isolation=chroot",
            "-q",
            "-t",
            "engine:1",
            "-f",
            str(context / "Dockerfile"),
            str(context),
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
    )
    if made.returncode:
        pytest.skip(f"buildah cannot build here: {made.stderr[-300:]}")
    target = f"oci-archive:{tmp_path / 'engine.tar'}"
    subprocess.run([*build, "push", "-q", "engine:1", target], check=True, capture_output=True, timeout=100)
    found = content(tmp_path / "engine.tar", tmp_path / "b")
    assert found == oci.tree_digest(tree)
    if context.parent == BUILT:
        assert found == content(BUILT / "image.tar", tmp_path / "c") == (context / "digest").read_text().strip()


def test_an_archive_of_two_architectures_has_one_index_under_one_name(tree: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(tree, other, symlinks=True)
    (other / "etc/names").write_text("another architecture's")
    index = oci.write(tmp_path / "a.tar", {"amd64": tree, "arm64": other}, "x/y:1", contents.configuration("1"))
    assert manifests(tmp_path / "a.tar", tmp_path / "a").keys() == {"amd64", "arm64"}
    (named,) = json.loads((tmp_path / "a/index.json").read_text())["manifests"]
    assert named["digest"] == index
    assert named["annotations"]["io.containerd.image.name"] == "x/y:1"
    for architecture, root in (("amd64", tree), ("arm64", other)):
        assert content(tmp_path / "a.tar", tmp_path / architecture, architecture) == oci.tree_digest(root)
    for blob in (tmp_path / "a/blobs/sha256").iterdir():
        assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name


def test_the_dockerfile_and_the_archive_have_the_same_configuration() -> None:
    found = contents.configuration("1")
    lines = contents.dockerfile(found).splitlines()
    words = {line.split()[0]: line.partition(" ")[2] for line in lines}
    assert json.loads(words["ENTRYPOINT"]) == found["Entrypoint"]
    assert (words["USER"], words["FROM"]) == (found["User"], "scratch")
    assert words["ENV"].split() == found["Env"]
    assert dict(one.split("=") for one in words["LABEL"].split()) == found["Labels"]
