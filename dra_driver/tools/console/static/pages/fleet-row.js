// A node as a row: its devices as tiles by NUMA node, each tile's parts to scale.

import { h, plural } from "../common/dom.js";
import { readingRows } from "../common/readings.js";


const short = (root) => root.replace(/^pci0000:/, "");

function describe(tile) {
  const parts = tile.parts.filter((part) => part.device).map((part) => {
    const users = part.users.length ? `, used by ${part.users.map((name) => `pod ${name}`).join(", ")}` : "";
    const held = part.holders.length ? `, held by ${part.holders.join(", ")}${users}` : "";
    const taints = part.taints.length ? `, taints ${part.taints.join(", ")}` : "";
    return `${part.label || part.device} ${part.state}${held}${taints}`;
  });
  const place = [tile.numa !== "-" && `NUMA ${tile.numa}`, tile.pcieRoot !== "-" && `PCIe root ${short(tile.pcieRoot)}`];
  return [`${tile.name}: ${tile.product}, ${tile.state}`, ...place.filter(Boolean), ...parts].join("; ");
}

// Returns the PCI bus in the name of a GPU, such as 1b in gpu-0000-1b-00-0, after its domain if that is not 0: 9:01 in
// gpu-0009-01-00-0. That distinguishes the GPUs of a node.
function busOf(tile) {
  const [, domain, bus] = (tile.kind === "gpu" && /^gpu-(\w{4,8})-(\w{2})-/.exec(tile.name)) || [];
  if (!bus) return "";
  const short = domain.replace(/^0+/, "");
  return short ? `${short}:${bus}` : bus;
}

function drawPart(part, tile) {
  const isDim = part.matches === false;
  const element = h("div", { class: `part state-${part.state}${isDim ? " dim" : ""}` });
  element.style.left = `${part.start * 100}%`;
  element.style.width = `calc(${part.size * 100}% - ${part.size < 1 ? 1 : 0}px)`;
  const holder = part.users[0] ?? part.holders[0]?.split("/").pop();
  const text = holder ?? (tile.parts.length === 1 ? busOf(tile) : part.device ? part.label : "");
  if (text) element.append(h("span", { class: text.length > 3 ? "long" : "" }, text));
  return element;
}

// Returns a device as a button. Arrow keys lead from button to button, so the Tab key stops at only one of them.
function drawTile(tile, node) {
  const text = describe(tile);
  const element = h("button", {
    type: "button",
    class: tile.kind === "gpu" ? "tile" : "tile other",
    tabindex: "-1",
    title: text.replaceAll("; ", "\n"),
    "aria-label": text,
    "data-node": node,
    "data-driver": tile.driver,
    "data-pool": tile.pool,
    "data-device": tile.name,
    "data-about": text,
  });
  for (const part of tile.parts) element.append(drawPart(part, tile));
  return element;
}

// Shows on a tile how busy its GPU is; null takes it away.
export function showReading(tile, reading) {
  const busy = reading?.busyPercent ?? null;
  tile.querySelector(".busy")?.remove();
  const words = [tile.dataset.about, ...readingRows(reading).map(([title, text]) => `${title} ${text}`)];
  tile.title = words.join("; ").replaceAll("; ", "\n");
  tile.setAttribute("aria-label", words.join("; "));
  if (busy === null) return;
  const bar = h("i", {});
  bar.style.width = `${Math.min(100, busy)}%`;
  tile.append(h("span", { class: "busy", "aria-hidden": "true" }, bar));
}

function byNuma(tiles) {
  const groups = new Map();
  for (const tile of tiles) {
    if (!groups.has(tile.numa)) groups.set(tile.numa, []);
    groups.get(tile.numa).push(tile);
  }
  return [...groups];
}

// Puts each device that is not a GPU (such as a network card) after the GPU at the same PCIe root.
function inOrder(tiles) {
  const gpus = tiles.filter((tile) => tile.kind === "gpu");
  const others = tiles.filter((tile) => tile.kind !== "gpu");
  const found = [];
  for (const gpu of gpus) {
    found.push(gpu);
    for (const other of others) if (other.pcieRoot !== "-" && other.pcieRoot === gpu.pcieRoot) found.push(other);
  }
  return [...found, ...others.filter((other) => !found.includes(other))];
}

function drawNuma(numa, tiles, node) {
  const roots = [...new Set(tiles.map((tile) => tile.pcieRoot).filter((root) => root !== "-"))];
  const domains = [...new Set(tiles.map((tile) => tile.linkDomain).filter((domain) => domain !== "-"))];
  const box = h("div", { class: "tiles" });
  for (const tile of inOrder(tiles)) box.append(drawTile(tile, node));
  return h("div", { class: "numa" }, box,
    h("div", { class: domains.length ? "foot linked" : "foot" },
      h("span", {}, numa === "-" ? "" : `NUMA ${numa}`),
      roots.length ? h("span", { title: `PCIe roots ${roots.join(", ")}` }, `roots ${roots.map(short).join(" ")}`) : null,
      domains.length ? h("span", { title: `NVLink domains ${domains.join(", ")}` }, `NVLink ${domains.map((one) => one.slice(0, 8)).join(" ")}`) : null));
}

export function drawRow(row) {
  const gpus = row.tiles.filter((tile) => tile.kind === "gpu");
  const products = [...new Set(gpus.map((tile) => tile.product.replace(/^(NVIDIA|AMD|Intel) /, "")))].filter(Boolean);
  const faults = [!row.ready && "not ready", !row.schedulable && "cordoned"].filter(Boolean).join(", ");
  const groups = byNuma(row.tiles);
  return h("div", { class: "row", "data-node": row.node, "aria-label": `node ${row.node}` },
    h("div", { class: "who" },
      h("b", { title: row.node }, row.node),
      h("span", { title: products.join(", ") }, `${plural(gpus.length, "GPU")}${products.length ? ` · ${products.join(", ")}` : ""}`),
      faults ? h("span", { class: "bad" }, faults) : null),
    groups.map(([numa, tiles]) => {
      const element = drawNuma(numa, tiles, row.node);
      element.style.flexGrow = String(Math.max(1, tiles.filter((tile) => tile.kind === "gpu").length));
      return element;
    }));
}

