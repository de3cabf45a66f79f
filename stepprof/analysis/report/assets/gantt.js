// The Gantt chart: rows of processes over the step, on one canvas of the size of the visible part.
// Bars narrower than a pixel are summed up to the covered part of the pixel, so that a million bars neither hide nor invent anything.

const AXIS = 24, OVERVIEW = 24, HEAD = AXIS + OVERVIEW + 6;

class Gantt {
  constructor(report, gantt, marked) {
    this.data = gantt;
    this.total = report.seconds;
    this.from = 0;
    this.to = report.seconds;
    this.match = null;
    this.marked = marked;
    this.canvas = el("canvas", { role: "img", "aria-label": `Timeline of ${gantt.rows.length} processes over ${seconds(report.seconds)}; the tables below hold its figures` });
    this.spacer = el("div");
    this.box = el("div", { class: "gantt", id: "gantt", tabindex: 0 }, this.canvas, this.spacer);
    const few = gantt.rows.length <= 10;
    this.compact = gantt.rows.length > 28 ? 15 : 22;
    for (const row of gantt.rows) row.open = few || row.kind === "spans" || marked.has(row.label);
    this.layout();
    listen(this);
    responsive(this.box, width => { this.resize(width); this.draw(); });
  }

  resize(width) {
    this.width = width;
    this.labels = Math.round(Math.min(width * 0.3, Math.max(90, 46 + 6.6 * Math.max(...this.data.rows.map(row => row.label.length))), 240)); // whole pixels
  }

  layout() {
    let y = 4;
    let host = null;
    for (const row of this.data.rows) {
      if (host !== null && row.host !== host) y += 5;
      host = row.host;
      row.y = y;
      row.height = row.open ? Math.max(1, row.lanes.length) * 17 + (row.busy.to > row.busy.from ? 8 : 0) + 5 : this.compact;
      y += row.height;
    }
    this.rowsHeight = y + 4;
  }

  get whole() { return HEAD + this.rowsHeight; }

