// Best so far, curves, and hyperparameters against the metric.

// The nearest trial of marks [pixel x, pixel y, trial], within ``reach``; -1 if none.
function nearest(marks, u, v, reach) {
  let [found, least] = [-1, reach * reach];
  for (let k = 0; k < marks.length; k += 3) {
    const d = (marks[k] - u) ** 2 + (marks[k + 1] - v) ** 2;
    if (d < least) { least = d; found = marks[k + 2]; }
  }
  return found;
}
function pick(marks, more = () => []) {
  const find = (u, v, plot) => Number.isNaN(u) ? -1 : nearest(marks.at, u, v, 22 * plot.ratio);
  return (plot) => ({
    hover: (u, v, event) => { const k = find(u, v, plot()); hover(k, event, k < 0 ? [] : more(k)); },
    click: (u, v) => { const k = find(u, v, plot()); choose(k === chosen ? -1 : k); },
  });
}
const dotted = (ctx, u, v, color, isFinal, ratio, r = 3.4) => {
  ctx.beginPath(); ctx.arc(u, v, r * ratio, 0, 2 * Math.PI); ctx.lineWidth = 1.6 * ratio;
  if (isFinal) { ctx.fillStyle = color; ctx.fill(); } else { ctx.strokeStyle = color; ctx.stroke(); }
};

function drawAnytime() {
  const steps = sweep.anytime, end = sweep.end_s || 1, theme = themeNow(), marks = { at: [] };
  // The first values of a sweep are far from its best: the axis shows the last and those that were the best for a while.
  const lasting = steps.filter(([at], k) => k === steps.length - 1 || steps[k + 1][0] - at > end / 50), values = (lasting.length > 1 ? lasting : steps).map(([, v]) => v).filter((v) => v != null);
  if (sweep.target) values.push(sweep.target.value);
  const whole = extent(values), log = spread(whole), range = airy(whole, log);
  let plot = null;
  $("anytime-note").textContent = steps.length ? `${sweep.metric}${log ? " (logarithmic)" : ""}, ${sweep.direction === "maximize" ? "more" : "less"} is better; of all trials, also those that were stopped`
    : "no value is known yet";
  plot = new Plot($("anytime"), {
    height: 240, label: `best ${sweep.metric} over time`, x: timeAxis([0, end]), y: { range, log },
    draw: (ctx, x, y, u) => {
      const ratio = window.devicePixelRatio || 1, now = themeNow();
      marks.at = [];
      if (!steps.length) return;
      ctx.strokeStyle = now.hues[0]; ctx.lineWidth = 2 * ratio; ctx.beginPath(); ctx.moveTo(x(steps[0][0]), y(steps[0][1]));
      steps.forEach(([at, v], k) => { ctx.lineTo(x(at), y(k ? steps[k - 1][1] : v)); ctx.lineTo(x(at), y(v)); });
      ctx.lineTo(x(end), y(steps[steps.length - 1][1])); ctx.stroke();
      for (const [at, v, k] of steps) { marks.at.push(x(at), y(v), k); dotted(ctx, x(at), y(v), now.hues[0], true, ratio, 2.4); }
      if (sweep.target) {
        ctx.strokeStyle = now.soft; ctx.setLineDash([4 * ratio, 4 * ratio]); ctx.lineWidth = ratio; ctx.beginPath();
        ctx.moveTo(u.bbox.left, y(sweep.target.value)); ctx.lineTo(x(end), y(sweep.target.value)); ctx.stroke(); ctx.setLineDash([]);
        ctx.fillStyle = now.soft; ctx.font = `${11 * ratio}px system-ui, sans-serif`; ctx.textAlign = "right"; ctx.fillText(`target ${brief(sweep.target.value)}`, x(end) - 4 * ratio, y(sweep.target.value) - 5 * ratio);
      }
    },
    over: (ctx, x, y, ratio) => { for (const [at, v, k] of steps) if (k === hovered || k === chosen) { ctx.beginPath(); ctx.arc(x(at), y(v), 5.5 * ratio, 0, 7); ctx.strokeStyle = theme.mark; ctx.lineWidth = 2 * ratio; ctx.stroke(); } },
    ...pick(marks, (k) => steps.filter((s) => s[2] === k).slice(-1).map(([at, v]) => `best at ${seconds(at)}: ${brief(v)}`))(() => plot),
  });
  plots.push(plot);
}

