import { $, el } from "./dom.js";
import { markdown } from "./markdown.js";
import { newTalk, saveSettings, saveTalks, settings, talks } from "./store.js";
import { chat, get } from "./api.js";
import { toggleLive } from "./live.js";

let talk = talks[0] || newTalk();
let running = null; // AbortController of the reply under way

/* ---- showing ---- */

function callView(call, message) {
  const answered = talk.messages.find((m) => m.role === "tool" && m.tool_call_id === call.id);
  let args = call.function.arguments;
  try { args = JSON.stringify(JSON.parse(args), null, 2); } catch { /* still coming */ }
  const result = el("textarea", { rows: 2, placeholder: "Result of the call", value: answered ? answered.content : "" });
  const give = el("button", { type: "button", onclick: () => giveResult(call, message, result.value) }, "Give result");
  return el("div", { class: "call" }, el("strong", {}, `⚙ ${call.function.name}`), el("pre", {}, el("code", {}, args)),
    answered ? el("div", { class: "note" }, `result: ${answered.content}`)
      : message.live ? null : el("div", {}, result, give)); // drawn again while it comes: nothing to type into
}

function bodyOf(m) {
  if (m.role === "user") return [el("div", { class: "text" }, m.content)];
  const parts = [];
  if (m.reasoning_content) {
    const thinking = el("details", { open: Boolean(m.live && !m.content) }, el("summary", {}, "Thinking"), markdown(m.reasoning_content));
    parts.push(thinking);
  }
  parts.push(el("div", { class: "text" }, markdown(m.content || (m.live && !m.reasoning_content && !m.tool_calls ? "…" : ""))));
  for (const call of m.tool_calls || []) parts.push(callView(call, m));
  if (m.error) parts.push(el("div", { class: "error", role: "alert" }, m.error));
  if (m.note) parts.push(el("div", { class: "note" }, m.note));
  return parts;
}

function actionsOf(m, i) {
  if (m.live) return null;
  const button = (text, act) => el("button", { type: "button", onclick: act }, text);
  const copy = button("Copy", () => navigator.clipboard.writeText(m.content || ""));
  if (m.role === "user") return el("div", { class: "actions" }, copy, button("Edit", () => edit(i)));
  return el("div", { class: "actions" }, copy, button("Retry", () => retry(i)));
}

function messageView(m, i) {
  return el("div", { class: `message ${m.role}` }, ...bodyOf(m), actionsOf(m, i));
}

function showMessages() {
  $("messages").replaceChildren(...talk.messages.filter((m) => m.role !== "tool")
    .map((m) => messageView(m, talk.messages.indexOf(m))));
  $("messages").scrollTop = $("messages").scrollHeight;
}

function showLast() {
  const box = $("messages"), near = box.scrollHeight - box.scrollTop - box.clientHeight < 120;
  const m = talk.messages[talk.messages.length - 1];
  box.lastElementChild?.replaceWith(messageView(m, talk.messages.length - 1));
  if (near) box.scrollTop = box.scrollHeight;
}

function showTalks() {
  $("talk-list").replaceChildren(...talks.map((t) => el("li", { class: t === talk ? "now" : "" },
    el("button", { type: "button", onclick: () => { if (!running) { talk = t; showAll(); } } }, t.title),
    el("button", { type: "button", "aria-label": `Delete ${t.title}`, onclick: () => remove(t) }, "×"))));
}

function showAll() {
  showTalks();
  showMessages();
  $("talks").classList.remove("open");
}

/* ---- talking ---- */

function remove(t) {
  if (running) return;
  talks.splice(talks.indexOf(t), 1);
  if (t === talk) talk = talks[0] || newTalk();
  saveTalks();
  showAll();
}

const wire = (m) => {
  const { role, content, reasoning_content, tool_calls, tool_call_id } = m;
  return { role, content: content || "", ...(reasoning_content ? { reasoning_content } : {}),
    ...(tool_calls?.length ? { tool_calls } : {}), ...(tool_call_id ? { tool_call_id } : {}) };
};

function addDelta(m, d) {
  if (d.reasoning_content) m.reasoning_content = (m.reasoning_content || "") + d.reasoning_content;
  if (d.content) m.content += d.content;
  for (const c of d.tool_calls || []) {
    m.tool_calls ??= [];
    const call = (m.tool_calls[c.index] ??= { id: "", type: "function", function: { name: "", arguments: "" } });
    if (c.id) call.id = c.id;
    if (c.function?.name) call.function.name += c.function.name;
    if (c.function?.arguments) call.function.arguments += c.function.arguments;
  }
}

