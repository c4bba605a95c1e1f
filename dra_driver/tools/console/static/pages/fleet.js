// The fleet page: figures, filters, the map of all nodes, and beside it the panel of the device that was clicked.

import { permalink } from "../common/address.js";
import { isOld } from "../common/api.js";
import { h, number, plural, replace } from "../common/dom.js";
import { drawFault, isLoading } from "../common/faults.js";
import { keepReadings } from "../common/readings.js";
import { onSummary } from "../common/summary.js";
import { VirtualList } from "../common/virtual-list.js";
import { clearDevice, showDevice, showNow } from "./device-panel.js";
import { drawRow, showReading } from "./fleet-row.js";
import { drawStrip } from "./strip.js";

const ROW = 76, PAGE = 40, FEW = 12; // pixels of a row, nodes of a page, nodes that need no strip
const STATES = [["free", "free"], ["held", "held"], ["tainted", "tainted or faulty"], ["withheld", "withheld"]];
const FIELDS = [
  ["name", "node", ""],
  ["model", "model", ""],
  ["namespace", "held by namespace", ""],
  ["labels", "labels: zone=a,!spot", ""],
  ["expression", "selector: device.attributes[\"gpu.nvidia.com\"].memoryBandwidth > 3000000000000", "wide"],
];

export function fleetPage(main, parameters, visit) {
  const filter = Object.fromEntries([...FIELDS.map(([name]) => name), "state"].map((name) => [name, parameters.get(name) ?? ""]));
  const figures = h("div", { class: "figures", role: "group", "aria-label": "The fleet in figures" });
  const said = h("span", { class: "muted", role: "status" }, "Reading the fleet …");
  const fault = h("div");
  const empty = h("p", { class: "waits", hidden: true });
  const panel = h("aside", { class: "panel", "aria-label": "A device", hidden: true });
  let selected = null;
  let summary = null;

  const list = new VirtualList({ height: ROW, size: PAGE, label: "Nodes", draw, load, failed });
  const strip = drawStrip((index) => { list.element.scrollTop = index * ROW; });

  async function load(offset, signal) {
    const found = await visit.ask("fleet", { ...filter, offset, count: PAGE }, { signal });
    return { total: found.matching, rows: found.nodes, of: found.total, notes: found.notes };
  }

  function draw(row) {
    const element = drawRow(row);
    for (const tile of element.querySelectorAll(".tile")) {
      mark(tile);
      showReading(tile, readingOf(tile.dataset.node, tile.dataset.device));
    }
    return element;
  }

  let readingOf = () => null;
  const look = keepReadings(visit, () => [...new Set([...list.element.querySelectorAll(".row")].map((row) => row.dataset.node))], (found) => {
    readingOf = found;
    for (const tile of list.element.querySelectorAll(".tile")) showReading(tile, readingOf(tile.dataset.node, tile.dataset.device));
    if (selected) showNow(panel, readingOf(selected.node, selected.device));
  });

  async function showSelected() {
    await showDevice(panel, selected, unchoose, visit);
    if (selected) showNow(panel, readingOf(selected.node, selected.device));
  }

  const PLACE = ["node", "driver", "pool", "device"];
  const placeOf = (tile) => Object.fromEntries(PLACE.map((name) => [name, tile.dataset[name]]));
  const isSame = (one, other) => one && other && PLACE.every((name) => one[name] === other[name]);
  function mark(tile) {
    if (isSame(placeOf(tile), selected)) tile.setAttribute("aria-selected", "true");
    else tile.removeAttribute("aria-selected");
  }

  function failed(error) {
    if (isOld(error) || isLoading(error)) return;
    replace(fault, drawFault(error));
    said.textContent = "";
  }

  async function refresh(options) {
    try {
      const found = await list.refresh(options);
      if (!found) return;
      replace(fault);
      look();
      const isFiltered = Object.values(filter).some(Boolean);
      said.textContent = isFiltered ? [`${plural(found.total, "node")} of ${number(found.of)}`, ...found.notes].join("; ") : "";
      empty.hidden = found.total > 0;
      empty.textContent = isFiltered ? "No node matches the filter. Clear a field above to see more."
        : "No ResourceSlice is published, so no device can be claimed. Install the driver on the nodes with GPUs; if it is installed, see `kubectl get pods` in its namespace and the log of its agents.";
      const first = list.element.querySelector(".tile");
      if (first && !list.element.querySelector('.tile[tabindex="0"]')) first.tabIndex = 0;
      strip.element.hidden = isFiltered || list.total < FEW;
    } catch (error) {
      failed(error);
    }
  }

  function choose(tile) {
    selected = placeOf(tile);
    for (const one of list.element.querySelectorAll(".tile")) mark(one);
    panel.hidden = false;
    clearDevice(panel, selected, unchoose);
    showSelected();
  }

  function unchoose() {
    const before = list.element.querySelector('.tile[aria-selected="true"]');
    selected = null;
    panel.hidden = true;
    if (before) {
      mark(before);
      before.focus();
    }
  }

  // Moves the focus from device to device: left and right in a node, up and down between nodes.
  function walk(event) {
    const tile = event.target.closest(".tile");
    if (!tile) return;
    const row = tile.closest(".row");
    const tiles = [...row.querySelectorAll(".tile")];
    const at = tiles.indexOf(tile);
    const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Home: [0, -at], End: [0, tiles.length - 1 - at] };
    if (!(event.key in steps)) return;
    event.preventDefault();
    const [down, right] = steps[event.key];
    const index = Number(row.dataset.index) + down;
    if (index < 0 || index >= list.total) return;
    list.reveal(index);
    const others = down ? [...(list.shown.get(index)?.querySelectorAll(".tile") ?? [])] : tiles;
    const next = others[Math.min(Math.max(at + right, 0), others.length - 1)];
    if (!next) return;
    tile.tabIndex = -1;
    next.tabIndex = 0;
    next.focus({ preventScroll: true });
  }

  list.element.addEventListener("click", (event) => {
    const tile = event.target.closest(".tile");
    if (tile) choose(tile);
  });
  list.element.addEventListener("keydown", walk);
  list.element.addEventListener("scroll", look, { passive: true });
  visit.listen(window, "keydown", (event) => { if (event.key === "Escape" && selected) unchoose(); });

  function changed() {
    permalink("fleet", filter);
    refresh({ fromTop: true });
  }
  const typed = visit.calmed(250, changed);
  const inputs = FIELDS.map(([name, hint, kind]) => h("input", {
    type: "search", class: kind, placeholder: hint, value: filter[name], "aria-label": `Filter by ${hint.split(":")[0]}`, spellcheck: "false",
    oninput: (event) => { filter[name] = event.target.value; typed(); },
  }));

  function drawFigures() {
    if (!summary) return;
    const isUnseen = summary.unseen.some((one) => one.kind === "ResourceSlice" && !one.partial);
    const buttons = STATES.map(([state, word]) => h("button", {
      class: "figure", type: "button", "aria-pressed": String(filter.state === state), title: `Show nodes with GPUs that are ${word}`,
      onclick: () => { filter.state = filter.state === state ? "" : state; drawFigures(); changed(); },
    }, h("span", { class: `swatch state-${state}` }), h("span", {}, h("b", {}, number(summary.states[state])), ` ${word}`)));
    replace(figures,
      isUnseen ? h("div", { class: "figure plain" }, "The devices are not known.") : [
        h("div", { class: "figure plain" }, h("span", {}, h("b", {}, number(summary.nodes)), ` ${summary.nodes === 1 ? "node" : "nodes"}`)),
        h("div", { class: "figure plain" }, h("span", {}, h("b", {}, number(summary.gpus)), " GPUs"), h("span", { class: "muted" }, Object.keys(summary.products).slice(0, 3).join(", "))),
        buttons],
      summary.unseen.map((one) => h("div", { class: "message warn" }, `${one.kind}s ${one.partial ? "of other namespaces " : ""}may not be read`)),
      summary.live ? summary.notes.map((text) => h("div", { class: "message warn" }, text)) : []);
    strip.show(summary.strip);
  }

  replace(main, figures, h("div", { class: "filters", role: "search" }, inputs, said), fault, empty, strip.element,
    h("div", { class: "split" }, list.element, panel));

  visit.atEnd(onSummary((found) => { summary = found; drawFigures(); }));
  visit.atEnd(() => { list.close(); strip.close(); });
  visit.keep(120, () => Promise.all([refresh(), selected ? showSelected() : null]));
}