// A range that leaves room for most values: those of a diverged trial, or of a useless point, are outside.
function usual(values, factor = 20) {
  const known = values.filter((v) => v != null).sort((a, b) => a - b);
  if (!known.length) return [0, 1];
  const at = (share) => known[Math.min(known.length - 1, Math.floor(share * known.length))];
  const [low, high] = [known[0], known[known.length - 1]], air = factor * (at(.9) - at(.1));
  return air > 0 ? [Math.max(low, at(.1) - air), Math.min(high, at(.9) + air)] : [low, high];
}

function drawCurves() {
  const key = $("of").value || "curve", across = +$("against").value, lines = [], theme = themeNow(), marks = { at: [] };
  sweep.trials.forEach((t, k) => { const curve = t[key]; if (curve && curve.length) lines.push([k, curve]); });
  if ($("curves-section").hidden) return;
  // The first values of a curve are far from where it ends: they do not set the range.
  const late = lines.map(([, curve]) => curve.slice(Math.floor(curve.length / 10)));
  const values = late.flatMap((curve) => curve.map((p) => p[2])), whole = usual(values), log = spread(whole), range = airy(whole, log);
  const end = across ? extent(lines.flatMap(([, curve]) => [curve[curve.length - 1][1]]))[1] : sweep.end_s || 1;
  const gone = late.filter((curve) => curve.some((p) => p[2] == null || p[2] > range[1] || p[2] < range[0])).length;
  $("curves-note").textContent = `${log ? "logarithmic" : ""}${gone ? `${log ? "; " : ""}${counted(gone, "curve")} leave${gone === 1 ? "s" : ""} the chart` : ""}`;
  const trace = (ctx, curve, x, y) => {
    let pen = false;
    for (const p of curve) {
      if (p[2] == null || (log && p[2] <= 0)) { pen = false; continue; }
      const u = x(p[across]), v = y(p[2]);
      if (pen) ctx.lineTo(u, v); else ctx.moveTo(u, v);
      pen = true;
    }
  };
  let plot = null;
  plot = new Plot($("curves"), {
    height: 240, veil: () => chosen >= 0, label: `${key === "curve" ? "training loss" : sweep.metric} of each trial`, x: across ? { range: [0, end || 1] } : timeAxis([0, end]), y: { range, log },
    draw: (ctx, x, y) => {
      const ratio = window.devicePixelRatio || 1, now = themeNow(), groups = new Map();
      marks.at = [];
      for (const [k, curve] of lines) {
        const color = colorOf(k, now);
        if (!groups.has(color)) groups.set(color, []);
        groups.get(color).push(curve);
        for (const p of curve) if (p[2] != null) marks.at.push(x(p[across]), y(p[2]), k);
      }
      ctx.lineWidth = (lines.length > 100 ? 1 : 1.4) * ratio; ctx.lineJoin = "round"; ctx.globalAlpha = lines.length > 100 ? .55 : .9;
      for (const [color, curves] of groups) { ctx.strokeStyle = color; ctx.beginPath(); for (const curve of curves) trace(ctx, curve, x, y); ctx.stroke(); }
      ctx.globalAlpha = 1;
    },
    over: (ctx, x, y, ratio) => {
      for (const k of new Set([hovered, chosen])) {
        const curve = k < 0 ? null : sweep.trials[k][key];
        if (!curve || !curve.length) continue;
        for (const [color, width] of [[theme.card, 6], [byResult ? theme.mark : colorOf(k, theme), 3]]) { ctx.strokeStyle = color; ctx.lineWidth = width * ratio; ctx.lineJoin = "round"; ctx.beginPath(); trace(ctx, curve, x, y); ctx.stroke(); }
      }
    },
    ...pick(marks)(() => plot),
  });
  plots.push(plot);
}

