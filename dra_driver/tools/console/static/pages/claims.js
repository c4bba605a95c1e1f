// Claims and pods: first those that wait, with the allocator's reasons, then those that hold devices.

import { permalink } from "../common/address.js";
import { isOld } from "../common/api.js";
import { h, number, oneOf, plural, replace, since } from "../common/dom.js";
import { drawFault, isLoading } from "../common/faults.js";
import { VirtualList } from "../common/virtual-list.js";
import { commands, historySection, podPage } from "./history.js";
import { drawReasons } from "./reasons.js";

const ROW = 34, PAGE = 100;
const GROUPS = [["", "waiting first"], ["namespace", "by namespace"], ["node", "by node"], ["state", "by state"]];

function stateOf(row) {
  if (row.terminating) return "terminating";
  if (row.state === "pending") return "pending";
  return row.trouble ? "stuck" : "allocated";
}

function drawRow(row) {
  if (row.heading !== undefined) return h("div", { class: "line heading" }, h("b", {}, row.heading), h("span", { class: "muted" }, ` ${number(row.count)}`));
  const what = row.state === "pending"
    ? row.claims.length ? `wants ${row.claims.join(", ")}` : "waits for devices"
    : `holds ${row.devices.map((one) => one.split("/").pop()).join(", ")}`;
  return h("div", { class: "line" }, h("button", {
    type: "button", class: "claim", "data-kind": row.subject, "data-namespace": row.namespace, "data-name": row.name,
  },
  h("span", { class: `chip ${row.state === "pending" || row.trouble ? "waits" : "state-held"}` }, stateOf(row)),
  h("span", { class: "muted kind" }, row.subject),
  h("span", { class: "name" }, h("span", { class: "muted" }, `${row.namespace}/`), h("span", {}, row.name)),
  h("span", { class: "what mono", title: row.trouble }, what, row.trouble ? h("span", { class: "bad" }, ` ${row.trouble}`) : null),
  h("span", { class: "muted" }, row.nodes.join(", ")),
  h("span", { class: "muted" }, row.pods.length ? plural(row.pods.length, "pod") : ""),
  h("span", { class: "muted when" }, since(row.since))));
}

const fact = (title, ...children) => h("section", {}, h("h3", {}, title), children);

function drawClaim(found) {
  return [
    fact("Requests", found.requests.map((one) => h("div", { class: "card" },
      h("b", {}, one.name), h("span", { class: "muted" }, ` class ${one.class}${one.count ? `, ${one.count}` : ""}`),
      one.selectors.map((text) => h("pre", { class: "cel" }, text))))),
    found.holds.length ? fact("Devices", found.holds.map((one) => h("div", { class: "card" },
      h("div", { class: "mono" }, `${one.pool}/${one.device}`),
      h("div", { class: "muted" }, `for ${one.request}, driver ${one.driver}`),
      one.cdiDevice ? h("div", { class: "muted" }, "CDI ", h("span", { class: "mono" }, one.cdiDevice)) : null,
      Object.entries(one.consumed).map(([name, value]) => h("div", { class: "muted" }, `${name} ${value}`)),
      one.taints.map((text) => h("div", { class: "bad" }, `taint ${text}`)),
      one.conditions.map((text) => h("div", {}, text))))) : null,
    found.users.length ? fact("Used by", found.users.map((name) => h("div", {}, "pod ", h("a", { href: podPage(found.namespace, name) }, name)))) : null,
    found.containers.length ? fact("Containers", found.containers.map((one) => h("div", { class: "card" },
      h("b", {}, `${one.pod}/${one.container}`), h("span", { class: "muted" }, ` ${one.phase ?? ""}${one.node ? ` on ${one.node}` : ""}`),
      one.health.map((text) => h("div", { class: text.endsWith("Unhealthy") ? "bad" : "muted" }, text))))) : null,
  ];
}

