// Makes elements from names and texts. Nothing here, or anywhere else in these modules, parses markup.

// h("button", {class: "quiet", onclick: f, "aria-label": "Close"}, "×"): attributes, listeners (on…), children.
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "disabled" || name === "hidden") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

// Adds children: elements, texts, numbers, or lists of these. Null and false are skipped.
export function append(element, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) append(element, child);
    else element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

export function replace(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

export const number = (value) => Number(value).toLocaleString("en-US");
export const oneOf = (known, value, usual) => (known.includes(value) ? value : usual);
export const plural = (count, word, words = `${word}s`) => `${number(count)} ${count === 1 ? word : words}`;

const awaited = new WeakMap();

// Marks an element as busy until a promise is settled, or until that of a later call for the same element is.
export async function busy(element, promise) {
  awaited.set(element, promise);
  element.setAttribute("aria-busy", "true");
  try {
    return await promise;
  } finally {
    if (awaited.get(element) === promise) element.removeAttribute("aria-busy");
  }
}

// Returns an element such as "3 h ago", which has the exact time as its title.
export function since(time) {
  const at = Date.parse(time ?? "");
  if (Number.isNaN(at)) return h("span", { class: "muted" }, "unknown");
  const seconds = Math.max(0, (Date.now() - at) / 1000);
  const [size, unit] = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]].find(([one]) => seconds >= one) ?? [1, "s"];
  return h("time", { datetime: time, title: time }, `${Math.floor(seconds / size)} ${unit} ago`);
}

const labels = new WeakMap();

// Copies a text, and shows for a moment in place of the button's label whether that succeeded. Browsers give pages
// without TLS no clipboard, unless they come from the loopback address.
export async function copied(button, text) {
  if (!labels.has(button)) labels.set(button, button.textContent);
  const isDone = await Promise.resolve(navigator.clipboard?.writeText(text) ?? Promise.reject()).then(() => true, () => false);
  button.textContent = isDone ? "Copied" : "The browser does not allow it";
  setTimeout(() => { button.textContent = labels.get(button); }, 1500);
}
