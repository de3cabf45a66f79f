// Comparisons of processes: stacked shares, and the ends of each phase.

const MOST_ROWS = 14; // more processes than that become columns

// items: [{label, total, parts: {key: seconds}}]; kinds: [[key, title, colour]]. The rest of the total stays empty.
function stacked(items, kinds) {
  const used = kinds.filter(([key]) => items.some(item => item.parts[key] > 0));
  const box = el("div");
  const largest = Math.max(...items.map(item => item.total)) || 1;
  responsive(box, width => {
    box.replaceChildren(items.length <= MOST_ROWS ? rows(items, used, largest, width) : columns(items, used, largest, width));
  });
  return [box, legend(used.map(([, title, colour]) => [title, colour]))];
}

function describe(item, kinds) {
  return [item.label, [
    ...kinds.filter(([key]) => item.parts[key] > 0).map(([key, title, colour]) => [title, `${seconds(item.parts[key])} · ${share(item.parts[key] / item.total)}`, colour]),
    ["in all", seconds(item.total)]]];
}

function rows(items, kinds, largest, width) {
  const left = Math.min(width * 0.34, 18 + 7 * Math.max(...items.map(item => item.label.length))), step = 26;
  const scale = (width - left - 64) / largest;
  return svg("svg", { class: "chart", height: items.length * step + 4, viewBox: `0 0 ${width} ${items.length * step + 4}`, role: "img", "aria-label": "Seconds of each process" },
    items.map((item, index) => {
      let x = left;
      const y = index * step;
      return hover(svg("g", null,
        svg("rect", { class: "hit", x: 0, y, width, height: step }),
        svg("text", { class: "label", x: left - 12, y: y + 17, "text-anchor": "end" }, shortenName(item.label, (left - 18) / 6.6)),
        svg("rect", { x, y: y + 4, width: item.total * scale, height: 17, fill: "var(--sunk)", rx: 3 }),
        kinds.map(([key, title, colour]) => {
          const wide = (item.parts[key] || 0) * scale, at = x;
          x += wide;
          return [svg("rect", { x: at, y: y + 4, width: Math.max(0, wide - (wide > 3 ? 1 : 0)), height: 17, fill: colour, rx: wide > 4 ? 2 : 0 }),
            wide > 7.8 * title.length + 12 ? svg("text", { class: inkOn(colour), x: at + 6, y: y + 16.5 }, title) : null];
        }),
        svg("text", { x: left + item.total * scale + 8, y: y + 17 }, seconds(item.total))), () => describe(item, kinds));
    }));
}

