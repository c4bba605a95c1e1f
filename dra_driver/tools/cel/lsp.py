"""The language server of `dra-driver cel lsp`: what `editing` computes, in the protocol that editors speak.

In: the messages of an editor. Out: diagnostics, candidates, hovers and fixes. It reads no file: an editor sends the
texts that it has opened. A text is checked when it has not changed for a moment.

Source: the Language Server Protocol 3.17.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from lsprotocol import types
from pygls.lsp.server import LanguageServer
from pygls.workspace import TextDocument

import dra_driver
from dra_driver.selectors.advice.findings import LintSeverity
from dra_driver.tools.cel.editing import OfferedEdit, SelectorEditor, TextFault
from dra_driver.tools.cel.linting import TextEdit

_SETTLED_SECONDS = 0.15  # nobody reads a diagnostic while the next key is pressed
_SOURCE = "dra-driver"
_MAX_OFFERED = 200
_MAX_TITLE = 100  # characters of a fix
_SEVERITIES = {
    LintSeverity.ERROR: types.DiagnosticSeverity.Error,
    LintSeverity.WARNING: types.DiagnosticSeverity.Warning,
    LintSeverity.NOTE: types.DiagnosticSeverity.Information,
}
_TRIGGERS = [".", "[", '"', "'"]


def serve(editor: SelectorEditor) -> None:
    """Serve the editor at the other end of standard input and output until it leaves."""
    _SelectorServer(editor).start_io()


class _SelectorServer(LanguageServer):
    """Answers about the texts that are open."""

    def __init__(self, editor: SelectorEditor) -> None:
        super().__init__("dra-driver-cel", dra_driver.__version__)
        self._editor = editor
        self._waiting: dict[str, asyncio.TimerHandle] = {}
        self._checked: dict[str, tuple[str, list[TextFault]]] = {}
        completion = types.CompletionOptions(trigger_characters=_TRIGGERS)
        fixes = types.CodeActionOptions(code_action_kinds=[types.CodeActionKind.QuickFix])
        self._answer(types.TEXT_DOCUMENT_DID_OPEN, self._opened)
        self._answer(types.TEXT_DOCUMENT_DID_CHANGE, self._changed)
        self._answer(types.TEXT_DOCUMENT_DID_CLOSE, self._closed)
        self._answer(types.TEXT_DOCUMENT_HOVER, self._hover)
        self._answer(types.TEXT_DOCUMENT_COMPLETION, self._complete, completion)
        self._answer(types.TEXT_DOCUMENT_CODE_ACTION, self._fixes, fixes)

    def _answer(self, message: str, method: Callable[[Any], Any], options: Any = None) -> None:
        """Let a method answer a message; pygls marks what it is given, and methods can't be marked."""
        self.feature(message, options)(partial(method))

    def _opened(self, params: types.DidOpenTextDocumentParams) -> None:
        self._publish(params.text_document.uri)

    def _changed(self, params: types.DidChangeTextDocumentParams) -> None:
        uri = params.text_document.uri
        self._forget(uri)
        self._waiting[uri] = asyncio.get_running_loop().call_later(_SETTLED_SECONDS, self._publish, uri)

    def _closed(self, params: types.DidCloseTextDocumentParams) -> None:
        uri = params.text_document.uri
        self._forget(uri)
        self._checked.pop(uri, None)
        self.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri=uri, diagnostics=[]))

    def _forget(self, uri: str) -> None:
        if (waiting := self._waiting.pop(uri, None)) is not None:
            waiting.cancel()

    def _publish(self, uri: str) -> None:
        """Send the diagnostics of an open text."""
        text = self._open(uri)
        if text is None:
            return
        rows = [_diagnostic(text, fault) for fault in self._faults(text)]
        version = text.document.version
        self.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, rows, version))

    def _open(self, uri: str) -> _OpenText | None:
        document = self.workspace.text_documents.get(uri)
        return _OpenText(document) if document else None

    def _faults(self, text: _OpenText) -> list[TextFault]:
        """Return the faults of a text, which is checked once."""
        uri = text.document.uri
        known = self._checked.get(uri)
        if known is None or known[0] != text.source:
            known = self._checked[uri] = text.source, self._editor.faults(text.source, text.name)
        return known[1]

    def _complete(self, params: types.CompletionParams) -> types.CompletionList:
        text = self._open(params.text_document.uri)
        offers = self._editor.complete(text.source, text.index(params.position)) if text else []
        items = [_item(text, offer) for offer in offers[:_MAX_OFFERED]] if text else []
        return types.CompletionList(is_incomplete=len(offers) > _MAX_OFFERED, items=items)

    def _hover(self, params: types.HoverParams) -> types.Hover | None:
        text = self._open(params.text_document.uri)
        found = self._editor.hover(text.source, text.index(params.position)) if text else None
        if text is None or found is None:
            return None
        content = types.MarkupContent(types.MarkupKind.Markdown, found.markdown)
        return types.Hover(content, text.range(found.start, found.end))

    def _fixes(self, params: types.CodeActionParams) -> list[types.CodeAction]:
        text = self._open(params.text_document.uri)
        if text is None:
            return []
        first, last = text.index(params.range.start), text.index(params.range.end)
        found = [fault for fault in self._faults(text) if fault.start <= last and first <= fault.end]
        return [_action(text, fault, edit) for fault in found for edit in fault.fixes]


