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

const REST_COLOURS = { "held up by the profiler": "--flush", "in no window": "--missing", "in no annotation": "--missing" };

// What divides the step, from the report: its roles, with the outermost regions of the time in no role; or those regions alone; then the rest. Each gets a colour and its intervals; bars of no part come last.
function divide(report, gantt) {
  const regions = report.parts.filter(part => part.region !== null), roles = report.parts.filter(part => part.region === null && part.role !== null), byRegion = regions.length > 0 && !roles.length;
  const colour = (part, at) => (part.region !== null ? `--c${at % PALETTE}` : part.role !== null ? roleColour(part.role) : REST_COLOURS[part.name] || "--unknown");
  const parts = report.parts.map((part, at) => ({ ...part, label: part.clock === null ? part.name : `${part.name} on ${part.clock}`, colour: colour(part, at), intervals: part.when.map(([from, took]) => [from, from + took]) }));
  const partOf = (role, region) => { const at = parts.findIndex(part => part.wall_seconds !== null && part.role === role && (part.region === null || part.region === region)); return at < 0 ? parts.length : at; };
  division = { byRegion, parts, partOf };
  gantt.parts = parts;
  gantt.columns.part = markParts(gantt);
}

// The part of each bar: the region around it that is a part, else its own.
function markParts(gantt) {
  const { start, length, name, role } = gantt.columns, none = division.parts.length, marks = new Uint16Array(start.length).fill(none);
  for (const row of gantt.rows) row.lanes.forEach((lane, depth) => {
    const outer = depth ? row.lanes[depth - 1] : { from: 0, to: 0 };
    let around = outer.from;
    for (let i = lane.from; i < lane.to; i++) {
      while (around < outer.to && start[around] + length[around] <= start[i]) around++;
      const its = around < outer.to && start[around] <= start[i] ? division.parts[marks[around]] : undefined;
      marks[i] = its && its.region !== null ? marks[around] : division.partOf(gantt.roles[role[i]], gantt.names[name[i]]);
    }
  });
  return marks;
}
