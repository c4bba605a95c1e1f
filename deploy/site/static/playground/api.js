// Questions to the worker in which the engine runs. It takes the place of the console's api.js, which asks a server.

import { faultOf } from "./answers.js";

export class ApiError extends Error {
  constructor(status, error) {
    super(error.message);
    this.status = status;
    this.code = error.code || "";
    this.hint = error.hint || "";
  }
}

export const isOld = (error) => error.name === "AbortError";

const SECONDS = { "paste": 60 }; // for reading pasted slices
const QUICK = 5; // seconds for any other question; a usual one needs some hundredths of a second
const TOO_LONG = { code: "input.too-long", message: "this takes too long to be judged in a browser", hint: "dra-driver cel test judges it" };

let fleet = ""; // the name of a profile, or PASTED
let pasted = null; // the question by which the worker got pasted slices, for a worker that takes its place
let worker = null;
let timer = 0;
let isReady = false;
let running = null;
let waiting = [];
let count = 0;

export const PASTED = "pasted";
const listeners = new Map();

// Calls a function with each event of a name. Returns a function that ends this.
export function on(name, action) {
  if (!listeners.has(name)) listeners.set(name, new Set());
  listeners.get(name).add(action);
  return () => listeners.get(name).delete(action);
}

const report = (name, value) => { for (const action of [...(listeners.get(name) ?? [])]) action(value); };

// Starts the worker. A worker of a blob has the Content-Security-Policy of the page; one of a file would have none on a
// static host, and could ask other hosts.
function startWorker() {
  const module = new URL("../worker.js", import.meta.url).href;
  const source = `import(${JSON.stringify(module)}).catch((error) => self.postMessage({ lost: String(error.message) }));`;
  const address = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  isReady = false;
  worker = new Worker(address, { type: "module" });
  worker.addEventListener("message", ({ data }) => heard(data));
  worker.addEventListener("error", (event) => heard({ lost: event.message || "the worker can't be started" }));
}

function heard(data) {
  if (data.lost) {
    report("lost", data.lost);
  } else if (data.ready) {
    isReady = true;
    report("ready", data.ready);
    next();
  } else if (running?.id === data.id) {
    clearTimeout(timer);
    const { settle } = running;
    running = null;
    settle(data);
    next();
  }
}

// Sends the next question whose answer somebody still waits for. Only one is in the worker, so that its time is its own.
function next() {
  if (running || !isReady) return;
  waiting = waiting.filter((one) => !one.signal?.aborted);
  running = waiting.shift() ?? null;
  if (!running) return;
  const { id, name, question } = running;
  worker.postMessage({ id, name, question });
  timer = setTimeout(endWorker, (SECONDS[name] ?? QUICK) * 1000);
}

function endWorker() {
  const { settle, name } = running;
  worker.terminate();
  running = null;
  settle({ fault: TOO_LONG });
  startWorker();
  if (pasted && name !== "paste") waiting.unshift({ ...pasted, id: ++count, settle() {} });
}

// Asks a question. Returns the document of the answer. Throws an ApiError, or an AbortError as soon as `signal` ends the
// question.
export function ask(name, question = {}, { signal = null } = {}) {
  return new Promise((resolve, reject) => {
    const old = () => reject(new DOMException("a newer question was asked", "AbortError"));
    if (signal?.aborted) {
      old();
      return;
    }
    signal?.addEventListener("abort", old, { once: true });
    const settle = (data) => {
      try {
        resolve(documentOf(name, data));
      } catch (error) {
        reject(error);
      }
    };
    waiting.push({ id: ++count, name, question: { ...question, fleet: question.fleet ?? fleet }, signal, settle });
    next();
  });
}

function documentOf(name, data) {
  if (data.fault) throw new ApiError(422, data.fault.message ? data.fault : { code: "bug", message: `this is a bug in the playground: ${data.fault}` });
  const [status, found] = JSON.parse(data.text);
  if (status !== 200) throw new ApiError(status, found.error);
  const fault = name === "paste" ? "" : faultOf(name, found);
  if (fault) throw new ApiError(status, { code: "bad-answer", message: fault });
  return found;
}

export const fleetName = () => fleet;

// Takes another fleet, on which the selector is judged again.
export function takeFleet(name) {
  fleet = name;
  report("version", name);
}

// Reads pasted slices and takes them as the fleet. They stay in this page. Throws an ApiError.
export async function paste(text) {
  const question = { fleet: PASTED, text };
  const found = await ask("paste", question);
  pasted = { name: "paste", question };
  takeFleet(PASTED);
  return found;
}

startWorker();
