// The dashboard: asks /dashboard/data twice a second and draws the differences. Plain SVG and one canvas, no library:
// what it draws is few, and the page must stand on its own. docs/dashboard.md tells what is shown.
"use strict";

const POLL_MS = 500;
const SPAN_S = 120;           // of the charts over time
const NOW_S = 5;              // of the numbers that say "now"
const RECENT_S = 10;          // of the histograms and percentiles
const LARGE_DRIFT = 1.25;     // above which a profile's drift is red: where the server logs it
const LANE_S = 1.2;           // of the GPUs' lanes
const LANE_DELAY_S = 0.8;     // they lag so much, so that batches are there before they come into view
const COLOURS = 9;            // models with a colour of their own; the others share one
const CAUSES = ["late", "dropped", "cancelled", "overloaded", "failed"];
const STAGES = ["queue", "dispatch", "run", "answer"];
const IN_TIME = 40;           // buckets of latency up to the SLO

const by = (id) => document.getElementById(id);
const still = matchMedia("(prefers-reduced-motion: reduce)");

const state = {
  answers: [],                // the last answers, oldest first, RECENT_S of them
  points: [],                 // a point a second: {t, good: Map, outcomes, busy}
  colours: new Map(),         // a model's colour, by its id
  lanes: new Map(),           // batches by GPU
  cursor: "",
  chosen: null,               // a model's id
  profile: null,
  offset: null,               // the server's time less ours, seconds
  paused: false,
  failures: 0,
};

// ---- asking ----------------------------------------------------------------------------------------------------------

async function ask() {
  const query = new URLSearchParams();
  if (state.cursor) query.set("since", state.cursor);
  if (state.points.length === 0) query.set("history", "1");
  if (state.chosen !== null) query.set("model", state.chosen);
  const response = await fetch(`/dashboard/data?${query}`, { cache: "no-store", signal: AbortSignal.timeout(5000) });
  if (!response.ok) throw new Error(`HTTP ${response.status}`);
  return response.json();
}

async function turn() {
  if (!state.paused && document.visibilityState === "visible") {
    try {
      take(await ask());
      state.failures = 0;
      draw();
    } catch (error) {
      state.failures += 1;
      if (state.failures > 1) showTrouble("no answer from the server");
    }
  }
  setTimeout(turn, POLL_MS * Math.min(8, 1 + state.failures));
}

function take(answer) {
  const t = answer.now_us / 1e6;
  const last = state.answers.at(-1);
  if (last && t < last.t) {                     // another server is there now: it counts from its own start
    location.reload();
    return;
  }
  state.offset = t - performance.now() / 1000;
  state.answers.push({ t, ...answer, byId: new Map(answer.models.map((m) => [m.id, m])) });
  while (state.answers.length > 2 && state.answers[1].t < t - RECENT_S) state.answers.shift();
  if (answer.history) takeHistory(answer.history);
  if (state.points.length === 0 || t >= state.points.at(-1).t + 1) {
    const outcomes = {};
    for (const model of answer.models) {
      for (const [name, count] of Object.entries(model.outcomes)) outcomes[name] = (outcomes[name] ?? 0) + count;
    }
    state.points.push({ t, good: new Map(answer.models.map((m) => [m.id, m.outcomes.good])), outcomes });
  }
  while (state.points.length > 2 && state.points[1].t < t - SPAN_S) state.points.shift();
  if (answer.profile) state.profile = answer.profile;
  for (const model of answer.models) {
    if (!state.colours.has(model.id)) state.colours.set(model.id, Math.min(state.colours.size, COLOURS));
  }
  state.cursor = answer.batches.cursor;
  for (const [gpu, model, from, to, size, cancelled] of answer.batches.list) {
    if (!state.lanes.has(gpu)) state.lanes.set(gpu, []);
    state.lanes.get(gpu).push({ model, from: from / 1e6, to: to / 1e6, size, cancelled });
  }
  for (const batches of state.lanes.values()) {
    const gone = batches.findIndex((batch) => batch.to > t - LANE_S - LANE_DELAY_S - 1);
    batches.splice(0, gone < 0 ? batches.length : gone);
  }
}

