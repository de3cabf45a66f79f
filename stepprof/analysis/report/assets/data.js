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

// A role has one colour on the whole page, in the order in which the step goes through the roles.
function roleColour(role) {
  if (role === null || role === undefined) return "--ink3";
  if (!roleColours.has(role)) roleColours.set(role, `--c${roleColours.size % PALETTE}`);
  return roleColours.get(role);
}

// When any process was in each role: [[start, end], …] in seconds, merged, from the windows and regions of all rows.
function roleIntervals(gantt) {
  if (gantt.roleIntervals) return gantt.roleIntervals;
  const { start, length, role } = gantt.columns;
  const found = new Map();
  for (const row of gantt.rows) {
    for (const lane of row.lanes) for (let i = lane.from; i < lane.to; i++) {
      const name = gantt.roles[role[i]];
      if (name === null) continue;
      if (!found.has(name)) found.set(name, []);
      found.get(name).push([gantt.origin + start[i] * gantt.tick, gantt.origin + (start[i] + length[i]) * gantt.tick]);
    }
  }
  for (const [name, intervals] of found) {
    intervals.sort((a, b) => a[0] - b[0]);
    const merged = [];
    for (const interval of intervals) {
      const last = merged[merged.length - 1];
      if (last && interval[0] <= last[1]) last[1] = Math.max(last[1], interval[1]);
      else merged.push([...interval]);
    }
    found.set(name, merged);
  }
  return gantt.roleIntervals = new Map([...found].sort((a, b) => a[1][0][0] - b[1][0][0]));
}
