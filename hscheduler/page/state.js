// What is shown: the sweep, the highlighted trials, and how trials are named, coloured and described.
const HUES = 7;
// Above this number of trials, colours stand for results: no reader tells more lines apart.
const MOST_HUES = 30;
const STATES = { finished: "✓", killed: "✕", failed: "!", queued: "○", paused: "‖" };
let sweep = null, chosen = -1, hovered = -1, byResult = null, ranks = [], ids = new Map(), hues = [], laid = null, bands = [], plots = [];

const ENDED = new Set(["finished", "killed", "failed", "interrupted"]);
// Its final value, else the latest.
const valueOf = (t) => t.latest;
const better = (a, b) => sweep.direction === "maximize" ? a > b : a < b;
const stateText = (t) => `${STATES[t.state] || "▸"} ${t.state}`;
const pointText = (point) => Object.entries(point).map(([name, value]) => `${name} ${brief(value)}`).join(", ");
const sizeText = (w, s) => w + s === 0 ? "none" : s === 0 ? counted(w, "container") : `${counted(w, "worker")}, ${counted(s, "server")}`;
// With the policy, since each has a trial of that name.
const linkTo = (t) => `#trial/${encodeURIComponent(sweep.policy)}/${encodeURIComponent(t.id)}`;
const named = () => (location.hash.match(/^#trial\/([^/]+)\/([^/]+)$/) || []).slice(1).map(decoded);
// A reader may have written the address.
function decoded(text) { try { return decodeURIComponent(text); } catch (error) { return text; } }
// Return a function that gives the focus back to what has it now, by its id, if that was made anew meanwhile.
function keptFocus() {
  const { id } = document.activeElement || {};
  return () => { if (id) $(id)?.focus({ preventScroll: true }); };
}
// When its attempts began and ended; one that goes on has no end.
const triesOf = (t) => t.attempts.length ? t.attempts.map((a) => [a.started_s, a.finished_s]) : [[t.at[1], t.at[3]]];
// Without its waits for a retry, and the time for which the stopping rule had paused it.
const ranFor = (t) => t.at[1] == null ? null : triesOf(t).reduce((sum, [from, to]) => from == null ? sum : sum + (to ?? sweep.end_s) - from, -(t.rested_s || 0));
// "2+1 → 4+2 → 1+1": workers and servers, or containers that host both.
const sizesText = (t) => {
  const sizes = t.held.filter(([, w, s]) => w + s > 0).map(([, w, s]) => s ? `${w}+${s}` : `${w}`).filter((v, k, all) => v !== all[k - 1]);
  return sizes.length > 4 ? `${sizes.slice(0, 2).join(" → ")} → … → ${sizes[sizes.length - 1]}` : sizes.join(" → ") || "–";
};

// Share of the trials with a value that a trial is better than; null without one.
function rank() {
  const known = sweep.trials.map((t, k) => [valueOf(t), k]).filter(([v]) => v != null).sort(([a], [b]) => better(a, b) ? 1 : a === b ? 0 : -1);
  ranks = sweep.trials.map(() => null);
  known.forEach(([, k], place) => { ranks[k] = known.length > 1 ? place / (known.length - 1) : 1; });
}
function colorOf(k, theme) {
  if (!byResult) return theme.hues[hues[k] ?? k % HUES];
  return ranks[k] == null ? theme.none : mixed(theme.worst, theme.best, ranks[k] ** 2);
}
const themeNow = () => ({ hues: Array.from({ length: HUES }, (_, k) => css(`c${k}`)), worst: css("worst"), best: css("best"), none: css("none"), ink: css("ink"),
  soft: css("soft"), card: css("card"), mark: css("mark") });

function describe(k, more = []) {
  const t = sweep.trials[k], value = valueOf(t);
  return [t.id, stateText(t) + (value == null ? "" : `, ${sweep.metric} ${brief(value)}${t.value == null ? " so far" : ""}`), ...more, pointText(t.point)].filter(Boolean);
}

// ---- highlighting: everywhere at once

function hover(k, event, more) {
  if (event) showTip(event, k < 0 ? null : describe(k, more));
  if (k === hovered) return;
  hovered = k;
  for (const each of plots) each.highlight();
}
function mark() {
  for (const each of plots) each.highlight();
  for (const row of document.querySelectorAll("#trials tbody tr")) row.classList.toggle("chosen", +row.dataset.trial === chosen);
  markDecisions();
}
function choose(k) {
  if (k === chosen) return;
  chosen = k; hovered = -1; showTip(null, null);
  mark();
  $("spoken").textContent = k < 0 ? "nothing selected" : describe(k).join("; ");
}
// The arrow keys go from trial to trial in the order in which they started; enter opens one, escape lets go.
function onKeys(event) {
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (step) {
    const order = sweep.trials.map((t, k) => [t.at[1] ?? Infinity, k]).sort(([a, j], [b, k]) => a === b ? j - k : a - b).map(([, k]) => k);
    const at = order.indexOf(chosen);
    choose(order[at < 0 ? (step > 0 ? 0 : order.length - 1) : (at + step + order.length) % order.length]);
    event.preventDefault();
  } else if (event.key === "Enter" && chosen >= 0) location.hash = linkTo(sweep.trials[chosen]);
}
