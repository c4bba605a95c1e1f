// A visit to a page: the questions that it asks, the events that it listens to and the timers that it waits for. All of
// them end when the page is left, so nothing of a page happens on the page after it.

import { ask, on } from "./api.js";

export class Visit {
  constructor() {
    this.control = new AbortController();
    this.asked = new Map();
  }

  get isOver() {
    return this.control.signal.aborted;
  }

  end() {
    this.control.abort();
  }

  // Calls a function when the page is left.
  atEnd(action) {
    this.control.signal.addEventListener("abort", action, { once: true });
  }

  // Asks a question, unless the page is left meanwhile. Of all questions with the same `lane` only the newest matters:
  // it ends an older one that is still waiting for its answer. Without a lane, a question never ends another. A question
  // that is ended throws an error for which `isOld` is true.
  async ask(name, question = {}, { post = false, lane = Symbol(name), signal = null } = {}) {
    const control = new AbortController();
    this.cancel(lane);
    this.asked.set(lane, control);
    // What AbortSignal.any does, which browsers have only since 2024.
    const others = [this.control.signal, signal].filter(Boolean);
    const end = () => control.abort();
    if (others.some((one) => one.aborted)) end();
    for (const one of others) one.addEventListener("abort", end);
    try {
      return await ask(name, question, { post, signal: control.signal });
    } finally {
      for (const one of others) one.removeEventListener("abort", end);
      if (this.asked.get(lane) === control) this.asked.delete(lane);
    }
  }

  // Ends a question that is still waiting for its answer.
  cancel(lane) {
    this.asked.get(lane)?.abort();
  }

  // Calls a function with each event of a name that an element or the window reports.
  listen(target, name, action) {
    target.addEventListener(name, action, { signal: this.control.signal });
  }

  // Returns a function that calls another one as soon as it has not been called for some milliseconds.
  calmed(milliseconds, action) {
    let timer = 0;
    return (...values) => {
      clearTimeout(timer);
      timer = setTimeout(() => { if (!this.isOver) action(...values); }, milliseconds);
    };
  }

  // Calls an asynchronous function now, and some milliseconds after each change of the fleet's state, but never before
  // the promise of the last call is settled. However often the state changes, and however slow the answers are, every
  // call can come to its end.
  keep(milliseconds, action) {
    let isRunning = false;
    let isStale = false;
    const run = async (first) => {
      isStale = true;
      if (isRunning) return;
      isRunning = true;
      try {
        for (let wait = first; isStale && !this.isOver; wait = milliseconds) {
          if (wait) await new Promise((resolve) => { setTimeout(resolve, wait); });
          isStale = false;
          if (!this.isOver) await action();
        }
      } finally {
        isRunning = false;
      }
    };
    this.atEnd(on("version", () => run(milliseconds)));
    run(0);
  }
}
