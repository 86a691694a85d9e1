// The page of one job: figures, curve, size, changes, and what eps status prints.
const INTERVAL_MS = 1000;
// Whether the server does not answer, and when it did last.
let latest = "", isLost = false, heard = new Date();

function draw() {
  const job = DATA, names = Object.keys(job.curves).filter((name) => job.curves[name].length);
  const state = isLost ? noAnswer(heard) : job.state;
  document.title = `${job.name}: ${state}`;
  $("name").textContent = job.name; $("state").textContent = state; $("state").className = `badge ${isLost ? "lost" : job.state}`; $("about").textContent = job.reason;
  const figures = [["iterations", `${job.clock} of ${job.iterations}`], ["training loss", brief(job.loss)], ...Object.entries(job.metrics).map(([name, v]) => [`test ${name}`, brief(v)]), ["workers", brief(job.workers)], ["servers", brief(job.servers)]];
  $("figures").replaceChildren(...figures.map(([name, v]) => el("div", {}, el("dt", {}, name), el("dd", {}, v))));
  $("done").max = job.iterations || 1; $("done").value = Math.min(job.clock, job.iterations);
  if ($("of").options.length !== names.length) { const was = $("of").value; $("of").replaceChildren(...names.map((name) => el("option", { value: name }, name === "loss" ? "training loss" : name))); if (names.includes(was)) $("of").value = was; }
  $("curve-section").hidden = !names.length;
  if (names.length) drawCurve(job, job.curves[$("of").value] || job.curves[names[0]]);
  $("changes-section").hidden = !job.changes.length;
  $("changes").tBodies[0].replaceChildren(...job.changes.map(([title, phases, pause]) => el("tr", {}, el("th", { scope: "row" }, title), el("td", { class: "wide" }, phases), el("td", {}, pause ? `paused ${seconds(pause)}` : ""))).reverse());
  $("text").textContent = job.text;
  $("links").replaceChildren(...job.links.flatMap((link) => [el("a", { href: link }, link), " "]));
}
function drawCurve(job, points) {
  const known = points.map((p) => p[2]), whole = extent(known), log = spread(whole), end = Math.max(job.clock, 1), changes = job.sizes.slice(1);
  $("note").textContent = `${log ? "logarithmic; " : ""}dashed: its size changes, to workers+servers`;
  new Plot($("curve"), { height: 260, label: `${$("of").value} by iteration`, x: { range: [0, end] }, y: { range: airy(whole, log), log },
    draw: (ctx, x, y, u) => { drawChanges(ctx, changes, x, u); drawLine(ctx, points, (p) => p[1], x, y); } });
  plotSizes($("sizes"), job.sizes, { range: [0, end] }, "workers and servers by iteration");
}
async function refresh() {
  try {
    const answer = await fetch("page.json", { cache: "no-store" });
    if (answer.ok) {
      const text = await answer.text(), isNews = isLost || text !== latest;
      if (isNews) DATA = JSON.parse(text);
      latest = text; isLost = false; heard = new Date();
      if (isNews) draw();
    }
  } catch (error) { if (!isLost) { isLost = true; draw(); } }
  if (DATA.live) setTimeout(refresh, INTERVAL_MS);
}
$("of").onchange = draw;
let width = window.innerWidth;
window.addEventListener("resize", () => { if (window.innerWidth !== width) { width = window.innerWidth; draw(); } });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
draw();
if (DATA.live) setTimeout(refresh, INTERVAL_MS);
