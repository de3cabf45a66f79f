// Charts of the step's parts over time, and of an engine's batch size over time.

function ribbon(report, gantt) {
  const place = at => `${(at / report.seconds) * 100}%`;
  const axis = responsive(el("div", { class: "axis" }), width => {
    const marks = ticks(0, report.seconds, Math.max(3, width / 80));
    axis.replaceChildren(...marks.filter(at => at * (width / report.seconds) < width - 26).map(at => el("span", { style: { left: place(at) } }, moment(at, marks.step))));
  });
  const shown = gantt.parts.filter(part => part.wall_seconds !== null || part.share >= 0.01);
  return el("div", { class: "ribbon" },
    el("div"), el("div"), el("div", { class: "head" }, "in any process"), el("div", { class: "head" }, "on the path"),
    shown.map(part => {
      const lane = el("div", { class: "lane" }, part.intervals.map(([from, to]) =>
        el("b", { style: { left: place(from), width: place(to - from), "--c": `var(${part.colour})` } })));
      hover(lane, () => [part.label, describePart(part)]);
      const both = (time, of) => el("div", { class: "secs" }, seconds(time), el("small", { class: "share" }, of === null ? "" : share(of)));
      return [el("div", { class: "name", title: part.label }, part.label), lane, both(part.wall_seconds, part.wall_share), both(part.seconds, part.share)];
    }),
    el("div"), axis, el("div"), el("div"));
}

function describePart(part) {
  const lines = [["in any process", seconds(part.wall_seconds)], ["on the critical path", seconds(part.seconds)]], { intervals } = part;
  if (intervals.length) lines.push(["from", seconds(intervals[0][0])], ["to", seconds(intervals[intervals.length - 1][1])]);
  return lines;
}

