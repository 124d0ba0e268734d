// The live view: figures of the engine and a map of its experts, twice a second while it is open.
import { $, el } from "./dom.js";
import { get } from "./api.js";

const PARTS = [["compute_ms", "compute", "--used"], ["wait_ms", "waiting for reads", "--bad"],
  ["handshake_ms", "hand-shakes", "--accent"], ["host_ms", "host", "--resident"]];
let props = null, before = null, timer = 0, heat = null;

const size = (b) => (b >= 2 ** 30 ? `${(b / 2 ** 30).toFixed(2)} GiB` : `${(b / 2 ** 20).toFixed(1)} MiB`);
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function figure(value, name) {
  return el("div", { class: "figure" }, el("b", {}, value), el("span", {}, name));
}

// Bytes a second while the drive works, against the best it can do, as a bar below.
function drive(now, rate) {
  if (!now.read_bytes_total) return figure("idle", "drive");
  const best = now.drive_ceiling_gb_s;
  if (!best) return figure(`${rate.toFixed(2)} GB/s`, `drive now; ${now.drive_gb_s.toFixed(2)} on average`);
  const share = rate / best, box = figure(`${rate.toFixed(2)} GB/s`,
    `drive now, ${(100 * share).toFixed(0)} % of ${best.toFixed(2)}; ${now.drive_gb_s.toFixed(2)} on average`);
  const bar = el("div", { class: "gauge", role: "meter", "aria-label": "drive", "aria-valuemin": "0",
    "aria-valuemax": best.toFixed(2), "aria-valuenow": rate.toFixed(2) }, el("div"));
  bar.firstChild.style.width = `${Math.min(100, 100 * share)}%`;
  box.append(bar);
  return box;
}

function showFigures(now) {
  const looked = now.hits_total + now.misses_total;
  const hit = looked ? `${((100 * now.hits_total) / looked).toFixed(1)} %` : "all in memory";
  const ms = before ? now.drive_ms_total - before.drive_ms_total : 0;
  const rate = ms > 0 ? (now.read_bytes_total - before.read_bytes_total) / ms / 1e6 : now.drive_gb_s;
  $("figures").replaceChildren(
    figure(now.decode_tok_s.toFixed(1), "tokens/s written"),
    figure(now.prefill_tok_s.toFixed(0), "tokens/s read"),
    figure(String(now.generated_tokens_total), "tokens written"),
    figure(`${now.requests_active} + ${now.requests_queued}`, "at work + waiting"),
    figure(hit, "experts found in memory"),
    drive(now, rate),
    figure(now.windows_total ? (now.window_rows_total / now.windows_total).toFixed(1) : "0", "rows a window"),
    figure(now.prompt_tokens_total ? `${((100 * now.prompt_tokens_cached_total) / now.prompt_tokens_total).toFixed(0)} %` : "0 %",
      "of prompts known already"));
}

function showTime(now) {
  const spent = PARTS.map(([k]) => Math.max(0, now[k] - (before ? before[k] : 0)));
  const base = spent.reduce((a, b) => a + b, 0) > 0 ? spent : PARTS.map(([k]) => now[k]);
  const sum = base.reduce((a, b) => a + b, 0) || 1;
  $("time-bar").replaceChildren(...PARTS.map(([, , c], i) => {
    const part = el("div");
    part.style.width = `${(100 * base[i]) / sum}%`;
    part.style.background = `var(${c})`;
    return part;
  }));
  $("time-legend").textContent = PARTS.map(([, name], i) => `${name} ${((100 * base[i]) / sum).toFixed(0)} %`).join(" · ");
}

function showMemory(now) {
  const rows = [["weights that stay", props.weight_bytes], ["expert arena", props.arena_bytes],
    ["scratch", props.scratch_bytes], ["earlier states", now.snapshot_bytes], ["largest so far, all", now.rss_peak_bytes]];
  $("memory").replaceChildren(...rows.filter((r) => r[1]).map(([n, b]) => el("div", {}, `${n}: ${size(b)}`)));
}

const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));

// One square an expert, a row a layer. Use glows and fades.
function showMap(now) {
  const width = now.n_expert, height = Math.round(now.experts.length / width);
  const canvas = $("map"), scale = Math.max(1, Math.floor(512 / width));
  if (!heat || heat.length !== now.experts.length) heat = new Float32Array(now.experts.length);
  canvas.width = width * scale;
  canvas.height = height * scale;
  const c = canvas.getContext("2d");
  const absent = rgb(color("--absent")), resident = rgb(color("--resident")), used = rgb(color("--used"));
  let held = 0, touched = 0;
  for (let i = 0; i < now.experts.length; i++) {
    const s = now.experts[i];
    const here = s === "o" || (s >= "A" && s <= "Z");
    const uses = s === "." || s === "o" ? 0 : (s.toLowerCase().charCodeAt(0) - 97);
    held += here;
    touched += uses > 0;
    heat[i] = Math.max(heat[i] * 0.8, uses ? 0.45 + uses * 0.06 : 0);
    const base = here ? resident : absent;
    c.fillStyle = `rgb(${base.map((b, k) => Math.round(b + (used[k] - b) * Math.min(1, heat[i]))).join(",")})`;
    c.fillRect((i % width) * scale, Math.floor(i / width) * scale, scale, scale);
  }
  $("map-note").textContent = `${height} layers × ${width} experts; ${held} in memory, ${touched} used since the last look`;
  canvas.dataset.moves = String(Number(canvas.dataset.moves || 0) + (touched > 0));
}

async function look() {
  try {
    props ??= await get("/props");
    const now = await get("/live");
    showFigures(now);
    showTime(now);
    showMemory(now);
    showMap(now);
    before = now;
  } catch (e) {
    $("map-note").textContent = String(e.message || e);
  }
  if (!$("live").hidden) timer = setTimeout(look, document.hidden ? 3000 : 500);
}

export function toggleLive() {
  const open = $("live").hidden;
  $("live").hidden = !open;
  $("show-live").setAttribute("aria-expanded", String(open));
  clearTimeout(timer);
  if (open) look();
}
