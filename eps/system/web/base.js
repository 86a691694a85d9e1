// Helpers of all pages: elements, words for numbers, colours, and charts: uPlot draws axes, a chart its own marks.
const $ = (id) => document.getElementById(id);
let DATA = JSON.parse($("data").textContent);

// ---- elements: text goes into text nodes only, so that no name or log line is ever read as markup

function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value != null && value !== false) made.setAttribute(name, value);
  }
  made.append(...children.filter((each) => each != null));
  return made;
}

// ---- words

const seconds = (s) => {
  if (s == null) return "–";
  if (s < 10) return `${+s.toFixed(2)} s`;
  if (s < 120) return `${+s.toFixed(1)} s`;
  if (s < 7200) return `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`.replace(" 60 s", " 59 s");
  return `${Math.floor(s / 3600)} h ${Math.floor(s % 3600 / 60)} min`;
};
const brief = (v, digits = 4) => {
  if (v == null) return "–";
  if (typeof v !== "number") return typeof v === "object" ? JSON.stringify(v) : String(v);
  const size = Math.abs(v);
  if (Number.isInteger(v) && size < 1e7) return String(v);
  return size < 1e-3 || size >= 1e7 ? v.toExponential(digits > 3 ? 2 : 1).replace(/\.?0+e/, "e").replace("e+", "e") : String(+v.toPrecision(digits));
};
// The state of a page whose server does not answer, with the time of its data.
const noAnswer = (heard) => `no answer, as of ${heard.toTimeString().slice(0, 5)}`;
const counted = (n, noun) => `${n} ${noun}${n === 1 ? "" : "s"}`;

// ---- colours

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const channels = (hex) => [1, 3, 5].map((k) => parseInt((hex.length === 4 ? "#" + [...hex.slice(1)].map((c) => c + c).join("") : hex).slice(k, k + 2), 16));
const mixed = (from, to, share) => `rgb(${channels(from).map((v, k) => Math.round(v + (channels(to)[k] - v) * share)).join(" ")})`;
const rgbOf = (color) => color.startsWith("#") ? channels(color) : color.match(/\d+/g).map(Number);
// Black or white, whichever can be read on a colour.
const inkOn = (color) => { const [r, g, b] = rgbOf(color); return .299 * r + .587 * g + .114 * b > 145 ? "#10151b" : "#fff"; };

// ---- axes

function extent(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const v of values) if (v != null) { if (v < low) low = v; if (v > high) high = v; }
  return low > high ? [0, 1] : [low, high];
}
const spread = ([low, high]) => low > 0 && high / low > 50;
// At most ``most`` round values in the range: steps of 1, 2 or 5 times a power of ten.
function ticks([low, high], log = false, most = 6) {
  if (!Number.isFinite(low) || !Number.isFinite(high) || (log && low <= 0)) return [];
  if (!(high > low)) return [low];
  if (!log) {
    const rough = (high - low) / (most - 1), ten = 10 ** Math.floor(Math.log10(rough)), found = [];
    const step = ten * [1, 2, 5, 10].find((m) => m === 10 || m * ten >= rough);
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) found.push(+(k * step).toPrecision(12));
    return found;
  }
  const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
  for (const [each, every] of [[[1, 2, 5], 1], [[1, 3], 1], [[1], 1], [[1], 2], [[1], 5], [[1], 20], [[1], 100]]) {
    const found = [];
    for (let e = first; e <= last; e++) if (e % every === 0) found.push(...each.map((m) => +`${m}e${e}`));
    const inside = found.filter((v) => v >= low && v <= high);
    if (inside.length <= most) return inside;
  }
  return [];
}
// A time axis from seconds, with round numbers of one unit.
function timeAxis([low, high]) {
  const [unit, name] = high >= 7200 ? [3600, "h"] : high >= 300 ? [60, "min"] : [1, "s"];
  return { range: [low, high], ticks: (most) => ticks([low / unit, high / unit], false, most).map((v) => v * unit), format: (v) => `${+(v / unit).toPrecision(6)} ${name}` };
}
// A range with some air around its values.
function airy([low, high], log) {
  if (log) { const air = (high / low) ** .04; return low === high ? [low / 2, high * 2] : [low / air, high * air]; }
  const air = (high - low) * .05 || Math.abs(high) * .1 || .5;
  return [low - air, high + air];
}

