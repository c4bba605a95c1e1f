// What deserves attention, and what each namespace and class holds.

import { isOld } from "../common/api.js";
import { h, number, plural, replace } from "../common/dom.js";
import { drawFault, isLoading } from "../common/faults.js";
import { table } from "../common/tables.js";
import { doctorSection } from "./doctor.js";

const WORDS = {
  taint: "tainted", incomplete: "incomplete pools", stale: "slices of older generations", "pool-gone": "pools that are gone",
  "not-published": "held, but not published", leaked: "leaked reservations", unused: "allocated, but not used", "not-prepared": "not prepared yet", "not-running": "with containers that do not run",
};

const COUNTS = ["devices", "claims", "waiting"];
const holders = (title, rows) => h("section", { class: "card" }, h("h2", {}, `Held by ${title}`),
  rows.length ? table([title, ...COUNTS], rows.map((one) => [one.name, number(one.devices), number(one.claims), one.waiting ? h("b", { class: "warn" }, number(one.waiting)) : "0"]), { counts: COUNTS })
    : h("p", { class: "muted" }, "No claim may be seen here yet. A ResourceClaim appears as soon as it, or a pod with a template, is created."));

// Combines equal flags of a device and its parts in one line.
function together(flags) {
  const found = new Map();
  for (const one of flags) {
    const place = one.place.replace(/( \/ [^/]+?)(-mig-[^/]*|-share-[^/]*)$/, "$1");
    const key = `${one.code} ${one.message} ${place}`;
    const known = found.get(key);
    if (known) known.parts += 1;
    else found.set(key, { ...one, place, parts: 1 });
  }
  return [...found.values()];
}

// Shows the node and the device of a place, and the whole place as the title.
function placeOf(place) {
  const parts = place.split(" / ");
  return h("span", { class: "mono", title: place }, parts.length > 2 ? `${parts[0]} / ${parts.at(-1)}` : place);
}

function draw(found) {
  const counts = Object.entries(found.counts);
  return [
    h("section", { class: "card" }, h("h2", {}, "Attention"),
      counts.length ? h("p", {}, counts.map(([code, count]) => h("span", { class: "chip plain-chip" }, `${number(count)} ${WORDS[code] ?? code}`)))
        : h("p", { class: "good" }, "Nothing deserves attention."),
      counts.length ? table(["where", "what"], together(found.flags).map((one) => [
        [placeOf(one.place), one.parts > 1 ? h("span", { class: "muted" }, ` and ${plural(one.parts - 1, "part")} of it`) : null,
          one.nodes > 1 ? h("span", { class: "muted" }, ` and ${plural(one.nodes - 1, "node")} like it`) : null],
        h("span", { class: one.code === "taint" ? "bad" : "" }, one.message)])) : null),
    h("div", { class: "both" }, holders("namespace", found.namespaces), holders("class", found.classes)),
    found.unseen.map((one) => h("p", { class: "message warn" }, `${one.kind}s ${one.partial ? "of other namespaces " : ""}may not be read`)),
  ];
}

export function healthPage(main, _parameters, visit) {
  const out = h("div", { class: "stack-of" }, h("p", { class: "muted" }, "Reading the fleet …"));
  async function refresh() {
    const found = await visit.ask("attention", {}, { lane: "attention" }).catch((error) => error);
    if (isOld(found) || isLoading(found)) return;
    replace(out, found instanceof Error ? drawFault(found) : draw(found));
  }
  replace(main, h("div", { class: "bench", role: "region", "aria-label": "Health", tabindex: "0" },
    h("h1", {}, "Health"), out, doctorSection(visit)));
  visit.keep(300, refresh);
}
