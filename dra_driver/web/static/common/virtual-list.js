// A list of any length in which elements exist only for the visible rows. All rows have the same height, and pages of
// them are loaded when they become visible.

import { h } from "./dom.js";

const AROUND = 6; // rows kept above and below those in sight
const KEPT = 12; // pages in memory

export class VirtualList {
  // `load(offset)` resolves to {total, rows} of one page of `size`; `draw(row, index)` returns an element.
  constructor({ height, size, load, draw, label }) {
    Object.assign(this, { height, size, load, draw });
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
    this.age = 0;
  }

  close() {
    this.watcher.disconnect();
    cancelAnimationFrame(this.frame);
    this.age = -1;
  }

  // Loads the visible rows again; the old ones stay until the answer comes. With `fromTop`, the list has changed as a
  // whole, and is shown from its beginning.
  async refresh({ fromTop = false } = {}) {
    const age = ++this.age;
    this.asked.clear();
    if (fromTop) this.element.scrollTop = 0;
    const [first, last] = this.sight();
    const wanted = new Set([Math.floor(first / this.size), Math.floor(Math.max(first, last - 1) / this.size)]);
    const pages = await Promise.all([...wanted].map(async (page) => [page, await this.load(page * this.size)]));
    if (age !== this.age) return;
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
    const age = this.age;
    try {
      const found = await this.load(page * this.size);
      if (age !== this.age) return;
      if (this.pages.size >= KEPT) this.pages.delete(this.pages.keys().next().value);
      this.pages.set(page, found.rows);
      this.later();
    } catch {
      // nothing is shown; the next scroll loads the page again
    } finally {
      this.asked.delete(page);
    }
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