// One chart.  ``draw(ctx, x, y, u)`` draws its marks, with functions from values to canvas pixels; ``over`` draws what is
// highlighted on a canvas above, which is cheap to draw again; where ``veil()`` holds, all else is faint.
// Charts that were made: uPlot keeps each until it is destroyed.
let made = [];
class Plot {
  constructor(box, { height, x, y, draw, over = () => {}, veil = () => false, hover = () => {}, click = () => {}, label }) {
    Object.assign(this, { box, over, veil, ratio: window.devicePixelRatio || 1 });
    const width = Math.max(240, box.clientWidth || 480);
    const scale = (s) => ({ time: false, range: () => s.range, distr: s.log ? 3 : 1, log: 10 });
    const axis = (s, side) => {
      const most = side === 2 ? Math.max(4, Math.min(9, Math.floor((width - 60) / 70))) : Math.max(3, Math.min(6, Math.floor(height / 38)));
      const at = s.values || (s.ticks ? s.ticks(most) : ticks(s.range, s.log, most));
      return { side, stroke: () => css("soft"), font: `${11}px system-ui, sans-serif`, grid: { stroke: () => css("grid"), width: 1 }, ticks: { show: false }, gap: 5,
        size: side === 2 ? 26 : s.size || 50, splits: () => at, filter: (u, found) => found, values: () => at.map((v, k) => s.names ? s.names[k] : s.format ? s.format(v) : brief(v)) };
    };
    const at = (u, key) => (v) => u.valToPos(v, key, true);
    box.replaceChildren();
    for (const each of made) if (!each.root.isConnected) each.destroy();
    made = made.filter((each) => each.root.isConnected);
    // uPlot takes its height later: what is below must not move meanwhile.
    box.style.minHeight = `${height}px`;
    this.plot = new uPlot({
      width, height, padding: [8, x.right ?? 14, 0, 0], scales: { x: scale(x), y: scale(y) }, axes: [axis(x, 2), axis(y, 3)], series: [{}, { paths: () => null, points: { show: false } }],
      legend: { show: false }, cursor: { drag: { x: false, y: false }, points: { show: false }, x: false, y: false },
      hooks: { draw: [(u) => {
        const { left, top, width: w, height: h } = u.bbox;
        u.ctx.save(); u.ctx.beginPath(); u.ctx.rect(left - 1, top - 1, w + 2, h + 2); u.ctx.clip();
        draw(u.ctx, at(u, "x"), at(u, "y"), u);
        u.ctx.restore();
        // What is highlighted may be drawn from what this drawing has found.
        this.highlight();
      }] },
    }, [x.range, y.range], box);
    const { plot } = this;
    made.push(plot);
    this.above = el("canvas", { class: "over", "aria-hidden": "true" });
    plot.root.querySelector(".u-wrap").append(this.above);
    plot.root.setAttribute("role", "img"); plot.root.setAttribute("aria-label", label);
    // A box that takes the focus is named after its chart.
    if (box.tabIndex >= 0) { box.setAttribute("role", "group"); box.setAttribute("aria-label", label); }
    const spot = (event) => { const r = plot.over.getBoundingClientRect(); return [(event.clientX - r.left) * this.ratio + plot.bbox.left, (event.clientY - r.top) * this.ratio + plot.bbox.top]; };
    plot.over.addEventListener("pointermove", (event) => hover(...spot(event), event));
    plot.over.addEventListener("pointerleave", (event) => hover(NaN, NaN, event));
    plot.over.addEventListener("click", (event) => click(...spot(event), event));
  }
  x(v) { return this.plot.valToPos(v, "x", true); }
  y(v) { return this.plot.valToPos(v, "y", true); }
  highlight() {
    const { above, plot } = this, base = plot.ctx.canvas;
    if (above.width !== base.width || above.height !== base.height) { above.width = base.width; above.height = base.height; }
    const ctx = above.getContext("2d"), { left, top, width, height } = plot.bbox;
    ctx.clearRect(0, 0, above.width, above.height);
    ctx.save(); ctx.beginPath(); ctx.rect(left - 1, top - 1, width + 2, height + 2); ctx.clip();
    if (this.veil()) { ctx.globalAlpha = .75; ctx.fillStyle = css("card"); ctx.fillRect(left - 1, top - 1, width + 2, height + 2); ctx.globalAlpha = 1; }
    this.over(ctx, (v) => this.x(v), (v) => this.y(v), this.ratio);
    ctx.restore();
  }
}

