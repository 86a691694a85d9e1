// Who holds what: a band for each trial, as wide as its containers, stacked.  Room that a trial gives up stays open until
// another needs it, so that bands move as little as possible.

// Places from bottom to top, each [trial, size]; a gap has no trial.
class Stack {
  constructor(room) { this.places = []; this.room = room; }
  find(trial) { return this.places.findIndex((each) => each[0] === trial); }
  resize(trial, size) {
    const { places } = this, k = this.find(trial);
    if (k < 0) {
      // The gap that fits best: the smallest that is large enough, else the largest.
      const gaps = places.map((each, n) => [each, n]).filter(([each]) => each[0] == null);
      gaps.sort(([a, j], [b, n]) => (a[1] < size) - (b[1] < size) || (a[1] < size ? b[1] - a[1] : a[1] - b[1]) || j - n);
      if (!gaps.length) { places.push([trial, size]); return; }
      const [gap, at] = gaps[0], left = gap[1] - size;
      places.splice(at, 1, [trial, size], ...(left > 0 ? [[null, left]] : []));
    } else if (size > places[k][1]) {
      let more = size - places[k][1];
      for (const next of [places[k + 1], places[k - 1]]) if (next && next[0] == null) { const used = Math.min(more, next[1]); next[1] -= used; more -= used; }
      places[k][1] = size;
    } else if (size) { places.splice(k + 1, 0, [null, places[k][1] - size]); places[k][1] = size; }
    else places[k][0] = null;
  }
  // Close gaps, from the top, until all fits; join those that lie beside each other.
  settle() {
    let over = this.places.reduce((sum, each) => sum + each[1], 0) - this.room;
    for (let k = this.places.length - 1; k >= 0 && over > 0; k--) {
      if (this.places[k][0] == null) { const closed = Math.min(over, this.places[k][1]); this.places[k][1] -= closed; over -= closed; }
    }
    this.places = this.places.filter((each) => each[1] > 0);
    for (let k = this.places.length - 1; k > 0; k--) {
      if (this.places[k][0] == null && this.places[k - 1][0] == null) { this.places[k - 1][1] += this.places[k][1]; this.places.splice(k, 1); }
    }
    while (this.places.length && this.places[this.places.length - 1][0] == null) this.places.pop();
  }
}

function stacked(trials) {
  const changes = [], sizes = new Map();
  trials.forEach((t, k) => {
    let held = 0;
    for (const [at, w, s] of t.held) { if (w + s !== held) changes.push([at, k, held = w + s]); }
  });
  changes.sort((a, b) => a[0] - b[0]);
  let most = 0, now = 0;
  for (let k = 0; k < changes.length; k++) {
    now += changes[k][2] - (sizes.get(changes[k][1]) || 0); sizes.set(changes[k][1], changes[k][2]);
    if (now > most && changes[k + 1]?.[0] !== changes[k][0]) most = now;
  }
  const stack = new Stack(Math.max(most, sweep.capacity || 0)), open = new Map(), found = [], times = [];
  let next = 0;
  hues = trials.map(() => null);
  for (let k = 0; k < changes.length;) {
    const at = changes[k][0], first = k, nth = times.length;
    times.push(at);
    while (k < changes.length && changes[k][0] === at) k++;
    // Who gives comes before who takes.
    const batch = changes.slice(first, k), grows = ([, trial, size]) => { const p = stack.find(trial); return p < 0 || size > stack.places[p][1]; };
    for (const change of batch.filter((each) => !grows(each))) stack.resize(change[1], change[2]);
    for (const change of batch.filter(grows)) if (change[2]) stack.resize(change[1], change[2]);
    stack.settle();
    let y = 0;
    const { places } = stack, there = new Set();
    places.forEach(([trial, size], p) => {
      const top = y + size;
      if (trial != null) {
        if (hues[trial] == null) {
          const near = [hues[places[p - 1]?.[0]], hues[places[p + 1]?.[0]]];
          while (near.includes(next % HUES)) next++;
          hues[trial] = next++ % HUES;
        }
        let band = open.get(trial);
        if (!band) { open.set(trial, band = { trial, at: [], low: [], high: [], end: null }); found.push(band); }
        const n = band.at.length - 1;
        if (n < 0 || band.low[n] !== y || band.high[n] !== top) { band.at.push(nth); band.low.push(y); band.high.push(top); }
        there.add(trial);
      }
      y = top;
    });
    for (const [trial, band] of open) if (!there.has(trial)) { band.end = nth; open.delete(trial); }
  }
  return { bands: found, times, most };
}

