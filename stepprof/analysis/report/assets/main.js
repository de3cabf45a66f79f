// Builds the page, the most important sections first.

const TOPICS = { poll: ["idle", "--wait"], half_batch: ["rollout", "--wait"], data: ["operations", "--wait"], evaluation: ["roles", "--c1"], checkpoint: ["roles", "--c1"], weight_sync: ["roles", "--c1"], serial: ["operations", "--wait"], lock: ["operations", "--wait"], pickle: ["operations", "--c1"], copy: ["operations", "--c1"], io: ["operations", "--wait"], sleep: ["operations", "--wait"], gc: ["operations", "--c1"], host: ["idle", "--wait"], short: ["cost", "--flush"], straggler: ["ranks", "--exposed"], collectives: ["ranks", "--exposed"], tail: ["rollout", "--wait"], preemption: ["engines", "--wait"], idle: ["idle", "--wait"], overlap: ["overlap", "--overlap"], overhead: ["cost", "--flush"], memory: ["cost", "--c6"], coverage: ["sources", "--warn"], step: ["roles", "--accent"], busy: ["overlap", "--busy"], role: ["roles", "--c1"], region: ["tree", "--c1"], op: ["operations", "--c1"], kernel: ["operations", "--c2"] };

// `briefs`: the names of the sections that the page has, by their ids. The first sentence about the step stands above the list. If none stands out, the list is behind a button.
function findings(list, total, briefs, from = 0) {
  if (list.length <= from) return null;
  const quiet = list.some(finding => finding.topic === "quiet"), folded = finding => quiet && finding.topic !== "step" && finding.seconds !== null;
  const behind = list.slice(from).filter(folded).length, more = el("button", { class: "more", type: "button", onclick: () => { more.parentNode.replaceWith(); document.querySelectorAll("#findings li[hidden]").forEach(each => { each.hidden = false; }); } }, `Show ${plural(behind, "finding")}`);
  const numbered = list.slice(from).some(finding => finding.start !== null && finding.start !== undefined);
  return el("ol", { class: numbered ? "heads numbered" : list.slice(from).some(finding => finding.seconds !== null) ? "heads" : "heads plain", id: "findings", role: "list" }, list.slice(from).map((finding, at) => {
    const [target, colour] = TOPICS[finding.topic] || [null, "--accent"], cost = finding.seconds, placed = finding.start !== null && finding.start !== undefined && finding.end !== null;
    return el("li", { style: { "--topic": `var(${colour})` }, hidden: folded(finding) },
      el("div", { class: cost === null && !placed ? "cost none" : "cost num" }, placed ? el("span", { class: "at" }, String(at + 1)) : null, el("span", null, cost === null ? "" : seconds(cost), cost !== null && total ? el("small", null, share(cost / total)) : null),
        cost !== null && total ? el("i", null, el("b", { style: { width: `${Math.min(100, (cost / total) * 100)}%` } })) : null),
      el("div", null, el("div", { class: "text" }, quotedText(capital(finding.text))), reasons(finding),
        el("div", { class: "links" },
          placed && briefs.has("timeline") ? el("a", { href: "#timeline", class: "place", onclick: event => goTo(event, finding) }, placeText(finding)) : null,
          briefs.has(target) ? el("a", { href: `#${target}` }, `more under ${briefs.get(target)}`) : null)));
  }), behind ? el("li", { class: "behind" }, more) : null);
}

// The place of a finding is one stretch; its seconds may be the sum of several.
function placeText(finding) {
  const from = seconds(finding.start), to = seconds(finding.end), part = finding.seconds !== null && finding.end - finding.start < 0.9 * finding.seconds;
  return `show ${part ? "its longest stretch" : "it"} in the timeline, ${from === to ? `at ${from}` : `from ${from} to ${to}`}${finding.process ? ` in ${finding.process}` : ""}`;
}

const reasons = finding => [["why", finding.why], ["try", finding.advice], ["gain", gain(finding)]].filter(([, text]) => text).map(([name, text]) => el("div", { class: "reason" }, el("b", null, name), el("span", null, quotedText(text))));

// Names in a sentence stand between backticks.
const quotedText = text => text.split("`").map((piece, at, all) => (at % 2 && at < all.length - 1 ? el("code", null, piece) : at % 2 ? `\`${piece}` : piece));

const gain = finding => finding.saves === null || finding.saves === undefined ? null : `${finding.saves > 0 ? seconds(finding.saves) : "none"}, if ${finding.assumption}`;

