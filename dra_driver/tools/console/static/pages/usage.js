// What devices were used for and what that cost, and the dashboards that are shipped for Grafana.

import { permalink } from "../common/address.js";
import { isOld } from "../common/api.js";
import { busy, h, number, oneOf, plural, replace } from "../common/dom.js";
import { drawFault } from "../common/faults.js";
import { table } from "../common/tables.js";
import { amount, dayOf, drawLines, lastOf, minuteOf } from "./plots.js";

const DAYS = [["1", "last day"], ["7", "last 7 days"], ["30", "last 30 days"]];
const BY = ["namespace", "class", "claim", "pod", "node", "pool"];
const PARTS = [["busy", "busyHours"], ["idle", "idleHours"], ["unmeasured", "unmeasuredHours"], ["unclaimed", "unclaimedHours"]];
const MAX = 200;

const hours = (value) => `${number(value >= 100 ? Math.round(value) : Math.round(value * 10) / 10)} h`;
const money = (value, currency) => (value === null ? "–" : `${number(Math.round(value * 100) / 100)} ${currency}`);

function drawBar(row, most) {
  const words = PARTS.map(([word, name]) => `${word} ${hours(row[name])}`).join(", ");
  return h("div", { class: "hours", role: "img", "aria-label": words, title: words }, PARTS.map(([word, name]) => {
    const part = h("i", { class: `use-${word}` });
    part.style.width = `${most ? (row[name] / most) * 100 : 0}%`;
    return part;
  }));
}

function drawReport(found) {
  const sum = (row) => PARTS.reduce((all, [, name]) => all + row[name], 0);
  const most = Math.max(...found.rows.map(sum), 0);
  const hasMoney = found.total.cost !== null;
  const cells = (row) => [hours(row.allocatedHours), hours(row.busyHours), hours(row.idleHours), hours(row.unclaimedHours),
    ...(hasMoney ? [money(row.cost, found.currency), money(row.idleCost, found.currency)] : [])];
  const titles = ["allocated", "busy", "idle", "without a claim", ...(hasMoney ? ["cost", "idle cost"] : [])];
  const line = (row) => [h("span", { class: "mono" }, row.name), drawBar(row, most), ...cells(row)];
  return [
    h("p", { class: "muted" }, PARTS.map(([word]) => h("span", { class: "key-word" }, h("i", { class: `swatch use-${word}` }), word)), ` from ${found.source}`),
    found.rows.length ? table([found.by, "device-hours", ...titles], found.rows.slice(0, MAX).map(line),
      { counts: titles, foot: ["all", "", ...cells(found.total).map((text) => h("b", {}, text))], look: "bars" })
      : h("p", { class: "muted" }, "No claim held a device in this time. Choose a longer time; if there should be some, see whether telemetry is on (telemetry.level in the chart)."),
    found.idleClaims.length ? h("section", {}, h("h3", {}, "Claims that were nearly idle"), found.idleClaims.slice(0, 20).map((one) =>
      h("div", {}, h("b", {}, `${one.namespace}/${one.name}`), ` ${plural(one.devices, "device")}, ${one.model} ${one.profile}, for ${hours(one.hours)}`,
        one.cost === null ? "" : `, ${money(one.cost, found.currency)}`))) : null,
    found.sizes.some((one) => one.advice) ? h("section", {}, h("h3", {}, "Claims for which a smaller device is enough"), found.sizes.filter((one) => one.advice).slice(0, 20).map((one) =>
      h("div", {}, h("b", {}, `${one.namespace}/${one.name}`), ` ${one.profile} → `, h("b", {}, one.advice), h("span", { class: "muted" }, ` ${one.reason}`)))) : null,
    found.unpriced.length ? h("p", { class: "message warn" }, `without a price: ${found.unpriced.join(", ")}`) : null,
    found.notes.map((text) => h("p", { class: "message" }, text)),
  ];
}

// Says since when there are measurements, if that is later than what was asked for.
function youth(found, days) {
  const [begin, end] = [new Date(found.begin), new Date(found.end)];
  return (end - begin) / 86400_000 < days - 0.01 ? h("p", { class: "message" }, `Prometheus has measurements of these agents since ${dayOf(begin)} ${minuteOf(begin)}.`) : null;
}

