// The whole page: its views, its events, and news of a running sweep.
let { live: isLive, reports, stops } = DATA, isDrawn = false, isStale = true, newest = "", byChoice = null, later = 0;
// Whether the server of a running sweep does not answer, and when it did last.
let isLost = false, heard = new Date();
// The key comes with the address that the command printed, behind "#", which browsers never send.
let key = null;
function takeKey() {
  const given = location.hash.match(/^#key=([\w-]+)$/), name = `key of ${location.host}${location.pathname}`;
  if (given) { key = given[1]; history.replaceState(null, "", location.pathname + location.search); }
  // A browser may forbid a page to keep anything: then the key lasts as long as the page is open.
  try { if (given) sessionStorage.setItem(name, key); else key ??= sessionStorage.getItem(name); } catch (error) { return; }
}
const canStop = () => Boolean(isLive && key && stops && !isLost);

function chosenReport() { return reports.find((each) => each.policy === $("policy").value) || reports[0]; }
function take(report) {
  const id = chosen >= 0 && sweep ? sweep.trials[chosen]?.id : null;
  sweep = report; hovered = -1;
  chosen = id == null ? -1 : sweep.trials.findIndex((t) => t.id === id);
  byResult = byChoice ?? sweep.trials.length > MOST_HUES;
  $("colour").value = byResult ? "result" : "trial";
  ids = new Map(sweep.trials.map((t, k) => [t.id, k]));
  rank(); laid = stacked(sweep.trials);
}

function drawState(state, name) {
  $("state").textContent = isLost ? noAnswer(heard) : state; $("state").className = `badge ${isLost ? "lost" : state}`;
  document.title = `${isLost ? "no answer" : name} · H-scheduler`;
}
function drawTop() {
  const { best } = sweep, counts = {}, running = sweep.trials.filter((t) => !ENDED.has(t.state) && !["queued", "paused"].includes(t.state)).length;
  for (const t of sweep.trials) counts[t.state] = (counts[t.state] || 0) + 1;
  const date = sweep.began_at ? new Date(sweep.began_at) : null;
  const name = sweep.name || (sweep.data ? `Sweep of ${sweep.model || "a model"} on ${sweep.data}` : "Sweep");
  $("name").textContent = name;
  drawState(sweep.state, name);
  $("about").textContent = [sweep.name && sweep.data ? `${sweep.model ? `${sweep.model} on ` : ""}${sweep.data}` : "", `policy ${sweep.policy}`, sweep.stop ? `stopping rule ${sweep.stop}` : "",
    date && !Number.isNaN(+date) ? date.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" }) : ""].filter(Boolean).join(" · ");
  const stoppable = canStop() ? stops.sweeps : [], which = $("which-sweep"), was = which.value;
  $("stop-sweep").hidden = !stoppable.length; which.hidden = stoppable.length < 2;
  if ([...which.options].map((each) => each.value).join() !== stoppable.join()) which.replaceChildren(...stoppable.map((each) => el("option", { value: each }, each)));
  if (stoppable.includes(was)) which.value = was;
  $("best").replaceChildren(...(best ? [
    el("div", { class: "what" }, `best ${sweep.metric}, of `, best.trial == null ? "a trial" : el("a", { href: linkTo(sweep.trials[best.trial]) }, sweep.trials[best.trial].id)),
    el("div", { class: "big" }, brief(best.value, 5)),
    el("ul", { class: "chips" }, ...Object.entries(best.point).map(([name, v]) => el("li", {}, `${name} `, el("b", {}, brief(v))))),
    ...Object.entries(best.test || {}).map(([name, v]) => el("div", { class: "what" }, `${name} ${brief(v)} on final_test`)),
  ] : [el("div", { class: "what" }, `best ${sweep.metric}`), el("div", { class: "big" }, "–"), el("div", { class: "what" }, "no trial has finished")]));
  drawStatic();
  const shown = (id, pairs) => $(id).replaceChildren(...pairs.filter(([, v]) => v != null).map(([name, v]) => el("div", {}, el("dt", {}, name), el("dd", {}, String(v)))));
  shown("figures", [["trials", sweep.planned > sweep.trials.length ? `${sweep.trials.length} of ${sweep.planned}` : sweep.trials.length], ["finished", counts.finished || 0], ["running", running || null], ["queued", counts.queued || null], ["paused", counts.paused || null],
    ["interrupted", counts.interrupted || null], ["killed", counts.killed || 0], ["failed", counts.failed || null]]);
  const f = sweep.figures, share = (v) => v == null ? null : `${(100 * v).toFixed(1)} %`, time = (v) => v == null ? null : seconds(v);
  shown("more-figures", [["vcores in use", share(f.utilisation)], ["containers computing", share(f.useful_share)], ["starting, paused or ending", share(f.waiting_share)], ["idle", share(f.idle_share)], ["resizing, of the runtime", share(f.resizing_share)],
    ["queued, median", time(f.queueing_median_s)], ["first iteration, median", time(f.first_iteration_median_s)], ["early feedback, mean", time(f.early_feedback_mean_s)], ["iterations trained", f.iterations_trained]]);
}
// The sweep's time, against what static sizes would have taken.
function drawStatic() {
  const found = sweep.static, running = !["ended", "interrupted"].includes(sweep.state), box = $("static");
  const down = sweep.interrupted_s, what = el("div", { class: "what" }, `${running ? "time so far" : "time"}${down > 0.5 ? `, without ${seconds(down)} interrupted` : ""}`), big = el("div", { class: "big" }, seconds(sweep.makespan_s));
  if (!found || !found.sizes?.length) { box.replaceChildren(what, big, el("div", { class: "what" }, found?.why ? `no comparison with static sizes: ${found.why}` : "")); return; }
  const asked = found.sizes.find((each) => each.asked) || found.sizes[0], ours = sweep.trials.filter((t) => t.state === "finished").length;
  const ratio = sweep.makespan_s / asked.makespan_s, words = ratio < .995 ? `${Math.round(100 * (1 - ratio))} % less` : ratio > 1.005 ? `${Math.round(100 * (ratio - 1))} % more` : "as much";
  const bar = (name, s, finished, kind, most) => el("div", { class: `bar ${kind}` }, el("span", {}, name), el("span", {}, `${seconds(s)}, ${finished} finished`), el("i", { style: `width:${100 * s / most}%` }));
  const row = (each, most) => bar(`static, ${each.size}, simulated`, each.makespan_s, each.finished, "simulated", most);
  const others = found.sizes.filter((each) => each !== asked), [least, longest] = extent(others.map((each) => each.makespan_s)), span = least === longest ? seconds(least) : `${seconds(least)} to ${seconds(longest)}`;
  box.replaceChildren(what, big, el("div", { class: "what" }, `${words} ${words.startsWith("as") ? "as" : "than"} the static size asked for (${seconds(asked.makespan_s)}, simulated${asked.finished === ours ? "" : `; ${counted(asked.finished, "trial")} finish${asked.finished === 1 ? "es" : ""} there, ${ours} here`})`),
    el("div", { class: "bars", id: "static-bars" }, bar(sweep.policy, sweep.makespan_s, ours, "ours", Math.max(sweep.makespan_s, asked.makespan_s)), row(asked, Math.max(sweep.makespan_s, asked.makespan_s))),
    others.length ? el("details", {}, el("summary", {}, `other static sizes: ${span}`), el("div", { class: "bars" }, ...others.map((each) => row(each, longest))),
      el("p", { class: "note" }, "The same scheduler replays this sweep's points with sizes that never change, under the same stopping rule. Where fewer trials finish, the rule stopped more of them.")) : "");
}

const PARTS = [drawBands, drawAnytime, drawCurves, drawTable, drawSpace, drawDecisions];
function draw() {
  if ($("policy").options.length !== reports.length) $("policy").replaceChildren(...reports.map((each) => el("option", { value: each.policy }, each.policy)));
  if (reports.some((each) => each.policy === named()[0])) $("policy").value = named()[0];
  const report = chosenReport(), isWaiting = !report;
  $("waiting").hidden = !isWaiting; $("summary").hidden = isWaiting; $("shown").hidden = isWaiting;
  if (isWaiting) { drawState("not started", "Sweep"); return; }
  take(report);
  $("policy").hidden = reports.length < 2;
  const of = [["curve", "training loss"], ["values", sweep.metric]].filter(([key]) => sweep.trials.some((t) => t[key]?.length));
  if ($("of").options.length !== of.length) { $("of").replaceChildren(...of.map(([key, name]) => el("option", { value: key }, name))); $("of").value = of[of.length - 1][0]; }
  // Before anything is drawn: it decides how wide the other charts are.
  $("curves-section").hidden = !sweep.trials.some((t) => t.curve.length || t.values);
  $("of").hidden = of.length < 2; $("h-curves").textContent = of.length > 1 ? "Curves" : of[0]?.[0] === "values" ? sweep.metric : "Training loss";
  drawTop();
  isStale = true;
  show();
}
// Show the view that the address names.  The sweep's is drawn again only if its data or its window have changed.
function show() {
  const [policy, name] = named(), trial = policy === sweep.policy ? ids.get(name) ?? -1 : -1, isTrial = trial >= 0;
  $("sweep").hidden = isTrial; $("trial").hidden = !isTrial;
  clearTimeout(later);
  if (isTrial) { chosen = trial; drawTrial(trial); return; }
  if (!isStale) { mark(); return; }
  plots = [];
  // The first part is painted before the others are drawn.
  const parts = [...PARTS], step = () => { parts.shift()(); if (parts.length) later = setTimeout(step); else done(); };
  if (isDrawn) { for (const part of parts) part(); done(); } else step();
}
function done() { isDrawn = true; isStale = false; }
// Draw everything in the window's new width or colours.
function redrawAll() { drawnTrial = { ...drawnTrial, from: "" }; draw(); }

// ---- stopping

function ask(text, kind, name) {
  $("sure-text").textContent = text; $("sure-yes").textContent = "Stop";
  $("sure").returnValue = "";
  $("sure").onclose = () => { if ($("sure").returnValue === "yes") stop(kind, name); };
  $("sure").showModal();
}
async function stop(kind, name) {
  try {
    const answer = await fetch(`stop?${new URLSearchParams({ [kind]: name })}`, { method: "POST", headers: { "X-Key": key } });
    $("spoken").textContent = (await answer.text()).trim();
    if (!answer.ok) throw new Error($("spoken").textContent);
  } catch (error) { alert(`${name} is not stopped: ${error.message}`); }
}

// ---- events

for (const id of ["bands", "anytime", "curves"]) $(id).addEventListener("keydown", onKeys);
$("policy").onchange = draw;
$("colour").onchange = () => { byChoice = byResult = $("colour").value === "result"; isStale = true; show(); };
$("of").onchange = $("against").onchange = () => { plots = plots.filter((each) => each.box !== $("curves")); drawCurves(); };
$("find").oninput = () => { start = 0; drawTable(); };
$("find-decision").oninput = () => { shownDecisions = DECISIONS; drawDecisions(); };
$("more-decisions").onclick = () => { shownDecisions += DECISIONS; drawDecisions(); };
$("stop-sweep").onclick = () => ask(`Stop sweep ${$("which-sweep").value}?  Its running trials end now, and no other starts.`, "sweep", $("which-sweep").value);
$("trials").tBodies[0].onclick = (event) => { const row = event.target.closest("tr"); if (row && !event.target.closest("a")) choose(+row.dataset.trial === chosen ? -1 : +row.dataset.trial); };
$("trials").tBodies[0].onkeydown = (event) => {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key], rows = [...$("trials").tBodies[0].rows], row = event.target.closest("tr");
  if (!step || !row) return;
  const next = rows[rows.indexOf(row) + step];
  if (next) { next.querySelector("a").focus(); choose(+next.dataset.trial); }
  event.preventDefault();
};
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || $("sure").open || !sweep) return;
  if (!$("trial").hidden) location.hash = "#"; else if (event.target.type !== "search") choose(-1);
});
let kept = 0;
window.addEventListener("hashchange", () => {
  if (!$("sweep").hidden) kept = window.scrollY;
  takeKey();
  if (sweep) { if (![undefined, sweep.policy].includes(named()[0])) draw(); else { drawTop(); show(); } }
  if ($("trial").hidden) window.scrollTo(0, kept); else { window.scrollTo(0, 0); $("trial").querySelector("h1").focus(); }
});
let width = window.innerWidth;
window.addEventListener("resize", () => { if (window.innerWidth !== width) { width = window.innerWidth; redrawAll(); } });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
takeKey();
draw();

// ---- news

async function refresh() {
  const began = performance.now();
  let wait = 1000;
  try {
    const answer = await fetch("page.json", { cache: "no-store" });
    // A server without a report yet answers with an error.
    if (answer.ok) {
      const text = await answer.text();
      // A reader's open question, and what is under the pointer, stay as they are.
      const isNews = (isLost || text !== newest) && !$("sure").open;
      if (isNews) { ({ reports, live: isLive, stops } = JSON.parse(text)); newest = text; isLost = false; }
      heard = new Date();
      if (isNews) draw();
    }
  } catch (error) {
    // The server has ended, restarts, or has too many connections.
    if (!isLost) { isLost = true; draw(); }
    wait = 5000;
  }
  // Slow pages are drawn less often, but a server that ends waits for the last poll (FAREWELL_S).
  if (isLive) setTimeout(refresh, Math.max(wait, Math.min(4000, 4 * (performance.now() - began))));
}
if (isLive) setTimeout(refresh, 1000);