function drawSpace() {
  const known = sweep.trials.map((t, k) => [t, k, valueOf(t)]).filter(([, , v]) => v != null), space = $("space"), theme = themeNow();
  $("space-section").hidden = !sweep.settings.length || !known.length;
  const giveFocus = keptFocus();
  space.replaceChildren();
  if ($("space-section").hidden) return;
  const whole = usual(known.map(([, , v]) => v), 3), log = spread(whole), range = airy(whole, log), inside = (v) => Math.min(whole[1], Math.max(whole[0], v));
  $("h-space").textContent = `Hyperparameters against ${sweep.metric}`;
  $("space-note").textContent = `filled: finished; hollow: its latest value${log ? `; ${sweep.metric} is logarithmic` : ""}${known.some(([, , v]) => v !== inside(v)) ? "; values far from the others lie on the edge" : ""}`;
  // All boxes first: their width depends on their number.
  const boxes = sweep.settings.map(({ name, kind }) => {
    const box = el("div", { class: "plot", tabindex: "0", id: `against-${name}` });
    space.append(el("div", {}, el("h3", {}, name, kind === "log" ? el("small", {}, " logarithmic") : null), box));
    box.addEventListener("keydown", onKeys);
    return box;
  });
  giveFocus();
  sweep.settings.forEach(({ name, kind, values }, n) => {
    // Trials need not have every setting.
    const mine = known.filter(([t]) => name in t.point), marks = { at: [] }, isChoice = kind === "choice";
    const places = isChoice ? new Map(values.map((v, k) => [typeof v + brief(v, 12), k])) : null;
    // Trials of the same choice lie beside each other.
    const at = (t, k) => isChoice ? places.get(typeof t.point[name] + brief(t.point[name], 12)) + ((k * 0.618) % 1 - .5) * .36 : t.point[name];
    const mineX = mine.map(([t, k]) => at(t, k)), isLog = kind === "log" && mineX.length > 0 && mineX.every((v) => v > 0);
    const names = isChoice ? values.map((v) => brief(v)) : null, step = isChoice ? Math.ceil(values.length / 6) : 1;
    let plot = null;
    plot = new Plot(boxes[n], {
      height: 170, veil: () => chosen >= 0, label: `${sweep.metric} by ${name}`,
      x: isChoice ? { range: [-.5, values.length - .5], values: values.map((_, k) => k), names: names.map((v, k) => k % step ? "" : v.length > 12 ? v.slice(0, 11) + "…" : v) } : { range: airy(extent(mineX), isLog), log: isLog, right: 20 },
      y: { range, log, size: 46 },
      draw: (ctx, x, y) => {
        const ratio = window.devicePixelRatio || 1, now = themeNow(), r = mine.length > 200 ? 2.2 : 3.4;
        marks.at = [];
        ctx.globalAlpha = mine.length > 200 ? .6 : .9;
        for (const [t, k, v] of mine) { const u = x(at(t, k)), w = y(inside(v)); marks.at.push(u, w, k); dotted(ctx, u, w, colorOf(k, now), t.state === "finished", ratio, r); }
        ctx.globalAlpha = 1;
      },
      over: (ctx, x, y, ratio) => {
        for (const k of new Set([hovered, chosen])) {
          const t = k < 0 ? null : sweep.trials[k], v = t && valueOf(t);
          if (!t || v == null || !(name in t.point)) continue;
          dotted(ctx, x(at(t, k)), y(inside(v)), colorOf(k, theme), true, ratio, 5); ctx.beginPath(); ctx.arc(x(at(t, k)), y(inside(v)), 6 * ratio, 0, 7); ctx.strokeStyle = theme.mark; ctx.lineWidth = 2 * ratio; ctx.stroke();
        }
      },
      ...pick(marks)(() => plot),
    });
    plots.push(plot);
  });
}
