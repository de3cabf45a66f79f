// The sections of the report below its headlines, one for each list of the schema. An empty list has no section.

const CAUSE_COLOURS = { busy: "--busy", profiler: "--flush", collective: "--collective", collective_unmatched: "--unmatched", host: "--host", rollout: "--wait", peers: "--peers", other_role: "--other", not_recorded: "--missing", unknown: "--unknown" };

function rolesPart(report, gantt) {
  if (!division.parts.some(part => part.wall_seconds !== null)) return null;
  const what = division.byRegion ? "outermost regions of the step" : division.parts.some(each => each.region !== null) ? "roles of the step, and the outermost regions of its time in no role," : "roles of the step";
  return part("roles", division.byRegion ? "Time" : "Roles", "Where the time went", `The ${what} over time: the time in which any process was in one, which can overlap, and the time on the critical path, which adds up to the step.`,
    el("div", { class: "card" }, ribbon(report, gantt)));
}

function spreadOf(spread, what, shown = seconds) {
  return spread ? el("p", { class: "sub" }, `${what(spread)}: median ${shown(spread.median)}, 95th percentile ${shown(spread.p95)}, longest ${shown(spread.longest)}`) : null;
}

function rolloutPart(report) {
  const engines = report.rollout.length > 4 ? [...report.rollout].sort((a, b) => b.tail - a.tail) : report.rollout;
  if (!engines.length) return null;
  const cards = engines.map(rollout => el("div", { class: "card" },
    el("h3", null, rollout.label),
    el("p", { class: "sub" }, `${seconds(rollout.seconds)} of generation · peak batch ${count(rollout.peak_batch)}, mean ${count(rollout.mean_batch)} · `,
      el("b", null, `${share(rollout.below_half)} below half of the peak`), ` · the last ${seconds(rollout.tail)} below half of it`),
    tailCurve(rollout),
    rollout.samples.length ? [spreadOf(rollout.sample_seconds, spread => plural(spread.count, "sample")), spreadOf(rollout.first_token, spread => `first token of ${plural(spread.count, "request")}`), spreadOf(rollout.per_token, spread => `between tokens of ${plural(spread.count, "request")}`), spreadOf(rollout.generated_tokens, spread => `tokens of ${plural(spread.count, "request")}`, count), el("h3", { style: { margin: "16px 0 6px" } }, "Longest samples"), sampleBars(rollout.samples)] : null));
  const shown = 4, rest = cards.slice(shown);
  const more = el("button", { class: "more", type: "button", onclick: () => { more.replaceWith(); grid.append(...rest); } }, `Show ${plural(rest.length, "more engine")}`);
  const grid = el("div", { class: "cards" }, cards.slice(0, shown));
  return part("rollout", "Rollout", "Rollout", "How many requests each engine worked on at once. A long tail is a few long samples that delay the engine, and all processes that wait for it.",
    grid, rest.length ? el("div", { class: "under" }, more) : null);
}

function enginesPart(report) {
  const counting = report.engines.filter(engine => engine.generated_tokens !== null || engine.limit !== null);
  const stages = report.engines.flatMap(engine => engine.stages.map(stage => ({ label: engine.label, ...stage })));
  if (!counting.length && !stages.length) return null;
  const amount = (title, of) => ({ title, number: true, value: of, text: row => (of(row) === null ? null : count(Math.round(of(row)))) });
  const time = (title, of) => ({ title, number: true, value: of, text: row => (of(row) === null ? null : seconds(of(row))) });
  return part("engines", "Engines", "What engines generated", "Tokens by the engines' own statistics, and the time of their forward steps by stage. Recomputed tokens are those that an engine computed again after it had preempted a sequence.",
    counting.length ? el("div", { class: "card long" }, dataTable([
      { title: "engine", value: row => row.label }, amount("prompt", row => row.prompt_tokens), amount("prompt/s", row => row.prompt_tokens_per_second),
      amount("generated", row => row.generated_tokens), amount("generated/s", row => row.generated_tokens_per_second), amount("recomputed", row => row.recomputed_tokens),
      amount("preemptions", row => row.preemptions), { title: "batch", number: true, value: row => row.mean_batch, text: row => (row.mean_batch === null ? null : `${count(Math.round(row.mean_batch))}${row.limit === null ? "" : ` of ${count(row.limit)}`}`) },
      time("first token", row => row.first_token), time("per token", row => row.per_token)], counting, { shown: 8 })) : null,
    stages.length ? el("div", { class: "card long", style: { "margin-top": "14px" } }, el("h3", null, "Forward steps by stage"), dataTable([
      { title: "engine", value: row => row.label }, { title: "stage", value: row => row.stage }, amount("steps", row => row.iterations), time("seconds", row => row.seconds),
      amount("prompt tokens", row => row.prefill_tokens), amount("other tokens", row => row.decode_tokens)], stages, { shown: 12 })) : null);
}

