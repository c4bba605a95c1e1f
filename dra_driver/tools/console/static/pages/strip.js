// The whole fleet as one strip, in which each column is one or several nodes, in the colour of their worst state.

import { h } from "../common/dom.js";

const NAMES = { f: "free", h: "held", t: "tainted", w: "withheld" };
const WORSE = "fhwt";

export function drawStrip(choose) {
  const canvas = h("canvas", { class: "strip", role: "img" });
  let letters = "";
  canvas.addEventListener("click", (event) => {
    const box = canvas.getBoundingClientRect();
    choose(Math.floor(((event.clientX - box.left) / box.width) * letters.length));
  });

  function paint() {
    const style = getComputedStyle(document.documentElement);
    const colours = Object.fromEntries(Object.entries(NAMES).map(([letter, name]) =>
      [letter, style.getPropertyValue(name === "free" ? "--free-line" : name === "withheld" ? "--withheld-dot" : `--${name}`)]));
    const width = Math.max(1, Math.round(canvas.clientWidth * devicePixelRatio));
    canvas.width = width;
    canvas.height = 14;
    const context = canvas.getContext("2d");
    for (let x = 0; x < width && letters; x += 1) {
      const from = Math.floor((x / width) * letters.length);
      const end = Math.max(from + 1, Math.floor(((x + 1) / width) * letters.length));
      let worst = "f";
      for (let at = from; at < end; at += 1) if (WORSE.indexOf(letters[at]) > WORSE.indexOf(worst)) worst = letters[at];
      context.fillStyle = colours[worst];
      context.fillRect(x, worst === "t" ? 0 : worst === "h" ? 3 : 6, 1, worst === "t" ? 14 : worst === "h" ? 11 : 8);
    }
  }

  const resized = new ResizeObserver(paint);
  resized.observe(canvas);
  addEventListener("themechange", paint);
  return {
    element: canvas,
    show(text) {
      letters = text;
      const counts = Object.entries(NAMES).map(([letter, name]) => `${text.split(letter).length - 1} ${name}`);
      canvas.setAttribute("aria-label", `All nodes by the worst of their GPUs: ${counts.join(", ")}. Click to go there.`);
      paint();
    },
    close() {
      resized.disconnect();
      removeEventListener("themechange", paint);
    },
  };
}