function drawBands() {
  const { bands: found, times, most } = laid, firsts = new Map();
  found.forEach((band, k) => { if (!firsts.has(band.trial)) firsts.set(band.trial, k); });
  bands = found;
  const end = sweep.end_s || 1, top = Math.max(most, sweep.capacity || 0, 1), theme = themeNow();
  const height = Math.max(220, Math.min(420, 60 + top * 26));
  let px = [], soft = [], path = [];
  // Where a boundary moves it slopes over a few pixels, so that the eye can follow it.
  const place = (x) => {
    px = times.map(x);
    const ease = 5 * (window.devicePixelRatio || 1);
    soft = px.map((v, k) => Math.max(0, Math.min(ease, (v - (px[k - 1] ?? -1e9)) / 2, ((px[k + 1] ?? 1e9) - v) / 2)));
  };
  const shape = (band, x, y, air) => {
    const p = new Path2D(), n = band.at.length, right = band.end == null ? x(end) : px[band.end];
    const at = (k) => Math.min(px[band.at[k]], right);
    const top = (k) => y(band.high[k]) + air, low = (k) => y(band.low[k]) - air;
    p.moveTo(at(0), top(0));
    for (let k = 1; k < n; k++) { const w = soft[band.at[k]], u = at(k); p.lineTo(u - w, top(k - 1)); p.bezierCurveTo(u, top(k - 1), u, top(k), u + w, top(k)); }
    p.lineTo(Math.max(right, at(0) + 1), top(n - 1)); p.lineTo(Math.max(right, at(0) + 1), low(n - 1));
    for (let k = n - 1; k > 0; k--) { const w = soft[band.at[k]], u = at(k); p.lineTo(u + w, low(k)); p.bezierCurveTo(u, low(k), u, low(k - 1), u - w, low(k - 1)); }
    p.lineTo(at(0), low(0)); p.closePath();
    return p;
  };
  const draw = (ctx, x, y) => {
    const ratio = window.devicePixelRatio || 1, unit = Math.abs(y(0) - y(1)), air = unit > 6 * ratio ? ratio : unit > 3 * ratio ? .5 * ratio : 0, now = themeNow();
    place(x);
    path = bands.map((band) => shape(band, x, y, air));
    if (sweep.capacity) {
      ctx.strokeStyle = now.soft; ctx.setLineDash([4 * ratio, 4 * ratio]); ctx.lineWidth = ratio; ctx.beginPath();
      ctx.moveTo(x(0), y(sweep.capacity)); ctx.lineTo(x(end), y(sweep.capacity)); ctx.stroke(); ctx.setLineDash([]);
    }
    bands.forEach((band, k) => {
      const color = colorOf(band.trial, now);
      ctx.fillStyle = color; ctx.fill(path[k]);
      const t = sweep.trials[band.trial], began = px[band.at[0]], stop = band.end == null ? x(end) : px[band.end];
      // Hatched until its first iteration.
      const first = t.at[2] == null ? (ENDED.has(t.state) ? began : stop) : x(t.at[2]);
      if (k === firsts.get(band.trial) && first - began > 3 * ratio) hatch(ctx, path[k], began, Math.min(first, stop), color, ratio, y);
      names(ctx, band, x, y, color, ratio, stop);
      const isLast = band.end != null && t.at[3] != null && Math.abs(times[band.end] - t.at[3]) < 1e-6 * (1 + t.at[3]);
      if (isLast && t.state !== "finished" && unit * (band.high.at(-1) - band.low.at(-1)) > 9 * ratio) {
        ctx.font = `bold ${11 * ratio}px system-ui, sans-serif`; ctx.fillStyle = inkOn(color); ctx.textAlign = "right"; ctx.textBaseline = "middle";
        if (stop - began > 34 * ratio) ctx.fillText(STATES[t.state] || "", stop - 3 * ratio, (y(band.high.at(-1)) + y(band.low.at(-1))) / 2);
      }
    });
    for (const at of sweep.interruptions) {
      ctx.strokeStyle = now.ink; ctx.setLineDash([2 * ratio, 3 * ratio]); ctx.lineWidth = ratio; ctx.beginPath(); ctx.moveTo(x(at), y(0)); ctx.lineTo(x(at), y(top)); ctx.stroke(); ctx.setLineDash([]);
    }
  };
  const hatch = (ctx, shape, from, to, color, ratio, y) => {
    ctx.save(); ctx.clip(shape); ctx.strokeStyle = inkOn(color); ctx.globalAlpha = .45; ctx.lineWidth = ratio; ctx.beginPath();
    const low = y(0), high = y(top);
    ctx.rect(from, high, to - from, low - high); ctx.clip(); ctx.beginPath();
    for (let u = from - (low - high); u < to; u += 5 * ratio) { ctx.moveTo(u, low); ctx.lineTo(u + low - high, high); }
    ctx.stroke(); ctx.restore();
  };
  // The name of a trial goes where its band is widest for long enough.
  const names = (ctx, band, x, y, color, ratio, stop) => {
    const id = sweep.trials[band.trial].id, short = id.replace(/^.*?(\d+)$/, "$1");
    let [size, from, to, mid] = [0, 0, 0, 0];
    for (let k = 0; k < band.at.length; k++) {
      const a = px[band.at[k]], b = k + 1 < band.at.length ? px[band.at[k + 1]] : stop, h = y(band.low[k]) - y(band.high[k]);
      if (h >= 12 * ratio && (b - a) * Math.min(h, 40 * ratio) > size) { size = (b - a) * Math.min(h, 40 * ratio); [from, to, mid] = [a, b, (y(band.low[k]) + y(band.high[k])) / 2]; }
    }
    if (to - from < 18 * ratio) return;
    ctx.font = `600 ${11 * ratio}px system-ui, sans-serif`;
    const room = to - from - 10 * ratio, text = ctx.measureText(id).width < room ? id : ctx.measureText(short).width < room ? short : "";
    ctx.fillStyle = inkOn(color); ctx.textAlign = "left"; ctx.textBaseline = "middle"; ctx.fillText(text, from + 6 * ratio, mid);
  };
  const over = (ctx, x, y, ratio) => {
    for (const k of new Set([chosen, hovered])) {
      bands.forEach((band, n) => {
        if (band.trial !== k || !path[n]) return;
        if (k === chosen) {
          const color = colorOf(k, theme);
          ctx.fillStyle = color; ctx.fill(path[n]); names(ctx, band, x, y, color, ratio, band.end == null ? x(end) : px[band.end]);
        }
        ctx.lineWidth = (k === hovered ? 2 : 2.5) * ratio; ctx.strokeStyle = theme.mark; ctx.stroke(path[n]);
        if (k !== chosen) return;
        ctx.font = `600 ${11 * ratio}px system-ui, sans-serif`; ctx.textAlign = "center"; ctx.textBaseline = "middle";
        const taken = [];
        for (let j = 1; j < band.at.length; j++) {
          const [was, is] = [band.high[j - 1] - band.low[j - 1], band.high[j] - band.low[j]];
          if (was === is) continue;
          const u = px[band.at[j]], v = (y(band.low[j]) + y(band.high[j])) / 2, text = `${was} → ${is}`, w = ctx.measureText(text).width / 2 + 4 * ratio;
          if (taken.some(([a, b]) => Math.abs(a - u) < 2 * w && Math.abs(b - v) < 17 * ratio)) continue;
          taken.push([u, v]);
          ctx.fillStyle = theme.card; ctx.fillRect(u - w, v - 8 * ratio, 2 * w, 16 * ratio); ctx.fillStyle = theme.ink; ctx.fillText(text, u, v);
        }
      });
    }
  };
  const under = (u, v, plot) => {
    const at = plot.plot.posToVal(u / plot.ratio - plot.plot.bbox.left / plot.ratio, "x"), c = plot.plot.posToVal(v / plot.ratio - plot.plot.bbox.top / plot.ratio, "y");
    for (const band of bands) {
      if (times[band.at[0]] > at || (band.end != null && times[band.end] <= at)) continue;
      let k = band.at.length - 1;
      while (k > 0 && times[band.at[k]] > at) k--;
      if (band.low[k] <= c && c < band.high[k]) return [band.trial, at];
    }
    return [-1, at];
  };
  const plot = new Plot($("bands"), {
    height, draw, over, veil: () => chosen >= 0, label: "containers over time, a band for each trial; arrow keys select a trial, enter opens it; the table below has the same trials",
    x: timeAxis([0, end]), y: { range: [0, top * (sweep.capacity && top > sweep.capacity ? 1 : 1.02)], size: 34, values: ticks([0, top]).filter(Number.isInteger) },
    hover: (u, v, event) => {
      const [k, at] = Number.isNaN(u) ? [-1, 0] : under(u, v, plot);
      hover(k, event, k < 0 ? [] : [`${seconds(at)}: ${sizeText(...sizeAt(sweep.trials[k], at))}`]);
    },
    click: (u, v) => { const [k] = under(u, v, plot); choose(k === chosen ? -1 : k); },
  });
  plots.push(plot);
  $("bands-key").replaceChildren(
    ...(byResult ? [el("span", {}, "worst ", el("i", { class: "ramp" }), `best ${sweep.metric}`)] : []),
    el("span", {}, el("i", { class: "hatched" }), "starting"), el("span", {}, "✕ killed"), el("span", {}, "! failed"),
    ...(sweep.capacity ? [el("span", {}, `dashed: the cluster's ${counted(sweep.capacity, "container")}`)] : []),
    ...(sweep.interruptions.length ? [el("span", {}, "dotted: interrupted and resumed")] : []),
    el("span", {}, "select a trial to see its changes of size"));
}
function sizeAt(t, at) {
  let size = [0, 0];
  for (const [from, w, s] of t.held) { if (from > at) break; size = [w, s]; }
  return size;
}
