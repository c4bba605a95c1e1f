"""The migration of files: texts in, texts with claims out, and a report on each.

In: texts and their origins. Out: for each the new text, the changes with reasons, and what is lost. A text that needs
no change is returned unchanged, so a second run changes nothing. No file is written, and no cluster is asked.

Raises InputError for text that is not YAML, for Helm templates, and for impossible counts; then no file is returned at
all.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dra_driver.base.errors import InputError
from dra_driver.base.text.alignment import Origins, is_same, value_of
from dra_driver.base.text.rendering import Edit, TextStyle, above_comments, applied, block, text_style_of
from dra_driver.base.text.rewriting import Rewriting, rewriting
from dra_driver.base.text.written import DocumentText, documents_of
from dra_driver.tools.migrate.node_rules import report_leftovers
from dra_driver.tools.migrate.pod_migration import PodMigration
from dra_driver.tools.migrate.pods import ObjectTemplates, TemplateNames, refuses_claims, shapes_of, wants_devices
from dra_driver.tools.migrate.report import (
    TEMPLATE,
    Change,
    FileReport,
    KubeObject,
    MigrationLoss,
    ReportSubject,
    claim_template,
    objects_of,
    shown_path,
)
from dra_driver.tools.migrate.resources import NOTHING_KNOWN, Known, migrate_quota
from dra_driver.tools.migrate.sharing_config import names_in, plugin_files, rules_beside, rules_name

# Recognise Helm templates and refuse them: text that has to be rendered first can't be migrated.

_CERTAIN = re.compile(
    r"\{\{-?\s*(\.(Values|Release|Chart|Capabilities|Files|Template)\b|\$\.(Values|Release)|include\s+\")"
)
# Unquoted braces at the start of a line or of a value, which YAML would read as a mapping in a mapping.
_BARE = re.compile(r"^[ \t]*(?:- +)?(?:[\w./\"'-]+:[ \t]+)?\{\{-?[^{]", re.MULTILINE)
_BLOCK = re.compile(r":[ \t]+[|>][-+0-9]*[ \t]*(#.*)?$")


def check_no_template(text: str, origin: str) -> None:
    """Refuse a Helm template. Raises: InputError("input.template")."""
    found = _CERTAIN.search(text) or next(
        (one for one in _BARE.finditer(text) if not _in_text(text, one.start())), None
    )
    if found is None:
        return
    line = text.count("\n", 0, found.end()) + 1
    raise InputError(
        "template",
        f"{origin}:{line} is a Helm template, not a manifest: {found[0].strip()}",
        hint="render it first: helm template NAME CHART | dra-driver migrate - ; then write what the diff shows into"
        " the chart",
    )


def _in_text(text: str, start: int) -> bool:
    """Return whether a line is part of a block scalar: below a key that ends in | or >, and indented deeper."""
    end = text.find("\n", start)
    line = text[start : end if end >= 0 else len(text)]
    depth = len(line) - len(line.lstrip())
    for above in reversed(text[:start].splitlines()):
        if not above.strip():
            continue
        level = len(above) - len(above.lstrip())
        if level < depth:
            if _BLOCK.search(above) is not None:
                return True
            depth = level
    return False


# New objects placed before the documents that need them.


@dataclass(frozen=True, slots=True)
class InsertedObjects:
    """Objects to write before the document that spans `start` to `end`, in that document's formatting."""

    start: int
    end: int
    objects: tuple[dict[str, Any], ...]
    text_style: TextStyle


def placed(text: str, edits: list[Edit], before: list[InsertedObjects], *, is_single: bool) -> str:
    """Return the text with the edits applied and the objects placed."""
    if before[0].text_style.is_json and is_single:
        return _listed(text, edits, before[0])
    made = list(edits)
    for one in before:
        text_style = one.text_style
        at = _place(text, one.start)
        parts = []
        for wire in one.objects:
            written = block(wire, TextStyle(2, text_style.dash, newline=text_style.newline), 0)
            parts.append(f"{written}{text_style.newline}---{text_style.newline}")
        made.append(_edit(text, at, "".join(parts), text_style))
    return applied(text, made)


def _edit(text: str, at: int, written: str, text_style: TextStyle) -> Edit:
    """Return the edit that inserts the objects, also before a document that begins on the line of its own "---"."""
    line = text[at : at + 4]
    if line[:3] != "---":
        return Edit(at, at, -1, written)
    body = written.removesuffix(f"---{text_style.newline}")
    return Edit(at, at, -1, f"---{text_style.newline}{body}" if at else body)


def _place(text: str, start: int) -> int:
    """Return the offset at which a document's first comment begins."""
    return above_comments(text, text.rfind("\n", 0, start) + 1, 0)


