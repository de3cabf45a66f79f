// Shades of a colour, a readable text colour on each, and text that fits.

const font = size => `${size}px Inter, "SF Pro Text", system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif`;

// Neighbouring names of one role differ in shade: the innermost level has two.
const variant = (shade, name) => (shade === 2 ? 2 + (name % 2) : shade);

// From the pale background of a window to the full colour of the innermost region, with a readable text colour on each.
function shadesOf(colour, ground) {
  const top = rgb(colour), under = rgb(ground);
  const shades = [0.26, 0.5, 0.92, 0.7].map(part => top.map((value, i) => Math.round(value * part + under[i] * (1 - part))));
  const texts = shades.map(shade => `rgb(${shade.join(" ")})`);
  texts.ink = shades.map(([r, g, b]) => (0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b) > 0.22 ? "#0d1118" : "#ffffff"));
  return texts;
}

const linear = value => ((value / 255 + 0.055) / 1.055) ** 2.4;
const rgb = hex => [1, 3, 5].map(at => parseInt(hex.slice(at, at + 2), 16));

// The class of a text on a bar of a colour: pale bars have the ink of the page.
const inkOn = colour => (/--(missing|unknown|unmatched|peers|idle)\b/.test(colour) ? "on ink" : "on");

// The name of a process in little room: what tells it from the others is at its end.
function briefName(label) {
  return label.replace(/\brank (?=\d)/, "r").replace(/\bworker (?=\d)/, "w");
}

function fittedName(ctx, label, room) {
  if (ctx.measureText(label).width <= room) return label;
  const text = briefName(label), width = ctx.measureText(text).width;
  return width <= room ? text : `…${text.slice(-Math.max(2, Math.floor((text.length * room) / width) - 1))}`;
}

const fits = new Map();

function fitted(ctx, text, room) {
  if (room < 12) return "";
  const key = `${ctx.font}|${text}`;
  if (!fits.has(key)) { if (fits.size > 20000) fits.clear(); fits.set(key, ctx.measureText(text).width); }
  const wide = fits.get(key);
  if (wide <= room) return text;
  const keep = Math.floor((text.length * room) / wide) - 1;
  return keep < 2 ? "" : `${text.slice(0, keep)}…`;
}
