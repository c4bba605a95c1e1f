// The fleet in figures: asked for after each change, once for all parts of a page that show some of them.

import { ask, on } from "./api.js";
import { isLoading } from "./faults.js";

const listeners = new Set();
let latest = null;
let isAsking = false;
let isStale = false;

const RETRY = 3000; // milliseconds until the figures are asked for again after a fault that may pass

async function renew() {
  if (isAsking) {
    isStale = true;
    return;
  }
  isAsking = true;
  do {
    isStale = false;
    latest = await ask("summary").catch((error) => {
      if (error.status === 0 || (error.status === 503 && !isLoading(error))) setTimeout(renew, RETRY);
      return latest;
    });
  } while (isStale);
  isAsking = false;
  if (latest) for (const action of [...listeners]) action(latest);
}

// Calls a function with the figures, now if they are known and whenever they change. Returns a function that ends this.
export function onSummary(action) {
  listeners.add(action);
  if (latest) action(latest);
  return () => listeners.delete(action);
}

on("version", renew);