function takeHistory(history) {
  state.points = history.at_us.map((at, n) => ({
    t: at / 1e6,
    good: new Map(history.models.map((m) => [m.id, m.good[n]])),
    outcomes: history.outcomes[n],
  }));
}

// ---- numbers ---------------------------------------------------------------------------------------------------------

/** The answer that is `seconds` older than the newest, or the oldest. */
function before(seconds) {
  const newest = state.answers.at(-1);
  return state.answers.findLast((a) => a.t <= newest.t - seconds) ?? state.answers[0];
}

/** What a model counted since an answer before, by name. */
function since(then, model, count) {
  const earlier = then.byId.get(model.id);
  return count(model) - (earlier ? count(earlier) : 0);
}

function list(then, model, name) {
  const earlier = then.byId.get(model.id)?.[name];
  return model[name].map((count, n) => count - (earlier ? earlier[n] : 0));
}

const badOf = (outcomes) => CAUSES.reduce((sum, cause) => sum + (outcomes[cause] ?? 0), 0);
const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);

/** The share of the SLO under which the fastest `share` of these requests are; NaN for none. */
function quantile(buckets, share) {
  let left = sum(buckets) * share;
  if (left <= 0) return NaN;
  for (let n = 0; n < buckets.length; n++) {
    if (left <= buckets[n]) return (n + left / buckets[n]) / IN_TIME;
    left -= buckets[n];
  }
  return buckets.length / IN_TIME;
}

function short(number) {
  if (!Number.isFinite(number)) return "–";
  if (number >= 99_950) return `${(number / 1000).toFixed(0)}k`;
  if (number >= 9_995) return `${(number / 1000).toFixed(1)}k`;
  if (number >= 100) return number.toFixed(0);
  return number.toFixed(number >= 10 ? 1 : 2).replace(/\.?0+$/, "");
}

const percent = (share) => (share === 0 ? "0" : share < 0.0995 ? (share * 100).toFixed(2) : (share * 100).toFixed(1));
const ms = (us) => `${short(us / 1000)} ms`;
const colour = (id) => `var(--c${state.colours.get(id) ?? COLOURS})`;
const title = (model) => (model.version > 1 ? `${model.name} v${model.version}` : model.name);

// ---- drawing ---------------------------------------------------------------------------------------------------------

function draw() {
  const now = state.answers.at(-1);
  const then = before(NOW_S);
  const seconds = now.t - then.t || NaN;
  drawStatus(now);
  drawTiles(now, then, seconds);
  drawGoodput(now);
  drawBad(now);
  drawMemory(now);
  drawRows(now, then, seconds);
  drawLinks(now.links, then.links, seconds);
  drawDetail(now);
  if (still.matches || document.hidden) drawLanes();
}

function drawStatus(now) {
  const status = by("status");
  const words = now.ready ? "ready" : `not ready: ${now.reasons.join("; ")}`;
  if (status.textContent !== words) status.textContent = words;
  status.className = now.ready ? "status ready" : "status trouble";
  by("server").textContent = `${location.host} · version ${now.version} · up ${duration(now.t)}`;
}

function duration(seconds) {
  const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const at = Math.max(0, parts.findIndex(([size]) => seconds >= size));
  const [size, unit] = parts[at];
  const rest = parts[at + 1] && Math.floor((seconds % size) / parts[at + 1][0]);
  return `${Math.floor(seconds / size)} ${unit}${rest ? ` ${rest} ${parts[at + 1][1]}` : ""}`;
}

function showTrouble(words) {
  by("status").textContent = words;
  by("status").className = "status trouble";
}

