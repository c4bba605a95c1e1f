// The engine in a browser: Python under Pyodide, in a worker of its own, which the page ends if it takes too long.

import { RE2JS } from "./re2js.js";
import { loadPyodide } from "./pyodide/pyodide.mjs";

const here = new URL(".", import.meta.url);
const at = (path) => new URL(path, here).href;

async function contentOf(path) {
  const answer = await fetch(at(path));
  if (!answer.ok) throw new Error(`${path} can't be loaded (${answer.status})`);
  return answer;
}

// -- RE2: patterns are compiled and matched here, and Python gets texts and places ------------------------------------
class PortedProgram {
  constructor(pattern) { this.pattern = RE2JS.compile(pattern); }

  next(text) {
    const matcher = this.pattern.matcher(text);
    return matcher.find() ? [matcher.group(), matcher.start(), matcher.end()] : undefined;
  }

  all(text) {
    const matcher = this.pattern.matcher(text);
    const found = [];
    while (matcher.find()) found.push([matcher.group(), matcher.start(), matcher.end()]);
    return found;
  }
}

const port = {
  compile(pattern) {
    try {
      return [new PortedProgram(pattern), ""];
    } catch (error) {
      return [undefined, String(error.message)];
    }
  },
};

// -- the engine ---------------------------------------------------------------------------------------------------------
const loaded = new Set();
let answers = null;

async function start() {
  const [index, engine, python] = await Promise.all([
    contentOf("fleets/index.json").then((one) => one.json()),
    contentOf("engine.zip").then((one) => one.arrayBuffer()),
    loadPyodide({ indexURL: at("pyodide/") }),
  ]);
  python.unpackArchive(engine, "zip", { extractDir: "/engine" });
  python.registerJsModule("re2_port", port);
  python.runPython("import sys; sys.path.insert(0, '/engine')");
  answers = python.pyimport("answers");
  return index;
}

const starting = start();

// Answers one question after the other. A fleet that was made when the site was built is loaded when it is first needed.
self.addEventListener("message", async ({ data: { id, name, question } }) => {
  try {
    const index = await starting;
    const kubernetes = question.kubernetes || index.version;
    const known = index.profiles[question.fleet];
    const fleet = known ? known[kubernetes] ?? known[index.version] : question.fleet;
    if (known && !loaded.has(fleet)) {
      answers.add_fleet(fleet, await contentOf(`fleets/${fleet}`).then((one) => one.text()));
      loaded.add(fleet);
    }
    self.postMessage({ id, text: answers.answer(name, JSON.stringify({ ...question, kubernetes, fleet })) });
  } catch (error) {
    self.postMessage({ id, fault: String(error.message ?? error).trim().split("\n").pop() });
  }
});

starting.then((index) => self.postMessage({ ready: index }), (error) => self.postMessage({ lost: String(error.message ?? error) }));
