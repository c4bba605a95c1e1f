// The playground: a selector judged on every device while it is typed.

import { permalink } from "../common/address.js";
import { isOld } from "../common/api.js";
import { busy, copied, h, number, plural, replace } from "../common/dom.js";
import { drawFault, isLoading } from "../common/faults.js";
import { makeEditor } from "./editor.js";
import { drawExplanation } from "./explanation.js";
import { GALLERY } from "./gallery.js";
import { claimTemplate, deviceClass } from "./manifests.js";

const VERSIONS = ["", "1.34", "1.35", "1.36", "1.37"];
const GATES = ["DRAConsumableCapacity", "DRAListTypeAttributes"];
const FEW = 16; // devices that do not match, shown without being asked for
const VERDICTS = [["match", "match", "✓"], ["noMatch", "do not match", "✗"], ["abort", "abort scheduling", "!"]];

// Draws the page. `here` is what the list of versions calls the one by which the fleet is judged without a choice.
export function playgroundPage(main, parameters, visit, here = "as here") {
  const rules = {
    kubernetes: VERSIONS.includes(parameters.get("kubernetes")) ? parameters.get("kubernetes") : "",
    environment: parameters.get("environment") === "stored" ? "stored" : "new",
    gates: Object.fromEntries((parameters.get("gates") ?? "").split(",").filter(Boolean).map((one) => [one.split("=")[0], one.endsWith("=true")])),
  };
  let expression = parameters.get("expression") ?? GALLERY[1].expression;
  let chosen = null;

  const outcome = h("div", { class: "outcome", role: "status", "aria-label": "Verdict" });
  const remarks = h("div", { class: "remarks" });
  const rows = h("div", { class: "rows" });
  const tree = h("section", { "aria-label": "Explanation", hidden: true });
  const editor = makeEditor(expression, (text) => { expression = text; judgeSoon(); }, () => rules, visit);

  const question = () => ({ expression, ...rules });

  async function judge() {
    permalink("playground", { expression, kubernetes: rules.kubernetes, environment: rules.environment === "new" ? "" : "stored",
      gates: Object.entries(rules.gates).map(([name, isOn]) => `${name}=${isOn}`).join(",") });
    if (!expression.trim()) {
      replace(outcome, h("span", { class: "muted" }, "Type an expression, or take one of the examples."));
      visit.cancel("selector");
      clear();
      editor.point(null);
      return;
    }
    const found = await busy(outcome, busy(rows, visit.ask("selector", question(), { post: true, lane: "selector" }))).catch((error) => error);
    if (isOld(found)) return;
    if (!(found instanceof Error)) {
      show(found);
    } else if (!isLoading(found)) {
      replace(outcome, drawFault(found));
      clear();
    }
  }
  const judgeSoon = visit.calmed(60, judge);

  function clear() {
    visit.cancel("explain");
    replace(remarks);
    replace(rows);
    tree.hidden = true;
  }

  function show(found) {
    const one = found.selector;
    const hasError = Boolean(one.compileError);
    editor.point(found.position, one.compileError ?? "");
    replace(outcome,
      hasError ? h("b", { class: "bad" }, "does not compile")
        : VERDICTS.filter(([kind]) => kind !== "abort" || found.counts.abort).map(([kind, word]) =>
          h("span", { class: kind === "match" && found.counts.match ? "good" : kind === "abort" ? "bad" : "" }, h("b", {}, number(found.counts[kind])), ` ${word}`)),
      h("span", { class: "muted" }, `of ${plural(found.devices, "device")} on ${plural(found.nodes, "node")}`),
      one.maxCost === null ? null : drawCost(one.maxCost, found.costLimit),
      h("span", { class: "muted" }, `rules of Kubernetes ${found.kubernetes}${found.verdicts === "exact" ? "" : ", derived from its source"}`));
    replace(remarks, drawRemarks(found));
    replace(rows, found.rows.map(drawRow),
      found.moreRows ? h("div", { class: "muted" }, `and ${plural(found.moreRows, "more kind of node", "more kinds of nodes")}`) : null);
    if (chosen) explain(chosen);
  }

  function drawCost(cost, limit) {
    const share = Math.min(1, Math.log10(cost + 1) / Math.log10(limit));
    const bar = h("i", { class: cost > limit ? "over" : "" });
    bar.style.width = `${Math.round(share * 100)}%`;
    return h("span", { class: cost > limit ? "bad" : "muted", title: "The worst-case cost that the API server estimates; the bar is logarithmic" },
      h("span", { class: "meter" }, bar), ` cost ${number(cost)} of ${number(limit)}`);
  }

  const write = (text) => { editor.write(text); editor.focus(); };
  const fixButton = (text, label) => h("button", { type: "button", onclick: () => write(text), title: text }, label);

  function drawRemarks(found) {
    const one = found.selector;
    const seen = found.notes.map((text) => h("div", { class: "message" }, text));
    if (one.compileError) seen.push(h("div", { class: "message bad" }, h("pre", {}, one.compileError)));
    if (one.refusal) seen.push(h("div", { class: "message bad" }, "The API server would refuse this: ", one.refusal));
    const abort = found.rows.flatMap((row) => row.abort)[0];
    if (abort) seen.push(h("div", { class: "message bad" }, h("b", {}, "Aborts scheduling. "), `A pod that asks for this stays pending: on ${abort.device}, `, h("span", { class: "mono" }, abort.error)));
    for (const unknown of one.unknown) {
      seen.push(h("div", { class: "message warn" }, `no device has the ${unknown.kind} `, h("span", { class: "mono" }, unknown.name),
        unknown.suggestions.length ? `; there are ${unknown.suggestions.join(", ")}` : ""));
    }
    if (one.remedy) seen.push(h("div", { class: "message warn" }, one.remedy.sentences.map((text) => h("div", {}, text)),
      one.remedy.better ? fixButton(one.remedy.better, "Use this expression") : null));
    for (const miss of found.nearestMisses) seen.push(h("div", { class: "message" }, "Nearest miss: ", miss.sentence, h("pre", {}, miss.clause)));
    for (const finding of found.findings) {
      seen.push(h("div", { class: "message warn" }, h("span", {}, finding.message), " ", h("span", { class: "muted mono" }, finding.rule),
        finding.clause ? h("pre", {}, finding.clause) : null,
        finding.effect ? h("div", { class: "muted" }, finding.effect) : null,
        finding.fix ? fixButton(finding.fix, finding.safe ? "Fix" : "Fix (changes what matches)") : null));
    }
    if (found.better && found.findings.length > 1) seen.push(h("div", { class: "message good" }, h("pre", {}, found.better), fixButton(found.better, "Take all safe fixes")));
    return seen;
  }

  function drawRow(row) {
    const devices = VERDICTS.flatMap(([kind, word, sign]) => row[kind].map((one) => h("button", {
      type: "button", class: `device ${kind}`, "aria-pressed": isChosen(row.node, one) ? "true" : "false",
      title: one.error ?? word, "aria-label": `${one.device}: ${word}`,
      onclick: (event) => choose(event.currentTarget, { node: row.node, driver: one.driver, pool: one.pool, device: one.device }),
    }, `${sign} ${one.device}`)));
    const refused = row.noMatch.length > FEW ? devices.splice(row.match.length, row.noMatch.length) : [];
    const hidden = VERDICTS.reduce((sum, [kind]) => sum + row.counts[kind] - row[kind].length, 0);
    return h("div", {},
      h("div", {}, h("b", {}, row.node), row.like ? h("span", { class: "muted" }, ` and ${plural(row.like, "node")} like it`) : null,
        h("span", { class: "muted" }, `  ${row.counts.match} of ${row.counts.match + row.counts.noMatch + row.counts.abort} match`)),
      h("div", { class: "devices" }, devices),
      refused.length ? h("details", { class: "refused" }, h("summary", {}, `${number(row.counts.noMatch)} do not match`), h("div", { class: "devices" }, refused)) : null,
      h("div", { class: "devices" }, hidden ? h("span", { class: "muted" }, `and ${number(hidden)} more`) : null));
  }

  const isChosen = (node, one) => chosen && chosen.node === node && ["driver", "pool", "device"].every((name) => chosen[name] === one[name]);

  function choose(button, place) {
    for (const one of rows.querySelectorAll('.device[aria-pressed="true"]')) one.setAttribute("aria-pressed", "false");
    button.setAttribute("aria-pressed", "true");
    chosen = place;
    explain(place);
  }

  async function explain(place) {
    const found = await visit.ask("selector/explain", { ...question(), ...place }, { post: true, lane: "explain" }).catch((error) => error);
    if (isOld(found)) return;
    tree.hidden = false;
    replace(tree, found instanceof Error ? drawFault(found) : drawExplanation(found, place.device));
  }

  const select = (label, value, options, changed) => h("label", {}, label, h("select", { onchange: (event) => { changed(event.target.value); judge(); } },
    options.map(([key, text]) => h("option", { value: key, selected: key === value }, text))));
  const choices = h("div", { class: "choices" },
    select("Kubernetes", rules.kubernetes, VERSIONS.map((one) => [one, one || here]), (value) => { rules.kubernetes = value; }),
    select("judged as", rules.environment, [["new", "a new object"], ["stored", "a stored object"]], (value) => { rules.environment = value; }),
    GATES.map((gate) => select(gate, gate in rules.gates ? String(rules.gates[gate]) : "", [["", "default"], ["true", "on"], ["false", "off"]], (value) => {
      if (value) rules.gates[gate] = value === "true";
      else delete rules.gates[gate];
    })));
  const copyButton = (label, make) => h("button", { type: "button", onclick: (event) => copied(event.currentTarget, make()) }, label);

  replace(main,
    h("div", { class: "bench" },
      h("h1", {}, "Try a selector"),
      h("div", { class: "editor" }, editor.element),
      outcome, remarks, choices,
      h("div", { class: "choices" },
        copyButton("Copy as DeviceClass", () => deviceClass(expression)),
        copyButton("Copy as ResourceClaimTemplate", () => claimTemplate(expression)),
        copyButton("Copy a link", () => location.href)),
      h("section", {}, h("h2", {}, "Examples"),
        h("div", { class: "gallery" }, GALLERY.map((one) => h("button", { type: "button", title: one.expression, onclick: () => write(one.expression) }, one.title))))),
    h("div", { class: "verdicts", tabindex: "0", role: "region", "aria-label": "Devices" }, tree, rows));

  visit.atEnd(() => editor.close());
  visit.keep(200, judge);
}
