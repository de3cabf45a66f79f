// The data of the page: gzip in base64 of the length of the JSON, the JSON, and columns of 32-bit integers.

async function decode() {
  const text = atob(document.getElementById("data").textContent.trim());
  const packed = Uint8Array.from(text, character => character.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const buffer = await new Response(stream).arrayBuffer();
  const length = new DataView(buffer).getUint32(0, true);
  const table = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const columns = {};
  let offset = 4 + length;
  for (const [name, size] of table.columns) {
    columns[name] = new Uint32Array(buffer, offset, size);
    offset += size * 4;
  }
  table.columns = columns;
  if (table.gantt) unpack(table.gantt, columns);
  return table;
}

// Gives each row the offsets of its bars, lane by lane, and of its busy intervals.
function unpack(gantt, columns) {
  let bar = 0, stretch = 0;
  for (const row of gantt.rows) {
    row.lanes = row.lanes.map(number => ({ from: bar, to: (bar += number) }));
    row.busy = { from: stretch, to: (stretch += row.busy) };
  }
  gantt.columns = columns;
}

const PALETTE = 8;
const roleColours = new Map();
let division = null;

// A role has one colour on the whole page, in the order in which the step goes through the roles. Where regions divide the step, roles have none.
function roleColour(role) {
  if (role === null || role === undefined || (division && division.byRegion)) return "--ink3";
  if (!roleColours.has(role)) roleColours.set(role, `--c${roleColours.size % PALETTE}`);
  return roleColours.get(role);
}

// The colour of the part that a role or a region belongs to.
function partColour(role, region) {
  if (!division) return roleColour(role);
  const part = division.parts[division.partOf(role, region)];
  return part ? part.colour : roleColour(role);
}

// What divides the step: its roles, with the outermost regions of the time in no role; or those regions alone. Each has a name, a colour and intervals; bars of no part come last.
function divide(report, gantt) {
  const regions = report.parts.filter(time => time.region !== null), byRegion = regions.length > 0 && regions.length === report.parts.length;
  const roles = byRegion ? [] : rolesInOrder(report, gantt).map(role => report.parts.find(time => time.role === role && time.region === null) || { role, region: null });
  const parts = [...roles, ...regions].map((time, at) => ({ role: time.role, region: time.region, name: time.region || time.role, time: time.seconds === undefined ? null : time, colour: time.region === null ? roleColour(time.role) : `--c${at % PALETTE}` }));
  const partOf = (role, region) => { const at = parts.findIndex(part => part.role === role && (part.region === null || part.region === region)); return at < 0 ? parts.length : at; };
  division = { byRegion, parts, partOf, names: new Set(report.regions.map(time => time.region)) };
  gantt.parts = parts;
  gantt.columns.part = markParts(gantt);
  for (const part of parts) part.intervals = [];
  collectIntervals(gantt);
}

// The roles in the order in which they begin; those without a bar come last.
function rolesInOrder(report, gantt) {
  const { start, role } = gantt.columns, first = new Map();
  for (const time of report.parts) if (time.role !== null) first.set(time.role, Infinity);
  for (let i = 0; i < start.length; i++) {
    const name = gantt.roles[role[i]];
    if (name !== null && !(first.get(name) <= start[i])) first.set(name, start[i]);
  }
  return [...first].sort((a, b) => a[1] - b[1] || 0).map(([name]) => name);
}

// The part of each bar: its own, or that of the bar around it.
function markParts(gantt) {
  const { start, length, name, role } = gantt.columns, none = division.parts.length, marks = new Uint16Array(start.length).fill(none);
  for (const row of gantt.rows) row.lanes.forEach((lane, depth) => {
    const outer = depth ? row.lanes[depth - 1] : { from: 0, to: 0 };
    let around = outer.from;
    for (let i = lane.from; i < lane.to; i++) {
      marks[i] = division.partOf(gantt.roles[role[i]], gantt.names[name[i]]);
      if (marks[i] !== none) continue;
      while (around < outer.to && start[around] + length[around] <= start[i]) around++;
      const its = around < outer.to && start[around] <= start[i] ? division.parts[marks[around]] : undefined;
      if (its && its.region !== null) marks[i] = marks[around];
    }
  });
  return marks;
}

// When any process was in each part: [[start, end], …] in seconds, merged, from the windows and regions of all rows.
function collectIntervals(gantt) {
  const { start, length, part } = gantt.columns;
  for (let i = 0; i < start.length; i++) {
    const its = gantt.parts[part[i]];
    if (its) its.intervals.push([gantt.origin + start[i] * gantt.tick, gantt.origin + (start[i] + length[i]) * gantt.tick]);
  }
  for (const its of gantt.parts) {
    const merged = [];
    for (const interval of its.intervals.sort((a, b) => a[0] - b[0])) {
      const last = merged[merged.length - 1];
      if (last && interval[0] <= last[1]) last[1] = Math.max(last[1], interval[1]);
      else merged.push([...interval]);
    }
    its.intervals = merged;
  }
}