  request() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => { this.waiting = 0; this.draw(); });
  }

  x(at) { return this.labels + ((at - this.from) / (this.to - this.from)) * (this.width - this.labels); }
  at(x) { return this.from + ((x - this.labels) / (this.width - this.labels)) * (this.to - this.from); }

  show(from, to) {
    const least = Math.min(this.total, Math.max(this.total * 1e-6, 2e-6));
    const span = Math.min(this.total, Math.max(least, to - from));
    this.from = Math.min(Math.max(0, from), this.total - span);
    this.to = this.from + span;
    this.request();
  }

  zoom(factor, around = (this.from + this.to) / 2) {
    this.show(around - (around - this.from) * factor, around + (this.to - around) * factor);
  }

  pan(shareOfView) {
    const by = (this.to - this.from) * shareOfView;
    this.show(this.from + by, this.to + by);
  }

  find(text) {
    const wanted = text.trim().toLowerCase();
    this.match = wanted ? this.data.names.map(name => name.toLowerCase().includes(wanted)) : null;
    this.request();
  }

  unfold(open) {
    for (const row of this.data.rows) row.open = open;
    this.layout();
    this.request();
  }

  // ---- drawing

  palette() {
    const style = getComputedStyle(document.documentElement);
    const read = name => style.getPropertyValue(name).trim();
    this.colours = { ink: read("--ink"), ink2: read("--ink2"), ink3: read("--ink3"), line: read("--line"), grid: read("--grid"), panel: read("--panel"), sunk: read("--sunk"), busy: read("--busy"), exposed: read("--exposed"), accent: read("--accent"), barInk: read("--bar-ink") };
    this.shades = [...this.data.parts.map(part => part.colour), "--ink3"].map(colour => shadesOf(read(colour), this.colours.panel));
  }

  draw() {
    if (!this.width) return;
    this.palette();
    const printed = this.printing;
    const height = printed ? this.whole : Math.min(this.whole, 660);
    const ratio = Math.min(3, Math.max(1, devicePixelRatio || 1));
    if (this.canvas.width !== Math.round(this.width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.width = Math.round(this.width * ratio);
      this.canvas.height = Math.round(height * ratio);
      this.canvas.style.width = `${this.width}px`;
      this.canvas.style.height = `${height}px`;
    }
    this.spacer.style.height = `${this.whole - height}px`;
    const ctx = this.ctx = this.canvas.getContext("2d");
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    ctx.fillStyle = this.colours.panel;
    ctx.fillRect(0, 0, this.width, height);
    ctx.textBaseline = "middle";
    const scroll = this.scroll = printed ? 0 : this.box.scrollTop, marks = ticks(this.from, this.to, Math.max(3, (this.width - this.labels) / 90));
    ctx.strokeStyle = this.colours.grid;
    ctx.lineWidth = 1;
    ctx.beginPath();
    for (const at of marks) { const x = Math.round(this.x(at)) + 0.5; ctx.moveTo(x, HEAD); ctx.lineTo(x, height); }
    ctx.stroke();
    ctx.save();
    ctx.beginPath();
    ctx.rect(0, HEAD, this.width, height - HEAD);
    ctx.clip();
    ctx.translate(0, HEAD - scroll);
    for (const row of this.data.rows) if (row.y + row.height > scroll && row.y < scroll + height - HEAD) this.drawRow(ctx, row);
    ctx.restore();
    this.drawHead(ctx, marks, height);
    this.canvas.dataset.painted = "yes";
  }

  drawHead(ctx, marks, height) {
    const { ink3, line, sunk, accent } = this.colours;
    const scale = (this.width - this.labels) / this.total, shown = this.data.parts.filter(part => part.intervals.length), lanes = Math.max(1, shown.length), each = (OVERVIEW - 4) / lanes;
    ctx.fillStyle = sunk;
    ctx.fillRect(this.labels, 0, this.width - this.labels, OVERVIEW);
    let lane = 0;
    for (const part of shown) {
      ctx.fillStyle = this.shades[this.data.parts.indexOf(part)][2];
      for (const [from, to] of part.intervals) ctx.fillRect(this.labels + from * scale, 2 + lane * each, Math.max(0.7, (to - from) * scale), Math.max(1, each - 1));
      lane += 1;
    }
    if (this.to - this.from < this.total * 0.9999) {
      const a = this.labels + this.from * scale, b = this.labels + this.to * scale;
      ctx.globalAlpha = 0.62;
      ctx.fillStyle = this.colours.panel;
      ctx.fillRect(this.labels, 0, a - this.labels, OVERVIEW);
      ctx.fillRect(b, 0, this.width - b, OVERVIEW);
      ctx.globalAlpha = 1;
      ctx.strokeStyle = accent;
      ctx.strokeRect(a + 0.5, 0.5, Math.max(2, b - a - 1), OVERVIEW - 1);
    }
    ctx.fillStyle = ink3;
    ctx.font = font(11);
    ctx.textAlign = "left";
    ctx.fillText("whole step", 2, OVERVIEW / 2);
    ctx.textAlign = "center";
    const length = this.to - this.from;
    for (const at of marks) {
      const x = this.x(at);
      if (x > this.labels + 14 && x < this.width - 18) ctx.fillText(moment(at, marks.step), x, OVERVIEW + AXIS / 2 + 3);
    }
    ctx.textAlign = "left";
    if (length < this.total * 0.9999) ctx.fillText(`${seconds(length)} shown`, 2, OVERVIEW + AXIS / 2 + 3);
    ctx.strokeStyle = line;
    ctx.beginPath();
    ctx.moveTo(0, HEAD - 0.5);
    ctx.lineTo(this.width, HEAD - 0.5);
    ctx.stroke();
    if (this.cursor !== undefined && this.cursor >= this.labels) {
      ctx.strokeStyle = ink3;
      ctx.setLineDash([3, 3]);
      ctx.beginPath();
      ctx.moveTo(Math.round(this.cursor) + 0.5, OVERVIEW);
      ctx.lineTo(Math.round(this.cursor) + 0.5, height);
      ctx.stroke();
      ctx.setLineDash([]);
    }
    if (this.place) this.drawPlace(ctx, height);
    if (this.selection) {
      const [a, b] = this.selection.map(at => this.x(at)).sort((p, q) => p - q);
      ctx.globalAlpha = 0.16;
      ctx.fillStyle = accent;
      ctx.fillRect(a, OVERVIEW, b - a, height - OVERVIEW);
      ctx.globalAlpha = 1;
      ctx.fillStyle = this.colours.ink;
      ctx.textAlign = "center";
      ctx.fillText(seconds(Math.abs(this.selection[1] - this.selection[0])), (a + b) / 2, HEAD + 12);
      ctx.textAlign = "left";
    }
  }

  // The stretch of a finding, from `showPlace`.
  drawPlace(ctx, height) {
    const a = Math.max(this.labels, this.x(this.place.start)), b = Math.min(this.width, this.x(this.place.end));
    if (b < this.labels || a > this.width) return;
    const row = this.data.rows.find(each => each.label === this.place.process);
    ctx.save();
    ctx.beginPath();
    ctx.rect(this.labels - 2, OVERVIEW, this.width - this.labels + 2, height - OVERVIEW);
    ctx.clip();
    ctx.strokeStyle = ctx.fillStyle = this.colours.exposed;
    ctx.globalAlpha = 0.1;
    ctx.fillRect(a, HEAD, Math.max(2, b - a), height - HEAD);
    ctx.globalAlpha = 1;
    ctx.fillRect(a, HEAD - 4, Math.max(2, b - a), 4);
    ctx.lineWidth = 2;
    if (row) ctx.strokeRect(a, HEAD + row.y - this.scroll, Math.max(2, b - a), row.height);
    ctx.restore();
  }

  // Zooms to a stretch with some room around it, marks it, and unfolds and shows its row.
  showPlace(place) {
    const room = Math.max((place.end - place.start) * 0.6, this.total * 0.02), row = this.data.rows.find(each => each.label === place.process);
    this.place = place;
    if (row && !row.open) { row.open = true; this.layout(); }
    this.show(place.start - room, place.end + room);
    this.draw();
    if (row) this.box.scrollTop = Math.max(0, row.y - 60);
  }

  drawRow(ctx, row) {
    const { ink, ink2, exposed, grid } = this.colours;
    const small = row.height < 18, middle = row.open ? row.y + 11 : row.y + row.height / 2;
    ctx.textAlign = "left";
    ctx.font = font(small ? 10.5 : 12);
    ctx.fillStyle = row.open ? ink : ink2;
    if (this.hovered === row) { ctx.fillStyle = grid; ctx.fillRect(0, row.y, this.labels - 8, row.height); ctx.fillStyle = ink; }
    ctx.fillText(`${row.open ? "\u25be" : "\u25b8"}`, 3, middle + 0.5);
    ctx.fillText(fittedName(ctx, row.label, this.labels - 34), 16, middle + 0.5);
    if (this.marked.has(row.label)) {
      ctx.fillStyle = exposed;
      ctx.beginPath();
      ctx.arc(this.labels - 14, middle, 3.2, 0, 7);
      ctx.fill();
    }
    ctx.save();
    ctx.beginPath();
    ctx.rect(this.labels, row.y, this.width - this.labels, row.height);
    ctx.clip();
    const has = row.busy.to > row.busy.from;
    if (row.open) {
      row.lanes.forEach((lane, depth) => this.drawLane(ctx, lane, row.y + 2 + depth * 17, 15, Math.min(2, depth + 1), true));
      if (has) this.drawBusy(ctx, row.busy, row.y + row.lanes.length * 17 + 3, 5);
    } else {
      const strip = has ? 3 : 0;
      row.lanes.forEach((lane, depth) => {
        const inset = depth === 0 ? 0 : Math.min(depth, 3) - 1;
        this.drawLane(ctx, lane, row.y + 1 + inset, row.height - 2 - strip - inset, Math.min(2, depth), false);
      });
      if (has) this.drawBusy(ctx, row.busy, row.y + row.height - 4, 2.5);
    }
    ctx.restore();
  }

  // The first bar of a lane that may be visible. Lanes are sorted by start, and bars of one lane rarely overlap; the longest bar bounds how early it may start.
  first(from, to, start, length, seen) {
    const { columns, tick, origin } = this.data;
    if (seen.longest === undefined) {
      seen.longest = 0;
      for (let i = from; i < to; i++) seen.longest = Math.max(seen.longest, columns[length][i]);
    }
    const earliest = (this.from - origin) / tick - seen.longest;
    let low = from, high = to;
    while (low < high) { const middle = (low + high) >> 1; if (columns[start][middle] < earliest) low = middle + 1; else high = middle; }
    return low;
  }

  drawLane(ctx, lane, y, height, shade, named) {
    const { columns: { start, length, name, part }, tick, origin, names } = this.data;
    const scale = ((this.width - this.labels) / (this.to - this.from)) * tick, offset = this.labels - ((this.from - origin) / tick) * scale;
    let pixel = -1, covered = 0, widest = 0, colour = "";
    const flush = () => {
      if (covered > 0) { ctx.globalAlpha = Math.min(1, 0.2 + covered * 0.8); ctx.fillStyle = colour; ctx.fillRect(pixel, y, 1, height); ctx.globalAlpha = 1; }
      covered = widest = 0;
    };
    if (named) ctx.font = font(11);
    for (let i = this.first(lane.from, lane.to, "start", "length", lane); i < lane.to; i++) {
      const a = offset + start[i] * scale, wide = length[i] * scale, b = a + wide;
      if (a > this.width) break;
      if (b < this.labels) continue;
      const off = this.match && !this.match[name[i]];
      const paint = this.shades[part[i]][variant(shade, name[i])];
      if (wide >= 1.5) {
        flush();
        pixel = -1;
        ctx.globalAlpha = off ? 0.16 : 1;
        ctx.fillStyle = paint;
        const left = Math.max(a, this.labels - 4), right = Math.min(b, this.width + 4), gap = right - left > 4 ? 1 : 0;
        if (height > 9 && right - left > 6) { ctx.beginPath(); ctx.roundRect(left, y, right - left - gap, height, 2.5); ctx.fill(); }
        else ctx.fillRect(left, y, Math.max(0.8, right - left - gap), height);
        if (named && right - left > 26) {
          ctx.fillStyle = this.shades[part[i]].ink[variant(shade, name[i])];
          ctx.fillText(fitted(ctx, names[name[i]], right - Math.max(left, this.labels) - 10), Math.max(left, this.labels) + 5, y + height / 2 + 0.5);
        }
        ctx.globalAlpha = 1;
      } else if (!off) {
        const at = Math.floor(a);
        if (at !== pixel) { flush(); pixel = at; }
        covered += Math.max(wide, 0.02);
        if (wide >= widest) { widest = wide; colour = paint; }
      }
    }
    flush();
  }

  drawBusy(ctx, busy, y, height) {
    const { columns: { busy_start: start, busy_length: length }, tick, origin } = this.data;
    const scale = ((this.width - this.labels) / (this.to - this.from)) * tick, offset = this.labels - ((this.from - origin) / tick) * scale;
    const cover = new Float32Array(Math.ceil(this.width) + 2);
    for (let i = this.first(busy.from, busy.to, "busy_start", "busy_length", busy); i < busy.to; i++) {
      const a = Math.max(this.labels, offset + start[i] * scale), b = Math.min(this.width, offset + (start[i] + length[i]) * scale);
      if (a > this.width) break;
      if (b <= a) continue;
      const first = Math.floor(a), last = Math.floor(b);
      if (first === last) { cover[first] += b - a; continue; }
      cover[first] += first + 1 - a;
      for (let p = first + 1; p < last; p++) cover[p] += 1;
      cover[last] += b - last;
    }
    ctx.fillStyle = this.colours.busy;
    for (let p = this.labels; p < cover.length; p++) {
      if (cover[p] <= 0.01) continue;
      let end = p + 1;
      while (end < cover.length && cover[end] > 0.01 && Math.abs(cover[end] - cover[p]) < 0.04) end++;
      ctx.globalAlpha = Math.min(0.85, 0.1 + cover[p] * 0.75);
      ctx.fillRect(p, y, end - p, height);
      p = end - 1;
    }
    ctx.globalAlpha = 1;
  }

  // ---- the bar under the pointer

  rowAt(y) {
    const inside = y - HEAD + this.box.scrollTop;
    return y < HEAD ? null : this.data.rows.find(row => inside >= row.y && inside < row.y + row.height) || null;
  }

  barAt(row, x, y) {
    const { columns: { start, length }, tick, origin } = this.data;
    const inside = y - HEAD + this.box.scrollTop - row.y, at = (this.at(x) - origin) / tick;
    const slack = ((this.to - this.from) / (this.width - this.labels) / tick) * 1.5;
    const lanes = row.open ? [Math.floor((inside - 2) / 17)] : row.lanes.map((_, depth) => row.lanes.length - 1 - depth);
    for (const depth of lanes) {
      const lane = row.lanes[depth];
      if (!lane) continue;
      let best = -1;
      for (let i = this.first(lane.from, lane.to, "start", "length", lane); i < lane.to && start[i] <= at + slack; i++)
        if (start[i] + length[i] >= at - slack && (best < 0 || length[i] > length[best] || start[best] + length[best] < at)) best = i;
      if (best >= 0) return { index: best, depth };
    }
    return null;
  }

  describe(event, row, x, y) {
    const found = x >= this.labels ? this.barAt(row, x, y) : null;
    if (!found) return [row.label, [["host", row.host || NOTHING], ["at", seconds(this.at(Math.max(this.labels, x)))]], x < this.labels ? (row.open ? "Click to fold" : "Click to unfold") : "nothing recorded here"];
    const { columns: { start, length, name, role }, tick, origin, names, roles } = this.data, i = found.index;
    return [names[name[i]], [
      ["took", seconds(length[i] * tick)], ["from", seconds(origin + start[i] * tick)], ["to", seconds(origin + (start[i] + length[i]) * tick)],
      ["role", roles[role[i]] || "step"], ["process", row.label], ["host", row.host || NOTHING]]];
  }

  center(x) {
    const at = ((x - this.labels) / (this.width - this.labels)) * this.total, half = (this.to - this.from) / 2;
    this.show(at - half, at + half);
  }
}
