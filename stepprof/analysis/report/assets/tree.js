// The region tree: rows that open and close, with bars scaled to the step. The dark part of a bar is the row's own time.

const TREE_REGIONS = new Set(["step", "role", "region", "threads", "unclear"]);
const TREE_NAMES = { regions: "shorter regions", op: "other operators", kernel: "other kernels" };
const TREE_NOTES = {
  threads: "Regions of other threads run concurrently: they do not add up with those of the step.",
  calls: "Operators and kernels of this region, without those of the regions inside it.",
  unclear: "Operators of coroutines, and kernels without a recorded launch. The trace does not show which region called them.",
};

const isCalled = row => row.kind === "op" || row.kind === "kernel";
const holdsRegions = row => row.children.some(child => TREE_REGIONS.has(child.kind));

// Rows with the row around them, and the calls of a region that also holds regions under a row of their own.
function treeRows(report) {
  const tree = report.tree.map((row, at) => ({ ...row, at, children: [] }));
  for (const row of tree) if (row.parent !== null) { row.up = tree[row.parent]; row.up.children.push(row); }
  return tree.flatMap(row => {
    if (!row.up || !holdsRegions(row.up) || row.up.children.find(isCalled) !== row) return [row];
    const calls = row.up.children.filter(isCalled), total = of => sum(calls.map(of));
    const own = { at: `${row.up.at}-calls`, kind: "calls", name: calls.some(each => each.kind === "kernel") ? "own operators and kernels" : "own operators", up: row.up, children: calls, calls: total(each => each.calls), seconds: null, self_seconds: total(each => each.self_seconds), share: calls.some(each => each.share === null) ? null : total(each => each.share), processes: 1, per_process: [] };
    for (const each of calls) each.around = own;
    return [own, row];
  });
}

function treePart(report) {
  const tree = treeRows(report);
  if (!tree.length) return null;
  for (const row of tree) { row.up = row.around || row.up; row.depth = row.up ? row.up.depth + 1 : 0; }
  const open = new Set(tree.filter(row => (row.share ?? row.seconds / report.seconds) >= 0.02 && row.depth < 4 && holdsRegions(row)).map(row => row.at));
  const several = tree.some(row => row.processes > 1);
  const body = el("tbody");
  const isOpen = row => !row.up || (open.has(row.up.at) && isOpen(row.up));

  function draw() {
    body.replaceChildren(...tree.filter(row => isOpen(row)).map(row => treeRow(row, open, several, () => { open.has(row.at) ? open.delete(row.at) : open.add(row.at); draw(); body.querySelector(`[data-at="${row.at}"]`)?.focus(); })));
  }
  const all = wanted => () => { open.clear(); for (const row of tree) if (wanted(row)) open.add(row.at); draw(); };
  const tools = el("div", { class: "tools" },
    el("button", { type: "button", onclick: all(row => row.children.length) }, "Open all"),
    el("button", { type: "button", onclick: all(holdsRegions) }, "Regions only"),
    el("button", { type: "button", onclick: all(() => false) }, "Close all"));
  let before = null;
  addEventListener("beforeprint", () => { before = [...open]; if (tree.length <= 200) all(row => row.children.length)(); });
  addEventListener("afterprint", () => { if (before) { open.clear(); before.forEach(at => open.add(at)); draw(); } });
  draw();
  const heads = ["region", "", "of the step", "total", "self", "calls", ...(several ? ["least to most", "longest in"] : [])];
  return part("tree", "Regions", "Regions and what they called", `Total: while the region was open. Self (the dark part of a bar): without the regions inside it. Kernels stand under the region that launched them.${several ? " Seconds are the median of the processes." : ""}`,
    el("div", { class: "card long" }, tools, el("div", { class: "wrap" }, el("table", { class: "tree" },
      el("thead", null, el("tr", null, heads.map((head, at) => el("th", { class: at === 1 ? "meter" : at > 1 && at < 7 ? "n" : null, scope: "col" }, head)))), body))));
}

function treeRow(row, open, several, toggle) {
  const called = isCalled(row) || row.kind === "calls", others = row.name === "others" && TREE_NAMES[row.kind];
  const shown = others || row.name, percent = value => `${Math.min(100, Math.max(0, value * 100))}%`;
  const whole = called ? row.self_seconds : row.seconds, own = whole ? Math.min(1, row.self_seconds / whole) : 0;
  const colour = { kernel: "--c2", op: "--c1", calls: "--c1", unclear: "--unknown" }[row.kind] || "--accent";
  const fold = row.children.length
    ? el("button", { type: "button", class: "fold", "data-at": row.at, "aria-expanded": String(open.has(row.at)), "aria-label": `${open.has(row.at) ? "Close" : "Open"} ${shown}`, onclick: toggle }, open.has(row.at) ? "▾" : "▸")
    : null;
  const name = el("td", { style: { "--depth": String(Math.min(row.depth, 12)) } }, fold, isCalled(row) && !others ? el("span", { class: "mono" }, shown) : shown);
  const lines = row.per_process.slice(0, 12).map(([label, total, self]) => [label, `${seconds(total)}, self ${seconds(self)}`]);
  const note = [TREE_NOTES[row.kind], row.per_process.length > 12 ? `and ${plural(row.per_process.length - 12, "more process", "more processes")}` : null].filter(Boolean).join(" ");
  if (lines.length || note) hover(name, () => [shown, lines, note || null]);
  return el("tr", { class: called ? "called" : null }, name,
    el("td", { class: "meter" }, el("i", null, el("b", { style: { width: percent(row.share * own), "--c": `var(${colour})` } }), el("b", { style: { width: percent(row.share * (1 - own)), "--c": `var(${colour})` } }))),
    [share(row.share), seconds(row.seconds), seconds(row.self_seconds), row.calls ? count(row.calls) : NOTHING].map(text => el("td", { class: "n" }, text)),
    several ? [el("td", { class: "n" }, row.processes > 1 ? `${seconds(row.least)} to ${seconds(row.most)}` : NOTHING), el("td", null, row.processes > 1 ? row.slowest : NOTHING)] : null);
}