function skewPart(report) {
  if (!report.skew.length && !report.unmatched.length) return null;
  const phases = byOwnDelay(report.skew).slice(0, 8);
  return part("ranks", "Ranks", "Ranks", "When each process ended a phase. A dot is a process: the time from its end to the end of the last one, or the time it waited for the straggler in the phase's collectives.",
    phases.length ? el("div", { class: "card" }, skewStrips(phases), report.skew.length > phases.length ? el("p", { class: "note" }, `${phases.length} of ${report.skew.length} phases: those in which the straggler lost the most time.`) : null) : null,
    report.unmatched.length ? el("div", { class: "card long", style: { "margin-top": "14px" } }, el("h3", null, "Collectives that were not recorded on all ranks, or could not be matched"), dataTable([
      { title: "role", value: row => row.role || "step", node: roleCell }, { title: "region", value: row => row.region, kind: "name" },
      { title: "processes", number: true, value: row => row.spent.length, text: row => count(row.spent.length) },
      { title: "longest", number: true, value: row => row.spent[0].seconds, text: row => seconds(row.spent[0].seconds) }, { title: "where", value: row => row.spent[0].label },
      { title: "members recorded", value: row => (row.recorded && row.members ? `${row.recorded} of ${row.members}` : NOTHING) }], report.unmatched, { sort: 3, shown: 8 })) : null);
}

function idlePart(report) {
  if (!report.idle.length) return null;
  const items = report.idle.map(idle => ({ label: idle.label, total: idle.wall, parts: { ...idle.causes, busy: idle.busy } }));
  const causes = Object.entries(report.causes).map(([key, heading], at) => [key, heading, `var(${CAUSE_COLOURS[key] || `--c${at % PALETTE}`})`]);
  const busy = mean(report.idle.map(idle => idle.busy / (idle.wall || 1)));
  return part("idle", "Waiting", "Work and waiting", `How each process spent the step, as far as it was recorded. On average, ${share(busy)} of it was work.`,
    el("div", { class: "card" }, stacked(items, causes)));
}

function overlapPart(report) {
  if (!report.overlap.length) return null;
  const items = report.overlap.map(overlap => ({
    label: overlap.label, total: overlap.compute + overlap.exposed,
    parts: { compute: Math.max(0, overlap.compute - overlap.overlapped), overlapped: overlap.overlapped, exposed: overlap.exposed } }));
  const exposed = mean(report.overlap.map(overlap => overlap.exposed)), hidden = sum(report.overlap.map(overlap => overlap.overlapped)) / (sum(report.overlap.map(overlap => overlap.communication)) || 1);
  const busy = report.overlap.map(overlap => overlap.busy_share).filter(value => value !== null);
  const device = [...new Set(report.overlap.map(overlap => overlap.device.toUpperCase()))].join(", ");
  return part("overlap", "Overlap", "Communication and compute", `${share(hidden)} of the communication overlapped with computation; ${seconds(exposed)} per process did not, on average.${busy.length ? ` ${device} busy for ${share(mean(busy))} of its capture.` : ""}`,
    el("div", { class: "card" }, stacked(items, [["compute", "computes alone", "var(--compute)"], ["overlapped", "both at once", "var(--overlap)"], ["exposed", "communicates alone", "var(--exposed)"]])));
}