// ---- marks of one job

// A curve of [.., value] points; ``at`` reads a point's place on the x axis.
function drawLine(ctx, points, at, x, y) {
  ctx.strokeStyle = css("c0"); ctx.lineWidth = 2 * (window.devicePixelRatio || 1); ctx.lineJoin = "round"; ctx.beginPath();
  let pen = false;
  for (const p of points) {
    if (p[2] == null) { pen = false; continue; }
    if (pen) ctx.lineTo(x(at(p)), y(p[2])); else ctx.moveTo(x(at(p)), y(p[2]));
    pen = true;
  }
  ctx.stroke();
}
// A dashed line at each change of size [at, workers, servers], with the size after it.
function drawChanges(ctx, changes, x, u) {
  const ratio = window.devicePixelRatio || 1, { top, height } = u.bbox;
  ctx.strokeStyle = css("soft"); ctx.setLineDash([3 * ratio, 3 * ratio]); ctx.lineWidth = ratio; ctx.beginPath();
  for (const [at] of changes) { ctx.moveTo(x(at), top); ctx.lineTo(x(at), top + height); }
  ctx.stroke(); ctx.setLineDash([]);
  ctx.fillStyle = css("soft"); ctx.font = `${11 * ratio}px system-ui, sans-serif`; ctx.textBaseline = "bottom"; ctx.textAlign = "left";
  let free = -Infinity;
  for (const [at, w, s] of changes) {
    if (x(at) < free) continue;
    const text = s ? `${w}+${s}` : `${w}`;
    ctx.fillText(text, x(at) + 3 * ratio, top + height - 3 * ratio); free = x(at) + ctx.measureText(text).width + 8 * ratio;
  }
}
// Its containers over time or iterations: servers below, workers above.
function plotSizes(box, sizes, x, label) {
  const most = Math.max(1, ...sizes.map(([, w, s]) => w + s));
  return new Plot(box, { height: 120, label, x, y: { range: [0, most * 1.05], values: ticks([0, most], false, 4).filter(Number.isInteger) },
    draw: (ctx, u, v) => sizes.forEach(([at, w, s], n) => {
      const to = n + 1 < sizes.length ? sizes[n + 1][0] : x.range[1];
      ctx.fillStyle = css("c0"); ctx.fillRect(u(at), v(w + s), u(to) - u(at), v(0) - v(w + s));
      ctx.fillStyle = css("c1"); ctx.fillRect(u(at), v(s), u(to) - u(at), v(0) - v(s));
    }) });
}

// ---- what is under the pointer

const tip = el("div", { id: "tip", role: "tooltip", hidden: true });
document.body.append(tip);
function showTip(event, lines) {
  tip.hidden = !lines;
  if (!lines) return;
  const [title, ...more] = lines;
  tip.replaceChildren(el("b", {}, title), ...more.map((line) => el("div", {}, line)));
  const { offsetWidth: w, offsetHeight: h } = tip, room = document.documentElement.clientWidth;
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, room - w - 6))}px`;
  tip.style.top = `${event.clientY + 16 + h > window.innerHeight ? event.clientY - h - 10 : event.clientY + 16}px`;
}
