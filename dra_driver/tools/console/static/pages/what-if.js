// What if: a change, and the scheduler's timeline with and without it.

import { permalink } from "../common/address.js";
import { isOld } from "../common/api.js";
import { h, plural, replace } from "../common/dom.js";
import { drawFault } from "../common/faults.js";
import { table } from "../common/tables.js";
import { drawUsage } from "./usage-plot.js";

const EXAMPLE = `apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata:
  name: two-gpus
spec:
  devices:
    requests:
    - name: gpus
      exactly:
        deviceClassName: gpu.nvidia.com
        count: 2
`;
const FIELDS = [
  ["picked", "Copies of existing pods and claims", "claim/team-a/train=2", "pod or claim, with a count"],
  ["added", "Nodes added", "dgx-h100=2, l40s", "shipped profiles, with counts"],
  ["drained", "Nodes drained", "node-1, node-2", ""],
  ["lost", "Devices lost", "node-1/gpu-0000-1b-00-0", ""],
  ["recut", "GPUs partitioned or shared in another way", "node-1=all-1g.10gb node-2=shares:4",
    "NODE=all-1g.10gb, all-balanced, all-disabled, 1g.10gb=4,3g.40gb=1, on-demand, shares:4, or a profile that it becomes"],
];
const MAX = 60, MAX_ROWS = 500, MAX_OFFERED = 100;

// Changes of GPUs are separated by blanks only, because a geometry contains commas.
const split = (name, text) => text.split(name === "recut" ? /\s+/ : /[\s,]+/).filter(Boolean);

function grouped(waiting) {
  const found = new Map();
  for (const one of waiting) found.set(one.reason, [...(found.get(one.reason) ?? []), one.job]);
  return [...found];
}

function drawMoment(moment) {
  const { usage } = moment;
  return h("div", { class: "card" },
    h("h3", {}, moment.message),
    h("div", { class: "muted" }, `${Math.round(usage.held * 10) / 10} of ${plural(usage.devices, "device")} held`),
    moment.evicted.length ? h("div", { class: "warn" }, `evicted: ${moment.evicted.slice(0, MAX).join(", ")}`) : null,
    moment.placed.slice(0, MAX).map((one) => h("div", {}, h("span", { class: "good" }, "✓ "), h("b", {}, one.job), ` on ${one.node}: `, h("span", { class: "mono" }, one.devices.map((name) => name.split("/").pop()).join(", ")))),
    moment.placed.length > MAX ? h("div", { class: "muted" }, `and ${moment.placed.length - MAX} more placed`) : null,
    grouped(moment.waiting).map(([reason, jobs]) => h("div", {}, h("span", { class: "bad" }, "✗ "), h("b", {}, jobs.slice(0, 8).join(", ")),
      jobs.length > 8 ? ` and ${jobs.length - 8} more` : "", jobs.length > 1 ? " wait: " : " waits: ", reason)));
}

// Returns what has become of each pod and claim after all events, by its name.
function outcomes(moments) {
  const found = new Map();
  for (const moment of moments) {
    for (const job of moment.evicted) found.set(job, { reason: "evicted" });
    for (const one of moment.placed) found.set(one.job, { node: one.node, devices: one.devices, reason: "" });
    for (const one of moment.waiting) found.set(one.job, { reason: one.reason });
  }
  return found;
}

const isPlaced = (outcome) => Boolean(outcome?.node);

// Returns pairs of outcomes, as it is and with the change: those that differ come first, then those that wait.
function compared(found) {
  const [now, then] = [outcomes(found.now), outcomes(found.then)];
  const rows = [...new Set([...then.keys(), ...now.keys()])].map((job) => ({ job, before: now.get(job), after: then.get(job) }));
  const rank = ({ before, after }) => (isPlaced(before) !== isPlaced(after) ? 0 : isPlaced(after) ? 2 : 1);
  return rows.sort((one, other) => rank(one) - rank(other) || one.job.localeCompare(other.job));
}

function drawOutcome(outcome) {
  if (!outcome) return h("span", { class: "muted" }, "–");
  if (!isPlaced(outcome)) return h("span", { class: "chip waits" }, outcome.reason === "evicted" ? "evicted" : "waits");
  return h("span", { title: outcome.devices.join("\n") }, h("span", { class: "good" }, "✓ "), `${outcome.node}, `,
    h("span", { class: "muted" }, plural(outcome.devices.length, "device")));
}

