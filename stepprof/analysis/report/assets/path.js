// The bar of the step: what it waited for, one after the other, with the findings' places below; and the same by process.

const PATH_KINDS = { work: "works", communication: "transfers data", waiting: "waits for a rank that cannot be compared", unmatched: "communicates, not matched across ranks", engine: "generates", handover: "follows up after another process", recording: "held up by the profiler", outside: "in no window" };
const PATH_COLOURS = { communication: "--collective", unmatched: "--unmatched", waiting: "--peers", recording: "--flush", outside: "--missing", handover: "--unknown" };

// The regions of a path as one text: a slash in a name has a backslash before it.
const pathText = names => names.map(name => name.replace(/[\\/]/g, "\\$&")).join("/");

// Consecutive pieces of one key, each cell of the width with what fills most of it.
function pieces(segments, total, cells, keyOf) {
  const found = [];
  let at = 0;
  for (let cell = 0; cell < cells; cell++) {
    const from = (cell / cells) * total, to = ((cell + 1) / cells) * total, filled = new Map();
    while (at < segments.length && segments[at].start + segments[at].seconds <= from) at++;
    for (let i = at; i < segments.length && segments[i].start < to; i++) {
      const key = keyOf(segments[i]), room = Math.min(to, segments[i].start + segments[i].seconds) - Math.max(from, segments[i].start);
      filled.set(key, (filled.get(key) || 0) + room);
    }
    const [key] = most([...filled], entry => entry[1]) || [null];
    const last = found[found.length - 1];
    if (key === null) continue;
    if (last && last.key === key && last.to === cell) last.to = cell + 1;
    else found.push({ key, from: cell, to: cell + 1 });
  }
  return found;
}

// One bar over the whole step, and a numbered bracket for each finding that has a place. `before`: so many findings have no number.
function stepBar(report, before) {
  const path = report.islands.length > 1 ? [] : report.path;
  if (!path.length || !report.seconds) return null;
  const parts = division.parts, keyOf = segment => segment.part, onPath = parts.filter(part => part.seconds > 0).sort((a, b) => b.seconds - a.seconds);
  const placed = report.findings.slice(before).map((finding, at) => ({ finding, at })).filter(({ finding }) => finding.start !== null && finding.end !== null && finding.topic !== "step");
  const box = el("div");
  responsive(box, width => {
    const height = 34, x = at => (at / report.seconds) * width, marks = ticks(0, report.seconds, Math.max(3, width / 80));
    const rows = brackets(placed, x, width), axis = height + 6 + Math.max(...rows.map(row => row.lane + 1), 0) * 17;
    box.replaceChildren(svg("svg", { class: "chart step-bar", height: axis + 18, viewBox: `0 0 ${width} ${axis + 18}`, role: "img", "aria-label": `The step: ${onPath.map(part => `${part.name} ${seconds(part.seconds)}`).join(", ")}` },
      pieces(path, report.seconds, Math.min(1200, Math.floor(width)), keyOf).map(piece => {
        const cell = width / Math.min(1200, Math.floor(width)), left = piece.from * cell, wide = (piece.to - piece.from) * cell, part = parts[piece.key];
        const took = (piece.to - piece.from) * cell / width * report.seconds;
        return hover(svg("g", null,
          svg("rect", { x: left, y: 0, width: Math.max(1, wide - (wide > 4 ? 1 : 0)), height, rx: wide > 8 ? 3 : 0, fill: `var(${part.colour})` }),
          wide > 7.8 * Math.min(part.name.length, 6) + 12 ? svg("text", { class: inkOn(part.colour), x: left + 7, y: 21.5 }, shorten(part.name, (wide - 12) / 7.8)) : null),
          () => [part.name, [["this stretch", seconds(took)], ["on the path in all", seconds(part.seconds)], ["of the step", share(part.share)]]]);
      }),
      rows.map(({ finding, at, marks, number, lane }) => {
        const y = height + 5 + lane * 17;
        return hover(svg("a", { href: "#timeline", class: "bracket", onclick: event => goTo(event, finding), "aria-label": `Finding ${at + 1} in the timeline` },
          svg("path", { class: "between", d: `M${marks[0][0]} ${y + 1}H${marks[marks.length - 1][1]}` }),
          marks.map(([left, right, covered]) => svg("path", { "stroke-opacity": Math.max(0.3, Math.min(1, covered / (right - left))), d: `M${left} ${y + 7}V${y + 1}H${right}V${y + 7}` })),
          svg("text", { x: Math.min(width - 8, Math.max(8, number)), y: y + 14, "text-anchor": "middle" }, String(at + 1))),
          () => [capital(finding.text), finding.seconds === null ? [] : [["seconds", seconds(finding.seconds)], ["in", plural(finding.stretches.length, "stretch", "stretches")]], "click to see it in the timeline"]);
      }),
      marks.filter(at => x(at) < width - 20).map(at => svg("text", { x: x(at), y: axis + 13, "text-anchor": x(at) < 12 ? "start" : "middle" }, moment(at, marks.step)))));
  });
  return el("div", { class: "step-path" }, box, el("div", { class: "caption" }, "What the step waited for, from its begin to its end:"), legend(onPath.filter(part => part.share >= 0.01).slice(0, 8).map(part => [`${part.name} ${share(part.share)}`, `var(${part.colour})`])));
}

