// Compare two steps: what became slower or faster.

const CHANGES = { step: "The step", role: "Roles", rollout: "Rollout", region: "Regions", op: "Operators", kernel: "Kernels" };

function comparisonParts(comparison) {
  const { changes } = comparison, summed = new Set(["op", "kernel"]);
  const topics = [...new Set([...Object.keys(CHANGES), ...changes.map(change => change.topic)])].filter(topic => changes.some(change => change.topic === topic));
  const size = change => Math.abs(change.b - change.a);
  const largest = list => list.slice().sort((x, y) => (y.topic === "step") - (x.topic === "step") || size(y) - size(x)).slice(0, 14);
  const clock = largest(changes.filter(change => !summed.has(change.topic))), work = largest(changes.filter(change => summed.has(change.topic)));
  return [
    clock.length ? part("clock", "Wall time", "Wall time", "The largest changes in the wall time of the step, its roles, rollout and regions.", el("div", { class: "card" }, pairs(clock), key())) : null,
    work.length ? part("work", "Operators", "Operators and kernels", "The largest changes in self time, per process.", el("div", { class: "card" }, pairs(work), key())) : null,
    topics.length ? part("changes", "All changes", "All changes", "Noise is the usual difference between processes that do equal work, or between steps of a run. A change within the noise may be chance.",
      tabbed(topics.map(topic => [CHANGES[topic] || topic, true, () => changesTable(changes.filter(change => change.topic === topic))]))) : null,
  ].filter(Boolean);
}

const key = () => legend([["A", "var(--unknown)"], ["B, slower", "var(--bad)"], ["B, faster", "var(--good)"], ["B, within noise", "var(--ink3)"], ["paler: noise not known", "transparent"]]);

// A change with unknown noise is neither noise nor significant.
const isNoise = change => !change.significant && change.noise !== null;

function changesTable(changes) {
  return dataTable([
    { title: "what", value: change => change.what, kind: "name" },
    { title: "A", number: true, value: change => change.a, text: change => seconds(change.a) },
    { title: "B", number: true, value: change => change.b, text: change => seconds(change.b) },
    { title: "change", number: true, value: change => Math.abs(change.b - change.a), node: change => el("span", { class: tone(change) }, signed(change.b - change.a)) },
    { title: "%", number: true, value: change => (change.a ? change.b / change.a - 1 : null), text: change => (change.a ? percent(change.b / change.a - 1) : NOTHING) },
    { title: "noise", number: true, value: change => change.noise, text: change => (change.noise === null ? "unknown" : seconds(change.noise)) },
    { title: "between", value: noiseOf, text: noiseOf },
    { title: "", value: change => Number(change.significant), text: change => (isNoise(change) ? "within noise" : "") }], changes, { sort: 3, find: true });
}

// Between which processes or steps the noise was measured.
const noiseOf = change => (change.noise === null ? "" : change.noise === change.noise_steps ? `${change.steps} steps` : [null, change.noise].includes(change.noise_processes) ? "processes" : "whole steps");

const tone = change => (isNoise(change) || change.b === change.a ? "dim" : change.b > change.a ? "bad" : "good");
const signed = value => (value >= 5e-10 ? `+${seconds(value)}` : seconds(value));
const percent = value => (Math.abs(value) < 5e-4 ? "0%" : value > 0 ? `+${share(value)}` : share(value).replace("-", MINUS));

// A pale bar for A, a full one for B, and the noise.
function pairs(changes) {
  const box = el("div", { style: { "margin-bottom": "10px" } });
  const largest = Math.max(1e-12, ...changes.map(change => Math.max(change.a, change.b + (change.noise || 0))));
  responsive(box, width => {
    const left = Math.min(width * 0.34, 24 + 7 * Math.max(...changes.map(change => change.what.length))), step = 38;
    const scale = (width - left - 96) / largest, height = changes.length * step;
    box.replaceChildren(svg("svg", { class: "chart", height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "A and B side by side" },
      changes.map((change, index) => {
        const y = index * step, colour = isNoise(change) || change.b === change.a ? "var(--ink3)" : change.b > change.a ? "var(--bad)" : "var(--good)", end = left + change.b * scale;
        const reach = Math.max(change.a, change.b + (change.noise || 0)) * scale;
        return hover(svg("g", null,
          svg("rect", { class: "hit", x: 0, y, width, height: step }),
          svg("text", { class: "label", x: left - 12, y: y + 23, "text-anchor": "end" }, shorten(change.what, (left - 18) / 6.6)),
          svg("rect", { x: left, y: y + 7, width: Math.max(1, change.a * scale), height: 9, rx: 2, fill: "var(--unknown)" }),
          svg("rect", { x: left, y: y + 17, width: Math.max(1, change.b * scale), height: 13, rx: 2, fill: colour, "fill-opacity": change.significant || isNoise(change) ? 1 : 0.6 }),
          change.noise ? svg("path", { d: `M${end - change.noise * scale} ${y + 23.5}H${end + change.noise * scale}m0 -4v8M${end - change.noise * scale} ${y + 19.5}v8`, stroke: "var(--ink)", "stroke-width": 1.2, opacity: 0.55, fill: "none" }) : null,
          svg("text", { class: "label", x: left + reach + 10, y: y + 23 }, signed(change.b - change.a))),
          () => [change.what, [["A", seconds(change.a)], ["B", seconds(change.b)], ["change", signed(change.b - change.a)], ["noise", change.noise === null ? "unknown" : `${seconds(change.noise)} between ${noiseOf(change)}`]], isNoise(change) ? "within noise" : null]);
      })));
  });
  return box;
}