function drawPanels(found, plots) {
  return [...new Set(found.panels.map((one) => one.row))].map((row) => h("section", {}, h("h3", {}, row),
    h("div", { class: "panels" }, found.panels.filter((one) => one.row === row).map((panel) => {
      if (panel.fault) return h("div", { class: "card chart" }, h("h4", {}, panel.title), h("div", { class: "message bad" }, panel.fault));
      if (panel.kind === "figure") {
        return h("div", { class: "card number", title: panel.note }, h("h4", {}, panel.title), h("b", {}, amount(lastOf(panel), panel.unit)));
      }
      const lines = drawLines(panel, Date.parse(found.begin) / 1000, Date.parse(found.end) / 1000);
      plots.push(lines);
      return h("div", { class: "card chart", title: panel.note }, h("h4", {}, panel.title), lines.element);
    }))));
}

export function usagePage(main, parameters, visit) {
  const chosen = { by: oneOf(BY, parameters.get("by"), "namespace"), days: oneOf(DAYS.map(([days]) => days), parameters.get("days"), "7"), namespace: parameters.get("namespace") ?? "",
    name: parameters.get("name") ?? "fleet" };
  const report = h("div", { "aria-live": "polite" }, h("p", { class: "muted" }, "Asking …"));
  const boards = h("div", {});
  const fields = h("div", { class: "choices" });
  let plots = [];
  let tabs = null;

  const end = () => { for (const one of plots) one.close(); plots = []; };
  const note = () => permalink("usage", { ...chosen, by: chosen.by === "namespace" ? "" : chosen.by, days: chosen.days === "7" ? "" : chosen.days, name: chosen.name === "fleet" ? "" : chosen.name });

  async function showReport() {
    note();
    replace(report, h("p", { class: "muted" }, "Asking …"));
    const found = await visit.ask("usage", { by: chosen.by, days: chosen.days, namespace: chosen.namespace }, { lane: "usage" }).catch((error) => error);
    if (!isOld(found)) replace(report, found instanceof Error ? drawFault(found) : drawReport(found));
  }

  async function showBoard() {
    note();
    if (!boards.hasChildNodes()) replace(boards, h("p", { class: "muted" }, "Asking for the dashboard …"));
    const question = visit.ask("dashboard", { name: chosen.name, hours: Number(chosen.days) * 24 }, { lane: "dashboard" });
    const found = await busy(boards, question).catch((error) => error);
    if (isOld(found)) return;
    end();
    if (found instanceof Error) { replace(boards, tabs, drawFault(found)); return; }
    tabs = h("div", { class: "choices tabs" }, found.others.map((one) => h("button", { type: "button", "aria-pressed": String(one.name === found.name),
      onclick: () => { chosen.name = one.name; showBoard(); } }, one.title)));
    replace(boards, tabs, h("p", { class: "muted" }, found.about), youth(found, Number(chosen.days)), drawPanels(found, plots));
    for (const one of plots) one.paint();
  }

  const select = (label, value, options, changed) => h("label", {}, label, h("select", { onchange: (event) => changed(event.target.value) },
    options.map(([key, text]) => h("option", { value: key, selected: key === value }, text))));

  async function open() {
    const offers = await visit.ask("offers").catch((error) => error);
    if (isOld(offers)) return;
    if (offers instanceof Error) { replace(report, drawFault(offers)); return; }
    if (!offers.usage && !offers.dashboard) {
      replace(report, h("p", {}, "This console has no source of usage data."),
        h("p", { class: "muted" }, "Start the console on a cluster with telemetry, and name its Prometheus: ", h("code", { class: "mono" }, "dra-driver console --prometheus http://prometheus:9090")));
      return;
    }
    if (offers.namespaces.length && !offers.namespaces.includes(chosen.namespace)) chosen.namespace = offers.namespaces[0];
    replace(fields,
      select("by", chosen.by, BY.map((one) => [one, one]), (value) => { chosen.by = value; showReport(); }),
      offers.dashboard || offers.namespaces.length ? select("time", chosen.days, DAYS, (value) => { chosen.days = value; showReport(); if (offers.dashboard) showBoard(); }) : null,
      offers.namespaces.length ? select("namespace", chosen.namespace, offers.namespaces.map((one) => [one, one]), (value) => { chosen.namespace = value; showReport(); }) : null);
    if (offers.usage) showReport();
    if (offers.dashboard) showBoard();
  }

  replace(main, h("div", { class: "bench", role: "region", "aria-label": "Usage and cost", tabindex: "0" },
    h("h1", {}, "Usage and cost"), fields, h("section", { class: "card" }, report), boards));
  const again = () => { for (const one of plots) one.paint(); };
  const wide = new ResizeObserver(again);
  wide.observe(boards);
  visit.listen(window, "themechange", again);
  visit.atEnd(() => { end(); wide.disconnect(); });
  open();
}
