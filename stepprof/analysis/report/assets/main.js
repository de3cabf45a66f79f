// Builds the page, the most important sections first.

const TOPICS = { poll: ["idle", "--wait"], half_batch: ["rollout", "--wait"], data: ["operations", "--wait"], evaluation: ["roles", "--c1"], checkpoint: ["roles", "--c1"], weight_sync: ["roles", "--c1"], serial: ["operations", "--wait"], lock: ["operations", "--wait"], pickle: ["operations", "--c1"], io: ["operations", "--wait"], sleep: ["operations", "--wait"], gc: ["operations", "--c1"], host: ["idle", "--wait"], short: ["cost", "--flush"], straggler: ["ranks", "--exposed"], collectives: ["ranks", "--exposed"], tail: ["rollout", "--wait"], idle: ["idle", "--wait"], overlap: ["overlap", "--overlap"], overhead: ["cost", "--flush"], memory: ["cost", "--c6"], coverage: ["sources", "--warn"], step: ["roles", "--accent"], busy: ["overlap", "--busy"], role: ["roles", "--c1"], region: ["operations", "--c1"], op: ["operations", "--c1"], kernel: ["operations", "--c2"] };

// `ids`: the sections that the page has.
function findings(list, total, ids) {
  if (!list.length) return null;
  return el("ol", { class: "heads", id: "findings" }, list.map(finding => {
    const [target, colour] = TOPICS[finding.topic] || [null, "--accent"], cost = finding.seconds;
    return el("li", { style: { "--topic": `var(${colour})` } },
      el("div", { class: "cost num" }, cost === null ? "" : seconds(cost), cost !== null && total ? el("i", null, el("b", { style: { width: `${Math.min(100, (cost / total) * 100)}%` } })) : null),
      el("div", null, el("div", { class: "text" }, capital(finding.text)),
        [["why", finding.why], ["try", finding.advice], ["gain", gain(finding)]].filter(([, text]) => text).map(([name, text]) => el("div", { class: "reason" }, el("b", null, name), " ", text))),
      ids.has(target) ? el("a", { class: "chip", href: `#${target}` }, finding.topic) : el("span", { class: "chip" }, finding.topic));
  }));
}

const gain = finding => finding.saves === null || finding.saves === undefined ? null : `${seconds(finding.saves)}, if ${finding.assumption}`;

