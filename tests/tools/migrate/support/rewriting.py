"""A text rewritten to hold a changed value, and read again."""

from __future__ import annotations

from dra_driver.base.text.alignment import Origins, value_of
from dra_driver.base.text.rendering import applied, text_style_of
from dra_driver.base.text.rewriting import Rewriter, rewriting
from dra_driver.base.text.written import documents_of


def rewritten(text, change):
    """Return the text changed part by part, without the check of the result, and the value that it should hold."""
    (document,) = documents_of(text, "test")
    origins = Origins()
    value = value_of(document.root, origins)
    change(value)
    edits = Rewriter(text, document, origins, text_style_of(text, [document.root])).edits(value, {})
    return applied(text, edits), value


def rewritten_and_checked(text, change):
    """Return the text, the value that it should hold, and what `rewriting` says about it."""
    (document,) = documents_of(text, "test")
    origins = Origins()
    value = value_of(document.root, origins)
    change(value)
    found = rewriting(text, document, origins, text_style_of(text, [document.root]), value)
    return applied(text, found.edits), value, found


def read(text):
    (document,) = documents_of(text, "test")
    return value_of(document.root)
