// A list of any length in which elements exist only for the visible rows. All rows have the same height, and pages of
// them are loaded when they become visible.

import { busy, h } from "./dom.js";

const AROUND = 6; // rows kept above and below those in sight
const KEPT = 12; // pages in memory

export class VirtualList {
  // `load(offset, signal)` resolves to {total, rows} of one page of `size`, or rejects once the signal says that its
  // answer is no longer wanted; `draw(row, index)` returns an element; `failed(error)` is called when a page that was
  // scrolled to can't be loaded.
  constructor({ height, size, load, draw, failed, label }) {
    Object.assign(this, { height, size, load, draw, failed });
    this.total = 0;
    this.pages = new Map();
    this.asked = new Set();
    this.shown = new Map();
    this.all = h("div", { class: "all", role: "list", "aria-label": label });
    this.element = h("div", { class: "map", tabindex: "-1" }, this.all);
    this.element.addEventListener("scroll", () => this.later(), { passive: true });
    this.watcher = new ResizeObserver(() => this.later());
    this.watcher.observe(this.element);
    this.frame = 0;
    this.control = new AbortController(); // ends the loads that were begun before the last refresh
  }

  close() {
    this.watcher.disconnect();
    cancelAnimationFrame(this.frame);
    this.control.abort();
  }

  // Loads the visible rows again; the old ones stay until the answer comes. With `fromTop`, the list has changed as a
  // whole, and is shown from its beginning. Returns the first of the loaded pages; null if it is no longer wanted,
  // because the list was refreshed again or closed. Only the newest refresh throws the error of its load.
  async refresh({ fromTop = false } = {}) {
    this.control.abort();
    const { signal } = this.control = new AbortController();
    this.asked.clear();
    if (fromTop) this.element.scrollTop = 0;
    const [first, last] = this.sight();
    const wanted = new Set([Math.floor(first / this.size), Math.floor(Math.max(first, last - 1) / this.size)]);
    const loading = Promise.all([...wanted].map(async (page) => [page, await this.load(page * this.size, signal)]));
    let pages = [];
    try {
      const isBusy = fromTop || this.element.hasAttribute("aria-busy");
      pages = await (isBusy ? busy(this.element, loading) : loading);
    } catch (error) {
      if (signal.aborted) return null;
      throw error;
    }
    if (signal.aborted) return null;
    this.show(pages);
    return pages[0][1];
  }

  show(pages) {
    this.pages = new Map(pages.map(([page, found]) => [page, found.rows]));
    this.setTotal(pages[0][1].total);
    const before = this.element.contains(document.activeElement) ? { ...document.activeElement.dataset } : null;
    for (const index of [...this.shown.keys()]) this.drop(index);
    this.paint();
    if (before) this.refocus(before);
  }

  // Moves the focus to the element that has the same data as the focused element had before the rows were drawn again.
  refocus(data) {
    const isSame = (one) => Object.entries(data).every(([name, value]) => one.dataset[name] === value);
    [...this.element.querySelectorAll("button")].find(isSame)?.focus({ preventScroll: true });
  }

  setTotal(total) {
    this.total = total;
    this.all.style.height = `${total * this.height}px`;
  }

  sight() {
    const top = this.element.scrollTop;
    const first = Math.max(0, Math.floor(top / this.height) - AROUND);
    return [first, Math.ceil((top + this.element.clientHeight) / this.height) + AROUND];
  }

  later() {
    if (!this.frame) this.frame = requestAnimationFrame(() => { this.frame = 0; this.paint(); });
  }

  paint() {
    const [first, end] = this.sight();
    const last = Math.min(end, this.total);
    for (const index of [...this.shown.keys()]) if (index < first || index >= last) this.drop(index);
    for (let index = first; index < last; index += 1) {
      if (this.shown.has(index)) continue;
      const page = Math.floor(index / this.size);
      const row = this.pages.get(page)?.[index % this.size];
      if (row) this.add(index, row);
      else this.fetch(page);
    }
  }

  add(index, row) {
    const element = this.draw(row, index);
    element.style.transform = `translateY(${index * this.height}px)`;
    element.setAttribute("role", "listitem");
    element.setAttribute("aria-setsize", String(this.total));
    element.setAttribute("aria-posinset", String(index + 1));
    element.dataset.index = String(index);
    const after = this.shown.get(index + 1);
    if (after) after.before(element);
    else this.all.append(element);
    this.shown.set(index, element);
  }

  drop(index) {
    this.shown.get(index).remove();
    this.shown.delete(index);
  }

  async fetch(page) {
    if (this.asked.has(page)) return;
    this.asked.add(page);
    this.note();
    const { signal } = this.control;
    try {
      const found = await this.load(page * this.size, signal);
      if (signal.aborted) return;
      if (this.pages.size >= KEPT) this.pages.delete(this.pages.keys().next().value);
      this.pages.set(page, found.rows);
      this.later();
    } catch (error) {
      if (!signal.aborted) this.failed(error); // the next scroll loads the page again
    } finally {
      if (!signal.aborted) this.asked.delete(page);
      this.note();
    }
  }

  // Says that rows in sight are being loaded.
  note() {
    this.element.classList.toggle("reading", this.asked.size > 0);
  }

  // Scrolls until a row is visible.
  reveal(index) {
    const top = index * this.height;
    if (top < this.element.scrollTop) this.element.scrollTop = top;
    if (top + this.height > this.element.scrollTop + this.element.clientHeight) {
      this.element.scrollTop = top + this.height - this.element.clientHeight;
    }
    this.paint();
  }
}