async function reply() {
  const sent = talk.messages.map(wire), own = talk;
  const m = { role: "assistant", content: "", live: true };
  talk.messages.push(m);
  showMessages();
  running = new AbortController();
  $("send").textContent = "Stop";
  const begin = performance.now();
  let drawn = 0;
  try {
    const end = await chat(sent, running.signal, (d) => {
      addDelta(m, d);
      if (drawn) return;
      drawn = requestAnimationFrame(() => { drawn = 0; showLast(); });
    });
    const seconds = (performance.now() - begin) / 1000, n = end.usage?.completion_tokens || 0;
    m.note = `${n} tokens in ${seconds.toFixed(1)} s${end.finish === "length" ? ", cut at the limit" : ""}`;
  } catch (e) {
    if (running.signal.aborted) m.note = "stopped";
    else m.error = String(e.message || e);
  }
  cancelAnimationFrame(drawn);
  delete m.live;
  running = null;
  $("send").textContent = "Send";
  if (own.title === "New conversation") own.title = own.messages[0].content.slice(0, 60) || own.title;
  saveTalks();
  showTalks();
  showLast();
}

function send() {
  const text = $("input").value.trim();
  if (!text) return;
  talk.messages.push({ role: "user", content: text });
  $("input").value = "";
  grow();
  saveTalks();
  reply();
}

function retry(i) {
  if (running) return;
  talk.messages.length = i;
  reply();
}

function edit(i) {
  if (running) return;
  $("input").value = talk.messages[i].content;
  talk.messages.length = i;
  saveTalks();
  showMessages();
  grow();
  $("input").focus();
}

function giveResult(call, message, text) {
  if (running) return;
  talk.messages.push({ role: "tool", tool_call_id: call.id, content: text });
  saveTalks();
  const open = message.tool_calls.filter((c) => !talk.messages.some((m) => m.role === "tool" && m.tool_call_id === c.id));
  if (open.length) showMessages();
  else reply();
}

/* ---- controls ---- */

function grow() {
  const i = $("input");
  i.style.height = "auto";
  i.style.height = `${i.scrollHeight + 2}px`;
}

const SETTINGS = ["system", "effort", "temperature", "top_p", "min_p", "seed", "max_tokens", "tools", "key"];

function openSettings() {
  for (const k of SETTINGS) $(`set-${k}`).value = settings[k] ?? "";
  $("settings-error").textContent = "";
  $("settings").showModal();
}

function closeSettings(e) {
  for (const k of SETTINGS) settings[k] = $(`set-${k}`).value;
  try {
    if (settings.tools && !Array.isArray(JSON.parse(settings.tools))) throw new Error("an array is expected");
  } catch (error) {
    e?.preventDefault();
    $("settings-error").textContent = `Tools: ${error.message}`;
    settings.tools = "";
    return;
  }
  saveSettings();
  showModel();
}

async function showModel() {
  try {
    const p = await get("/props");
    $("model").textContent = `${p.model} · ${p.n_ctx} tokens`;
  } catch (e) {
    $("model").textContent = e.message;
  }
}

$("composer").addEventListener("submit", (e) => {
  e.preventDefault();
  if (running) running.abort();
  else send();
});
$("input").addEventListener("keydown", (e) => {
  if (e.key === "Enter" && !e.shiftKey && !e.isComposing) {
    e.preventDefault();
    if (!running) send();
  }
});
$("input").addEventListener("input", grow);
document.addEventListener("keydown", (e) => { if (e.key === "Escape" && running) running.abort(); });
$("new-talk").addEventListener("click", () => {
  if (running) return;
  talk = talks.find((t) => !t.messages.length) || newTalk();
  showAll();
  $("input").focus();
});
$("show-talks").addEventListener("click", () => {
  const open = $("talks").classList.toggle("open");
  $("show-talks").setAttribute("aria-expanded", String(open));
});
$("show-live").addEventListener("click", toggleLive);
$("show-settings").addEventListener("click", openSettings);
$("settings-close").addEventListener("click", closeSettings);
$("settings").addEventListener("cancel", closeSettings);
for (const t of talks) for (const m of t.messages) delete m.live;
showAll();
showModel();
