// Why a device matches or not: the expression as a tree, with the value of each part.

import { h } from "../common/dom.js";

const MAX = 400; // parts drawn

function drawPart(part, left) {
  left.count -= 1;
  if (left.count < 0) return null;
  const known = part.value === "true" ? "value true" : part.value === "false" ? "value false" : "value";
  const value = part.error ? h("span", { class: "bad" }, part.error) : part.value === null ? h("span", { class: "muted" }, "not reached")
    : h("span", { class: known }, part.value);
  return h("li", { class: part.decides ? "decides" : "" },
    h("div", { class: "line" }, h("code", {}, part.text), " ", h("span", { class: "muted" }, "→"), " ", value,
      part.decides ? h("span", { class: "warn" }, " decides") : null),
    part.parts.length ? h("ul", {}, part.parts.map((one) => drawPart(one, left))) : null);
}

export function drawExplanation(document, name) {
  const group = document.queries[0]?.groups[0];
  const explained = group?.explanations[0];
  if (!explained) return h("div", { class: "muted" }, "There is nothing to explain: the expression does not compile.");
  const verdict = { match: "matches", noMatch: "does not match", abort: "aborts scheduling" }[group.verdict];
  return h("div", {},
    h("h2", {}, h("span", { class: "mono" }, name), ` ${verdict}`),
    explained.error ? h("div", { class: "message bad" }, explained.error) : null,
    explained.tree ? h("ul", { class: "tree" }, drawPart(explained.tree, { count: MAX })) : null);
}