function drawTiles(now, then, seconds) {
  const outcome = (name) => sum(now.models.map((m) => since(then, m, (x) => x.outcomes[name])));
  const good = outcome("good");
  const causes = CAUSES.map((cause) => [cause, outcome(cause)]);
  const bad = sum(causes.map(([, count]) => count));
  const offered = good + bad;
  const rate = offered ? bad / offered : 0;
  by("goodput").textContent = short(good / seconds);
  by("offered").textContent = `of ${short(offered / seconds)} offered`;
  by("bad").textContent = percent(rate);
  by("bad").className = rate > 0.01 ? "high" : "";
  const worst = causes.filter(([, count]) => count > 0).sort((a, b) => b[1] - a[1]);
  by("causes").textContent = worst.map(([cause, count]) => `${short((count / offered) * 100)} % ${cause}`).join(", ") || "all in time";
  const batches = sum(now.models.map((m) => since(then, m, (x) => x.batches)));
  const rows = sum(now.models.map((m) => since(then, m, (x) => x.rows)));
  by("batch").textContent = batches ? short(rows / batches) : "–";
  by("batches").textContent = `${short(batches / seconds)} batches/s`;
  const busy = (now.gpus.busy_us - then.gpus.busy_us) / 1e6 / seconds;
  const share = now.gpus.count && Number.isFinite(busy) ? Math.min(1, busy / now.gpus.count) : 0;
  by("busy").textContent = Number.isFinite(busy) ? short(Math.min(busy, now.gpus.count)) : "–";
  by("of-gpus").textContent = `of ${now.gpus.count}`;
  by("busy-meter").style.width = `${share * 100}%`;
  const advised = now.gpus.advised;
  by("advised").textContent = advised ?? "–";
  by("advised-of").textContent = advised === null ? "" : `of ${now.gpus.count}`;
  by("advice").textContent = advice(advised, now.gpus.count);
}

function advice(advised, count) {
  if (advised === null) return "not known yet";
  if (advised > count) return `${advised - count} more would serve the load`;
  if (advised < count) return `${count - advised} could be given back`;
  return "as many as there are";
}

/** Sets a chart's size to what the page gives it, and empties it. */
function begin(svg) {
  const box = { width: svg.clientWidth || 300, height: svg.clientHeight || 180, left: 42, right: 8, top: 8, bottom: 20 };
  svg.setAttribute("viewBox", `0 0 ${box.width} ${box.height}`);
  svg.replaceChildren();
  box.x = (share) => box.left + share * (box.width - box.left - box.right);
  box.y = (share) => box.height - box.bottom - share * (box.height - box.top - box.bottom);
  box.add = (name, attributes, text) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    svg.append(node);
    return node;
  };
  return box;
}

/** A round number at or above `most`, and how many parts to divide it into. */
function scale(most) {
  const unit = 10 ** Math.floor(Math.log10(most || 1));
  const [top, parts] = [[1, 2], [1.5, 3], [2, 4], [3, 3], [4, 4], [5, 5], [6, 3], [8, 4], [10, 5]].find(([n]) => n * unit >= most) ?? [10, 5];
  return { top: top * unit, parts };
}

function grid(box, { top, parts }, label) {
  for (let n = 0; n <= parts; n++) {
    const y = box.y(n / parts);
    box.add("line", { class: n ? "grid" : "axis", x1: box.left, x2: box.width - box.right, y1: y, y2: y });
    box.add("text", { x: box.left - 8, y: y + 4, "text-anchor": "end" }, label((top * n) / parts));
  }
}

function timeAxis(box) {
  for (let ago = 0; ago <= SPAN_S; ago += 30) {
    const anchor = ago === 0 ? "end" : ago === SPAN_S ? "start" : "middle";
    const words = ago === 0 ? "now" : `−${ago} s`;
    box.add("text", { x: box.x(1 - ago / SPAN_S), y: box.height - 4, "text-anchor": anchor }, words);
  }
}

/** Areas on top of each other over the last minutes. `layers`: {fill, values}, a value per point. */
function stack(box, times, layers, scaled) {
  const now = state.answers.at(-1).t;
  const xs = times.map((t) => box.x(Math.max(0, 1 - (now - t) / SPAN_S)));
  let floor = times.map(() => 0);
  for (const { fill, values } of layers) {
    const roof = floor.map((base, n) => base + values[n]);
    const edge = (heights) => heights.map((value, n) => `${xs[n].toFixed(1)},${box.y(Math.min(1, value / scaled.top)).toFixed(1)}`);
    const area = box.add("polygon", { class: "area", points: [...edge(roof), ...edge(floor).reverse()].join(" ") });
    area.style.fill = fill;
    floor = roof;
  }
}