// A bracket over all stretches of each finding, its number at the longest one, and a lane for each, so that none covers another. Stretches closer than a pixel
// are one mark, which is the paler the less of it they cover.
function brackets(placed, x, width) {
  const ends = [];
  return placed.sort((a, b) => a.finding.start - b.finding.start).map(each => {
    const { finding } = each, found = [];
    for (const [from, took] of finding.stretches.length ? finding.stretches : [[finding.start, finding.end - finding.start]]) {
      const left = Math.min(x(from), width - 3), right = Math.max(left + 2, x(from + took)), last = found[found.length - 1], covered = x(took);
      if (last && left <= last[1] + 1) { last[1] = right; last[2] += covered; } else found.push([left, right, Math.max(covered, right - left)]);
    }
    if (found.length === 1) found[0][1] = Math.max(found[0][1], found[0][0] + 4);
    const number = x((finding.start + finding.end) / 2), from = Math.min(found[0][0], number - 9), to = Math.max(found[found.length - 1][1], number + 9);
    let lane = ends.findIndex(end => end <= from);
    if (lane < 0) lane = ends.length;
    ends[lane] = to + 3;
    return { ...each, marks: found, number, lane };
  });
}

// Shows the stretch of a finding in the timeline.
function goTo(event, finding) {
  const chart = document.getElementById("gantt");
  if (!chart || !chart.chart) return;
  event.preventDefault();
  document.getElementById("timeline").scrollIntoView();
  chart.chart.showPlace(finding);
  chart.focus({ preventScroll: true });
}

const MOST_LANES = 12;

// The path with a lane for each process that is on it, the one with the most time first.
function pathPart(report) {
  const slack = slackCard(report);
  if (!report.path.length || report.islands.length > 1) return slack && part("path", "Path", "Critical path", "There is no path through all hosts: their clocks were never compared.", slack);
  const spent = new Map();
  for (const segment of report.path) spent.set(segment.process, (spent.get(segment.process) || 0) + segment.seconds);
  const lanes = [...spent].sort((a, b) => b[1] - a[1]).slice(0, MOST_LANES).map(([name]) => name);
  const stretches = chain(report.path);
  const columns = [
    { title: "process", value: row => row.process },
    { title: "region", value: row => pathText(row.region) || null, node: row => brokenPath(row.region), kind: "name" },
    { title: "seconds", number: true, value: row => row.seconds, text: row => seconds(row.seconds) },
    { title: "of the step", number: true, value: row => row.seconds, text: row => share(row.seconds / report.seconds) },
    { title: "from", number: true, value: row => row.start, text: row => seconds(row.start) },
    { title: "role", value: row => row.role || "step", node: row => roleCell(row, division.parts[row.part].colour) },
    { title: "what it does", value: row => PATH_KINDS[row.kind] || row.kind }];
  return part("path", "Path", "Critical path", `At each moment, the one process that the step waited for. Only a change on this path makes the step shorter.${spent.size > 1 ? ` It runs through ${plural(spent.size, "process", "processes")}.` : ""}`,
    el("div", { class: "card" }, pathLanes(report, lanes),
      legend([...division.parts.filter(each => each.seconds > 0 && !REST_COLOURS[each.name]).map(each => [each.name, `var(${each.colour})`]),
        ...Object.keys(PATH_COLOURS).filter(kind => report.path.some(segment => segment.kind === kind)).map(kind => [PATH_KINDS[kind], `var(${PATH_COLOURS[kind]})`])]),
      spent.size > lanes.length ? el("p", { class: "note" }, `${plural(spent.size - lanes.length, "process", "processes")} with the least time on the path omitted from the picture.`) : null),
    el("div", { class: "card long", style: { "margin-top": "14px" } }, el("h3", null, "The longest stretches of the path"), dataTable(columns, stretches, { sort: 2, shown: 8, find: true })), slack);
}

