// The step among the other steps of its run: a bar for each step, a row for the whole step and for each role, or for each outermost region where no role divides it.

const MOST_NEIGHBOUR_ROWS = 7;

// Several roles may have a region of one name; the process may name the role.
function ofRole({ role, region, process }) {
  return region === null || role === null || process.startsWith(role) ? region ?? role : `${region} (${role})`;
}

function neighboursPart(report) {
  const among = report.neighbourhood;
  if (!among) return null;
  const byRegion = among.steps.some(step => Object.keys(step.regions).length), timesOf = step => (byRegion ? step.regions : step.roles);
  const names = [...new Set(among.steps.flatMap(step => Object.keys(timesOf(step))))];
  const usual = new Map(among.parts.map(each => [byRegion ? each.region : each.role, each]).reverse()); // the whole step is the first without a name
  const rows = [{ name: "whole step", part: null, of: step => step.seconds }, ...names.map(name => ({ name, part: name, of: step => timesOf(step)[name] ?? null }))].slice(0, MOST_NEIGHBOUR_ROWS);
  const places = among.places.map(place => ({ name: `${ofRole(place)} of ${place.process}`, part: place, of: step => place.by_step[step.step] ?? null }));
  const kinds = [["this step", "var(--accent)"], ["other steps", "var(--unknown)"]];
  if (among.steps.some(step => step.recorded && step.step !== report.step)) kinds.push(["recorded too", "var(--wait)"]);
  if (among.parts.length) kinds.push(["median of the steps that it is compared with", "var(--ink3)", "line"]);
  return part("neighbours", "Steps", "This step among its neighbours", quotedText(`${capital(among.text)}.`),
    el("div", { class: "card" }, rows.map(row => neighbourRow(report, among, row, usual.get(row.part) || null)), places.map(row => neighbourRow(report, among, row, row.part.usual)), legend(kinds)));
}

function neighbourRow(report, among, row, usual) {
  const steps = among.steps, values = steps.map(row.of), largest = Math.max(...values.filter(value => value !== null), 1e-12), own = values[steps.findIndex(step => step.step === report.step)];
  const box = el("div", { class: "strip" });
  const here = steps.findIndex(step => step.step === report.step), colour = step => (step.step === report.step ? "var(--accent)" : step.recorded ? "var(--wait)" : "var(--unknown)");
  responsive(box, width => {
    const height = row.part === null ? 64 : 40, each = Math.min(90, width / steps.length), gap = each > 6 ? 2 : each > 3 ? 1 : 0, y = value => height - (value / largest) * (height - 4);
    const every = Math.ceil(44 / each), numbered = row.part === null;
    box.replaceChildren(svg("svg", { class: "chart", height: height + (numbered ? 18 : 3), viewBox: `0 0 ${width} ${height + (numbered ? 18 : 3)}`, role: "img", "aria-label": `${row.name} in ${steps.length} steps` },
      steps.map((step, at) => hover(svg("g", null,
        svg("rect", { class: "hit", x: at * each, y: 0, width: each, height }),
        values[at] === null ? null : svg("rect", { x: at * each + gap / 2, y: y(values[at]), width: Math.max(0.6, Math.min(each - gap, 60)), height: Math.max(1, height - y(values[at])), rx: each > 8 ? 2 : 0, fill: colour(step) }),
        numbered && (at - here) % every === 0 ? svg("text", { class: step.step === report.step ? "strong" : null, x: at * each + Math.min(each - gap, 60) / 2 + gap / 2, y: height + 14, "text-anchor": "middle" }, String(step.step)) : null),
        () => [`step ${step.step}`, [[row.name, seconds(values[at])]], step.step === report.step ? "this step" : step.recorded ? "recorded too" : among.others.includes(step.step) ? null : "not compared with this step"])),
      usual ? svg("line", { class: "half", x1: 0, x2: each * steps.length, y1: y(usual.median), y2: y(usual.median) }) : null,
      svg("line", { class: "base", x1: 0, x2: each * steps.length, y1: height, y2: height })));
  });
  return el("div", { class: "neighbours" },
    el("div", null, el("b", null, row.name), el("span", null, own === null ? "not in this step" : seconds(own)),
      usual ? el("span", { class: usual.typical === false ? "bad" : "dim" }, `usually ${seconds(usual.median)} (${seconds(usual.shortest)} to ${seconds(usual.longest)})${usual.steps < among.others.length ? ` in ${usual.steps} of ${among.others.length}` : ""}`) : null),
    box);
}
