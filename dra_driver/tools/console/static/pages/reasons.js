// Why a claim or pod fits or does not: the allocator's sentence, what to change, and each kind of node.

import { h, number, plural } from "../common/dom.js";

const MAX_NODES = 40, MAX_LOST = 4;

function drawStage(stage, before) {
  const lost = before - stage.left;
  return h("tr", {}, h("td", {}, stage.name), h("td", { class: "count" }, number(stage.left)),
    h("td", {}, lost ? h("span", { class: "bad" }, `−${number(lost)} `) : "",
      stage.lost.slice(0, MAX_LOST).map((one) => h("div", { class: "muted" }, h("span", { class: "mono" }, one.device), `: ${one.reason}`)),
      stage.lost.length > MAX_LOST ? h("div", { class: "muted" }, `and ${number(stage.lost.length - MAX_LOST)} more`) : null));
}

function drawFunnel(funnel) {
  let before = funnel.devices;
  return h("div", { class: "funnel" },
    h("div", {}, "request ", h("b", {}, funnel.request), ` wants ${funnel.wants ?? "all"}; ${plural(funnel.devices, "device")} here`),
    h("table", {}, h("tbody", {}, funnel.stages.map((stage, place) => {
      const row = drawStage(stage, before);
      const isSilent = place > 0 && stage.left === before;
      before = stage.left;
      return isSilent ? null : row;
    }))),
    funnel.errors.map((one) => h("div", { class: "bad" }, `${one.device}: ${one.reason}`)));
}

function drawNode(node, isOpen) {
  return h("details", { open: isOpen },
    h("summary", {}, h("span", { class: node.ok ? "good" : "bad" }, node.ok ? "✓ " : "✗ "), h("b", {}, node.node),
      node.like.length ? h("span", { class: "muted" }, ` and ${plural(node.like.length, "node")} like it`) : null, " ", node.skipped ?? node.sentence),
    node.notes.map((text) => h("div", { class: "muted" }, text)),
    node.funnels.map(drawFunnel));
}

// Returns how many devices a node lacks for all requests, to sort nodes; nodes that are not considered come last.
function lacks(node) {
  if (node.ok) return -1;
  if (node.skipped || !node.funnels.length) return Infinity;
  return node.funnels.reduce((sum, one) => sum + Math.max(0, (one.wants ?? one.devices) - (one.stages.at(-1)?.left ?? one.devices)), 0) || 0.5;
}

const CHANGES = {
  "in use": "be freed", taints: "be mended, or its taint tolerated", counters: "have room: what its GPU is cut into takes it",
  "class selector": "be accepted by the class", "request selectors": "be accepted by the request's selectors",
};

// What would have to change on a node: for each request that lacks devices, the devices that passed the most stages, and
// why they were lost.
function drawChanges(node) {
  const rows = node.funnels.flatMap((funnel) => {
    const lacking = (funnel.wants ?? funnel.devices) - (funnel.stages.at(-1)?.left ?? funnel.devices);
    if (lacking <= 0) return [];
    const lost = [...funnel.stages].reverse().flatMap((stage) => stage.lost.map((one) => ({ ...one, stage: stage.name })));
    return [h("li", {}, `request ${funnel.request}: ${plural(lacking, "more device")}`,
      lost.length ? h("ul", {}, lost.slice(0, Math.max(lacking, 1)).slice(0, MAX_LOST * 2).map((one) => h("li", {}, h("span", { class: "mono" }, one.device),
        ` would have to ${CHANGES[one.stage] ?? `pass ${one.stage}`}`, h("span", { class: "muted" }, ` (${one.reason})`)))) : null)];
  });
  return rows.length ? h("div", { class: "message warn changes" }, "What would have to change on ", h("b", {}, node.node), ", which is nearest:", h("ul", {}, rows)) : null;
}

export function drawReasons(found) {
  const nodes = [...found.nodes].sort((one, other) => lacks(one) - lacks(other));
  return h("section", { class: "reasons" },
    h("div", { class: `message ${found.ok ? "good" : "bad"}` }, found.sentence),
    found.notes.map((text) => h("div", { class: "message warn" }, text)),
    found.ok || !nodes.length || lacks(nodes[0]) === Infinity ? null : drawChanges(nodes[0]),
    nodes.slice(0, MAX_NODES).map((node, index) => drawNode(node, index === 0 && !found.ok)),
    found.nodes.length > MAX_NODES ? h("div", { class: "muted" }, `and ${number(found.nodes.length - MAX_NODES)} more kinds of nodes`) : null,
    h("div", { class: "muted" }, `rules of Kubernetes ${found.kubernetes}${found.exact ? "" : ", derived from its source"}`));
}
