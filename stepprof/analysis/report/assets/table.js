// Tables that can be sorted by any column and searched, and show the first rows.
// A column: title, value(row) to sort by, and optionally text(row), node(row), number, meter(row) in 0..1, colour(row).

function dataTable(columns, rows, { shown = 12, find = false, sort = null, ascending = false } = {}) {
  const body = el("tbody");
  const more = el("button", { class: "more", type: "button" });
  const foot = el("div", { class: "under" }, more);
  const heads = columns.map((column, at) =>
    el("th", { class: column.meter ? "meter" : column.number ? "n" : null, scope: "col" },
      el("button", { type: "button", onclick: () => order(at) }, column.title)));
  const state = { sort, ascending, all: rows.length <= shown + 3, text: "" };
  const input = el("input", { class: "find", type: "search", placeholder: "Find by name", "aria-label": "Find by name" });

  function order(at) {
    state.ascending = state.sort === at ? !state.ascending : !columns[at].number;
    state.sort = at;
    draw();
  }

  function compare(a, b) {
    const of = columns[state.sort].value, x = of(a), y = of(b);
    const missing = value => value === null || value === undefined;
    if (missing(x) || missing(y)) return missing(x) - missing(y);
    const way = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true });
    return state.ascending ? way : -way;
  }

  function draw() {
    let chosen = rows.filter(row => !state.text || columns.some(column => !column.number && String(column.value(row)).toLowerCase().includes(state.text)));
    if (state.sort !== null) chosen = [...chosen].sort(compare);
    const visible = state.all ? chosen : chosen.slice(0, shown);
    body.replaceChildren(...visible.map(row => el("tr", null, columns.map(column => cell(column, row)))));
    heads.forEach((head, at) => {
      if (at === state.sort) head.setAttribute("aria-sort", state.ascending ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    });
    foot.hidden = state.all || chosen.length <= shown;
    more.textContent = `Show all ${count(chosen.length)}`;
  }

  more.addEventListener("click", () => { state.all = true; draw(); });
  input.addEventListener("input", () => { state.text = input.value.trim().toLowerCase(); draw(); });
  addEventListener("beforeprint", () => { if (rows.length <= 200) { state.all = true; draw(); } });
  draw();
  return el("div", null,
    find && rows.length > shown ? el("div", { class: "tools" }, input) : null,
    el("div", { class: "wrap" }, el("table", null, el("thead", null, el("tr", null, heads)), body)),
    foot);
}

function cell(column, row) {
  if (column.meter) {
    const part = column.meter(row);
    return el("td", { class: "meter" }, el("i", null, el("b", { style: { width: `${Math.min(100, Math.max(0, part * 100))}%`, "--c": column.colour ? `var(${column.colour(row)})` : null } })));
  }
  const content = column.node ? column.node(row) : column.text ? column.text(row) : column.value(row);
  return el("td", { class: column.number ? "n" : column.kind || null }, content ?? NOTHING);
}

function roleCell(row, colour = null) {
  return el("span", { class: "whole" }, el("span", { class: "dot", style: { "--c": `var(${colour || partColour(row.role, row.region)})` } }), row.role || "step");
}
