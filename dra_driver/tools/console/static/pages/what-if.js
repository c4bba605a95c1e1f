// What if: a change, and the scheduler's timeline with and without it.

import { permalink } from "../common/address.js";
import { isOld } from "../common/api.js";
import { h, plural, replace } from "../common/dom.js";
import { drawFault } from "../common/faults.js";
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
const MAX = 60, MAX_OFFERED = 100;

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

function sentence(found) {
  const last = (moments) => moments.at(-1);
  const [now, then] = [last(found.now), last(found.then)];
  const waits = (moment) => new Set(moment?.waiting.map((one) => one.job) ?? []);
  const [before, after] = [waits(now), waits(then)];
  const freed = [...before].filter((job) => !after.has(job));
  const stuck = [...after].filter((job) => !before.has(job));
  const parts = [];
  if (freed.length) parts.push(`${freed.slice(0, 5).join(", ")}${freed.length > 5 ? " and others" : ""} would no longer wait`);
  if (stuck.length) parts.push(`${stuck.slice(0, 5).join(", ")}${stuck.length > 5 ? " and others" : ""} would wait`);
  return parts.length ? `With the change, ${parts.join("; ")}.` : `The change makes no difference to what waits (${plural(after.size, "waits", "wait")}).`;
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
      replace(out,
        h("div", { class: "message good", role: "status" }, sentence(found)),
        found.now.length + found.then.length > 2 ? plot.element : null,
        h("div", { class: "both" },
          h("section", {}, h("h2", {}, "As it is"), found.now.map(drawMoment)),
          h("section", {}, h("h2", {}, "With the change"), found.then.map(drawMoment))));
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