const capital = text => (/^[a-z]+[ ']/.test(text) ? text[0].toUpperCase() + text.slice(1) : text);

function tile(name, value, unit, text) {
  return el("div", { class: "tile" }, el("div", { class: "k" }, name), el("div", { class: "v num" }, value, unit ? el("small", null, ` ${unit}`) : null), text ? el("div", { class: "s" }, text) : null);
}

function tiles(report) {
  const list = [tile("The step took", ...split(seconds(report.seconds)), `${plural(report.gantt.rows.length, "process", "processes")} on ${plural(new Set(report.gantt.rows.map(row => row.host)).size, "host")}`)];
  const role = most(namedRoles(report), time => time.seconds);
  if (role) list.push(tile("Longest role", ...split(seconds(role.seconds)), `${role.role || "step"}, ${share(role.share)} of the step`));
  const tail = most(report.rollout, rollout => rollout.tail);
  if (tail) list.push(tile("Rollout's tail", ...split(seconds(tail.tail)), `${tail.label} below half of its peak batch`));
  const skew = most(report.skew.filter(phase => phase.significant), ownDelay);
  if (skew) list.push(tile("Slowest rank", ...split(`+${seconds(ownDelay(skew))}`), `${skew.straggler} in ${skew.region || skew.role || "the step"}`));
  const busy = mean(report.idle.map(idle => idle.busy / (idle.wall || 1)));
  if (busy !== null) list.push(tile("Recorded work", share(busy), null, "of the step, mean over processes"));
  const held = report.overhead.filter(cost => cost.stop === null).map(cost => cost.arm + cost.start + cost.wait + cost.stall);
  if (held.length) list.push(tile("Recording delayed", ...split(seconds(mean(held))), "per process, on average"));
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
  addEventListener("beforeprint", () => { before = document.documentElement.dataset.theme; document.documentElement.dataset.theme = "light"; });
  addEventListener("afterprint", () => { document.documentElement.dataset.theme = before; dispatchEvent(new Event("themechange")); });
  apply();
  return el("div", { class: "switch", role: "group", "aria-label": "Colours" }, buttons);
}

function reportPage(report, gantt) {
  report.gantt = gantt;
  for (const role of roleIntervals(gantt).keys()) roleColour(role);
  const when = new Date(report.start_unix_ns / 1e6);
  const started = isNaN(when) ? null : when.toISOString().replace("T", " ").slice(0, 19) + " UTC";
  const known = report.step !== null;
  const which = report.occurrences > 1 ? `${report.step} (${report.occurrence} of ${report.occurrences})` : String(report.step);
  document.title = `${known ? `Step ${which} of ` : ""}${report.run_id} · stepprof`;
  const parts = [rolesPart(report, gantt), ganttPart(report, gantt), rolloutPart(report), enginesPart(report), skewPart(report), idlePart(report), overlapPart(report), operationsPart(report), costPart(report), sourcesPart(report)].filter(Boolean);
  const hero = el("section", { class: "hero" },
    el("div", { class: "eyebrow" }, el("span", null, known ? "Run " : "Traces of ", el("b", null, report.run_id)), known ? el("span", null, "Step ", el("b", null, which)) : null,
      report.version !== null ? el("span", null, "Version ", el("b", null, String(report.version))) : null, started ? el("span", null, "Began ", el("b", null, started)) : null),
    el("h1", null, known ? `Where did step ${which} go?` : "Where did the time go?"), tiles(report), findings(report.findings, report.seconds, new Set(parts.map(node => node.id))));
  return [hero, ...parts, el("footer", null, el("span", null, `stepprof ${report.stepprof}`.trim()), el("span", null, `report schema ${report.schema_version}`), known ? el("span", null, "Every single event: ", el("span", { class: "mono" }, `stepprof open ${report.run_id} --step ${report.step}`)) : null, el("span", null, "Seconds count from the step's first record. What is not known is left out, never zero."))];
}

function comparisonPage(comparison) {
  document.title = `${comparison.a} against ${comparison.b} · stepprof`;
  return [
    el("section", { class: "hero" }, el("div", { class: "eyebrow" }, el("span", null, "A ", el("b", null, comparison.a)), el("span", null, "B ", el("b", null, comparison.b))),
      el("h1", null, "What changed from A to B?"), findings(comparison.findings, null, new Set()),
      comparison.gate ? el("p", { class: "gate" }, comparison.gate.text) : null,
      comparison.problems.length ? el("ul", { class: "warns" }, comparison.problems.map(problem => el("li", null, problem.source ? [el("b", null, problem.source), ": "] : null, problem.problem))) : null),
    ...comparisonParts(comparison)];
}

async function main() {
  const table = await decode();
  const content = table.kind === "report" ? reportPage(table.content, table.gantt) : comparisonPage(table.content);
  const links = content.filter(node => node.id && node.matches("section")).map(node => el("a", { href: `#${node.id}` }, node.dataset.brief));
  document.getElementById("bar").append(el("a", { class: "brand", href: "#main" }, logo(), "stepprof"), el("nav", { "aria-label": "Parts of the report" }, links), theme());
  document.getElementById("main").replaceChildren(...content);
  document.documentElement.dataset.ready = "yes";
}

main().catch(error => {
  document.getElementById("main").replaceChildren(el("p", { class: "note" }, `This page cannot be drawn: ${error && error.message}. A browser of 2023 or later is needed; the same figures are in report.json.`));
  throw error;
});
