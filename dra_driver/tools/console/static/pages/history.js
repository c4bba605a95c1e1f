// What has happened to a pod, a claim or a device: conditions and Events, and commands to copy.

import { isOld } from "../common/api.js";
import { copied, h, replace, since } from "../common/dom.js";
import { drawFault } from "../common/faults.js";

const drawEvent = (one) => h("li", { class: one.warning ? "warn-line" : "" },
  h("b", {}, one.reason), h("span", { class: "muted" }, " ", since(one.time), one.from ? ` by ${one.from}` : ""), h("div", {}, one.message));

const drawCondition = (one) => h("li", {}, h("b", {}, `${one.type}=${one.status}`), one.reason ? ` ${one.reason}` : "",
  one.since ? h("span", { class: "muted" }, " ", since(one.since)) : null, one.message ? h("div", { class: "muted" }, one.message) : null);

const list = (title, rows, draw) => (rows.length ? [h("h3", {}, title), h("ul", { class: "events" }, rows.map(draw))] : null);

function draw(found, isDevice) {
  const state = [found.phase, found.node && `on node ${found.node}`].filter(Boolean).join(", ");
  const none = found.eventsKnown ? "There is no Event about it now: a cluster keeps Events for about an hour."
    : "Its Events may not be read with your rights: they need `list` of events in its namespace.";
  return [state ? h("p", {}, state) : null,
    list("What happened", found.events, drawEvent) ?? h("p", { class: "muted" }, none),
    isDevice ? null : list("Conditions", found.conditions, drawCondition)];
}

// Returns a section with the history of an object, for consoles on a cluster that the viewer's own credentials read.
export function historySection(visit, subject) {
  const box = h("section", { class: "history", hidden: true });
  async function show() {
    const found = await visit.ask("history", subject, { lane: `history ${subject.kind} ${subject.name}` }).catch((error) => error);
    if (isOld(found) || (found instanceof Error && found.code === "off")) return;
    replace(box, found instanceof Error ? drawFault(found) : draw(found, Boolean(subject.device)));
    box.hidden = false;
  }
  show();
  return box;
}

export const podPage = (namespace, name) => `#/claims?${new URLSearchParams({ pod: `${namespace}/${name}` })}`;

// Returns a section with commands, each with a button that copies it.
export const commands = (title, texts) => h("section", {}, h("h3", {}, title), texts.map((text) => h("div", { class: "command" },
  h("code", { class: "mono" }, text), h("button", { type: "button", class: "quiet", "aria-label": `Copy ${text}`, onclick: (event) => copied(event.target, text) }, "Copy"))));