function slackCard(report) {
  const spare = report.slack.filter(row => row.seconds >= 0.01 * report.seconds);
  if (!spare.length) return null;
  return el("div", { class: "card long", style: { "margin-top": "14px" } }, el("h3", null, "Slack"),
    el("p", { class: "sub" }, "How much longer a process could have worked, in the places where it waits, before the step takes longer."), dataTable([
      { title: "process", value: row => row.process, kind: "name" }, { title: "role", value: row => row.role || "step", node: roleCell },
      { title: "could take longer", number: true, value: row => row.seconds, text: row => seconds(row.seconds) }], spare, { sort: 2, shown: 8 }));
}

// Segments of one process, region and kind that follow each other are one stretch.
function chain(path) {
  const found = [];
  for (const segment of path) {
    const last = found[found.length - 1];
    if (last && last.process === segment.process && last.part === segment.part && pathText(last.region) === pathText(segment.region) && last.kind === segment.kind && last.role === segment.role) last.seconds += segment.seconds;
    else found.push({ ...segment });
  }
  return found;
}

function pathLanes(report, lanes) {
  const box = el("div", { style: { "margin-bottom": "10px" } });
  return responsive(box, width => {
    const left = Math.min(width * 0.28, 20 + 6.8 * Math.max(...lanes.map(name => name.length))), step = 30, bottom = lanes.length * step, room = width - left;
    const cells = Math.min(1200, Math.floor(room)), cell = room / cells, marks = ticks(0, report.seconds, Math.max(3, room / 80));
    const styles = new Map();
    const keyOf = segment => {
      const plain = segment.kind === "work" || segment.kind === "engine", key = JSON.stringify([segment.process, segment.role, segment.region, segment.kind]);
      if (!styles.has(key)) styles.set(key, { segment, name: segment.region[segment.region.length - 1] || segment.role || division.parts[segment.part].name, colour: plain ? division.parts[segment.part].colour : PATH_COLOURS[segment.kind] || "--unknown" });
      return key;
    };
    let before = null;
    const lines = [], boxes = pieces(report.path, report.seconds, cells, keyOf).map(piece => {
      const { segment, name, colour } = styles.get(piece.key), lane = lanes.indexOf(segment.process);
      if (lane < 0) return null;
      const x = left + piece.from * cell, wide = (piece.to - piece.from) * cell, y = lane * step + 3;
      if (before !== null && before !== lane) lines.push(svg("line", { class: "jump", x1: x, x2: x, y1: Math.min(before, lane) * step + 14, y2: Math.max(before, lane) * step + 14 }));
      before = lane;
      return hover(svg("g", null, svg("rect", { x, y, width: Math.max(1, wide - (wide > 4 ? 1 : 0)), height: 22, rx: wide > 8 ? 3 : 0, fill: `var(${colour})` }),
        wide > 44 ? svg("text", { class: inkOn(colour), x: x + 6, y: y + 15.5 }, shorten(name, (wide - 12) / 7.8)) : null),
        () => [pathText(segment.region) || segment.role || division.parts[segment.part].name, [["process", segment.process], ["what it does", PATH_KINDS[segment.kind] || segment.kind], ["from", seconds((piece.from * report.seconds) / cells)], ["took", seconds(((piece.to - piece.from) * report.seconds) / cells)]]]);
    });
    box.replaceChildren(svg("svg", { class: "chart", height: bottom + 22, viewBox: `0 0 ${width} ${bottom + 22}`, role: "img", "aria-label": `The critical path through ${lanes.join(", ")}` },
      lanes.map((name, lane) => [svg("rect", { x: left, y: lane * step + 3, width: room, height: 22, fill: "var(--sunk)", rx: 3 }),
        svg("text", { class: "label", x: left - 10, y: lane * step + 19, "text-anchor": "end" }, shortenName(name, (left - 12) / 6.8))]),
      lines, boxes,
      marks.filter(at => (at / report.seconds) * room < room - 18).map(at => svg("text", { x: left + (at / report.seconds) * room, y: bottom + 15, "text-anchor": "middle" }, moment(at, marks.step)))));
  });
}
