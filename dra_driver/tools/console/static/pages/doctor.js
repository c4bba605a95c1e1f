// What the doctor finds. It is asked when the page is opened, not after every change.

import { isOld } from "../common/api.js";
import { busy, h, plural, replace } from "../common/dom.js";
import { drawFault } from "../common/faults.js";

const SIGNS = { error: ["bad", "✗"], warning: ["warn", "!"], note: ["muted", "·"] };

function drawFinding(one) {
  const [look, sign] = SIGNS[one.severity] ?? SIGNS.note;
  return h("details", {},
    h("summary", {}, h("b", { class: look }, `${sign} ${one.severity} `), h("span", { class: "mono" }, one.subject), " ", one.message),
    h("dl", { class: "facts" }, h("dt", {}, "how it is known"), h("dd", {}, one.how), h("dt", {}, "what to do"), h("dd", {}, one.remedy), h("dt", {}, "finding"), h("dd", { class: "mono" }, one.id)));
}

function draw(found) {
  return [
    found.findings.length ? h("p", {}, plural(found.findings.length, "finding")) : h("p", { class: "good" }, "The doctor finds nothing wrong."),
    found.findings.map(drawFinding),
    found.unseen.length ? h("details", {}, h("summary", {}, plural(found.unseen.length, "thing"), " could not be examined"),
      found.unseen.map((one) => h("div", {}, h("b", {}, one.what), ` ${one.why}`))) : null,
  ];
}

// Returns a section that asks the doctor, if this console has one.
export function doctorSection(visit) {
  const out = h("div", { "aria-live": "polite" }, h("p", { class: "muted" }, "Examining …"));
  const again = h("button", { type: "button", hidden: true, onclick: () => examine() }, "Examine again");
  async function examine() {
    again.disabled = true;
    const found = await busy(out, visit.ask("doctor", {}, { lane: "doctor" })).catch((error) => error);
    again.disabled = false;
    if (isOld(found)) return;
    again.hidden = found.status === 404;
    if (found.status === 404) replace(out, h("p", { class: "muted" }, found.message, found.hint ? `: ${found.hint}` : ""));
    else replace(out, found instanceof Error ? drawFault(found) : draw(found));
  }
  examine();
  return h("section", { class: "card" }, h("h2", {}, "Doctor"), out, again);
}