function operationsPart(report) {
  const opColumns = [
    { title: "name", value: op => op.name, node: op => el("span", { class: "mono" }, op.name), kind: "name" },
    { title: "calls", number: true, value: op => op.calls, text: op => count(op.calls) },
    { title: "total", number: true, value: op => op.seconds, text: op => seconds(op.seconds) },
    { title: "self", number: true, value: op => op.self_seconds, text: op => seconds(op.self_seconds) },
    { title: "of their kind", number: true, value: op => op.share, text: op => share(op.share) },
    { title: "", value: op => op.share, meter: op => op.share / largest(op.kind), colour: op => (op.kind === "kernel" ? "--c2" : "--c1") }];
  const largest = kind => Math.max(1e-12, ...(kind === "kernel" ? report.kernels : report.ops).map(op => op.share));
  const regionColumns = [
    { title: "role", value: time => time.role || "step", node: roleCell },
    { title: "region", value: time => time.region, kind: "name" },
    { title: "wall time", number: true, value: time => time.seconds, text: time => seconds(time.seconds) },
    { title: "of the step", number: true, value: time => time.share, text: time => share(time.share) },
    { title: "", value: time => time.seconds, meter: time => time.share, colour: time => partColour(time.role, time.region) },
    { title: "processes", number: true, value: time => time.per_process.length, text: time => count(time.per_process.length) },
    { title: "calls", number: true, value: time => sum(time.per_process.map(process => process.calls)), text: time => count(sum(time.per_process.map(process => process.calls))) },
    { title: "mean", number: true, value: time => mean(time.per_process.map(process => process.seconds)), text: time => seconds(mean(time.per_process.map(process => process.seconds))) },
    { title: "longest", number: true, value: time => longest(time).seconds, text: time => seconds(longest(time).seconds) },
    { title: "where", value: time => longest(time).label }];
  const longest = time => most(time.per_process, process => process.seconds) || { label: null, seconds: null };
  const tables = [
    ["Regions", report.regions.length, () => dataTable(regionColumns, report.regions, { sort: 2, find: true })],
    ["Operators", report.ops.length, () => dataTable(opColumns, report.ops, { sort: 3, find: true })],
    ["Kernels", report.kernels.length, () => dataTable(opColumns, report.kernels, { sort: 3, find: true })],
  ].filter(([, rows]) => rows);
  if (!tables.length) return null;
  return part("operations", "Operations", "What took the time", "Regions by wall time; operators and kernels by self time (without the operators that they call), summed over all processes.", tabbed(tables));
}

// tables: [[title, whether it has rows, make], …]
function tabbed(tables) {
  const holder = el("div"), tabs = el("div", { class: "tabs", role: "tablist" });
  const panels = tables.map(([title, , make], at) => {
    const panel = el("div", { role: "tabpanel", hidden: at > 0, "aria-label": title }, el("h3", { class: "printed" }, title), make());
    const tab = el("button", { type: "button", role: "tab", "aria-selected": at === 0, onclick: () => {
      for (const other of tabs.children) other.setAttribute("aria-selected", other === tab);
      for (const other of panels) other.hidden = other !== panel;
    } }, title);
    tab.setAttribute("aria-selected", String(at === 0));
    tabs.append(tab);
    return panel;
  });
  holder.append(...panels);
  addEventListener("beforeprint", () => { for (const panel of panels) panel.hidden = false; });
  addEventListener("afterprint", () => { [...tabs.children].forEach((tab, at) => { panels[at].hidden = tab.getAttribute("aria-selected") !== "true"; }); });
  return el("div", { class: "card long" }, tables.length > 1 ? tabs : el("h3", null, tables[0][0]), holder);
}