def _listed(text: str, edits: list[Edit], one: InsertedObjects) -> str:
    """Put a JSON object and the objects that it needs into a List."""
    text_style = one.text_style
    lead, tail = text[: one.start], text[one.end :]
    body = applied(text, edits)[len(lead) :]
    body = body[: len(body) - len(tail)] if tail else body
    if not text_style.step:
        written = [json.dumps(wire, ensure_ascii=False) for wire in one.objects]
        return f'{lead}{{"apiVersion": "v1", "kind": "List", "items": [{", ".join([*written, body])}]}}{tail}'
    pad = " " * text_style.step
    written = [json.dumps(wire, indent=text_style.step, ensure_ascii=False) for wire in one.objects]
    rows = f",{text_style.newline}".join(_indented(row, pad * 2) for row in [*written, body])
    lines = [
        "{",
        f'{pad}"apiVersion": "v1",',
        f'{pad}"kind": "List",',
        f'{pad}"items": [',
        rows,
        f"{pad}]",
        "}",
    ]
    return lead + text_style.newline.join(lines) + tail


def _indented(text: str, pad: str) -> str:
    return "\n".join(pad + line if line.strip() else line for line in text.split("\n"))


_QUOTA, _CONFIG = "ResourceQuota", "ConfigMap"


@dataclass(frozen=True, slots=True)
class SourceText:
    """A text to migrate, and its origin for messages."""

    origin: str
    text: str


@dataclass(frozen=True, slots=True)
class Migrated:
    """One file after the migration."""

    origin: str
    old: str
    new: str
    changes: tuple[Change, ...]
    losses: tuple[MigrationLoss, ...]
    templates: tuple[str, ...]


@dataclass(slots=True)
class _Document:
    """A document being migrated: its text, its value, the origins of its parts, and objects to put before it."""

    written: DocumentText
    value: Any
    origins: Origins
    objects: list[KubeObject]
    before: list[dict[str, Any]] = field(default_factory=list)
    is_changed: bool = False


def migrate(
    sources: Sequence[SourceText], *, known: Known = NOTHING_KNOWN, templates: TemplateNames | None = None
) -> list[Migrated]:
    """Migrate texts; return one result for each, in the same order.

    Every file's ConfigMaps and templates are read first, so that a name which one file defines is known in all of them.
    `known` maps resource names that stand for something other than they suggest to their kinds; `templates` holds the
    templates that exist elsewhere (in a cluster) and gains the new ones. Migrating the results again changes nothing.
    Raises: InputError if any text can't be migrated; then none is returned.
    """
    names = templates or TemplateNames()
    files = [_read(source) for source in sources]
    _refuse_other_input(sources, files)
    for documents in files:
        for document in documents:
            names.record(document.objects)
            for wire in document.objects:
                known = {**known, **(names_in(plugin_files(wire.wire)) if wire.kind == _CONFIG else {})}
    return [_migrate_file(source, documents, known, names) for source, documents in zip(sources, files, strict=True)]


def _refuse_other_input(sources: Sequence[SourceText], files: list[list[_Document]]) -> None:
    """Refuse input whose documents contain no Kubernetes object at all: it is not a set of manifests."""
    if any(files) and not any(document.objects for documents in files for document in documents):
        origins = ", ".join(source.origin for source, documents in zip(sources, files, strict=True) if documents)
        raise InputError(
            "not-an-object",
            f"{origins}: there is no Kubernetes object in it",
            hint="an object has a kind; render a chart with helm template before you migrate it",
        )


def _read(source: SourceText) -> list[_Document]:
    check_no_template(source.text, source.origin)
    found = []
    for written in documents_of(source.text, source.origin):
        origins = Origins()
        value = value_of(written.root, origins)
        found.append(_Document(written, value, origins, list(objects_of(value))))
    return found


def _migrate_file(source: SourceText, documents: list[_Document], known: Known, names: TemplateNames) -> Migrated:
    report = FileReport()
    made: list[str] = []
    for document in documents:
        for one in document.objects:
            subject = ReportSubject(one.title, report, one.path)
            try:
                written = _migrate_object(one, known, names, subject)
            except InputError as fault:
                message = f"{source.origin}: {fault.message}"
                raise InputError(fault.code.partition(".")[2], message, hint=fault.hint) from fault
            made += [wire["metadata"]["name"] for wire in written if wire["kind"] == TEMPLATE]
            _insert(document, one, written)
    new = _rewritten(source, documents, report)
    _report_list(new, documents, report)
    return Migrated(source.origin, source.text, new, tuple(report.changes), tuple(report.losses), tuple(made))