function drawCompared(rows) {
  const reason = ({ before, after }) => (isPlaced(after)
    ? before && !isPlaced(before) ? h("span", { class: "muted" }, `before: ${before.reason}`) : ""
    : after?.reason ?? before?.reason ?? "");
  return [table(["pod or claim", "as it is", "with the change", "reason"], rows.slice(0, MAX_ROWS).map((row) =>
    [h("b", {}, row.job), drawOutcome(row.before), drawOutcome(row.after), reason(row)]), { look: "compared" }),
  rows.length > MAX_ROWS ? h("p", { class: "muted" }, `and ${rows.length - MAX_ROWS} more`) : null];
}

const some = (jobs) => `${jobs.slice(0, 5).join(", ")}${jobs.length > 5 ? ` and ${jobs.length - 5} more` : ""}`;

// Says what the change does. Whatever waits with it keeps the message from being a good one.
function drawVerdict(rows) {
  const jobs = (test) => rows.filter(test).map((row) => row.job);
  const freed = jobs(({ before, after }) => before && !isPlaced(before) && isPlaced(after));
  const stuck = jobs(({ before, after }) => isPlaced(before) && !isPlaced(after));
  const waiting = jobs(({ before, after }) => !isPlaced(before) && after && !isPlaced(after));
  const parts = [freed.length ? `${some(freed)} would no longer wait` : "", stuck.length ? `${some(stuck)} would wait` : "",
    waiting.length ? `${some(waiting)} would ${freed.length || stuck.length ? "still " : ""}wait` : ""].filter(Boolean);
  const isGood = !stuck.length && !waiting.length;
  const words = parts.length ? `With the change, ${parts.join("; ")}.` : rows.length ? "Everything that arrives is placed, with the change and without it." : "Nothing arrives, and nothing waits: add pods or claims on the left, or copies of existing ones.";
  return h("div", { class: `message ${isGood ? "good" : "warn"}`, role: "status" }, words);
}

export function whatIfPage(main, parameters, visit) {
  const values = Object.fromEntries(FIELDS.map(([name]) => [name, parameters.get(name) ?? ""]));
  const objects = h("textarea", { rows: "14", spellcheck: "false", class: "mono pasted", "aria-label": "Pods and claims, as YAML" });
  objects.value = parameters.get("objects") ?? (parameters.get("picked") ? "" : EXAMPLE);
  const out = h("div", { class: "verdicts", role: "region", "aria-label": "Timelines", tabindex: "0" },
    h("p", { class: "muted" }, "Nothing is changed in any cluster: the scheduler's rules are applied to the present state, with and without the change."));
  const button = h("button", { class: "first", type: "submit" }, "Simulate");
  let plot = null;

  async function run(event) {
    event?.preventDefault();
    permalink("what-if", { ...values, objects: objects.value === EXAMPLE ? "" : objects.value });
    button.disabled = true;
    replace(out, h("p", { class: "muted", role: "status" }, "Simulating …"));
    try {
      const question = { objects: objects.value, ...Object.fromEntries(FIELDS.map(([name]) => [name, split(name, values[name])])) };
      const found = await visit.ask("what-if", question, { post: true, lane: "what-if" });
      plot?.close();
      plot = drawUsage(found);
      const rows = compared(found);
      replace(out,
        drawVerdict(rows),
        rows.length ? drawCompared(rows) : null,
        found.now.length + found.then.length > 2 ? plot.element : null,
        h("details", {}, h("summary", {}, "Event by event, with devices"), h("div", { class: "both" },
          h("section", {}, h("h2", {}, "As it is"), found.now.map(drawMoment)),
          h("section", {}, h("h2", {}, "With the change"), found.then.map(drawMoment)))));
      if (plot.element.isConnected) plot.paint();
    } catch (error) {
      if (!isOld(error)) replace(out, drawFault(error));
    } finally {
      button.disabled = false;
    }
  }

  // Suggests pods and claims that wait or hold devices now, to complete the last word of the field `picked`.
  const offered = h("datalist", { id: "picked-options" });
  async function offer() {
    const found = await visit.ask("claims", { count: MAX_OFFERED }).catch(() => null);
    if (found) replace(offered, found.rows.map((row) => h("option", { value: `${row.subject}/${row.namespace}/${row.name}` })));
  }

  replace(main, h("form", { class: "bench", onsubmit: run },
    h("h1", {}, "What if"),
    h("label", { class: "stack" }, "Pods and claims that arrive", objects),
    FIELDS.map(([name, title, hint, about]) => h("label", { class: "stack" }, title,
      h("input", { type: "text", class: "mono", placeholder: hint, value: values[name], title: about, spellcheck: "false", list: name === "picked" ? "picked-options" : null,
        oninput: (event) => { values[name] = event.target.value; } }))),
    offered,
    h("div", {}, button)), out);
  offer();
  if (FIELDS.some(([name]) => values[name]) || parameters.get("objects")) run();
  visit.atEnd(() => plot?.close());
}
