"""Statements about the files of a release, and signatures by a key: provenance, OpenVEX, DSSE.

In: the files, where they come from, a private key in PEM. Out: JSON, and signatures that cosign and openssl verify.
Nothing is sent anywhere: no transparency log, no certificate.
Sources: in-toto statement 1, SLSA provenance 1, OpenVEX 0.2, DSSE 1.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from collections.abc import Iterable
from pathlib import Path

import yaml
from contents import ARCHITECTURES
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from debian import locked
from origin import Origin

REPOSITORY = Path(__file__).resolve().parents[1]
STATEMENTS = Path(__file__).resolve().with_name("vex.yaml")
PAYLOAD = "application/vnd.in-toto+json"
# What everything is made of, beside the repository's own files.
LOCKS = (
    "requirements.lock",
    "requirements-pip.lock",
    "deploy/image/debian-amd64.lock",
    "deploy/image/debian-arm64.lock",
)
_BUILDER = "urn:dra-driver:make-dist"  # explained in RELEASE.md: whoever ran `make dist`, on a machine of their own


def provenance(files: Iterable[Path], version: str, came_from: Origin) -> bytes:
    """Return the in-toto statement that says from what the files were made."""
    subjects = [{"name": file.name, "digest": {"sha256": sha256(file)}} for file in files]
    repository = f"git+{came_from.source}" if came_from.source else "urn:dra-driver:repository"
    commit = [{"uri": repository, "digest": {"gitCommit": came_from.revision}}] if came_from.revision else []
    locks = [{"uri": f"urn:dra-driver:{name}", "digest": {"sha256": sha256(REPOSITORY / name)}} for name in LOCKS]
    definition = {
        "buildType": f"{_BUILDER}:1",
        "externalParameters": {"version": version, "source": came_from.source},
        "resolvedDependencies": [*commit, *locks],
    }
    predicate = {"buildDefinition": definition, "runDetails": {"builder": {"id": _BUILDER}}}
    statement = {"_type": "https://in-toto.io/Statement/v1", "subject": subjects}
    return _json(statement | {"predicateType": "https://slsa.dev/provenance/v1", "predicate": predicate})


def vex(version: str, image_digest: str, came_from: Origin) -> bytes:
    """Return the OpenVEX document of an image."""
    product = f"pkg:oci/dra-driver@{image_digest.replace(':', '%3A')}"
    found = {
        f"pkg:deb/debian/{name}@{pinned}?arch={architecture}": name
        for architecture in ARCHITECTURES
        for name, pinned, _ in locked(architecture)
    }
    statements = [
        {
            "vulnerability": {"name": row["vulnerability"]},
            "products": [
                {
                    "@id": product,
                    "subcomponents": [{"@id": purl} for purl, name in found.items() if name == row["package"]],
                }
            ],
            "status": row["status"],
            "justification": row["justification"],
            "impact_statement": row["impact"],
        }
        for row in yaml.safe_load(STATEMENTS.read_text())
    ]
    head = {"@context": "https://openvex.dev/ns/v0.2.0", "@id": f"urn:dra-driver:openvex:{version}"}
    when = came_from.created or "1970-01-01T00:00:00Z"  # unknown: the same files give the same bytes
    head |= {"author": "the maintainers of dra-driver", "timestamp": when}
    return _json(head | {"version": 1, "statements": statements})


def private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Return the key in a file; exits if it is no EC key on P-256 in PEM without a passphrase."""
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, TypeError, ValueError) as error:
        sys.exit(f"{path} can't be used to sign: {error}")
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        sys.exit(
            f"{path} is no EC key on the curve P-256: openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256"
        )
    return key


def signature(content: bytes, key: ec.EllipticCurvePrivateKey) -> str:
    """Return the signature of some bytes as `cosign sign-blob` writes it: ECDSA with SHA-256, DER in base64."""
    return base64.b64encode(key.sign(content, ec.ECDSA(hashes.SHA256()))).decode()


def envelope(statement: bytes, key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a statement with its signature, in a DSSE envelope."""
    framed = b"DSSEv1 %d %s %d %s" % (len(PAYLOAD), PAYLOAD.encode(), len(statement), statement)
    payload = base64.b64encode(statement).decode()
    signed = [{"keyid": "", "sig": signature(framed, key)}]
    return json.dumps({"payloadType": PAYLOAD, "payload": payload, "signatures": signed}).encode()


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _json(value: object) -> bytes:
    return json.dumps(value, indent=1).encode() + b"\n"
