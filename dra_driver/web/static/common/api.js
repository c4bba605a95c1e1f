// Questions to /api/v1, and its events.

export class ApiError extends Error {
  constructor(status, error) {
    super(error.message || "the console did not answer");
    this.status = status;
    this.code = error.code || "";
    this.hint = error.hint || "";
  }
}

const running = new Map();

// Asks a question. Of all questions with the same `lane` only the newest matters: it ends an older one that is still
// waiting for its answer. With "", a question never ends another.
export async function ask(name, question = {}, { post = false, lane = "" } = {}) {
  const control = new AbortController();
  if (lane) {
    running.get(lane)?.abort();
    running.set(lane, control);
  }
  const fields = Object.entries(question).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const address = post ? `/api/v1/${name}` : `/api/v1/${name}?${new URLSearchParams(fields)}`;
  const options = post
    ? { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(question) }
    : {};
  const answer = await fetch(address, { ...options, signal: control.signal, credentials: "same-origin" });
  const document = await answer.json().catch(() => ({ error: { message: `status ${answer.status}` } }));
  if (!answer.ok) throw new ApiError(answer.status, document.error || {});
  return document;
}

export const isOld = (error) => error.name === "AbortError";

const listeners = new Map();
let source = null;

// Calls a function with each event of a name. Returns a function that ends this; pages call it when they are left.
export function on(name, action) {
  if (!listeners.has(name)) {
    listeners.set(name, new Set());
    source?.addEventListener(name, dispatch);
  }
  listeners.get(name).add(action);
  return () => listeners.get(name).delete(action);
}

function dispatch(event) {
  const value = JSON.parse(event.data);
  for (const action of [...(listeners.get(event.type) ?? [])]) action(value);
}

// Opens the stream of events, which the browser opens again whenever it ends. Calls `linked` with whether it is open.
export function connect(linked) {
  source = new EventSource("/api/v1/events");
  source.addEventListener("open", () => linked(true));
  source.addEventListener("error", () => linked(false));
  for (const name of listeners.keys()) source.addEventListener(name, dispatch);
}
