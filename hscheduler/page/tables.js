// The table of trials, which sorts, filters and has pages; and the list of decisions.
const ROWS = 25, DECISIONS = 60, COLLATOR = new Intl.Collator(undefined, { numeric: true });
let order = null, start = 0, shownDecisions = DECISIONS;

function columnsNow() {
  const names = [...new Set(sweep.trials.flatMap((t) => Object.keys(t.point)))];
  const plain = (v) => brief(v), of = (name, read, show = plain, kind = "") => ({ name, read, show, kind });
  return [
    of("trial", (t) => t.id), of("state", (t) => t.state, (v, t) => stateText(t), "state"), of(sweep.metric, valueOf, plain, "number"),
    ...names.map((name) => of(name, (t) => t.point[name], plain, sweep.trials.some((t) => typeof t.point[name] === "number") ? "number" : "")),
    of("feedback", (t) => t.feedback, plain, "number"), of("containers", (t) => Math.max(0, ...t.held.map(([, w, s]) => w + s)), (v, t) => sizesText(t)),
    of("started", (t) => t.at[1], seconds, "number"), of("ran", ranFor, seconds, "number"), of("trained", (t) => t.iterations || null, plain, "number"), of("why", (t) => t.why || null, (v) => v ?? ""),
  ];
}
const COMPARISON = /^([\w.-]+)(<=|>=|<|>|!=|=)(.+)$/;
// "killed adam learning_rate<0.1": every word must hold: a comparison with a column, or a part of the row's text.
function filterOf(text, columns) {
  const tests = text.trim().split(/\s+/).filter(Boolean).map((word) => {
    const [, name, sign, value] = word.match(COMPARISON) || [];
    const column = name && columns.find((c) => c.name === name);
    if (!column) return (t, row) => row().includes(word.toLowerCase());
    const number = Number(value);
    return (t) => {
      const v = column.read(t);
      if (v == null) return sign === "!=";
      if (sign === "=" || sign === "!=") return (typeof v === "number" && !Number.isNaN(number) ? v === number : String(v).toLowerCase() === value.toLowerCase()) === (sign === "=");
      return typeof v === "number" && !Number.isNaN(number) && (sign === "<" ? v < number : sign === ">" ? v > number : sign === "<=" ? v <= number : v >= number);
    };
  });
  return (t) => { const row = () => columns.map((c) => c.show(c.read(t), t)).join(" ").toLowerCase(); return tests.every((test) => test(t, row)); };
}
function drawTable() {
  const columns = columnsNow(), keep = filterOf($("find").value, columns);
  const [by, sign] = order || [sweep.metric, sweep.direction === "maximize" ? -1 : 1], column = columns.find((c) => c.name === by) || columns[0];
  const rank = (t) => t.state === "finished" ? 0 : ENDED.has(t.state) ? 2 : 1;
  const rows = sweep.trials.map((t, k) => [t, k, column.read(t)]).filter(([t]) => keep(t)).sort(([a, j, u], [b, k, v]) => {
    // Without an order of the reader's: the best first, then what runs, then what was stopped.
    if (!order && rank(a) !== rank(b)) return rank(a) - rank(b);
    if (u == null || v == null) return (u == null) - (v == null) || j - k;
    return sign * (typeof u === "number" && typeof v === "number" ? u - v : COLLATOR.compare(String(u), String(v))) || j - k;
  });
  start = Math.min(start, Math.max(0, Math.floor((rows.length - 1) / ROWS) * ROWS));
  const theme = themeNow(), giveFocus = keptFocus();
  $("trials").tHead.replaceChildren(el("tr", {}, ...columns.map((c) => el("th", { scope: "col", class: c.kind === "number" ? "number" : "", "aria-sort": c === column ? (sign > 0 ? "ascending" : "descending") : null },
    el("button", { type: "button", id: `by-${c.name}`, onclick: () => { order = [c.name, c === column ? -sign : 1]; start = 0; drawTable(); } }, c.name + (c === column ? (sign > 0 ? " ↑" : " ↓") : ""))))));
  $("trials").tBodies[0].replaceChildren(...rows.slice(start, start + ROWS).map(([t, k]) => el("tr", { "data-trial": k, class: k === chosen ? "chosen" : "" }, ...columns.map((c, n) => {
    if (n === 0) return el("th", { scope: "row" }, el("span", { class: "swatch", style: `background:${colorOf(k, theme)}` }), el("a", { href: linkTo(t), id: `row-${t.id}` }, t.id));
    if (c.kind === "state") return el("td", {}, el("span", { class: t.state.split(" ")[0] }, stateText(t)));
    const text = c.show(c.read(t), t);
    return el("td", { class: c.kind, title: c.name === "why" && text ? text : null }, text);
  }))));
  const unknown = $("find").value.split(/\s+/).map((word) => word.match(COMPARISON)?.[1]).filter((name) => name && !columns.some((c) => c.name === name));
  $("find-note").textContent = (rows.length === sweep.trials.length ? counted(rows.length, "trial") : `${rows.length} of ${counted(sweep.trials.length, "trial")}`) + (unknown.length ? `; no column is named ${unknown.join(", ")}` : "");
  const turn = (step) => () => { start += step; drawTable(); $("h-trials").scrollIntoView({ block: "start" }); };
  $("pages").replaceChildren(...(rows.length <= ROWS ? [] : [
    el("button", { type: "button", disabled: start === 0, id: "previous-page", onclick: turn(-ROWS) }, "‹ previous"),
    el("span", {}, `${start + 1}–${Math.min(start + ROWS, rows.length)} of ${rows.length}`),
    el("button", { type: "button", disabled: start + ROWS >= rows.length, id: "next-page", onclick: turn(ROWS) }, "next ›"),
  ]));
  giveFocus();
}
// A sentence with a link for each trial that it names.
function linked(sentence) {
  return sentence.split(/([\w.:@-]*\w)/).map((part) => ids.has(part) ? el("a", { href: linkTo(sweep.trials[ids.get(part)]) }, part) : part);
}
const decided = ([at, sentence, about]) => el("li", { "data-about": about.join(" ") }, el("time", {}, seconds(at)), el("span", {}, ...linked(sentence)));
function drawDecisions() {
  const wanted = $("find-decision").value.toLowerCase();
  const found = sweep.decisions.filter(([, sentence]) => !wanted || sentence.toLowerCase().includes(wanted)).reverse();
  $("decisions").replaceChildren(...found.slice(0, shownDecisions).map(decided));
  $("decisions-note").textContent = `${wanted ? `${found.length} of ` : ""}${counted(sweep.decisions.length, "decision")}, the latest first${sweep.older_decisions ? `; ${sweep.older_decisions} older ones are in the report` : ""}`;
  const more = found.length - shownDecisions;
  $("more-decisions").hidden = more <= 0;
  $("more-decisions").textContent = `show ${Math.min(DECISIONS, more)} more`;
  markDecisions();
}
function markDecisions() {
  for (const each of $("decisions").children) each.classList.toggle("about", chosen >= 0 && each.dataset.about.split(" ").includes(String(chosen)));
}