class _OpenText:
    """A text that the editor has opened; translates its positions, in the editor's units, to indices and back."""

    def __init__(self, document: TextDocument) -> None:
        self.document = document
        self.source = document.source
        self.name = document.path or document.uri
        self._units: Callable[[str], int] = document.position_codec.client_num_units
        self._lines = self.source.split("\n")
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line) + 1)

    def index(self, position: types.Position) -> int:
        """Return the index of a position; of one that the text does not have, the nearest."""
        if position.line >= len(self._lines):
            return len(self.source)
        line, units, taken = self._lines[position.line], 0, 0
        while taken < len(line) and units < position.character:
            units += self._units(line[taken])
            taken += 1
        return self._starts[position.line] + taken

    def position(self, index: int) -> types.Position:
        """Return the position of an index."""
        line = self.source.count("\n", 0, index)
        return types.Position(line, self._units(self.source[self._starts[line] : index]))

    def range(self, start: int, end: int) -> types.Range:
        """Return the range between two indices."""
        return types.Range(self.position(start), self.position(end))

    def edit(self, edit: TextEdit) -> types.TextEdit:
        """Return an edit in the protocol's form."""
        return types.TextEdit(self.range(edit.start, edit.end), edit.new)


def _diagnostic(text: _OpenText, fault: TextFault) -> types.Diagnostic:
    return types.Diagnostic(
        range=text.range(fault.start, fault.end),
        message=fault.message,
        severity=_SEVERITIES[fault.severity],
        code=fault.rule,
        source=_SOURCE,
    )


def _item(text: _OpenText, offer: OfferedEdit) -> types.CompletionItem:
    """Return a candidate. Editors compare what is typed with `filter_text`, the words that the edit replaces."""
    label = offer.candidate.text
    kind = types.CompletionItemKind.Function if label.endswith("(") else types.CompletionItemKind.Field
    return types.CompletionItem(
        label=label.rstrip("]\"'("),
        detail=offer.candidate.meaning,
        kind=kind,
        filter_text=label,
        text_edit=text.edit(offer.edit),
    )


def _action(text: _OpenText, fault: TextFault, edit: TextEdit) -> types.CodeAction:
    words = " ".join(edit.new.lstrip("|->\n ").split())
    title = f"Write: {words}"
    return types.CodeAction(
        title=title if len(title) <= _MAX_TITLE else f"{title[: _MAX_TITLE - 1]}…",
        kind=types.CodeActionKind.QuickFix,
        diagnostics=[_diagnostic(text, fault)],
        edit=types.WorkspaceEdit(changes={text.document.uri: [text.edit(edit)]}),
    )