/** Pairs of points that follow each other, smoothed over three seconds. */
function pairs() {
  return state.points.slice(1).map((point, n) => [state.points[Math.max(0, n - 2)], point]);
}

function drawGoodput(now) {
  const box = begin(by("goodput-chart"));
  const steps = pairs();
  const rate = (id) => steps.map(([a, b]) => Math.max(0, ((b.good.get(id) ?? 0) - (a.good.get(id) ?? 0)) / (b.t - a.t)));
  const layers = new Map();
  for (const model of now.models) {
    const shared = state.colours.get(model.id) === COLOURS;
    const key = shared ? "others" : model.id;
    const values = rate(model.id);
    const layer = layers.get(key) ?? { fill: colour(model.id), name: shared ? "others" : title(model), values: values.map(() => 0) };
    layer.values = layer.values.map((value, n) => value + values[n]);
    layers.set(key, layer);
  }
  const all = [...layers.values()];
  const totals = steps.map((_, n) => sum(all.map((layer) => layer.values[n])));
  const scaled = scale(Math.max(10, ...totals) * 1.04);
  grid(box, scaled, short);
  timeAxis(box);
  stack(box, steps.map(([, b]) => b.t), all, scaled);
  legend("legend", all);
  const latest = all.map((layer) => `${layer.name} ${short(layer.values.at(-1) ?? 0)}`).join(", ");
  by("goodput-chart").setAttribute("aria-label", `Goodput by model, requests per second, now: ${latest || "none"}`);
}

function drawBad() {
  const box = begin(by("bad-chart"));
  const steps = pairs();
  const diff = (a, b, name) => (b.outcomes[name] ?? 0) - (a.outcomes[name] ?? 0);
  const layers = CAUSES.map((cause) => ({
    fill: `var(--${cause})`,
    name: cause,
    values: steps.map(([a, b]) => {
      const offered = diff(a, b, "good") + sum(CAUSES.map((c) => diff(a, b, c)));
      return offered ? (diff(a, b, cause) / offered) * 100 : 0;
    }),
  }));
  const totals = steps.map((_, n) => sum(layers.map((layer) => layer.values[n])));
  const scaled = scale(Math.min(100, Math.max(2, ...totals)));
  grid(box, scaled, (value) => `${short(value)} %`);
  timeAxis(box);
  stack(box, steps.map(([, b]) => b.t), layers, scaled);
  const limit = box.y(1 / scaled.top);
  box.add("line", { class: "limit", x1: box.left, x2: box.width - box.right, y1: limit, y2: limit });
  legend("cause-legend", layers);
  const latest = layers.map((layer) => `${layer.name} ${short(layer.values.at(-1) ?? 0)} %`).join(", ");
  by("bad-chart").setAttribute("aria-label", `Bad rate by cause, now: ${latest}. The dashed line is the 1 % that goodput allows.`);
}

function legend(id, layers) {
  const names = layers.map((layer) => layer.name).join("\n");
  const node = by(id);
  if (node.dataset.names === names) return;
  node.dataset.names = names;
  node.replaceChildren(...layers.map((layer) => {
    const item = document.createElement("li");
    const swatch = document.createElement("span");
    swatch.className = "swatch";
    swatch.style.background = layer.fill;
    item.append(swatch, layer.name);
    return item;
  }));
}

// ---- the GPUs' lanes -------------------------------------------------------------------------------------------------