function columns(items, kinds, largest, width) {
  const left = 46, top = 8, height = 232, bottom = height - 26, step = (width - left) / items.length;
  const gap = step > 5 ? Math.min(3, step * 0.2) : 0, y = value => bottom - (value / largest) * (bottom - top);
  const every = Math.ceil(46 / step);
  const marks = ticks(0, largest, 4);
  return svg("svg", { class: "chart", height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Seconds of each process, a column each" },
    marks.map(value => [
      svg("line", { class: "grid", x1: left, x2: width, y1: y(value), y2: y(value) }),
      svg("text", { x: left - 8, y: y(value) + 4, "text-anchor": "end" }, moment(value, marks.step))]),
    items.map((item, index) => {
      let at = 0;
      const x = left + index * step;
      return hover(svg("g", null,
        kinds.map(([key, , colour]) => {
          const value = item.parts[key] || 0;
          const piece = svg("rect", { x: x + gap / 2, width: Math.max(0.5, step - gap), y: y(at + value), height: Math.max(0, y(at) - y(at + value)), fill: colour });
          at += value;
          return piece;
        }),
        svg("rect", { class: "hit", x, y: top, width: step, height: bottom - top })), () => describe(item, kinds));
    }),
    svg("line", { class: "base", x1: left, x2: width, y1: bottom, y2: bottom }),
    items.map((item, index) => (index % every ? null : svg("text", { x: left + (index + 0.5) * step, y: height - 8, "text-anchor": "middle" }, brief(item.label)))));
}

// The number that identifies a process among those of its kind.
function brief(label) {
  const number = /(\d+)(?: \(\d+\))?$/.exec(label);
  return number ? number[0] : shorten(label, 8);
}

// Time that the straggler lost in the phase itself; a late start was caused by an earlier phase.
const ownDelay = phase => phase.behind_median - Math.max(0, phase.began_later || 0, phase.by_profiler) - phase.by_waiting;
const byOwnDelay = phases => [...phases].sort((a, b) => b.significant - a.significant || ownDelay(b) - ownDelay(a));

const inCollectives = phase => phase.basis === "collectives";

function stragglerText(phase) {
  const who = inCollectives(phase) ? `waited for ${phase.straggler} in collectives` : `${phase.significant ? "last" : "within the clocks' error, last"}: ${phase.straggler}`;
  return phase.region ? `${phase.role || "step"} · ${who}` : who;
}

// One line per phase, one dot per process: the time between its end and the end of the last one.
function skewStrips(phases) {
  const box = el("div");
  const largest = Math.max(...phases.map(phase => Math.max(phase.spread, ...phase.waited.map(process => process.seconds)))) || 1;
  responsive(box, width => {
    // on a narrow page the words stand above the line, else on both sides of it
    const narrow = width < 560, left = narrow ? 8 : Math.min(width * 0.34, 300), right = narrow ? 14 : 158, step = narrow ? 74 : 46, height = phases.length * step + 30;
    const words = narrow ? width - 96 : left;
    const x = before => width - right - (before / largest) * (width - left - right - 8);
    const marks = ticks(0, largest, Math.max(2, (width - left - right) / 130));
    const bottom = phases.length * step;
    box.replaceChildren(svg("svg", { class: "chart", height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "When each process ended, phase by phase" },
      marks.map(before => [
        svg("line", { class: "grid", x1: x(before), x2: x(before), y1: 2, y2: bottom }),
        svg("text", { x: x(before), y: height - 10, "text-anchor": before === 0 ? "end" : x(before) < 30 ? "start" : "middle" }, before === 0 ? "the last one" : x(before) > x(0) - 110 ? "" : `${MINUS}${moment(before, marks.step)}`)]),
      phases.map((phase, index) => {
        const top = index * step, y = narrow ? top + 54 : top + step / 2, text = narrow ? top + 19 : y, colour = `var(${partColour(phase.role, phase.region)})`, soft = phase.significant ? 1 : 0.35;
        const after = narrow ? { x: width, "text-anchor": "end" } : { x: width - right + 16 };
        return svg("g", null,
          svg("text", { class: "strong", x: 0, y: text - 3 }, shorten(phase.region || phase.role || "step", words / 7.4)),
          svg("text", { x: 0, y: text + 13 }, shorten(stragglerText(phase), (narrow ? width - 130 : words) / 6.2)),
          svg("line", { class: "base", x1: x(largest), x2: x(0), y1: y, y2: y }),
          phase.waited.map(process => hover(
            svg("circle", { cx: x(process.seconds), cy: y, r: 4.5, fill: colour, "fill-opacity": 0.42 * soft, stroke: colour, "stroke-opacity": 0.7 * soft, "stroke-width": 0.8 }),
            () => [process.label, [[inCollectives(phase) ? "waited for the straggler in collectives" : "done before the last", seconds(process.seconds)]]])),
          hover(svg("circle", { cx: x(0), cy: y, r: 6.5, fill: "var(--exposed)", "fill-opacity": soft, stroke: "var(--panel)", "stroke-width": 1.5 }),
            () => [phase.straggler, [
              [inCollectives(phase) ? "longest wait for this process" : "behind the first", seconds(phase.spread)], ["behind the median", seconds(phase.behind_median)],
              ...(phase.began_later ? [["started later by", seconds(phase.began_later)]] : []), ...(phase.by_profiler ? [["extra delay by the profiler", seconds(phase.by_profiler)]] : [])], inCollectives(phase) ? "the others waited for this process" : "ended last"]),
          svg("text", { class: "strong", ...after, y: text - 3 }, seconds(phase.spread)),
          svg("text", { ...after, y: text + 13 }, phase.began_later > 0 ? `started ${seconds(phase.began_later)} later` : `${seconds(phase.behind_median)} to median`));
      })));
  });
  return box;
}
