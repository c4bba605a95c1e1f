// The editor for an expression: highlighting, completion from the fleet's devices, and a mark at the place of an error.

import { h } from "../common/dom.js";
import { autocompletion, closeBrackets, closeBracketsKeymap, completionKeymap } from "../vendor/codemirror-autocomplete.js";
import { defaultKeymap, history, historyKeymap } from "../vendor/codemirror-commands.js";
import { bracketMatching, HighlightStyle, syntaxHighlighting } from "../vendor/codemirror-language.js";
import { setDiagnostics } from "../vendor/codemirror-lint.js";
import { EditorState } from "../vendor/codemirror-state.js";
import { drawSelection, EditorView, keymap, placeholder } from "../vendor/codemirror-view.js";
import { tags } from "../vendor/lezer-highlight.js";
import { cel } from "./cel-language.js";

const colours = HighlightStyle.define([
  { tag: tags.string, color: "var(--good)" },
  { tag: tags.number, color: "var(--warn)" },
  { tag: tags.keyword, color: "var(--accent)", fontWeight: "600" },
  { tag: tags.standard(tags.variableName), color: "var(--accent)" },
  { tag: tags.propertyName, color: "var(--ink)" },
  { tag: tags.operator, color: "var(--muted)" },
  { tag: tags.comment, color: "var(--muted)", fontStyle: "italic" },
]);

const look = EditorView.theme({
  "&": { fontSize: "13px", backgroundColor: "transparent" },
  "&.cm-focused": { outline: "none" },
  ".cm-content": { fontFamily: "var(--mono)", padding: "9px 0", minHeight: "84px", caretColor: "var(--ink)" },
  ".cm-line": { padding: "0 12px" },
  ".cm-cursor": { borderLeftColor: "var(--ink)" },
  ".cm-tooltip": { backgroundColor: "var(--raised)", border: "1px solid var(--line)", color: "var(--ink)", borderRadius: "5px" },
  ".cm-tooltip-autocomplete ul li[aria-selected]": { backgroundColor: "var(--accent)", color: "var(--accent-ink)" },
  ".cm-completionDetail": { color: "inherit", opacity: "0.75", fontStyle: "normal", marginLeft: "1em" },
  ".cm-placeholder": { color: "var(--muted)" },
  ".cm-lintRange-error": { backgroundImage: "none", textDecoration: "underline wavy var(--bad)", textUnderlineOffset: "3px" },
  "&.cm-focused .cm-selectionBackground, .cm-selectionBackground": { backgroundColor: "color-mix(in srgb, var(--accent) 28%, transparent) !important" },
});

// Replaces the selection when the user types. A browser that does this itself makes elements with style attributes,
// which the page's Content-Security-Policy forbids.
const typedOver = EditorView.domEventHandlers({
  beforeinput(event, view) {
    if (event.inputType !== "insertText" || !event.data || view.composing || view.state.selection.main.empty) return false;
    event.preventDefault();
    const { from, to } = view.state.selection.main;
    const insert = () => view.state.update(view.state.replaceSelection(event.data), { userEvent: "input.type", scrollIntoView: true });
    if (!view.state.facet(EditorView.inputHandler).some((handle) => handle(view, from, to, event.data, insert))) view.dispatch(insert());
    return true;
  },
});

// Returns candidates for completing the text before the cursor, from the fleet's devices.
async function complete(context, rules, visit) {
  const before = context.state.sliceDoc(Math.max(0, context.pos - 2000), context.pos);
  if (!context.explicit && !/[\w."[]$/.test(before)) return null;
  const found = await visit.ask("selector/completions", { before, ...rules() }, { post: true, lane: "completions" }).catch(() => null);
  if (!found?.candidates.length) return null;
  return {
    from: context.pos - found.candidates[0].replaces,
    options: found.candidates.map((one) => ({ label: one.text, detail: one.meaning, type: one.text.endsWith("(") ? "function" : "property" })),
    filter: false,
  };
}

// Makes an editor. Calls `changed` with the text after each change; `rules` returns the version, gates and environment.
// It lies in a shadow tree: there CodeMirror adds its styles as sheets. In the page itself it would add elements, which
// the Content-Security-Policy forbids.
export function makeEditor(text, changed, rules, visit) {
  const host = h("div");
  const view = new EditorView({
    parent: host.attachShadow({ mode: "open", delegatesFocus: true }),
    state: EditorState.create({
      doc: text,
      extensions: [
        history(), drawSelection(), bracketMatching(), closeBrackets(), cel, syntaxHighlighting(colours), look,
        EditorView.lineWrapping, typedOver,
        EditorView.contentAttributes.of({ "aria-label": "CEL selector", spellcheck: "false", autocapitalize: "off" }),
        placeholder("device.driver == \"gpu.nvidia.com\""),
        autocompletion({ override: [(context) => complete(context, rules, visit)] }),
        keymap.of([...closeBracketsKeymap, ...completionKeymap, ...historyKeymap, ...defaultKeymap]),
        EditorView.updateListener.of((update) => { if (update.docChanged) changed(update.state.doc.toString()); }),
      ],
    }),
  });
  return {
    element: host,
    text: () => view.state.doc.toString(),
    write(value) { view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: value } }); },
    focus() { view.focus(); },
    close() { view.destroy(); },
    // Underlines the place of an error: its line and column, both counted from 1. Without a place, removes the mark.
    point(position, message) {
      if (!position) {
        view.dispatch(setDiagnostics(view.state, []));
        return;
      }
      const document = view.state.doc;
      const line = document.line(Math.min(Math.max(position.line, 1), document.lines));
      const at = Math.min(line.from + position.column - 1, line.to);
      const from = at === line.to && at > line.from ? at - 1 : at;
      const end = Math.max(from + 1, from + (/^\w+/.exec(document.sliceString(from, line.to))?.[0].length ?? 1));
      view.dispatch(setDiagnostics(view.state, [{ from, to: Math.min(end, Math.max(line.to, from)), severity: "error", message }]));
    },
  };
}