function drawLanes() {
  const canvas = by("lanes");
  const now = state.answers.at(-1);
  if (!now || now.lanes.length === 0) return;
  const lanes = now.lanes.length;
  const height = lanes <= 8 ? 24 : lanes <= 16 ? 15 : 11;
  const gap = lanes <= 8 ? 5 : 3;
  const [width, tall] = [canvas.clientWidth, lanes * (height + gap)];
  const ratio = devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(tall * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(tall * ratio);
    canvas.style.height = `${tall}px`;
  }
  const pen = canvas.getContext("2d");
  const style = getComputedStyle(document.documentElement);
  const ink = (name) => style.getPropertyValue(name);
  const fills = Array.from({ length: COLOURS + 1 }, (_, n) => ink(`--c${n}`));
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, tall);
  pen.font = `600 ${Math.min(11, height - 3)}px system-ui, sans-serif`;
  pen.textBaseline = "middle";
  const left = 30;
  // Where an answer is late the lanes wait for it.
  const end = Math.min(now.t, (state.paused ? now.t : performance.now() / 1000 + state.offset) - LANE_DELAY_S);
  const x = (t) => left + (1 - (end - t) / LANE_S) * (width - left);
  for (let gpu = 0; gpu < lanes; gpu++) {
    const y = gpu * (height + gap);
    pen.fillStyle = ink("--faint");
    pen.textAlign = "right";
    pen.fillText(gpu, left - 8, y + height / 2);
    pen.fillStyle = ink("--track");
    pen.beginPath();
    pen.roundRect(left, y, width - left, height, 4);
    pen.fill();
    pen.save();
    pen.clip();
    for (const batch of state.lanes.get(gpu) ?? []) {
      const from = x(batch.from);
      const to = x(batch.to);
      if (to < left || from > width) continue;
      if (batch.cancelled) {
        pen.fillStyle = ink("--bad");
        pen.fillRect(from - 1, y, 2, height);
        continue;
      }
      pen.fillStyle = fills[state.colours.get(batch.model) ?? COLOURS];
      pen.beginPath();
      pen.roundRect(from + 0.5, y, Math.max(1, to - from - 1), height, Math.min(3, (to - from) / 3));
      pen.fill();
      if (to - from > 22 && height >= 15) {
        pen.fillStyle = ink("--card");
        pen.textAlign = "center";
        pen.fillText(batch.size, (from + to) / 2, y + height / 2 + 0.5);
      }
    }
    pen.restore();
  }
  const more = now.gpus.count - lanes;
  by("lanes-note").textContent = `each bar is a batch, wide ones with their size; ${LANE_S} s of them${more > 0 ? `; ${more} more GPUs are not shown` : ""}`;
  const busy = now.lanes.filter((lane) => lane.busy_us > (before(NOW_S).lanes[lane.gpu]?.busy_us ?? 0)).length;
  canvas.setAttribute("aria-label", `Batches on ${lanes} GPUs; ${busy} of them ran some in the last ${NOW_S} seconds`);
}

// ---- the GPUs' memory ------------------------------------------------------------------------------------------------

/** Says how many pages of each GPU are free, and whose weights have the others. */
function drawMemory(now) {
  by("memory").hidden = now.memory.length === 0;
  if (now.memory.length === 0) return;
  by("memory-note").textContent = `pages of ${short(now.memory[0].page_bytes / 1e6)} MB: how many are free, and whose weights have the others`;
  by("memory-rows").replaceChildren(...now.memory.map((gpu) => {
    const row = document.createElement("li");
    const meter = document.createElement("span");
    meter.className = "meter";
    meter.setAttribute("aria-hidden", "true");
    const used = document.createElement("i");
    used.style.width = `${100 * (1 - gpu.free / Math.max(1, gpu.pages))}%`;
    meter.append(used);
    const models = gpu.models.map((of) => of.state === "loaded" ? `${of.name} ${of.held}` : `${of.name} ${of.held} (${of.state})`);
    const text = document.createElement("span");
    text.textContent = `GPU ${gpu.gpu}: ${gpu.free} of ${gpu.pages} free; shared ${gpu.shared}${models.map((of) => `, ${of}`).join("")}`;
    row.append(meter, text);
    if (gpu.lost !== null) {
      const lost = document.createElement("span");
      lost.className = "high";
      lost.textContent = `taken out: ${gpu.lost}`;
      row.append(lost);
    }
    return row;
  }));
}

/** Draws the lanes as often as a sixth of the machine's time allows, thirty times a second at most. */
function animate() {
  const began = performance.now();
  if (!still.matches && !state.paused) drawLanes();
  const spent = performance.now() - began;
  setTimeout(() => requestAnimationFrame(animate), Math.max(33, spent * 6));
}

// ---- the models ------------------------------------------------------------------------------------------------------

