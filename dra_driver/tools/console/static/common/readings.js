// What GPUs do now, where this console has a Prometheus: asked for the nodes in sight, again and again.

import { isOld } from "./api.js";

const EVERY = 15_000, MAX = 100; // milliseconds between two questions, nodes of one

const gib = (bytes) => `${Math.round(bytes / 2 ** 30 * 10) / 10} GiB`;
const PARTS = [
  ["busyPercent", "busy", (value) => `${Math.round(value)} %`], ["memoryBytes", "memory used", gib],
  ["celsius", "temperature", (value) => `${Math.round(value)} °C`], ["watts", "power", (value) => `${Math.round(value)} W`],
];

// Returns pairs of a title and a text for what is known of a GPU.
export const readingRows = (reading) => PARTS.filter(([name]) => (reading?.[name] ?? null) !== null)
  .map(([name, title, text]) => [title, text(reading[name])]);

// Asks for the nodes that `inSight` returns: now, after `look` is called, and every few seconds. Calls `changed` with a
// function that returns the reading of a GPU by the names of its node and device. Without a Prometheus nothing happens.
export function keepReadings(visit, inSight, changed) {
  let known = {};
  let isOffered = false;
  async function ask() {
    const nodes = inSight().slice(0, MAX);
    if (!isOffered || !nodes.length || document.hidden) return;
    const found = await visit.ask("readings", { nodes: nodes.join(",") }, { lane: "readings" }).catch((error) => error);
    if (isOld(found)) return;
    known = found instanceof Error ? {} : found.nodes;
    changed((node, device) => known[node]?.[device] ?? null);
  }
  const look = visit.calmed(400, ask);
  visit.ask("offers").then((offers) => { isOffered = offers.dashboard; look(); }, () => {});
  const timer = setInterval(ask, EVERY);
  visit.atEnd(() => clearInterval(timer));
  return look;
}
