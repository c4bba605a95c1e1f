// The panel of a device: what it publishes, who holds it since when, and its possible partitions.

import { isOld } from "../common/api.js";
import { copied, h, plural, replace, since } from "../common/dom.js";
import { drawFault } from "../common/faults.js";
import { readingRows } from "../common/readings.js";
import { commands, historySection, podPage } from "./history.js";

const rows = (pairs) => h("table", {}, h("tbody", {}, pairs.map(({ name, value }) =>
  h("tr", {}, h("td", { class: "mono" }, name), h("td", { class: "mono" }, value)))));

const section = (title, ...children) => h("section", {}, h("h3", {}, title), children);

function drawHolder(one) {
  return h("div", { class: "card" },
    h("div", {}, h("b", {}, `${one.namespace}/${one.claim}`), one.adminAccess ? h("span", { class: "muted" }, " admin access") : null),
    h("div", { class: "muted" }, "request ", h("span", { class: "mono" }, one.request), ", since ", since(one.since)),
    one.pods.length ? h("div", {}, one.pods.map((pod) => h("div", {}, "pod ", h("a", { href: podPage(one.namespace, pod.name) }, pod.name), pod.phase ? h("span", { class: "muted" }, ` ${pod.phase}`) : null)))
      : h("div", { class: "muted" }, "no pod uses it"),
    h("div", { class: "mono muted" }, one.device));
}

const drawTaint = (one) => h("div", { class: "message bad" },
  h("b", {}, one.key), one.value ? `=${one.value}` : "", ` ${one.effect}`, one.since ? [", since ", since(one.since)] : null);

const head = (name, close) => h("header", {}, h("h2", {}, name),
  h("button", { class: "quiet", type: "button", onclick: close, "aria-label": "Close the device" }, "×"));

// Shows in a panel what its GPU does now; null takes it away.
export function showNow(panel, reading) {
  const box = panel.querySelector(".now");
  const pairs = readingRows(reading);
  if (box) replace(box, pairs.length ? section("Now", h("dl", { class: "figures-of" }, pairs.map(([title, text]) => h("div", {}, h("dt", {}, title), h("dd", {}, text))))) : null);
}

const gpuOf = (device) => device.replace(/-(mig|share)-.*$/, "");
const keyOf = (taint) => taint.key.split("/").pop();

// Returns what to do about a device with taints: the pods that still use it, and commands that lead on.
function drawSteps(found) {
  const pods = [...new Set(found.holders.flatMap((one) => one.pods.map((pod) => `${one.namespace}/${pod.name}`)))];
  const isTreated = found.taints.some((one) => keyOf(one) === "remediation");
  const isCordoned = found.taints.some((one) => keyOf(one) === "cordoned");
  return [h("section", {}, h("h3", {}, "Pods on it"),
    pods.length ? pods.map((pod) => h("div", {}, h("a", { href: podPage(...pod.split("/")) }, pod))) : h("div", { class: "muted" }, "No pod uses it, so it can be mended now.")),
  commands(isCordoned || isTreated ? `Next steps (uncordon and remediation run on ${found.node})` : "Next steps", [
    ...(isCordoned ? [`dra-driver uncordon ${found.device}`] : []),
    ...pods.slice(0, 3).map((pod) => `kubectl delete pod ${pod.split("/")[1]} -n ${pod.split("/")[0]}`),
    ...(isTreated ? ["dra-driver remediation show"] : []),
    "dra-driver doctor", `kubectl describe node ${found.node}`])];
}

function draw(panel, found, close, visit) {
  const uuid = found.attributes.find((one) => one.name.endsWith("uuid"))?.value;
  replace(panel,
    head(found.device, close),
    h("div", { class: "muted" }, `node ${found.node}, pool ${found.pool}, driver ${found.driver}`),
    found.memory ? h("div", {}, found.memory) : null,
    h("div", { class: "now" }),
    found.published ? null : h("div", { class: "message warn" }, "No device of this name is published: it is divided into parts, or gone."),
    found.taints.map(drawTaint),
    found.taints.length ? [drawSteps(found), historySection(visit, { kind: "node", name: found.node, device: gpuOf(found.device) })] : null,
    section(found.holders.length ? `Held by ${plural(found.holders.length, "claim")}` : "Held by no claim", found.holders.map(drawHolder)),
    Object.keys(found.placements).length
      ? section("Possible partitions", rows(Object.entries(found.placements).map(([name, value]) => ({ name, value: plural(value, "placement") })))) : null,
    section("Capacity", rows(found.capacity)),
    section("Attributes", rows(found.attributes)),
    h("section", { class: "choices" },
      found.published ? h("a", { class: "button", href: `#/what-if?${new URLSearchParams({ lost: `${found.node}/${found.device}` })}` }, "What if it is lost") : null,
      h("a", { class: "button", href: `#/what-if?${new URLSearchParams({ drained: found.node })}` }, "What if its node is drained")),
    uuid ? h("section", {}, h("button", { type: "button", onclick: (event) => copied(event.target, uuid) }, "Copy the UUID")) : null);
}

// Says in a panel which device is asked for; what the panel showed before may be of another one.
export function clearDevice(panel, place, close) {
  replace(panel, head(place.device, close), h("p", { class: "muted" }, "Asking …"));
}

// Fills a panel with a device, or with an error.
export async function showDevice(panel, place, close, visit) {
  try {
    draw(panel, await visit.ask("device", place, { lane: "device" }), close, visit);
  } catch (error) {
    if (!isOld(error)) replace(panel, head(place.device, close), drawFault(error));
  }
}
