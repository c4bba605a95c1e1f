// A plot of the devices that are held after each event, with and without a change, as two stepped lines.

import { h } from "../common/dom.js";
import uPlot from "../vendor/uplot.js";

const HEIGHT = 150;

export function drawUsage(found) {
  const element = h("figure", { class: "plot" });
  const series = (moments) => moments.map((one) => one.usage.held);
  const length = Math.max(found.now.length, found.then.length);
  const padded = (values) => Array.from({ length }, (_, place) => values[place] ?? values.at(-1) ?? null);
  let plot = null;

  function paint() {
    plot?.destroy();
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    const stepped = uPlot.paths.stepped({ align: 1 });
    plot = new uPlot({
      width: Math.max(240, element.clientWidth),
      height: HEIGHT,
      cursor: { show: false },
      legend: { show: false },
      scales: { x: { time: false }, y: { range: (_, __, most) => [0, Math.max(1, most)] } },
      axes: [{ ...axis, values: (_, ticks) => ticks.map((one) => (Number.isInteger(one) ? one + 1 : "")) }, axis],
      series: [{},
        { label: "as it is", stroke: colour("--muted"), width: 2, dash: [5, 4], paths: stepped, points: { show: true } },
        { label: "with the change", stroke: colour("--accent"), width: 2, paths: stepped, points: { show: true } }],
    }, [Array.from({ length }, (_, place) => place), padded(series(found.now)), padded(series(found.then))], element);
  }

  element.append(h("figcaption", { class: "muted" }, "Devices held after each event: ",
    h("span", { class: "key dashed" }), " as it is, ", h("span", { class: "key" }), " with the change"));
  const again = () => { if (plot) paint(); };
  addEventListener("themechange", again);
  return { element, paint, close() { removeEventListener("themechange", again); plot?.destroy(); } };
}