function drawRows(now, then, seconds) {
  const body = by("rows");
  by("no-models").hidden = now.models.length > 0;
  body.closest("table").hidden = now.models.length === 0;
  const recent = before(RECENT_S);
  for (const model of now.models) {
    const row = body.querySelector(`tr[data-id="${model.id}"]`) ?? newRow(body, model);
    const good = since(then, model, (m) => m.outcomes.good);
    const bad = since(then, model, (m) => badOf(m.outcomes));
    const batches = since(then, model, (m) => m.batches);
    const rate = good + bad ? bad / (good + bad) : 0;
    const p99 = quantile(list(recent, model, "of_slo"), 0.99);
    const cells = row.cells;
    cells[1].textContent = short(good / seconds);
    cells[2].textContent = `${percent(rate)} %`;
    cells[2].classList.toggle("high", rate > 0.01);
    cells[3].textContent = batches ? short(since(then, model, (m) => m.rows) / batches) : "–";
    cells[4].textContent = short(model.in_flight);
    cells[5].textContent = Number.isFinite(p99) ? ms(p99 * model.slo_us) : "–";
    drawBudget(row, model, recent, p99);
    row.classList.toggle("chosen", model.id === state.chosen);
    row.querySelector("button").setAttribute("aria-expanded", model.id === state.chosen);
  }
}

function drawLinks(links, before, seconds) {
  by("links").hidden = links.length === 0;
  const body = by("link-rows");
  links.forEach((link, at) => {
    const row = body.rows[at] ?? body.insertRow();
    const known = (number, text) => (number === null ? "–" : text(number));
    const rate = (field) => `${short((link[field] - (before[at]?.[field] ?? 0)) / seconds / 1000)} kB/s`;
    const cells = [
      ["", `${link.peer} (${link.role})`],
      [link.state === "up" ? "" : "high", link.state],
      ["n", link.connections],
      ["n", known(link.round_trip_us, ms)],
      ["n", known(link.delay_us, ms)],
      ["n", known(link.fetch_us, ms)],
      ["n hide", known(link.clock_offset_us, (us) => `${(us / 1000).toFixed(2)} ms`)],
      ["n hide", known(link.clock_drift_ppm, (ppm) => `${ppm.toFixed(1)} ppm`)],
      ["n hide", rate("received_bytes")],
      ["n hide", rate("sent_bytes")],
    ];
    cells.forEach(([kind, text], n) => Object.assign(row.cells[n] ?? row.insertCell(), { className: kind, textContent: text }));
    row.title = link.last_end && `The last connection ended: ${link.last_end}`;
  });
}

function drawBudget(row, model, recent, p99) {
  const ran = since(recent, model, (m) => m.ran);
  const bar = row.querySelector(".bar");
  const words = STAGES.map((stage, n) => {
    const mean = ran ? since(recent, model, (m) => m.stages_us[n]) / ran : 0;
    bar.children[n].style.width = `${Math.min(100, (mean / model.slo_us) * 100)}%`;
    return `${stage} ${ms(mean)}`;
  });
  const mark = bar.querySelector("u");
  mark.hidden = !Number.isFinite(p99);
  mark.style.left = `calc(${Math.min(1, p99 || 0) * 100}% - 2px)`;
  const text = ran ? `of ${ms(model.slo_us)}: ${words.join(", ")}` : "no request ran in the last seconds";
  bar.title = text;
  bar.setAttribute("aria-label", text);
}

function newRow(body, model) {
  const row = body.insertRow();
  row.dataset.id = model.id;
  for (const kind of ["", "n", "n", "n hide", "n hide", "n hide", "n hide", "budget"]) row.insertCell().className = kind;
  const button = document.createElement("button");
  button.type = "button";
  button.className = "name";
  button.setAttribute("aria-controls", "detail");
  const swatch = document.createElement("span");
  swatch.className = "swatch";
  swatch.style.background = colour(model.id);
  const name = document.createElement("span");
  name.textContent = title(model);
  button.append(swatch, name);
  row.cells[0].append(button);
  row.cells[6].textContent = ms(model.slo_us);
  const bar = document.createElement("div");
  bar.className = "bar";
  bar.setAttribute("role", "img");
  for (const stage of STAGES) bar.append(Object.assign(document.createElement("i"), { className: stage }));
  bar.append(document.createElement("u"));
  row.cells[7].append(bar);
  row.addEventListener("click", () => choose(model.id === state.chosen ? null : model.id));
  return row;
}

