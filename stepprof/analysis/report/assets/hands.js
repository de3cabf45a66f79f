// Control of the Gantt chart by pointer, wheel and keyboard, and its section of the page.

function listen(chart) {
  const { canvas, box } = chart;
  let held = null;
  const local = event => { const area = canvas.getBoundingClientRect(); return [event.clientX - area.left, event.clientY - area.top]; };
  canvas.addEventListener("pointerdown", event => {
    const [x, y] = local(event);
    if (event.button !== 0) return;
    held = { x, y, from: chart.from, to: chart.to, moved: false, mode: x < chart.labels ? "label" : y < OVERVIEW ? "overview" : event.shiftKey || y < HEAD ? "select" : "pan" };
    if (held.mode === "overview") chart.center(x);
    canvas.setPointerCapture(event.pointerId);
    box.focus({ preventScroll: true });
  });
  canvas.addEventListener("pointermove", event => {
    const [x, y] = local(event);
    chart.cursor = x;
    if (held) {
      held.moved = held.moved || Math.abs(x - held.x) > 3;
      if (held.mode === "overview") chart.center(x);
      else if (held.moved && held.mode === "select") chart.selection = [chart.at(Math.max(chart.labels, held.x)), chart.at(Math.max(chart.labels, x))];
      else if (held.moved && held.mode === "pan") {
        canvas.classList.add("drag");
        const by = ((held.x - x) / (chart.width - chart.labels)) * (held.to - held.from);
        chart.show(held.from + by, held.to + by);
      }
      hideTip();
      chart.request();
      return;
    }
    const row = chart.rowAt(y);
    chart.hovered = x < chart.labels ? row : null;
    canvas.classList.toggle("pick", x < chart.labels && row !== null);
    if (row) showTip(event, ...chart.describe(event, row, x, y)); else hideTip();
    chart.request();
  });
  const release = event => {
    if (!held) return;
    const [, y] = local(event), row = chart.rowAt(y);
    canvas.classList.remove("drag");
    if (held.mode === "label" && !held.moved && row) { row.open = !row.open; chart.layout(); }
    if (held.mode === "select" && chart.selection) chart.show(...chart.selection.sort((a, b) => a - b));
    chart.selection = null;
    held = null;
    chart.request();
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", () => { chart.cursor = undefined; chart.hovered = null; hideTip(); chart.request(); });
  canvas.addEventListener("dblclick", event => { if (local(event)[0] >= chart.labels) chart.show(0, chart.total); });
  canvas.addEventListener("wheel", event => {
    const [x] = local(event);
    if (event.ctrlKey || event.metaKey) { event.preventDefault(); chart.zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * 0.008), chart.at(Math.max(chart.labels, x))); }
    else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) { event.preventDefault(); chart.pan(event.deltaX / (chart.width - chart.labels)); }
  }, { passive: false });
  box.addEventListener("scroll", () => chart.request());
  box.addEventListener("keydown", event => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const keys = { ArrowLeft: () => chart.pan(-0.2), ArrowRight: () => chart.pan(0.2), a: () => chart.pan(-0.2), d: () => chart.pan(0.2), "+": () => chart.zoom(0.7), "=": () => chart.zoom(0.7), w: () => chart.zoom(0.7), "-": () => chart.zoom(1 / 0.7), s: () => chart.zoom(1 / 0.7), 0: () => chart.show(0, chart.total), Home: () => chart.show(0, chart.total) };
    if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
  });
  addEventListener("themechange", () => chart.request());
  addEventListener("beforeprint", () => { chart.printing = true; chart.resize(Math.min(chart.width, PRINTED)); chart.draw(); box.append(onPaper(chart)); });
  addEventListener("afterprint", () => { chart.printing = false; for (const copy of box.querySelectorAll(".paper")) copy.remove(); chart.resize(chart.box.clientWidth); chart.draw(); });
}

const PAPER = 370; // pixels of rows in one piece: less than half a page

// Copies of the chart in pieces between which a page may end, each with the axis above its rows.
function onPaper(chart) {
  const ratio = chart.canvas.width / chart.width, ends = [];
  let from = 0;
  for (const row of chart.data.rows) if (row.y + row.height - from > PAPER && row.y > from) { ends.push(row.y); from = row.y; }
  ends.push(chart.rowsHeight);
  const slice = (canvas, top, height, to) => canvas.getContext("2d").drawImage(chart.canvas, 0, top * ratio, chart.canvas.width, height * ratio, 0, to * ratio, chart.canvas.width, height * ratio);
  return el("div", { class: "paper" }, ends.map((end, at) => {
    const begin = at ? ends[at - 1] : 0, canvas = el("canvas", { width: chart.canvas.width, height: Math.round((HEAD + end - begin) * ratio) });
    slice(canvas, 0, HEAD, 0);
    slice(canvas, HEAD + begin, end - begin, HEAD);
    return canvas;
  }));
}

function ganttPart(report, gantt) {
  if (!gantt.rows.length) return null;
  const marked = new Set(byOwnDelay(report.skew.filter(phase => phase.significant)).slice(0, 1).map(phase => phase.straggler));
  const chart = new Gantt(report, gantt, marked);
  chart.box.chart = chart;
  const button = (text, label, act) => el("button", { type: "button", "aria-label": label, title: label, onclick: act }, text);
  let open = false;
  const unfold = button("Unfold all", "Unfold or fold all rows", event => { open = !open; chart.unfold(open); event.target.textContent = open ? "Fold all" : "Unfold all"; });
  const busy = gantt.columns.busy_start.length > 0;
  return part("timeline", "Timeline", "Timeline", `What ${gantt.rows.length > 1 ? `each of ${gantt.rows.length} processes` : "the process"} was doing, ${report.islands.length > 1 ? "with one clock per group of hosts: times of different groups cannot be compared" : "on one clock"}.`,
    el("div", { class: "card" },
      el("div", { class: "tools" },
        el("div", { class: "zoom" }, button("+", "Zoom in", () => chart.zoom(0.5)), button(MINUS, "Zoom out", () => chart.zoom(2)), button("Whole step", "Show the whole step", () => chart.show(0, chart.total))),
        unfold,
        el("input", { type: "search", placeholder: "Find a region", "aria-label": "Find a region", oninput: event => chart.find(event.target.value) }),
        el("div", { class: "grow" }),
        legend([...gantt.parts.filter(part => part.intervals.length).map(part => [part.name, `var(${part.colour})`]), ...(busy ? [["kernels or operators", "var(--busy)", "thin"]] : []), ...(marked.size ? [["straggler", "var(--exposed)"]] : [])])),
      chart.box,
      el("p", { class: "hint" }, "Drag to move, ", el("kbd", null, "Ctrl"), " + wheel to zoom, ", el("kbd", null, "Shift"), " + drag to zoom into a stretch, double-click for the whole step; with the keyboard: arrows, ", el("kbd", null, "+"), " ", el("kbd", null, MINUS), " ", el("kbd", null, "0"), ". Click a process to unfold it."),
      gantt.left_out ? el("p", { class: "note" }, `${plural(gantt.left_out, "bar")} (the shortest) omitted to keep the page small; the merged timeline has all.`) : null));
}
