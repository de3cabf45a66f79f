"use strict";
// Elements, formatted numbers, the tooltip. Text is inserted through textContent only.

function el(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svg(tag, attributes, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "style") for (const [name, to] of Object.entries(value)) node.style.setProperty(name, to);
    else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) if (child !== null && child !== undefined && child !== false) node.append(child);
  return node;
}

// The regions of a path with a break after each.
const brokenPath = names => (names.length ? names.flatMap((name, at) => (at ? ["/", el("wbr"), pathText([name])] : [pathText([name])])) : null);

// A path that breaks after its slashes, not within its names.
const wrapped = path => (path === null || path === undefined ? path : path.split("/").flatMap((name, at) => (at ? ["/", el("wbr"), name] : [name])));

const MINUS = "\u2212", THIN = "\u202f", DASH = "\u2013", NOTHING = "\u2013";

function seconds(value) {
  if (value === null || value === undefined) return NOTHING;
  const size = Math.abs(value), sign = value < 0 ? MINUS : "";
  if (size < 5e-10) return "0 s";
  if (size >= 99.95) return `${sign}${count(Math.round(size))} s`;
  if (size >= 9.995) return `${sign}${size.toFixed(1)} s`;
  if (size >= 0.9995) return `${sign}${size.toFixed(2)} s`;
  if (size >= 0.09995) return `${sign}${(size * 1e3).toFixed(0)} ms`;
  if (size >= 0.0009995) return `${sign}${(size * 1e3).toPrecision(3)} ms`;
  if (size >= 9.995e-7) return `${sign}${(size * 1e6).toPrecision(3)} µs`;
  return `${sign}${(size * 1e9).toFixed(0)} ns`;
}

function share(value) {
  if (value === null || value === undefined || !isFinite(value)) return NOTHING;
  const percent = value * 100;
  return percent !== 0 && Math.abs(percent) < 1 ? `${percent.toFixed(1)}%` : `${percent.toFixed(0)}%`;
}

function count(value) {
  return value === null || value === undefined ? NOTHING : Math.round(value).toString().replace(/\B(?=(\d{3})+$)/g, THIN);
}

function bytes(value) {
  if (value === null || value === undefined) return NOTHING;
  const units = ["B", "KiB", "MiB", "GiB"];
  for (const unit of units) {
    if (value < 1024) return unit === "B" ? `${value} B` : `${value.toFixed(1)} ${unit}`;
    value /= 1024;
  }
  return `${value.toFixed(1)} TiB`;
}

const sum = values => values.reduce((total, value) => total + value, 0);
const mean = values => (values.length ? sum(values) / values.length : null);
const most = (values, of) => values.reduce((best, value) => (best === null || of(value) > of(best) ? value : best), null);
const plural = (number, one, many) => `${count(number)} ${number === 1 ? one : many || `${one}s`}`;

// Round steps for an axis over [from, to] with about `wanted` of them.
function ticks(from, to, wanted) {
  const raw = (to - from) / Math.max(1, wanted);
  if (!(raw > 0) || !isFinite(raw)) return [from];
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map(m => m * power).find(s => s >= raw * 0.999);
  const marks = [];
  for (let i = Math.ceil(from / step - 1e-9); i * step <= to + step * 1e-9 && marks.length < 1000; i++) marks.push(i * step);
  marks.step = step;
  return marks;
}

// A point in time on an axis whose marks are `step` apart.
function moment(value, step) {
  if (value === 0) return "0";
  const [unit, one] = Math.abs(value) >= 1 || step >= 0.5 ? ["s", 1] : Math.abs(value) >= 1e-3 ? ["ms", 1e-3] : ["µs", 1e-6];
  const digits = Math.max(0, Math.min(9, Math.ceil(-Math.log10(step / one) - 1e-9)));
  return `${(value / one).toFixed(digits + (step / one / 10 ** -digits === 2.5 ? 1 : 0))} ${unit}`;
}

const tip = document.getElementById("tip");

// lines: [[name, value, colour?], …]
function showTip(event, title, lines, note) {
  tip.replaceChildren(
    el("b", null, title),
    lines && lines.length
      ? el("dl", null, lines.map(([what, value, colour]) => [
          el("dt", null, colour ? el("i", { style: { "--c": colour } }) : null, what), el("dd", null, value)]))
      : "",
    note ? el("div", { class: "dim" }, note) : "",
  );
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const x = event.clientX + 16 + width > innerWidth ? event.clientX - width - 12 : event.clientX + 16;
  const y = event.clientY + 16 + height > innerHeight ? event.clientY - height - 12 : event.clientY + 16;
  tip.style.left = `${Math.max(4, x)}px`;
  tip.style.top = `${Math.max(4, y)}px`;
}

function hideTip() {
  tip.hidden = true;
}

function hover(node, describe) {
  node.addEventListener("pointermove", event => showTip(event, ...describe(event)));
  node.addEventListener("pointerleave", hideTip);
  return node;
}

const PRINTED = 660; // the width of a chart on paper, in pixels

// Draws now, again when the width changes, and for paper.
function responsive(node, draw) {
  let last = 0;
  addEventListener("beforeprint", () => { if (last) draw(Math.min(last, PRINTED)); });
  addEventListener("afterprint", () => { if (last) draw(last); });
  new ResizeObserver(entries => {
    const width = Math.floor(entries[entries.length - 1].contentRect.width);
    if (width > 0 && width !== last) { last = width; draw(width); }
  }).observe(node);
  return node;
}

function legend(entries) {
  return el("div", { class: "legend" }, entries.map(([text, colour, shape]) =>
    el("span", null, el("i", { style: { "--c": colour }, class: shape }), text)));
}

// `brief` is its name in the bar at the top.
function part(id, brief, title, text, ...content) {
  return el("section", { class: "part", id, "data-brief": brief }, el("header", null, el("h2", null, title), text ? el("p", null, text) : null), content);
}