function choose(id) {
  const was = state.chosen;
  state.chosen = id;
  by("detail").hidden = id === null;
  if (id === null) {
    by("rows").querySelector(`tr[data-id="${was}"] button`)?.focus();
  } else {
    state.profile = state.profile?.model === id ? state.profile : null;
    history.replaceState(null, "", `#model-${id}`);
    by("detail").scrollIntoView({ block: "nearest", behavior: still.matches ? "auto" : "smooth" });
  }
  if (id === null) history.replaceState(null, "", location.pathname);
  if (state.answers.length > 0) draw();
}

// ---- one model -------------------------------------------------------------------------------------------------------

function drawDetail(now) {
  const model = now.byId.get(state.chosen);
  if (!model) return;
  by("detail-title").textContent = title(model);
  const drift = model.drift === null ? "" : `, drift ${model.drift.toFixed(2)}`;
  const runs = model.run_time_us === null ? "" : `; requests run for ${model.run_time_us.map(ms).join(" (median) to ")} (99th percentile)`;
  by("detail-note").classList.toggle("high", model.drift > LARGE_DRIFT);
  const batches = model.max_batch ? `, batches up to ${model.max_batch}, ${model.platform}; ${short(model.batches)} batches so far` : "; a query: its batches are those of its models";
  by("detail-note").textContent = `SLO ${ms(model.slo_us)}${batches}${drift}${runs}`;
  const recent = before(RECENT_S);
  drawLatency(model, list(recent, model, "of_slo"));
  drawSizes(now, list(recent, model, "sizes"));
  const ran = since(recent, model, (m) => m.batches);
  drawProfile(model, ran ? since(recent, model, (m) => m.rows) / ran : NaN);
}

function bars(box, heights, fill) {
  const step = 1 / heights.length;
  heights.forEach((height, n) => {
    if (height <= 0) return;
    const [x, y] = [box.x(n * step) + 0.75, box.y(height)];
    const width = Math.max(1, box.x((n + 1) * step) - box.x(n * step) - 1.5);
    const bar = box.add("rect", { x, y, width, height: Math.max(1, box.y(0) - y), rx: Math.min(2, width / 3) });
    bar.style.fill = fill(n);
  });
}

function drawLatency(model, buckets) {
  const box = begin(by("latency-chart"));
  const all = sum(buckets);
  const shares = buckets.map((count) => (all ? (count / all) * 100 : 0));
  const scaled = scale(Math.max(5, ...shares));
  grid(box, scaled, (value) => `${short(value)} %`);
  bars(box, shares.map((share) => share / scaled.top), (n) => (n < IN_TIME ? colour(model.id) : "var(--late)"));
  const slo = box.x(IN_TIME / buckets.length);
  box.add("line", { class: "limit", x1: slo, x2: slo, y1: box.top, y2: box.y(0) });
  box.add("text", { class: "limit-text", x: slo + 5, y: box.top + 9 }, "SLO");
  for (const share of [0, 0.5, 1, 1.5]) {
    const at = (share * IN_TIME) / buckets.length;
    box.add("text", { x: box.x(at), y: box.height - 4, "text-anchor": share ? "middle" : "start" }, ms(share * model.slo_us));
  }
  const words = [0.5, 0.9, 0.99].map((q) => `p${q * 100} ${ms(quantile(buckets, q) * model.slo_us)}`).join(", ");
  by("latency-chart").setAttribute("aria-label", all ? `Latency of ${all} requests: ${words}` : "No request ran in the last seconds");
}

