// The fleet in figures, asked once for all who show some of it, whenever something changed.

import { ask, on } from "./api.js";

const listeners = new Set();
let latest = null;
let isAsking = false;
let isStale = false;

async function renew() {
  if (isAsking) {
    isStale = true;
    return;
  }
  isAsking = true;
  do {
    isStale = false;
    latest = await ask("summary").catch(() => latest);
  } while (isStale);
  isAsking = false;
  if (latest) for (const action of [...listeners]) action(latest);
}

// Calls back with the figures, now if they are known and whenever they are new; it returns a function that ends it.
export function onSummary(action) {
  listeners.add(action);
  if (latest) action(latest);
  return () => listeners.delete(action);
}

on("version", renew);