export function claimsPage(main, parameters, visit) {
  const filter = { name: parameters.get("name") ?? "", namespace: parameters.get("namespace") ?? "", by: oneOf(GROUPS.map(([by]) => by), parameters.get("by"), "") };
  const said = h("span", { class: "muted", role: "status" }, "Reading the claims …");
  const fault = h("div");
  const panel = h("aside", { class: "panel wide", "aria-label": "A claim or pod", hidden: true });
  let selected = null;
  let shown = null;

  const list = new VirtualList({ height: ROW, size: PAGE, label: "Claims and pods", draw: drawRow, load, failed });

  async function load(offset, signal) {
    const found = await visit.ask("claims", { ...filter, offset, count: PAGE }, { signal });
    return { total: found.lines, matching: found.matching, rows: found.rows, pending: found.pending, unseen: found.unseen };
  }

  function failed(error) {
    if (isOld(error) || isLoading(error)) return;
    replace(fault, drawFault(error));
    said.textContent = "";
  }

  async function refresh(options) {
    try {
      const found = await list.refresh(options);
      if (!found) return;
      replace(fault);
      said.textContent = `${number(found.pending)} pending of ${number(found.matching)}`
        + found.unseen.map((one) => `; ${one.kind}s ${one.partial ? "of other namespaces " : ""}may not be read`).join("");
      empty.textContent = filter.name || filter.namespace ? "No claim or pod matches the filter. Clear a field above to see more."
        : "There are no claims, and no pod waits for devices. They appear here as soon as one is created: a pod asks for devices in resourceClaims, or by the name of an extended resource.";
      empty.hidden = found.total > 0;
    } catch (error) {
      failed(error);
    }
  }

  async function show() {
    const asked = selected;
    const { kind, namespace, name } = asked;
    const isBound = (reasons) => kind === "pod" && reasons instanceof Error && reasons.code === "input.missing"; // only pods without a node are known
    const head = h("header", {}, h("h2", {}, `${kind} ${namespace}/${name}`),
      h("button", { class: "quiet", type: "button", onclick: unchoose, "aria-label": "Close" }, "×"));
    if (shown !== asked) replace(panel, head, h("p", { class: "muted" }, "Asking …"));
    panel.hidden = false;
    const [claim, reasons] = await Promise.all([
      kind === "claim" ? visit.ask("claim", { namespace, name }, { lane: "claim" }).catch((error) => error) : null,
      visit.ask("explanation", { kind, namespace, name }, { lane: "explanation" }).catch((error) => error),
    ]);
    if (selected !== asked || isOld(reasons) || (claim && isOld(claim))) return;
    shown = asked;
    replace(panel, head,
      isBound(reasons) ? h("p", {}, "It does not wait for a node: it has its devices, or is gone.") : reasons instanceof Error ? drawFault(reasons) : drawReasons(reasons),
      historySection(visit, { kind, namespace, name }),
      ...(claim instanceof Error ? [] : claim?.users ?? []).slice(0, 4).map((pod) => h("section", {}, h("h3", {}, `Pod ${pod}`), historySection(visit, { kind: "pod", namespace, name: pod }))),
      commands("Commands", [`dra-driver explain ${kind} ${name} -n ${namespace}`, `kubectl describe ${kind === "pod" ? "pod" : "resourceclaim"} ${name} -n ${namespace}`]),
      h("p", {}, h("a", { class: "button", href: `#/what-if?${new URLSearchParams({ picked: `${kind}/${namespace}/${name}` })}` }, "What if another one arrives")),
      claim instanceof Error ? drawFault(claim) : claim ? drawClaim(claim) : null);
  }

  function unchoose() {
    selected = null;
    panel.hidden = true;
    list.element.querySelector("button")?.focus();
  }

  list.element.addEventListener("click", (event) => {
    const button = event.target.closest(".claim");
    if (!button) return;
    selected = { ...button.dataset };
    show();
  });
  visit.listen(window, "keydown", (event) => { if (event.key === "Escape" && selected) unchoose(); });

  const typed = visit.calmed(200, () => { permalink("claims", filter); refresh({ fromTop: true }); });
  const field = (name, hint) => h("input", { type: "search", placeholder: hint, "aria-label": `Filter by ${hint}`, value: filter[name], spellcheck: "false",
    oninput: (event) => { filter[name] = event.target.value; typed(); } });
  const order = h("select", { "aria-label": "Order of the claims", onchange: (event) => { filter.by = event.target.value; permalink("claims", filter); refresh({ fromTop: true }); } },
    GROUPS.map(([by, words]) => h("option", { value: by, selected: by === filter.by }, words)));
  const empty = h("p", { class: "waits", hidden: true });

  replace(main, h("div", { class: "filters top", role: "search" }, field("name", "name"), field("namespace", "namespace"), order, said), fault, empty,
    h("div", { class: "split" }, list.element, panel));
  visit.atEnd(() => list.close());
  const [namespace, name] = (parameters.get("pod") ?? "").split("/");
  if (name) selected = { kind: "pod", namespace, name };
  visit.keep(150, () => Promise.all([refresh(), selected ? show() : null]));
}
