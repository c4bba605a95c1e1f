"""A tree wrapped as an image, with and without an engine. The real image: lane."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
IMAGE, BUILT = ROOT / "deploy" / "image", ROOT / "build" / "image"


def load(name: str):
    spec = importlib.util.spec_from_file_location(name, IMAGE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


oci = load("oci")


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


def layers(archive: Path, scratch: Path) -> list[Path]:
    with tarfile.open(archive) as found:
        found.extractall(scratch, filter="data")
    index = json.loads((scratch / "index.json").read_text())
    blob = lambda digest: scratch / "blobs" / digest.replace(":", "/")  # noqa: E731
    manifest = json.loads(blob(index["manifests"][0]["digest"]).read_text())
    return [blob(layer["digest"]) for layer in manifest["layers"]]


def content(archive: Path, scratch: Path) -> str:
    with contextlib.ExitStack() as stack:
        return oci.layers_digest([stack.enter_context(tarfile.open(layer)) for layer in layers(archive, scratch)])


def test_the_same_tree_gives_the_same_bytes(tree: Path, tmp_path: Path) -> None:
    first = oci.write(tmp_path / "a.tar", tree, "x/y:1", {})
    (tree / "etc/names").touch()
    assert oci.write(tmp_path / "b.tar", tree, "x/y:1", {}) == first
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()


def test_the_archive_holds_the_tree(tree: Path, tmp_path: Path) -> None:
    oci.write(tmp_path / "a.tar", tree, "x/y:1", {})
    assert content(tmp_path / "a.tar", tmp_path / "a") == oci.tree_digest(tree)


@pytest.mark.parametrize("change", ["content", "mode", "link", "more"])
def test_another_tree_has_another_digest(tree: Path, change: str) -> None:
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
        return request.getfixturevalue("tree").parent
    if not (BUILT / "digest").exists():
        pytest.skip("the image is not built here: python deploy/image/build.py")
    return BUILT


@pytest.mark.timeout(300)  # the real image is read four times
def test_an_engine_makes_the_same_content_of_the_dockerfile(context: Path, tmp_path: Path) -> None:
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
            str(IMAGE / "Dockerfile"),
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
    if context == BUILT:
        assert found == content(BUILT / "image.tar", tmp_path / "c") == (BUILT / "digest").read_text().strip()


def test_the_bill_of_materials_names_every_package_and_wheel_of_the_tree() -> None:
    if not (BUILT / "sbom.json").exists():
        pytest.skip("the image is not built here: python deploy/image/build.py")
    bill = json.loads((BUILT / "sbom.json").read_text())
    named = {part["purl"].partition("@")[0] for part in bill["components"]}
    locked = {line.split()[0] for line in (IMAGE / "debian.lock").read_text().splitlines()}
    wheels = (BUILT / "rootfs/usr/lib/dra-driver").glob("*.dist-info")
    found = {path.name.partition("-")[0].lower().replace("_", "-") for path in wheels}
    assert {f"pkg:deb/debian/{name}" for name in locked} | {f"pkg:pypi/{name}" for name in found} == named
    said = f"sha256:{bill['metadata']['component']['hashes'][0]['content']}"
    assert said == (BUILT / "digest").read_text().strip()


def test_the_dockerfile_and_the_archive_say_the_same_of_the_image() -> None:
    sys.path.insert(0, str(IMAGE))
    try:
        said = load("build")._configuration("1")
    finally:
        sys.path.remove(str(IMAGE))
    lines = (IMAGE / "Dockerfile").read_text().splitlines()
    words = {line.split()[0]: line.partition(" ")[2] for line in lines if line[:1].isupper()}
    assert json.loads(words["ENTRYPOINT"]) == said["Entrypoint"]
    assert words["USER"] == said["User"]
    assert words["ENV"].split() == [text for text in said["Env"] if not text.startswith("PATH=")]
    assert words["FROM"] == "scratch"
