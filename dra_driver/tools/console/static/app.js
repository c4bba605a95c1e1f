// The frame of all pages: navigation, keys, theme, and the state of the connection to the console.

import { ask, connect, on } from "./common/api.js";
import { h, number, replace } from "./common/dom.js";
import { drawFault } from "./common/faults.js";
import { onSummary } from "./common/summary.js";
import { Visit } from "./common/visit.js";
import { claimsPage } from "./pages/claims.js";
import { fleetPage } from "./pages/fleet.js";
import { healthPage } from "./pages/health.js";
import { usagePage } from "./pages/usage.js";
import { whatIfPage } from "./pages/what-if.js";
import { playgroundPage } from "./playground/playground.js";

const PAGES = [
  { name: "fleet", title: "Fleet", key: "f", open: fleetPage },
  { name: "claims", title: "Claims", key: "c", open: claimsPage },
  { name: "playground", title: "Selectors", key: "s", open: playgroundPage },
  { name: "health", title: "Health", key: "h", open: healthPage },
  { name: "usage", title: "Usage", key: "u", open: usagePage },
  { name: "what-if", title: "What if", key: "w", open: whatIfPage },
];

const main = document.getElementById("main");
const notice = document.getElementById("notice");
const nav = document.getElementById("nav");
let visit = new Visit();
let current = "";

// Shows a message about the whole console above the page; "" removes it.
function announce(message) {
  replace(notice, message);
  notice.hidden = !message;
}

function route() {
  const [name, ...rest] = location.hash.replace(/^#\/?/, "").split("?");
  const page = PAGES.find((one) => one.name === name) ?? PAGES[0];
  const parameters = new URLSearchParams(rest.join("?"));
  visit.end();
  visit = new Visit();
  current = page.name;
  document.title = `${page.title} – dra-driver console`;
  for (const link of nav.children) {
    if (link.dataset.page === page.name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  replace(main);
  main.className = `page-${page.name}`;
  page.open(main, parameters, visit);
}

replace(nav, PAGES.map((page) =>
  h("a", { href: `#/${page.name}`, "data-page": page.name, title: `${page.title} (g ${page.key})` }, page.title)));

// -- theme ------------------------------------------------------------------------------------------------------------
const THEMES = ["auto", "light", "dark"];
const theme = document.getElementById("theme");
function dress(name) {
  document.documentElement.dataset.theme = name;
  theme.textContent = { auto: "Auto", light: "Light", dark: "Dark" }[name];
  theme.setAttribute("aria-label", `Theme: ${name}`);
  localStorage.setItem("theme", name);
  dispatchEvent(new Event("themechange"));
}
theme.addEventListener("click", () => {
  dress(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length]);
});
const stored = localStorage.getItem("theme");
dress(THEMES.includes(stored) ? stored : "auto");

// -- keys -------------------------------------------------------------------------------------------------------------
const KEYS = [
  ...PAGES.map((page) => [`g ${page.key}`, `go to ${page.title}`]),
  ["/", "go to the first field of the page"],
  ["← ↑ → ↓", "from device to device, on the map"],
  ["Enter", "look at a device; Escape closes it"],
  ["Ctrl-Space", "complete, in the editor"],
  ["?", "this list"],
];
const keys = h("dialog", { class: "keys", "aria-label": "Keys" },
  h("h2", {}, "Keys"),
  h("dl", {}, KEYS.map(([key, text]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, text)])),
  h("form", { method: "dialog" }, h("button", {}, "Close")));
document.body.append(keys);
keys.querySelector("form").addEventListener("submit", (event) => { event.preventDefault(); keys.close(); });
document.getElementById("help").addEventListener("click", () => keys.showModal());

let isGoing = false;
addEventListener("keydown", (event) => {
  const isTyping = event.target.closest?.("input, textarea, select, .editor");
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey || keys.open) return;
  if (isGoing) {
    isGoing = false;
    const page = PAGES.find((one) => one.key === event.key);
    if (page) location.hash = `#/${page.name}`;
  } else if (event.key === "g") {
    isGoing = true;
    setTimeout(() => { isGoing = false; }, 1500);
  } else if (event.key === "?") {
    keys.showModal();
  } else if (event.key === "/") {
    event.preventDefault();
    main.querySelector("input, .editor > *")?.focus();
  }
});

// -- the connection to the console -------------------------------------------------------------------------------------
const link = document.getElementById("link");
let isOpen = false;
connect(async (isOpenNow) => {
  isOpen = isOpenNow;
  link.textContent = isOpen ? "live" : "no connection";
  link.classList.toggle("lost", !isOpen);
  if (isOpen) {
    announce("");
    return;
  }
  const refused = await ask("offers").then(() => null, (error) => (error.status === 401 ? error : null));
  if (isOpen) return;
  announce(refused ? drawFault(refused) : "The console does not answer. It may have been ended; this page keeps trying to reach it.");
});
on("progress", ({ noun, done, total }) => {
  link.textContent = total ? `${number(done)} of ${number(total)} ${noun}` : `${number(done)} ${noun}`;
});
on("cluster", (fault) => announce(fault ? `The cluster does not answer; what is shown is what was known last. ${fault}` : ""));
on("version", () => { link.textContent = "live"; });
onSummary((summary) => {
  const title = summary.gates || "the gates have the version's defaults";
  const source = summary.source.split(", ").map((one) => one.split("/").pop()).join(", ");
  replace(document.getElementById("source"), h("span", { title: `${summary.source}; ${title}` }, `${source} · Kubernetes ${summary.kubernetes}`));
});

// -- signing out, where people sign in ------------------------------------------------------------------------------------
const leave = document.getElementById("leave");
leave.hidden = document.querySelector('meta[name="signed-in"]').content !== "yes";
leave.addEventListener("click", async () => {
  leave.disabled = true;
  const answer = await fetch("/sign-out", { method: "POST" }).catch(() => null);
  leave.disabled = false;
  if (answer?.ok) location.replace("/sign-in");
  else announce("You are still signed in, because the console did not answer. Try again.");
});

addEventListener("hashchange", () => {
  const name = location.hash.replace(/^#\/?/, "").split("?")[0];
  route();
  if (name !== current) main.focus();
});
route();
