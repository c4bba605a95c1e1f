// Lines over time: several series, each with its own colour and its own dashes, so that either is enough to tell them
// apart.

import { h, number } from "../common/dom.js";
import uPlot from "../vendor/uplot.js";

const HEIGHT = 150;
const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3], [5, 2], [14, 4], [1, 4], [8, 2, 2, 2, 2, 2]];

// Returns a number with its unit, as Grafana shows it.
export function amount(value, unit) {
  if (value === null || value === undefined) return "–";
  if (unit === "percentunit") return `${number(Math.round(value * 1000) / 10)} %`;
  if (unit === "percent") return `${number(Math.round(value * 10) / 10)} %`;
  const [sizes, names] = unit === "bytes" || unit === "Bps"
    ? [1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]] : [1000, ["", "k", "M", "G", "T", "P"]];
  let place = 0;
  let rest = value;
  while (Math.abs(rest) >= sizes && place < names.length - 1) { rest /= sizes; place += 1; }
  const digits = Math.abs(rest) >= 100 ? 0 : Math.abs(rest) >= 10 ? 1 : 2;
  const shown = number(Number(rest.toFixed(digits)));
  const word = { watt: "W", celsius: "°C", hertz: "Hz", h: "h", s: "s", Bps: "/s", currencyUSD: "" }[unit] ?? "";
  const space = names[place] || word ? " " : "";
  return `${shown}${space}${names[place]}${unit === "Bps" ? "/s" : word}`;
}

const last = (series) => series.points.findLast(([, value]) => value !== null)?.[1] ?? null;

// Aligns all series to the same times; the values of stacked series are added to those of the series before them.
function columns(series, isStacked) {
  const times = [...new Set(series.flatMap((one) => one.points.map(([time]) => time)))].sort((one, other) => one - other);
  const sums = times.map(() => 0);
  const values = series.map((one) => {
    const known = new Map(one.points);
    return times.map((time, place) => {
      const value = known.get(time) ?? null;
      if (!isStacked || value === null) return value;
      sums[place] += value;
      return sums[place];
    });
  });
  return [times, ...values];
}

const two = (value) => String(value).padStart(2, "0");
export const dayOf = (date) => `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
export const minuteOf = (date) => `${two(date.getHours())}:${two(date.getMinutes())}`;

// Returns the texts of an axis of times: hours and minutes, with the day where it changes; of many days the days alone.
function timesOf(ticks) {
  const dates = ticks.map((one) => new Date(one * 1000));
  const isLong = ticks.length > 1 && ticks.at(-1) - ticks[0] > 2 * 86400;
  return dates.map((date, at) => {
    if (isLong) return dayOf(date).slice(5);
    const isNewDay = at === 0 || dates[at - 1].getDate() !== date.getDate();
    return `${minuteOf(date)}${isNewDay ? `\n${dayOf(date)}` : ""}`;
  });
}

// Draws a panel with lines, from `begin` to `end` in seconds whatever its series have. Call `paint` when the element is
// in the page, and after a change of its width or theme.
export function drawLines(panel, begin, end) {
  const box = h("div", { class: "canvas", role: "img", "aria-label": `${panel.title}: ${panel.series.map((one) => `${one.name || "value"} ${amount(last(one), panel.unit)}`).join(", ") || "nothing"}` });
  let plot = null;
  function paint() {
    plot?.destroy();
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const axis = { stroke: colour("--muted"), grid: { stroke: colour("--soft"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    plot = new uPlot({
      width: Math.max(200, box.clientWidth), height: HEIGHT, cursor: { show: false }, legend: { show: false },
      scales: { x: { time: true, range: () => [begin, end] }, y: { range: (_, __, most) => [0, most > 0 ? most * 1.05 : 1] } },
      axes: [{ ...axis, values: (_, ticks) => timesOf(ticks) }, { ...axis, size: 58, values: (_, ticks) => ticks.map((one) => amount(one, panel.unit)) }],
      series: [{}, ...panel.series.map((one, place) => ({
        label: one.name, stroke: colour(`--line-${place % 8}`), width: 1.6, dash: DASHES[place % 8], points: { show: one.points.length < 3 },
      }))],
    }, panel.series.length ? columns(panel.series, panel.stacked) : [[begin, end]], box);
  }
  const key = h("ul", { class: "legend" }, panel.series.map((one, place) => h("li", { title: one.name },
    h("span", { class: `key series-${place % 8}` }), h("span", { class: "called" }, one.name || panel.title), h("b", {}, amount(last(one), panel.unit)))),
  panel.series.length ? null : h("li", { class: "muted" }, "nothing was measured in this time"),
  panel.more ? h("li", { class: "muted" }, `and ${number(panel.more)} smaller ones`) : null);
  return { element: h("div", {}, box, key), paint, close: () => plot?.destroy() };
}

export const lastOf = (panel) => (panel.series.length ? panel.series.reduce((sum, one) => sum + (last(one) ?? 0), 0) : null);
