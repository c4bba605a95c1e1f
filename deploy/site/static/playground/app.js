// The frame of the playground: the fleet, the theme, and the console's page for selectors in it.

import { on, paste, PASTED, takeFleet } from "./common/api.js";
import { h, plural, replace } from "./common/dom.js";
import { drawFault } from "./common/faults.js";
import { Visit } from "./common/visit.js";
import { playgroundPage } from "./playground/playground.js";

const MAX_PASTED = 4 << 20; // characters, as in answers.py
const FIRST = "demo-h100";

const main = document.getElementById("main");
const state = document.getElementById("link");
const fleets = document.getElementById("fleet");
const profiles = [...fleets.options].map((one) => one.value).filter((name) => name !== PASTED);
let visit = new Visit();

const parametersOf = (hash) => new URLSearchParams(hash.split("?").slice(1).join("?"));

function draw() {
  const parameters = parametersOf(location.hash);
  const wanted = parameters.get("fleet") ?? "";
  const name = profiles.includes(wanted) ? wanted : fleets.value === PASTED ? PASTED : FIRST;
  fleets.value = name;
  visit.end();
  visit = new Visit();
  takeFleet(name);
  replace(main);
  main.className = "page-playground";
  playgroundPage(main, parameters, visit, `${document.documentElement.dataset.version}, the default`);
}

fleets.addEventListener("change", () => takeFleet(fleets.value));
addEventListener("hashchange", draw);

// -- slices of a cluster ------------------------------------------------------------------------------------------------
const dialog = document.getElementById("paste");
const text = document.getElementById("slices");
const told = document.getElementById("told");
document.getElementById("own").addEventListener("click", () => dialog.showModal());
document.getElementById("close").addEventListener("click", () => dialog.close());
document.getElementById("read").addEventListener("click", async ({ currentTarget }) => {
  if (text.value.length > MAX_PASTED) {
    replace(told, h("div", { class: "message bad" }, `at most ${MAX_PASTED >> 20} Mi characters can be pasted`));
    return;
  }
  currentTarget.disabled = true;
  replace(told, h("span", { class: "muted" }, "Reading …"));
  try {
    const found = await paste(text.value);
    const option = fleets.querySelector(`option[value="${PASTED}"]`);
    option.hidden = option.disabled = false;
    option.textContent = `pasted: ${plural(found.devices, "device")} on ${plural(found.nodes, "node")}`;
    fleets.value = PASTED;
    replace(told);
    dialog.close();
  } catch (error) {
    replace(told, drawFault(error));
  } finally {
    currentTarget.disabled = false;
  }
});

// -- the engine ---------------------------------------------------------------------------------------------------------
on("ready", () => { state.textContent = "ready"; state.classList.remove("lost"); });
on("lost", (why) => {
  state.textContent = "no engine";
  state.classList.add("lost");
  const notice = document.getElementById("notice");
  replace(notice, `The engine can't be started in this browser: ${why}. It needs WebAssembly and workers that are modules, and a web server: opened as a file, this page has neither.`);
  notice.hidden = false;
});

draw();