const capital = text => (/^[a-z]+[ ']/.test(text) ? text[0].toUpperCase() + text.slice(1) : text);

function tile(name, value, unit, text) {
  return el("div", { class: "tile" }, el("div", { class: "k" }, name), el("div", { class: "v num" }, value, unit ? el("small", null, ` ${unit}`) : null), text ? el("div", { class: "s" }, text) : null);
}

function tiles(report) {
  const list = [tile(report.ended ? "The step took" : "The step lasted at least", ...split(seconds(report.seconds)), `${plural(report.gantt.rows.length, "process", "processes")} on ${plural(new Set(report.gantt.rows.map(row => row.host)).size, "host")}`)];
  const longest = most(division.parts.filter(part => part.seconds > 0), part => part.seconds);
  if (longest) list.push(tile("Longest on the path", ...split(seconds(longest.seconds)), `${longest.name}, ${share(longest.share)} of the step`));
  const tail = report.findings.find(finding => finding.topic === "tail" && finding.seconds !== null && finding.role !== null);
  if (tail) list.push(tile(`Tail of ${tail.role}`, ...split(seconds(tail.seconds)), report.ended ? `${share(tail.seconds / report.seconds)} of the step` : null));
  const slow = report.findings.find(finding => finding.topic === "straggler" && finding.process !== null && finding.seconds !== null);
  if (slow) list.push(tile("Slowest rank", ...split(`+${seconds(slow.seconds)}`), `${[slow.process, ...slow.also].join(", ")} in ${slow.region || slow.role || "the step"}`));
  const busy = mean(report.idle.map(idle => idle.busy / (idle.wall || 1)));
  if (busy !== null && report.ended) list.push(tile("Recorded work", share(busy), null, "of the step, mean over processes"));
  return el("div", { class: "tiles" }, list);
}

const split = text => { const at = text.lastIndexOf(" "); return at < 0 ? [text, null] : [text.slice(0, at), text.slice(at + 1)]; };

function logo() {
  return svg("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" },
    svg("rect", { x: 0, y: 1.5, width: 10, height: 3.4, rx: 1.2, fill: "var(--c0)" }), svg("rect", { x: 4.5, y: 6.3, width: 6.5, height: 3.4, rx: 1.2, fill: "var(--c3)" }), svg("rect", { x: 7.5, y: 11.1, width: 8.5, height: 3.4, rx: 1.2, fill: "var(--c1)" }));
}

function theme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let choice = null;
  try { choice = localStorage.getItem("stepprof-theme"); } catch { /* a page from a file may have no storage: it follows the system's theme */ }
  const buttons = [["auto", "Auto"], ["light", "Light"], ["dark", "Dark"]].map(([name, title]) => el("button", { type: "button", onclick: () => choose(name) }, title));
  const names = ["auto", "light", "dark"];
  function apply() {
    const now = choice === "dark" || (choice !== "light" && dark.matches) ? "dark" : "light";
    document.documentElement.dataset.theme = now;
    buttons.forEach((button, at) => button.setAttribute("aria-pressed", String(names[at] === (choice || "auto"))));
    dispatchEvent(new Event("themechange"));
  }
  function choose(name) {
    choice = name === "auto" ? null : name;
    try { if (choice) localStorage.setItem("stepprof-theme", choice); else localStorage.removeItem("stepprof-theme"); } catch { /* as above */ }
    apply();
  }
  dark.addEventListener("change", apply);
  let before = null;
  addEventListener("beforeprint", () => { before = document.documentElement.dataset.theme; document.documentElement.dataset.theme = "print"; });
  addEventListener("afterprint", () => { document.documentElement.dataset.theme = before; dispatchEvent(new Event("themechange")); });
  apply();
  return el("div", { class: "switch", role: "group", "aria-label": "Colours" }, buttons);
}

// The facts of the job that are known: the command on one line, the others below it.
function jobFacts(report) {
  const job = report.job;
  if (!job) return null;
  const versions = Object.entries(job.versions).map(([name, text]) => `${name} ${text}`).join(", ");
  const hosts = [...new Set(report.gantt.rows.map(row => row.host).filter(host => host !== null))];
  const facts = [["command", job.command.map(shellWord).join(" "), "mono"], ["model", job.model], ["ranks", job.world_size && String(job.world_size)], ["hosts", hosts.join(", ")], ["versions", versions], ["frameworks", job.adapters.join(", ")], ["system", job.platform]].filter(([, text]) => text);
  if (!facts.length) return null;
  const brief = [job.model && (job.model.startsWith("/") ? job.model.split("/").filter(Boolean).pop() : job.model), job.world_size && plural(job.world_size, "rank"), job.versions.torch && `torch ${job.versions.torch}`].filter(Boolean).join(" · ");
  const details = el("details", { class: "job" }, el("summary", null, el("span", null, brief || "About the job"), job.command.length ? el("span", { class: "mono" }, job.command.map(fileName).map(shellWord).join(" ")) : null),
    el("dl", null, facts.map(([name, text, kind]) => [el("dt", null, name), el("dd", { class: kind }, text)])));
  addEventListener("beforeprint", () => { details.wasOpen = details.open; details.open = true; });
  addEventListener("afterprint", () => { details.open = details.wasOpen; });
  return details;
}

