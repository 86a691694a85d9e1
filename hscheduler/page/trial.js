// The page of one trial: its settings, its curve with its changes of size, decisions about it, its log, its attempts.
// What the view shows: the trial's id, and all that it was drawn from.
let drawnTrial = { id: null, from: "" };

// Draw the view of a trial, if what it shows has changed.
function drawTrial(k) {
  const t = sweep.trials[k], about = sweep.decisions.filter(([, , trials]) => trials.includes(k)).reverse();
  const from = JSON.stringify([t, about, sweep.metric, sweep.policy, t.at[3] ?? sweep.end_s, sweep.trials[k - 1]?.id, sweep.trials[k + 1]?.id, canStop(), isLost && noAnswer(heard)]);
  if (from === drawnTrial.from) return;
  const restore = t.id === drawnTrial.id ? placeOf($("trial")) : () => {};
  drawnTrial = { id: t.id, from };
  fillTrial(k, t, about);
  restore();
}
// Return a function that brings a view back to where its reader is: scroll positions, and the focus.
function placeOf(view) {
  const left = window.scrollX, top = window.scrollY, giveFocus = keptFocus();
  const scrolled = [...view.querySelectorAll("[id]")].map((each) => [each.id, each.scrollLeft, each.scrollTop]).filter(([, x, y]) => x || y);
  return () => {
    giveFocus();
    for (const [id, x, y] of scrolled) $(id)?.scrollTo(x, y);
    window.scrollTo(left, top);
  };
}
const spanText = ([from, to], state) => from == null ? "–" : `${seconds(from)} to ${to != null ? seconds(to) : ENDED.has(state) ? seconds(sweep.end_s) : "now"}`;
function fillTrial(k, t, about) {
  const view = $("trial"), value = valueOf(t);
  const link = (n, text) => sweep.trials[n] ? el("a", { href: linkTo(sweep.trials[n]), id: `${text}-trial` }, text) : null;
  const fact = (name, text) => text == null || text === "–" ? null : el("div", {}, el("dt", {}, name), el("dd", {}, text));
  const curve = el("div", { class: "plot", id: "trial-curve" }), sizes = el("div", { class: "plot", id: "trial-sizes" });
  const stop = el("button", { class: "danger push", id: "stop-trial", onclick: () => ask(`Stop ${t.id}?  It ends now; what it has found so far stays in the report.`, "trial", t.id) }, `Stop ${t.id}`);
  stop.hidden = !canStop() || ENDED.has(t.state);
  view.replaceChildren(
    el("nav", { class: "crumbs", "aria-label": "trials" }, el("a", { href: "#", id: "back" }, "‹ all trials"), link(k - 1, "previous"), link(k + 1, "next"), stop),
    el("header", { class: "top" }, el("div", { class: "head" }, el("h1", { tabindex: "-1", id: "trial-name" }, t.id), el("span", { class: `badge ${t.state.split(" ")[0]}` }, stateText(t)), isLost ? el("span", { class: "badge lost" }, noAnswer(heard)) : null, el("span", { class: "note" }, [reports.length > 1 ? `policy ${sweep.policy}` : "", t.job ? `job ${t.job}` : ""].filter(Boolean).join(" · "))),
      t.why ? el("p", { class: "note" }, ...linked(t.why)) : null,
      el("dl", { class: "figures" }, fact(t.value == null ? `${sweep.metric} so far` : sweep.metric, brief(value)), fact("early feedback", brief(t.feedback)), fact("iterations", t.iterations || null),
        fact("arrived", seconds(t.at[0])), fact("queued for", t.at[1] == null ? null : seconds(t.at[1] - t.at[0])), fact("ran for", seconds(ranFor(t))), fact("paused by the stopping rule", t.rested_s ? seconds(t.rested_s) : null), fact("paused by resizing", t.pause_s ? seconds(t.pause_s) : null), fact("restarts", t.restarts || null))),
    el("section", { "aria-labelledby": "h-curve" }, el("div", { class: "head" }, el("h2", { id: "h-curve" }, t.values ? sweep.metric : "Training loss"), el("p", { class: "note" }, "dashed: its size changes, to workers+servers")), curve,
      el("div", { class: "head" }, el("h2", {}, "Containers")), sizes),
    el("div", { class: "two" },
      el("section", {}, el("div", { class: "head" }, el("h2", {}, "Settings")), el("table", { id: "settings" }, el("tbody", {}, ...Object.entries(t.point).map(([name, v]) => el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, typeof v === "number" ? String(v) : brief(v))))))),
      el("section", {}, el("div", { class: "head" }, el("h2", {}, "Attempts")), t.attempts.length ? el("table", { id: "attempts" }, el("tbody", {}, ...t.attempts.map((a) => el("tr", {}, el("th", { scope: "row" }, a.job_id), el("td", {}, a.phase), el("td", {}, spanText([a.started_s, a.finished_s], a.phase)), el("td", { class: "wide" }, a.why)))))
        : el("p", { class: "note" }, t.at[1] == null ? (ENDED.has(t.state) ? "none" : "none yet") : `one, ${spanText(triesOf(t)[0], t.state)}`))),
    el("section", {}, el("div", { class: "head" }, el("h2", {}, "Decisions about it")), about.length ? el("ol", { class: "decisions", id: "trial-decisions" }, ...about.map(decided)) : el("p", { class: "note" }, "none")),
    t.log ? el("section", {}, el("div", { class: "head" }, el("h2", {}, "Log"), el("p", { class: "note" }, t.log[0])), el("pre", { id: "log", tabindex: "0" }, t.log.slice(1).join("\n"))) : "");
  const points = t.values || t.curve, from = t.at[1] ?? t.at[0], end = t.at[3] ?? sweep.end_s;
  const span = [from, end > from ? end : from + 1], held = t.held.filter(([at]) => at <= span[1]);
  const changes = held.filter(([, w, s], n) => n && w + s > 0);
  if (points.length) {
    const whole = usual(points.map((p) => p[2])), log = spread(whole);
    new Plot(curve, { height: 230, label: `${t.values ? sweep.metric : "training loss"} of ${t.id} over time`, x: timeAxis(span), y: { range: airy(whole, log), log },
      draw: (ctx, x, y, u) => { drawChanges(ctx, changes, x, u); drawLine(ctx, points, (p) => p[0], x, y); } });
  } else curve.replaceChildren(el("p", { class: "note" }, "no value yet"));
  plotSizes(sizes, held, timeAxis(span), `containers of ${t.id} over time`);
  sizes.after(el("div", { class: "key" }, el("span", {}, el("i", { style: "background:var(--c0)" }), "workers"), el("span", {}, el("i", { style: "background:var(--c1)" }), "servers, below")));
}