function costPart(report) {
  const { memory, overhead, recording_cost: cost } = report;
  if (!memory.length && !overhead.length && !cost.length) return null;
  const highest = Math.max(1, ...memory.map(peak => peak.peak_bytes));
  const cards = [];
  if (memory.length) cards.push(el("div", { class: "card" }, el("h3", null, "Memory peaks"), dataTable([
    { title: "process", value: peak => peak.label }, { title: "device", value: peak => peak.device },
    { title: "peak", number: true, value: peak => peak.peak_bytes, text: peak => bytes(peak.peak_bytes) },
    { title: "", value: peak => peak.peak_bytes, meter: peak => peak.peak_bytes / highest, colour: () => "--c6" },
    { title: "at", number: true, value: peak => peak.at, text: peak => seconds(peak.at) }], memory, { sort: 2, shown: 8 })));
  if (overhead.length) {
    const wants = key => overhead.some(cost => cost[key] !== null && cost[key] !== undefined && cost[key] > 0);
    const columns = [["arm", "preparing"], ["start", "starting"], ["wait", "waiting for an earlier stop"], ["stall", "stopping"], ["export", "export"], ["stop", "engine's stop"]].filter(([key]) => wants(key));
    cards.push(el("div", { class: "card" }, el("h3", null, "What recording cost in each process"),
      el("p", { class: "sub" }, "The training thread was held while the profiler was prepared, started and stopped. The export ran next to training."),
      dataTable([{ title: "process", value: cost => cost.label }, ...columns.map(([key, title]) => ({ title, number: true, value: cost => cost[key], text: cost => seconds(cost[key]) }))], overhead, { sort: columns.length ? 1 : null, shown: 8 })));
  }
  if (report.stops.length) {
    const bounds = [...new Set(report.stops.flatMap(cost => cost.estimates.map(([bound]) => bound)))].sort((a, b) => a - b);
    const at = (cost, bound) => (cost.estimates.find(each => each[0] === bound) || [0, null])[1];
    cards.push(el("div", { class: "card" }, el("h3", null, "What an engine's stop costs"),
      el("p", { class: "sub" }, "An engine answers no request while it writes its trace. The columns on the right are estimates in proportion to the forward steps."),
      dataTable([{ title: "engine", value: cost => cost.label }, { title: "forward steps", number: true, value: cost => cost.iterations },
        { title: "took", number: true, value: cost => cost.seconds, text: cost => seconds(cost.seconds) },
        ...bounds.map(bound => ({ title: `max_iterations = ${bound}`, number: true, value: cost => at(cost, bound), text: cost => at(cost, bound) === null ? "-" : `≈ ${seconds(at(cost, bound))}` }))], report.stops, { sort: 2, shown: 8 })));
  }
  return part("cost", "Cost", "Memory and the cost of recording", cost.length ? cost.map(text => `${capital(text)}.`).join(" ") : null, el("div", { class: "cards" }, cards));
}

function sourcesPart(report) {
  const columns = [
    { title: "source", value: source => source.label, kind: "name" },
    { title: "host", value: source => source.host },
    { title: "status", value: source => source.status, node: source => (source.status && !["complete", "joined"].includes(source.status) ? el("span", { class: "bad" }, source.status) : source.status || NOTHING) },
    { title: "events", number: true, value: source => source.events, text: source => count(source.events) },
    { title: "bytes", number: true, value: source => source.bytes, text: source => bytes(source.bytes) },
    { title: "clock", value: source => source.alignment },
    { title: "offset", number: true, value: source => source.offset_ns, text: source => (source.offset_ns ? seconds(source.offset_ns / 1e9) : "0") },
    { title: "± error", number: true, value: source => source.error_ns, text: source => (source.error_ns === null ? "unknown" : source.error_ns ? seconds(source.error_ns / 1e9) : "0") },
    { title: "file", value: source => source.path, node: source => el("span", { class: "mono" }, wrapped(source.path) || NOTHING) }];
  const error = !report.clock_error_ns ? "" : ` The clock error between hosts is at most ${seconds(report.clock_error_ns / 1e9)}.`;
  return part("sources", "Sources", "Sources of this report", `${report.clock.replace(/\.?$/, ".")}${error}`,
    report.problems.length ? el("ul", { class: "warns" }, report.problems.slice(0, 50).map(finding => el("li", null, finding.source ? [el("b", null, finding.source), ": "] : null, finding.problem)),
      report.problems.length > 50 ? el("li", null, `and ${report.problems.length - 50} more, in report.json`) : null) : null,
    report.sources.length ? el("div", { class: "card long", style: { "margin-top": "14px" } }, dataTable(columns, report.sources, { shown: 8, find: true })) : null);
}
