// Tables that become cards on a phone: each cell has the title of its column for that.

import { h } from "./dom.js";

// Returns a table. `titles` are texts; those in `counts` are columns of numbers. A row is a list of cells, of which the
// first is its title.
export function table(titles, rows, { counts = [], foot = null, look = "" } = {}) {
  const kind = (place) => (counts.includes(titles[place]) ? "count" : null);
  const line = (cells) => h("tr", {}, cells.map((cell, place) => (place
    ? h("td", { class: kind(place), "data-title": titles[place] }, cell)
    : h("th", { scope: "row" }, cell))));
  return h("div", { class: "scrolled" }, h("table", { class: `rows ${look}` },
    h("thead", {}, h("tr", {}, titles.map((title, place) => h("th", { scope: "col", class: kind(place) }, title)))),
    h("tbody", {}, rows.map(line)),
    foot ? h("tfoot", {}, line(foot)) : null));
}