def _migrate_object(
    one: KubeObject, known: Known, names: TemplateNames, subject: ReportSubject
) -> list[dict[str, Any]]:
    """Change an object in place, and return the new objects that it needs."""
    wire = one.wire
    if one.kind == _CONFIG:
        return _sharing_rules(one, names, subject)
    if one.kind == _QUOTA:
        migrate_quota(wire, known, subject)
        return []
    shapes = list(shapes_of(wire, known))
    wanting = sum(any(wants_devices(c.wire.get("resources"), known) for c in shape.containers) for shape in shapes)
    reason = refuses_claims(wire)
    if reason and wanting:
        subject.lost("refuses-claims", f"it stays as it is: {reason}", "serve it by the extended resource of a class")
        return []
    templates = ObjectTemplates(one, names, has_roles=wanting > 1 and _differ(wire, known))
    for shape in shapes:
        PodMigration(known).apply(shape, subject, templates.name)
    report_leftovers(wire, known, subject)
    for name, _ in templates.made:
        why = "the scheduler allocates devices to claims; each pod gets one of its own from it"
        subject.changed("template", f"ResourceClaimTemplate {name} was added", why)
    return [claim_template(name, one.namespace, spec) for name, spec in templates.made]


def _sharing_rules(one: KubeObject, names: TemplateNames, subject: ReportSubject) -> list[dict[str, Any]]:
    """Return the ConfigMap with this driver's sharing rules for a ConfigMap; none if it exists or is not needed."""
    files = plugin_files(one.wire)
    if not files:
        report_leftovers(one.wire, NOTHING_KNOWN, subject)
    if not files or names.has_config(rules_name(one), one.namespace):
        return []
    rules = rules_beside(one, files, subject)
    return [rules] if rules else []


def _differ(wire: dict[str, Any], known: Known) -> bool:
    """Return whether the pods of an object request different things, by migrating a copy of the object."""
    seen: list[Any] = []

    def record(specs: list[dict[str, Any]], _: str) -> list[str]:
        seen.append(specs)
        return ["gpu"] * len(specs)

    for shape in shapes_of(copy.deepcopy(wire), known):
        PodMigration(known).apply(shape, ReportSubject("", FileReport()), record)
    return any(specs != seen[0] for specs in seen)


def _insert(document: _Document, one: KubeObject, written: list[dict[str, Any]]) -> None:
    """Insert objects before the one that needs them: into its List, or as documents if the List is for one kind."""
    for wire in written:
        if one.holder is None or one.list_kind:
            document.before.append(wire)
        else:
            position = next(number for number, held in enumerate(one.holder) if held is one.wire)
            one.holder.insert(position, wire)


def _rewritten(source: SourceText, documents: list[_Document], report: FileReport) -> str:
    text = source.text
    whole = text_style_of(text, [document.written.root for document in documents])
    edits = []
    before: list[InsertedObjects] = []
    for document in documents:
        text_style = whole if whole.is_json else text_style_of(text, [document.written.root])
        found = rewriting(text, document.written, document.origins, text_style, document.value)
        edits += found.edits
        _report_rewritten(found, document, report)
        if document.before:
            root = document.written.root
            before.append(InsertedObjects(root.start, root.end, tuple(document.before), text_style))
    new = placed(text, edits, before, is_single=len(documents) == 1) if before else applied(text, edits)
    _check(new, documents, source.origin)
    return new


def _report_rewritten(found: Rewriting, document: _Document, report: FileReport) -> None:
    """Report the parts that could not be changed line by line, and the comments that were lost by that."""
    title = document.objects[0].title if document.objects else "the document"
    subject = ReportSubject(title, report)
    for path in found.rewritten:
        why = "its lines can't be changed one by one; comments in it were moved above it"
        subject.changed("anew", f"{shown_path(path) or 'the whole document'} was rewritten", why, *path)
    for comment in found.lost:
        subject.lost("comment", f"the comment {comment!r} is gone", "write it again where it belongs")


def _report_list(new: str, documents: list[_Document], report: FileReport) -> None:
    """Report that a JSON file contains a List now, because a JSON file can't hold a second document."""
    if documents and documents[0].before and len(documents_of(new, "")) == 1:
        title = documents[0].objects[0].title
        what = f"{title} and what it needs are now in a List"
        ReportSubject(title, report).changed("list", what, "a JSON file can hold only one object")


def _check(new: str, documents: list[_Document], origin: str) -> None:
    """Check that reading the new text gives the intended objects, because no file is better than a wrong one."""
    held = [one.wire for document in documents_of(new, origin) for one in objects_of(value_of(document.root))]
    wanted = []
    for document in documents:
        wanted += [*document.before, *(one.wire for one in objects_of(document.value))]
    if not is_same(held, wanted):
        raise AssertionError(f"{origin}: the new text does not read back as the objects that it was made from")
