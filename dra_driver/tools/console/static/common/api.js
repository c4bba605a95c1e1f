// Questions to /api/v1, and its events.

import { faultOf, isObject } from "./answers.js";

export class ApiError extends Error {
  constructor(status, error) {
    super(error.message || `the console answered with status ${status}`);
    this.status = status;
    this.code = error.code || "";
    this.hint = error.hint || "";
  }
}

const OTHER_RELEASE = "reload the page; if that does not help, something between this page and the console changes its answers";

const NO_ANSWER = { code: "no-answer", message: "the console did not answer", hint: "it may have been ended, or the network may be interrupted" };

export const isOld = (error) => error.name === "AbortError";

// Asks a question. Returns the document of the answer, which has the fields that pages rely on. Throws an ApiError for
// any other answer and for none, and an AbortError as soon as `signal` ends the question, also in the middle of its answer.
export async function ask(name, question = {}, { post = false, signal = null } = {}) {
  const fields = Object.entries(question).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const address = post ? `/api/v1/${name}` : `/api/v1/${name}?${new URLSearchParams(fields)}`;
  const options = post
    ? { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(question) }
    : {};
  try {
    const answer = await fetch(address, { ...options, signal, credentials: "same-origin" });
    return documentOf(name, answer.status, await answer.text());
  } catch (error) {
    if (error instanceof ApiError || isOld(error)) throw error;
    throw new ApiError(0, NO_ANSWER);
  }
}

function documentOf(name, status, text) {
  let found = null;
  try {
    found = JSON.parse(text);
  } catch {
    // a page of something between this browser and the console
  }
  const isDocument = isObject(found);
  if (status !== 200 || !isDocument) throw new ApiError(status, (isDocument && found.error) || {});
  const fault = faultOf(name, found);
  if (fault) throw new ApiError(status, { code: "bad-answer", message: fault, hint: OTHER_RELEASE });
  return found;
}

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

const REOPEN = 3000; // milliseconds until the stream is opened again after an answer that is none

// Opens the stream of events, and opens it again whenever it ends: the browser does so itself unless the answer is an
// error, such as that of a proxy while the console starts again. Calls `linked` with whether it is open.
export function connect(linked) {
  source = new EventSource("/api/v1/events");
  source.addEventListener("open", () => linked(true));
  source.addEventListener("error", ({ target }) => {
    linked(false);
    if (target.readyState === EventSource.CLOSED) setTimeout(() => connect(linked), REOPEN);
  });
  for (const name of listeners.keys()) source.addEventListener(name, dispatch);
}
