"""Examples: files of Kubernetes objects whose comments state what is expected to happen.

In: a YAML file. Out: its intent (the comment at its head), its objects, and what it expects. Strict: a line that begins
with `# expect:` must be one of the `sentences`, and may refer only to objects in the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from dra_driver.embedded.api.kinds import CLAIMS, PODS, kind_of
from dra_driver.embedded.api_rules import quotas
from dra_driver.embedded.api_rules.refusals import ApiRefusal
from dra_driver.embedded.examples.sentences import Expectation, meaning_of, mentioned
from dra_driver.embedded.scheduling import workloads
from dra_driver.model.errors import InputError
from dra_driver.model.wire import Wire

MAX_SIZE = 1 << 20  # bytes of one file
_MARK = re.compile(r"#\s*expect\s*:(?P<text>.*)")


@dataclass(frozen=True, slots=True)
class Sentence:
    """One expectation, with its text and its line."""

    text: str
    line: int
    meaning: Expectation


@dataclass(frozen=True, slots=True)
class Example:
    """One example file, as it was read."""

    path: Path
    intent: str
    objects: tuple[Wire, ...]
    expects: tuple[Sentence, ...]
    quotas: tuple[Wire, ...] = ()

    @property
    def pods(self) -> list[Wire]:
        """The pods, in the order of the file."""
        return [wire for wire in self.objects if wire["kind"] == PODS.kind]


def load_examples(folder: Path) -> list[Example]:
    """Read every YAML file of a folder, in the order of names.

    Raises: InputError if there are no files, or if one is wrong.
    """
    paths = sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")])
    if not paths:
        raise InputError("no-examples", f"no YAML file in {folder}")
    return [load_example(path) for path in paths]


def load_example(path: Path) -> Example:
    """Read one file. Raises: InputError with the file and the line."""
    text = text_of(path)
    found = list(load_objects(path, text))
    quota_objects = tuple(wire for wire in found if wire["kind"] == quotas.KIND)
    try:
        objects = tuple(workloads.expand(wire for wire in found if wire not in quota_objects))
        known = _names(objects)
        for wire in objects:
            if wire["kind"] == CLAIMS.kind:
                quotas.devices_by_class(wire)  # fails here, not later when the API server counts for a quota
    except (AttributeError, LookupError, TypeError, ValueError) as fault:
        raise _fault(path, 1, f"an object does not have the shape of its kind: {fault}") from fault
    expects = tuple(_sentences(path, text))
    if not expects:
        raise _fault(path, 1, "no line begins with '# expect:'")
    for sentence in expects:
        for kind, name in mentioned(sentence.meaning):
            if name not in known[kind]:
                raise _fault(path, sentence.line, f"there is no {kind} {name} in this file")
    return Example(path, _intent(text), objects, expects, quota_objects)


def text_of(path: Path) -> str:
    """Return the text of one file. Raises: InputError("input.unreadable", "input.too-large")."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_SIZE + 1)
        if len(content) > MAX_SIZE:
            raise InputError("too-large", f"{path} is larger than {MAX_SIZE >> 20} MiB")
        return content.decode("utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        raise InputError("unreadable", f"{path}: {fault}") from fault


def load_objects(path: Path, text: str) -> Iterator[Wire]:
    """Yield the Kubernetes objects of a file. Raises: InputError."""
    import yaml  # noqa: PLC0415  (loaded when there is a file to read)

    from dra_driver.documents.yaml_values import TooDeepError, load_yaml  # noqa: PLC0415  (likewise)

    try:
        documents = list(load_yaml(text))
    except TooDeepError as fault:
        raise _fault(path, 1, "the objects are nested too deeply") from fault
    except yaml.YAMLError as fault:
        mark = getattr(fault, "problem_mark", None)
        raise _fault(path, mark.line + 1 if mark else 1, str(getattr(fault, "problem", fault))) from fault
    for number, document in enumerate(documents, 1):
        if not _is_named(document):
            raise _fault(path, 1, f"document {number} is not a Kubernetes object with a name")
        if workloads.is_workload(document) or document.get("kind") == quotas.KIND:
            yield document
            continue
        try:
            kind_of(document)
        except ApiRefusal:
            what = f"{document.get('apiVersion')} {document.get('kind')}"
            raise _fault(path, 1, f"document {number}: {what} is not served here") from None
        yield document


def _is_named(document: object) -> TypeGuard[Wire]:
    if not isinstance(document, dict) or not all(isinstance(document.get(key), str) for key in ("apiVersion", "kind")):
        return False
    metadata = document.get("metadata")
    return isinstance(metadata, dict) and isinstance(metadata.get("name"), str) and bool(metadata["name"])


def _sentences(path: Path, text: str) -> Iterator[Sentence]:
    for number, line in enumerate(text.splitlines(), 1):
        if mark := _MARK.match(line.strip()):
            written = mark["text"].strip()
            try:
                meaning = meaning_of(written)
            except ValueError as fault:
                raise _fault(path, number, str(fault)) from fault
            if meaning is None:
                raise _fault(path, number, f"{written!r} is not a known expectation", "see dra-driver demo --help")
            yield Sentence(written, number, meaning)


def _intent(text: str) -> str:
    """Return the comment at the head of the file, up to the first empty comment line."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("#") or not line.strip("# "):
            break
        lines.append(line.lstrip("# "))
    return " ".join(lines)


def _names(objects: tuple[Wire, ...]) -> dict[str, set[str]]:
    pods = [wire for wire in objects if wire["kind"] == PODS.kind]
    claims = {wire["metadata"]["name"] for wire in objects if wire["kind"] == CLAIMS.kind}
    for pod in pods:
        for entry in _spec(pod).get("resourceClaims") or []:
            if "resourceClaimTemplateName" in entry:
                claims.add(f"{pod['metadata']['name']}/{entry['name']}")
    containers = {f"{p['metadata']['name']}/{c['name']}" for p in pods for c in _spec(p).get("containers") or []}
    return {"pod": {pod["metadata"]["name"] for pod in pods}, "claim": claims, "container": containers}


def _spec(pod: Wire) -> dict[str, Any]:
    return pod.get("spec") or {}


def _fault(path: Path, line: int, why: str, hint: str = "") -> InputError:
    return InputError("example", f"{path}:{line}: {why}", hint=hint)