function drawSizes(now, sizes) {
  const box = begin(by("size-chart"));
  const last = Math.max(4, sizes.findLastIndex((count) => count > 0) + 1);
  const shown = sizes.slice(0, last);
  const all = sum(shown);
  const shares = shown.map((count) => (all ? (count / all) * 100 : 0));
  const scaled = scale(Math.max(10, ...shares));
  grid(box, scaled, (value) => `${short(value)} %`);
  bars(box, shares.map((share) => share / scaled.top), () => "var(--accent)");
  const every = Math.ceil(last / 10);
  shown.forEach((_, n) => {
    if (n % every) return;
    const [from, to] = [(now.size_bounds[n - 1] ?? 0) + 1, now.size_bounds[n]];
    const words = from === to ? `${to}` : `≤${to}`;
    box.add("text", { x: box.x((n + 0.5) / last), y: box.height - 4, "text-anchor": "middle" }, words);
  });
  const words = shown.map((count, n) => [now.size_bounds[n], count]).filter(([, count]) => count > 0);
  by("size-chart").setAttribute("aria-label", `Batches by size: ${words.map(([size, count]) => `up to ${size}: ${count}`).join(", ") || "none"}`);
}

function drawProfile(model, mean) {
  const box = begin(by("profile-chart"));
  const table = state.profile?.model === model.id ? state.profile.latency_us : null;
  if (!table) {
    box.add("text", { x: box.x(0.5), y: box.y(0.5), "text-anchor": "middle" }, "not known");
    by("profile-chart").setAttribute("aria-label", "The profile is not known");
    return;
  }
  const rolling = state.profile.rolling_us;
  const scaled = scale(Math.max(table.at(-1), rolling?.at(-1) ?? 0, model.slo_us) / 1000);
  grid(box, scaled, (value) => `${short(value)} ms`);
  const x = (size) => box.x((size - 0.5) / table.length);
  const y = (us) => box.y(us / 1000 / scaled.top);
  const points = (curve) => curve.map((us, n) => `${x(n + 1).toFixed(1)},${y(us).toFixed(1)}`).join(" ");
  if (rolling) box.add("polyline", { class: "line rolling", points: points(rolling) });
  box.add("polyline", { class: "line", points: points(table) });
  const slo = y(model.slo_us);
  box.add("line", { class: "limit", x1: box.left, x2: box.width - box.right, y1: slo, y2: slo });
  box.add("text", { class: "limit-text", x: box.left + 5, y: slo - 5 }, "SLO");
  const marks = [...new Set([1, Math.ceil(table.length / 2), table.length])];
  for (const size of marks) box.add("text", { x: x(size), y: box.height - 4, "text-anchor": "middle" }, `${size}`);
  if (Number.isFinite(mean)) {
    const below = Math.max(1, Math.floor(mean));
    const above = Math.min(table.length, below + 1);
    const us = table[below - 1] + (table[above - 1] - table[below - 1]) * (mean - below);
    box.add("circle", { class: "dot", cx: x(mean), cy: y(us), r: 4.5 });
    const right = x(mean) > box.width / 2;
    const place = { x: x(mean) + (right ? -9 : 9), y: y(us) + 15, "text-anchor": right ? "end" : "start" };
    box.add("text", place, `now ${short(mean)}`);
  }
  const words = marks.map((size) => `l(${size}) = ${ms(table[size - 1])}`).join(", ");
  const measured = rolling ? `; of the last batches: ${marks.map((size) => `l(${size}) = ${ms(rolling[size - 1])}`).join(", ")}` : "";
  by("profile-chart").setAttribute("aria-label", `Profile: ${words}${measured}`);
}

// ---- the user --------------------------------------------------------------------------------------------------------

function pause() {
  state.paused = !state.paused;
  by("pause").setAttribute("aria-pressed", state.paused);
  by("pause").textContent = state.paused ? "Paused" : "Pause";
}

by("pause").addEventListener("click", pause);
by("close").addEventListener("click", () => choose(null));
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  if (event.key === "p") pause();
  if (event.key === "Escape" && state.chosen !== null) choose(null);
  if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
  const names = [...by("rows").querySelectorAll("button")];
  const at = names.indexOf(document.activeElement);
  if (at < 0) return;
  event.preventDefault();
  names[Math.min(names.length - 1, Math.max(0, at + (event.key === "ArrowDown" ? 1 : -1)))].focus();
});
addEventListener("resize", () => state.answers.length > 0 && draw());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => state.answers.length > 0 && draw());
const linked = location.hash.match(/^#model-(\d+)$/);
if (linked) choose(Number(linked[1]));
animate();
turn();