// Batch size as steps over time. The area below half of the peak shows the cost of the tail.
function tailCurve(rollout) {
  const box = el("div");
  const curve = rollout.curve;
  if (!curve.length) return box;
  const from = curve[0][0], to = Math.max(from + rollout.seconds, curve[curve.length - 1][0]) || from + 1e-9;
  return responsive(box, width => {
    const left = 38, right = 10, top = 12, height = 190, bottom = height - 22;
    const peak = rollout.peak_batch || 1;
    const x = at => left + ((at - from) / (to - from)) * (width - left - right);
    const y = batch => bottom - (batch / peak) * (bottom - top);
    const end = index => (index + 1 < curve.length ? curve[index + 1][0] : to);
    let line = "", above = "", below = "";
    curve.forEach(([at, batch], index) => {
      const a = x(at).toFixed(1), b = x(end(index)).toFixed(1), h = y(batch).toFixed(1);
      line += `${index ? "L" : "M"}${a} ${h}L${b} ${h}`;
      const area = `M${a} ${bottom}L${a} ${h}L${b} ${h}L${b} ${bottom}Z`;
      if (batch < peak / 2) below += area; else above += area;
    });
    const marks = ticks(from, to, Math.max(2, width / 90));
    const chart = svg("svg", { class: "chart", height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Batch size of ${rollout.label} over time` },
      ticks(0, peak, 4).map(batch => [
        svg("line", { class: "grid", x1: left, x2: width - right, y1: y(batch), y2: y(batch) }),
        svg("text", { x: left - 8, y: y(batch) + 4, "text-anchor": "end" }, count(batch))]),
      svg("path", { d: above, fill: "var(--c0)", "fill-opacity": 0.22 }),
      svg("path", { d: below, fill: "var(--wait)", "fill-opacity": 0.42 }),
      svg("path", { d: line, fill: "none", stroke: "var(--ink2)", "stroke-width": 1.4, "stroke-linejoin": "round" }),
      svg("line", { class: "half", x1: left, x2: width - right, y1: y(peak / 2), y2: y(peak / 2) }),
      svg("text", { x: width - right, y: y(peak / 2) - 6, "text-anchor": "end" }, "half of peak"),
      svg("line", { class: "base", x1: left, x2: width - right, y1: bottom, y2: bottom }),
      marks.map(at => svg("text", { x: x(at), y: height - 5, "text-anchor": "middle" }, moment(at, marks.step))));
    const cursor = svg("line", { y1: top, y2: bottom, stroke: "var(--ink3)", visibility: "hidden" });
    chart.append(cursor);
    chart.addEventListener("pointermove", event => {
      const at = from + ((event.clientX - chart.getBoundingClientRect().left - left) / (width - left - right)) * (to - from);
      if (at < from || at > to) return;
      let index = curve.findIndex(point => point[0] > at);
      index = index < 0 ? curve.length - 1 : Math.max(0, index - 1);
      cursor.setAttribute("x1", x(at));
      cursor.setAttribute("x2", x(at));
      cursor.setAttribute("visibility", "visible");
      showTip(event, `batch ${count(curve[index][1])}`, [["at", seconds(at)], ["of the peak", share(curve[index][1] / peak)]]);
    });
    chart.addEventListener("pointerleave", () => { cursor.setAttribute("visibility", "hidden"); hideTip(); });
    box.replaceChildren(chart);
  });
}

const SAMPLE_COLOURS = { generate: "--c0", tool: "--c3", tool_call: "--c3", tools: "--c3", reward: "--c2" };

function sampleColours(samples) {
  const kinds = [...new Set(samples.flatMap(sample => Object.keys(sample.seconds)))];
  const spare = ["--c1", "--c4", "--c5", "--c6", "--c7"];
  let next = 0;
  return new Map(kinds.map(kind => [kind, SAMPLE_COLOURS[kind] || spare[next++ % spare.length]]));
}

// The longest samples, each from its start to its end, coloured by region.
function sampleBars(samples) {
  const colours = sampleColours(samples);
  const from = Math.min(...samples.map(sample => sample.start)), to = Math.max(...samples.map(sample => sample.end));
  const box = el("div");
  const names = Math.max(...samples.map(sample => sample.sample.length));
  responsive(box, width => {
    const left = Math.min(width * 0.3, 20 + names * 6.6), step = 19, height = samples.length * step + 20;
    const x = at => left + ((at - from) / (to - from || 1)) * (width - left - 52);
    const marks = ticks(from, to, Math.max(2, width / 110));
    box.replaceChildren(svg("svg", { class: "chart", height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "The longest samples" },
      samples.map((sample, index) => {
        const y = index * step, room = x(sample.end) - x(sample.start), known = sum(Object.values(sample.seconds)) || 1;
        const scale = Math.min(1, (sample.end - sample.start) / known || 0);
        let at = x(sample.start);
        const pieces = [svg("rect", { x: at, y: y + 3, width: Math.max(1, room), height: 12, rx: 3, fill: "var(--idle)" })];
        for (const [kind, took] of Object.entries(sample.seconds)) {
          const wide = (took * scale * room) / (sample.end - sample.start || 1);
          pieces.push(svg("rect", { x: at, y: y + 3, width: Math.max(0, wide), height: 12, fill: `var(${colours.get(kind)})` }));
          at += wide;
        }
        const row = svg("g", null, svg("rect", { class: "hit", x: 0, y, width, height: step }), pieces,
          svg("text", { class: "label", x: left - 10, y: y + 13, "text-anchor": "end" }, shorten(sample.sample, (left - 20) / 6.6)),
          svg("text", { x: x(sample.end) + 7, y: y + 13 }, seconds(sample.end - sample.start)));
        return hover(row, () => [sample.sample, [
          ...Object.entries(sample.seconds).map(([kind, took]) => [kind, seconds(took), `var(${colours.get(kind)})`]),
          ["from start to end", seconds(sample.end - sample.start)],
          ...(sample.first_token === null ? [] : [["to the first token", seconds(sample.first_token)]]),
          ...(sample.per_token === null ? [] : [["per token", seconds(sample.per_token)]]),
          ...(sample.generated_tokens === null ? [] : [["generated tokens", count(sample.generated_tokens)]])]]);
      }),
      marks.map(at => svg("text", { x: x(at), y: height - 4, "text-anchor": "middle" }, moment(at, marks.step)))));
  });
  return [box, legend([...colours].map(([kind, colour]) => [kind, `var(${colour})`]))];
}

function shortenName(label, most) {
  if (label.length <= most) return label;
  const text = briefName(label);
  return text.length <= most ? text : `…${text.slice(-Math.max(2, Math.floor(most) - 1))}`;
}

function shorten(text, most) {
  return text.length <= most ? text : `${text.slice(0, Math.max(1, Math.floor(most) - 1))}…`;
}
