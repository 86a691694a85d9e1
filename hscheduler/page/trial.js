// The page of one trial: its settings, its curve with its changes of size, decisions about it, its log, its attempts.

function drawTrial(k) {
  const t = sweep.trials[k], view = $("trial"), value = valueOf(t), about = sweep.decisions.filter(([, , trials]) => trials.includes(k)).reverse();
  const link = (n, text) => sweep.trials[n] ? el("a", { href: linkTo(sweep.trials[n]) }, text) : null;
  const fact = (name, text) => text == null || text === "–" ? null : el("div", {}, el("dt", {}, name), el("dd", {}, text));
  const curve = el("div", { class: "plot", id: "trial-curve" }), sizes = el("div", { class: "plot", id: "trial-sizes" });
  const stop = el("button", { class: "danger push", id: "stop-trial", onclick: () => ask(`Stop ${t.id}?  It ends now; what it has found so far stays in the report.`, "trial", t.id) }, `Stop ${t.id}`);
  stop.hidden = !canStop() || ENDED.has(t.state);
  view.replaceChildren(
    el("nav", { class: "crumbs", "aria-label": "trials" }, el("a", { href: "#", id: "back" }, "‹ all trials"), link(k - 1, "previous"), link(k + 1, "next"), stop),
    el("header", { class: "top" }, el("div", { class: "head" }, el("h1", { tabindex: "-1" }, t.id), el("span", { class: `badge ${t.state.split(" ")[0]}` }, stateText(t)), t.job ? el("span", { class: "note" }, `job ${t.job}`) : null),
      t.why ? el("p", { class: "note" }, ...linked(t.why)) : null,
      el("dl", { class: "figures" }, fact(t.value == null ? `${sweep.metric} so far` : sweep.metric, brief(value)), fact("early feedback", brief(t.feedback)), fact("iterations", t.iterations || null),
        fact("arrived", seconds(t.at[0])), fact("queued for", t.at[1] == null ? null : seconds(t.at[1] - t.at[0])), fact("ran for", seconds(ranFor(t))), fact("paused by resizing", t.pause_s ? seconds(t.pause_s) : null), fact("restarts", t.restarts || null))),
    el("section", { "aria-labelledby": "h-curve" }, el("div", { class: "head" }, el("h2", { id: "h-curve" }, t.values ? sweep.metric : "Training loss"), el("p", { class: "note" }, "dashed: its size changes, to workers+servers")), curve,
      el("div", { class: "head" }, el("h2", {}, "Containers")), sizes),
    el("div", { class: "two" },
      el("section", {}, el("div", { class: "head" }, el("h2", {}, "Settings")), el("table", { id: "settings" }, el("tbody", {}, ...Object.entries(t.point).map(([name, v]) => el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, typeof v === "number" ? String(v) : brief(v))))))),
      el("section", {}, el("div", { class: "head" }, el("h2", {}, "Attempts")), t.attempts.length ? el("table", { id: "attempts" }, el("tbody", {}, ...t.attempts.map((a) => el("tr", {}, el("th", { scope: "row" }, a.job_id), el("td", {}, a.phase), el("td", {}, `${seconds(a.started_s)} to ${seconds(a.finished_s)}`), el("td", { class: "wide" }, a.why)))))
        : el("p", { class: "note" }, t.at[1] == null ? "none yet" : `one, ${seconds(t.at[1])} to ${t.at[4] == null ? "now" : seconds(t.at[4])}`))),
    el("section", {}, el("div", { class: "head" }, el("h2", {}, "Decisions about it")), about.length ? el("ol", { class: "decisions", id: "trial-decisions" }, ...about.map(decided)) : el("p", { class: "note" }, "none")),
    t.log ? el("section", {}, el("div", { class: "head" }, el("h2", {}, "Log"), el("p", { class: "note" }, t.log[0])), el("pre", { id: "log", tabindex: "0" }, t.log.slice(1).join("\n"))) : "");
  const points = t.values || t.curve, from = t.at[1] ?? t.at[0], end = t.at[4] ?? sweep.makespan_s, theme = themeNow(), mine = [];
  const span = [from, end > from ? end : from + 1], held = t.held.filter(([at]) => at <= span[1]);
  const changes = held.filter(([, w, s], n) => n && w + s > 0);
  if (points.length) {
    const whole = usual(points.map((p) => p[2])), log = spread(whole);
    mine.push(new Plot(curve, { height: 230, label: `${t.values ? sweep.metric : "training loss"} of ${t.id} over time`, x: timeAxis(span), y: { range: airy(whole, log), log },
      draw: (ctx, x, y, u) => {
        const ratio = window.devicePixelRatio || 1, now = themeNow();
        ctx.strokeStyle = now.soft; ctx.setLineDash([3 * ratio, 3 * ratio]); ctx.lineWidth = ratio; ctx.beginPath();
        for (const [at] of changes) { ctx.moveTo(x(at), u.bbox.top); ctx.lineTo(x(at), u.bbox.top + u.bbox.height); }
        ctx.stroke(); ctx.setLineDash([]);
        ctx.fillStyle = now.soft; ctx.font = `${11 * ratio}px system-ui, sans-serif`; ctx.textBaseline = "bottom"; ctx.textAlign = "left";
        let free = -Infinity;
        for (const [at, w, s] of changes) { if (x(at) < free) continue; const text = s ? `${w}+${s}` : `${w}`; ctx.fillText(text, x(at) + 3 * ratio, u.bbox.top + u.bbox.height - 3 * ratio); free = x(at) + ctx.measureText(text).width + 8 * ratio; }
        ctx.strokeStyle = now.hues[0]; ctx.lineWidth = 2 * ratio; ctx.lineJoin = "round"; ctx.beginPath();
        let pen = false;
        for (const [at, , v] of points) { if (v == null) { pen = false; continue; } if (pen) ctx.lineTo(x(at), y(v)); else ctx.moveTo(x(at), y(v)); pen = true; }
        ctx.stroke();
      } }));
  } else curve.replaceChildren(el("p", { class: "note" }, "no value yet"));
  const most = Math.max(1, ...t.held.map(([, w, s]) => w + s));
  mine.push(new Plot(sizes, { height: 120, label: `containers of ${t.id} over time`, x: timeAxis(span), y: { range: [0, most * 1.05], values: ticks([0, most], false, 4).filter(Number.isInteger) },
    draw: (ctx, x, y) => held.forEach(([at, w, s], n) => {
      const to = n + 1 < held.length ? held[n + 1][0] : span[1], now = themeNow();
      ctx.fillStyle = now.hues[0]; ctx.fillRect(x(at), y(w + s), x(to) - x(at), y(0) - y(w + s));
      ctx.fillStyle = now.hues[1]; ctx.fillRect(x(at), y(s), x(to) - x(at), y(0) - y(s));
    }) }));
  sizes.after(el("div", { class: "key" }, el("span", {}, el("i", { style: "background:var(--c0)" }), "workers"), el("span", {}, el("i", { style: "background:var(--c1)" }), "servers, below")));
  return mine;
}
