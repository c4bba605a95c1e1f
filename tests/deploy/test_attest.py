"""What a release says about itself: provenance, OpenVEX, signatures that cosign verifies, krew's archive, labels."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from dra_driver import __version__
from tests.deploy.support.oci_archive import BUILT, ROOT, contents

COSIGN = "go install github.com/sigstore/cosign/v2/cmd/cosign@v2.6.5"
SYFT = "go install github.com/anchore/syft/cmd/syft@v1.57.1"
STATEMENTS = yaml.safe_load((ROOT / "deploy/vex.yaml").read_text())
DIGEST = "sha256:" + "0" * 64
HOME = "https://git.example/dra-driver"


@pytest.fixture(scope="module")
def dist():
    spec = importlib.util.spec_from_file_location("deploy_dist_attested", ROOT / "deploy" / "dist.py")
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module


def program(name: str, built_by: str) -> str:
    found = shutil.which(name)
    if not found:
        pytest.skip(f"{name} is not on PATH ({built_by})")
    return found


def pem(key) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


@pytest.fixture
def signed(dist, tmp_path: Path) -> Path:
    """A folder of two files with checksums, provenance and signatures; `key.pub` beside it is the public key."""
    output = tmp_path / "dist"
    output.mkdir()
    key = ec.generate_private_key(ec.SECP256R1())
    (tmp_path / "key").write_bytes(pem(key))
    public = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    (tmp_path / "key.pub").write_bytes(key.public_key().public_bytes(*public))
    for name in ("a.tgz", "b.whl"):
        (output / name).write_text(name)
    files = sorted(output.iterdir())
    came_from = dist.origin(HOME)
    (output / f"dra-driver-{__version__}.intoto.json").write_bytes(
        dist.attest.provenance(files, __version__, came_from)
    )
    dist.sums(output)
    dist.sign(output, __version__, dist.attest.private_key(tmp_path / "key"))
    return output


def cosign(signed: Path, *words: str) -> subprocess.CompletedProcess[str]:
    verify = [program("cosign", COSIGN), *words[:1], "--key", "../key.pub", "--insecure-ignore-tlog=true", *words[1:]]
    surroundings = os.environ | {"HOME": str(signed.parent)}
    return subprocess.run(
        verify, cwd=signed, check=False, capture_output=True, text=True, timeout=120, env=surroundings
    )


def test_cosign_verifies_the_signature_of_the_checksums_and_refuses_changed_ones(signed: Path) -> None:
    words = ("verify-blob", "--signature", "SHA256SUMS.sig", "SHA256SUMS")
    done = cosign(signed, *words)
    assert done.returncode == 0, done.stderr
    (signed / "SHA256SUMS").write_text((signed / "SHA256SUMS").read_text().replace("a.tgz", "c.tgz"))
    assert cosign(signed, *words).returncode != 0


def test_cosign_verifies_the_provenance_of_each_file_and_refuses_that_of_another(signed: Path) -> None:
    envelope = f"dra-driver-{__version__}.intoto.json.dsse"
    words = ("verify-blob-attestation", "--signature", envelope, "--type", "slsaprovenance1")
    done = cosign(signed, *words, "a.tgz")
    assert done.returncode == 0, done.stderr
    (signed / "a.tgz").write_text("another")
    assert cosign(signed, *words, "a.tgz").returncode != 0


def test_openssl_verifies_the_same_signature(signed: Path) -> None:
    raw = signed.parent / "raw"
    raw.write_bytes(base64.b64decode((signed / "SHA256SUMS.sig").read_text()))
    command = ["openssl", "dgst", "-sha256", "-verify", "../key.pub", "-signature", str(raw), "SHA256SUMS"]
    assert subprocess.run(command, cwd=signed, check=False, capture_output=True).returncode == 0
    (signed / "SHA256SUMS").write_text("other")
    assert subprocess.run(command, cwd=signed, check=False, capture_output=True).returncode != 0


@pytest.mark.parametrize("kind", ["another curve", "another algorithm", "no key", "no file"])
def test_only_a_key_on_p_256_is_taken_to_sign(dist, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "key"
    texts = {
        "another curve": pem(ec.generate_private_key(ec.SECP384R1())),
        "another algorithm": pem(ed25519.Ed25519PrivateKey.generate()),
        "no key": b"text",
    }
    if kind in texts:
        path.write_bytes(texts[kind])
    with pytest.raises(SystemExit, match=re.escape(str(path))):
        dist.attest.private_key(path)


def test_the_provenance_names_every_file_the_commit_and_the_locks(signed: Path) -> None:
    statement = json.loads((signed / f"dra-driver-{__version__}.intoto.json").read_text())
    named = {one["name"]: one["digest"]["sha256"] for one in statement["subject"]}
    assert named == {name: hashlib.sha256(name.encode()).hexdigest() for name in ("a.tgz", "b.whl")}
    materials = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    lock = hashlib.sha256((ROOT / "requirements.lock").read_bytes()).hexdigest()
    assert {"uri": "urn:dra-driver:requirements.lock", "digest": {"sha256": lock}} in materials
    if (ROOT / ".git").exists():
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True)
        assert materials[0]["uri"] == f"git+{HOME}"
        assert materials[0]["digest"]["gitCommit"].partition("-")[0] == head.stdout.strip()


def test_a_folder_without_git_has_no_commit_and_a_changed_one_says_so(dist, tmp_path: Path) -> None:
    assert dist.origin("", tmp_path).labels() == {}
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.com", "-C", str(tmp_path)]
    (tmp_path / "file").write_text("one")
    for words in (["init", "--quiet"], ["add", "file"], ["commit", "--quiet", "--message", "one"]):
        subprocess.run([*git, *words], check=True, capture_output=True)
    clean = dist.origin(HOME, tmp_path).labels()
    assert clean["source"] == HOME
    assert re.fullmatch(r"[0-9a-f]{40}", clean["revision"])
    (tmp_path / "file").write_text("two")
    assert dist.origin(HOME, tmp_path).labels() == clean | {"revision": f"{clean['revision']}-dirty"}


def test_the_openvex_document_names_packages_of_the_image(dist) -> None:
    document = json.loads(dist.attest.vex("1.2.3", DIGEST, dist.origin()))
    assert document["@context"] == "https://openvex.dev/ns/v0.2.0"
    assert len(document["statements"]) == len(STATEMENTS) > 0
    for statement in document["statements"]:
        (product,) = statement["products"]
        assert product["@id"].endswith("%3A" + "0" * 64)
        assert len(product["subcomponents"]) == len(contents.ARCHITECTURES)


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda statement: statement["vulnerability"])
@pytest.mark.parametrize("architecture", contents.ARCHITECTURES)
def test_what_is_said_to_be_absent_from_the_image_is_absent(statement: dict, architecture: str) -> None:
    if not (BUILT / architecture / "digest").exists():
        pytest.skip("the image is not built here: make image")
    files = list((BUILT / architecture / "rootfs").rglob(statement["absent"]["file"]))
    assert files
    assert all(statement["absent"]["text"].encode() not in file.read_bytes() for file in files)


def test_the_archive_for_krew_is_the_one_of_its_manifest_and_runs_the_wheel_beside_it(dist, tmp_path: Path) -> None:
    wheel = tmp_path / "dra_driver-1.2.3-py3-none-any.whl"
    wheel.write_text("a wheel")
    packed = dist.packing.archive(tmp_path, "1.2.3", wheel)
    manifest = yaml.safe_load(
        dist.packing.manifest(tmp_path, "1.2.3", packed, "https://x.example/d/", HOME).read_text()
    )
    (platform,) = manifest["spec"]["platforms"]
    assert platform["uri"] == "https://x.example/d/kubectl-dra-1.2.3.tar.gz"
    assert platform["sha256"] == hashlib.sha256(packed.read_bytes()).hexdigest()

    installed, bin_ = tmp_path / "installed", tmp_path / "bin"
    with tarfile.open(packed) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # the first releases of 3.11 have none
        archive.extractall(installed)
    bin_.mkdir()
    (bin_ / "kubectl-dra").symlink_to(installed / platform["bin"])  # as krew does it
    (bin_ / "pipx").write_text('#!/bin/sh\necho "$@"\n')
    (bin_ / "pipx").chmod(0o755)
    for tool in ("dirname", "readlink"):
        (bin_ / tool).symlink_to(shutil.which(tool))
    command = [str(bin_ / "kubectl-dra"), "slices", "--fleet", "a b"]
    done = subprocess.run(command, env={"PATH": str(bin_)}, check=True, capture_output=True, text=True)
    assert done.stdout.split() == [
        "run", "--spec", str(installed / wheel.name), "kubectl-dra", "slices", "--fleet", "a", "b"
    ]  # fmt: skip
    (bin_ / "pipx").unlink()
    done = subprocess.run(command, env={"PATH": str(bin_)}, check=False, capture_output=True, text=True)
    assert (done.returncode, "pipx" in done.stderr) == (5, True)


@pytest.mark.parametrize("architecture", contents.ARCHITECTURES)
def test_the_image_has_what_scanners_read_about_its_packages(architecture: str) -> None:
    if not (BUILT / architecture / "digest").exists():
        pytest.skip("the image is not built here: make image")
    root = BUILT / architecture / "rootfs"
    assert (root / "etc/os-release").readlink() == Path("../usr/lib/os-release")
    assert 'VERSION_ID="12"' in (root / "usr/lib/os-release").read_text()
    stanzas = (root / "var/lib/dpkg/status").read_text().split("\n\n")
    assert [re.findall(r"^Package: (.+)$", one, re.MULTILINE) for one in stanzas] == [[n] for n in contents.PACKAGES]
    assert all("Status: install ok installed\n" in one for one in stanzas)
    for name in contents.PACKAGES:
        assert (root / "usr/share/doc" / name / "copyright").is_file(), name
        sums = (root / "var/lib/dpkg/info" / f"{name}.md5sums").read_text().splitlines()
        assert all((root / line.split(maxsplit=1)[1]).is_file() for line in sums)
    bill = json.loads((BUILT / architecture / "sbom.json").read_text())
    assert [part["purl"] for part in bill["components"] if not part.get("licenses")] == []
    assert {"@codemirror/view", "uplot"} <= {part["name"] for part in bill["components"]}


@pytest.mark.timeout(600)
def test_syft_finds_every_package_of_the_image_and_knows_the_distribution() -> None:
    if not (BUILT / "image.tar").exists():
        pytest.skip("the image is not built here: make image")
    scan = [program("syft", SYFT), "scan", f"dir:{BUILT / 'amd64' / 'rootfs'}", "-o", "syft-json", "-q"]
    surroundings = os.environ | {"SYFT_CHECK_FOR_APP_UPDATE": "false"}
    found = json.loads(subprocess.run(scan, check=True, capture_output=True, env=surroundings).stdout)
    assert (found["distro"]["id"], found["distro"]["versionID"]) == ("debian", "12")
    kinds = {one["name"]: one["type"] for one in found["artifacts"]}
    assert {name for name, kind in kinds.items() if kind == "deb"} == set(contents.PACKAGES)
    assert {"grpcio", "cryptography", "pydantic"} <= {name for name, kind in kinds.items() if kind == "python"}
    assert "binary" not in kinds.values(), "a program is known by its package, not guessed"
    assert [one["name"] for one in found["artifacts"] if one["type"] == "deb" and not one["licenses"]] == []