// A program or a script without its folders.
const fileName = (word, at) => (at === 0 || /^\/.*\.py$/.test(word) ? word.split("/").pop() : word);

const shellWord = word => (/^[\w@%+=:,./…-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

function reportPage(report, gantt) {
  report.gantt = gantt;
  divide(report, gantt);
  const when = new Date(report.start_unix_ns / 1e6);
  const started = isNaN(when) ? null : when.toISOString().replace("T", " ").slice(0, 19) + " UTC";
  const known = report.step !== null;
  const files = report.sources.length && report.sources.every(source => source.kind === "trace");
  if (files) PATH_KINDS.outside = "in no annotation";
  const alone = files && report.sources.length === 1 && report.sources[0].path === report.run_id;
  const which = report.occurrences > 1 ? `${report.step} (${report.occurrence} of ${report.occurrences})` : String(report.step);
  document.title = `${known ? `Step ${which} of ` : ""}${report.run_id} · stepprof`;
  const parts = [pathPart(report), rolesPart(report, gantt), ganttPart(report, gantt), neighboursPart(report), rolloutPart(report), enginesPart(report), skewPart(report), idlePart(report), overlapPart(report), treePart(report), operationsPart(report), costPart(report), sourcesPart(report)].filter(Boolean);
  const first = report.findings.length && report.findings[0].topic === "step" ? report.findings[0] : null;
  const briefs = new Map(parts.map(node => [node.id, node.dataset.brief]));
  const hero = el("section", { class: "hero" },
    el("div", { class: "eyebrow" }, el("span", null, alone ? "Trace " : files ? "Traces of " : known ? "Run " : "Traces of ", el("b", null, report.run_id)), known ? el("span", null, "Step ", el("b", null, which)) : null,
      report.version !== null ? el("span", null, "Version ", el("b", null, String(report.version))) : null, started ? el("span", null, "Began ", el("b", null, started)) : null),
    jobFacts(report),
    el("h1", null, first ? el("span", { class: "text" }, quotedText(capital(first.text))) : known ? `Where did step ${which} go?` : "Where did the time go?"), first ? reasons(first) : null,
    stepBar(report, first ? 1 : 0), findings(report.findings, report.seconds, briefs, first ? 1 : 0), tiles(report));
  return [hero, ...parts, el("footer", null, el("span", null, `stepprof ${report.stepprof}`.trim()), el("span", null, `report schema ${report.schema_version}`), known && !files ? el("span", null, "Every single event: ", el("span", { class: "mono" }, `stepprof open ${report.run_id} --step ${report.step}`)) : null, el("span", null, "Seconds count from the step's first record. What is not known is left out, never zero."))];
}

function comparisonPage(comparison) {
  document.title = `${comparison.a} against ${comparison.b} · stepprof`;
  return [
    el("section", { class: "hero" }, el("div", { class: "eyebrow" }, el("span", null, "A ", el("b", null, comparison.a)), el("span", null, "B ", el("b", null, comparison.b))),
      el("h1", null, "What changed from A to B?"), findings(comparison.findings, null, new Map()),
      comparison.gate ? el("p", { class: "gate" }, comparison.gate.text) : null,
      comparison.problems.length ? el("ul", { class: "warns" }, comparison.problems.map(problem => el("li", null, problem.source ? [el("b", null, problem.source), ": "] : null, problem.problem))) : null),
    ...comparisonParts(comparison)];
}

async function main() {
  const table = await decode(), colours = theme();
  const content = table.kind === "report" ? reportPage(table.content, table.gantt) : comparisonPage(table.content);
  const links = content.filter(node => node.id && node.matches("section")).map(node => el("a", { href: `#${node.id}` }, node.dataset.brief));
  document.getElementById("bar").append(el("a", { class: "brand", href: "#main" }, logo(), "stepprof"), el("nav", { "aria-label": "Parts of the report" }, links), colours);
  document.getElementById("main").replaceChildren(...content);
  document.documentElement.dataset.ready = "yes";
}

main().catch(error => {
  document.getElementById("main").replaceChildren(el("p", { class: "note" }, `This page cannot be drawn: ${error && error.message}. A browser of 2023 or later is needed; the same figures are in report.json.`));
  throw error;
});
