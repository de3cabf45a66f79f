// Two steps side by side: what got slower, and what faster.

function comparisonParts(comparison) {
  const topics = [...new Set(comparison.changes.map(change => change.topic))];
  const titles = { step: "The step", role: "Roles", region: "Regions", rollout: "Rollout", op: "Operators", kernel: "Kernels" };
  return topics.map(topic => {
    const changes = comparison.changes.filter(change => change.topic === topic);
    const largest = Math.max(1e-12, ...changes.map(change => Math.max(change.a, change.b)));
    return part(`topic-${topic}`, titles[topic] || topic, null, el("div", { class: "card long" },
      pairs(changes.slice(0, 12), largest),
      dataTable([
        { title: "what", value: change => change.what, kind: "name" },
        { title: "A", number: true, value: change => change.a, text: change => seconds(change.a) },
        { title: "B", number: true, value: change => change.b, text: change => seconds(change.b) },
        { title: "change", number: true, value: change => Math.abs(change.b - change.a), node: change => el("span", { class: tone(change) }, signed(change.b - change.a)) },
        { title: "%", number: true, value: change => (change.a ? change.b / change.a - 1 : null), text: change => (change.a ? percent(change.b / change.a - 1) : NOTHING) },
        { title: "noise", number: true, value: change => change.noise, text: change => (change.noise === null ? "unknown" : seconds(change.noise)) },
        { title: "", value: change => change.significant, text: change => (change.significant ? "" : "within noise") }], changes, { sort: 3, find: true })));
  });
}

const tone = change => (!change.significant ? "dim" : change.b > change.a ? "bad" : "good");
const signed = value => (value > 0 ? `+${seconds(value)}` : seconds(value));
const percent = value => (value > 0 ? `+${share(value)}` : share(value).replace("-", MINUS));

// A pale bar for A, a full one for B, and how far equal work differs anyway.
function pairs(changes, largest) {
  const box = el("div", { style: { "margin-bottom": "14px" } });
  responsive(box, width => {
    const left = Math.min(width * 0.32, 24 + 7 * Math.max(...changes.map(change => change.what.length))), step = 38;
    const scale = (width - left - 96) / largest, height = changes.length * step;
    box.replaceChildren(svg("svg", { class: "chart", height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "A and B side by side" },
      changes.map((change, index) => {
        const y = index * step, colour = !change.significant ? "var(--ink3)" : change.b > change.a ? "var(--bad)" : "var(--good)", end = left + change.b * scale;
        return hover(svg("g", null,
          svg("rect", { class: "hit", x: 0, y, width, height: step }),
          svg("text", { class: "label", x: left - 12, y: y + 23, "text-anchor": "end" }, shorten(change.what, (left - 18) / 6.6)),
          svg("rect", { x: left, y: y + 6, width: Math.max(1, change.a * scale), height: 10, rx: 2, fill: "var(--unknown)" }),
          svg("rect", { x: left, y: y + 18, width: Math.max(1, change.b * scale), height: 12, rx: 2, fill: colour }),
          change.noise ? svg("path", { d: `M${end - change.noise * scale} ${y + 24}H${end + change.noise * scale}`, stroke: "var(--ink)", "stroke-width": 1.2, opacity: 0.6 }) : null,
          svg("text", { class: "label", x: Math.max(change.a * scale, (change.b + (change.noise || 0)) * scale) + left + 8, y: y + 23 }, signed(change.b - change.a))),
          () => [change.what, [["A", seconds(change.a)], ["B", seconds(change.b)], ["change", signed(change.b - change.a)], ["noise", change.noise === null ? "unknown" : seconds(change.noise)]], change.significant ? null : "within noise"]);
      })));
  });
  return box;
}
