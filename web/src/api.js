import { settings } from "./store.js";

const headers = () => ({ "Content-Type": "application/json",
  ...(settings.key ? { Authorization: `Bearer ${settings.key}` } : {}) });

export async function get(path) {
  const r = await fetch(path, { headers: headers() });
  if (!r.ok) throw new Error(await reason(r));
  return r.json();
}

async function reason(r) {
  try { return (await r.json()).error.message; } catch { return `the server answers ${r.status}`; }
}

function request(messages) {
  const body = { messages, stream: true, stream_options: { include_usage: true } };
  if (settings.system) body.messages = [{ role: "system", content: settings.system }, ...messages];
  for (const k of ["temperature", "top_p", "min_p", "seed", "max_tokens"]) {
    if (settings[k] !== undefined && settings[k] !== "") body[k] = Number(settings[k]);
  }
  if (settings.effort) body.reasoning_effort = settings.effort;
  if (settings.tools) body.tools = JSON.parse(settings.tools);
  return body;
}

// Calls onDelta for each piece; gives { finish, usage }.
export async function chat(messages, signal, onDelta) {
  const r = await fetch("/v1/chat/completions",
    { method: "POST", headers: headers(), body: JSON.stringify(request(messages)), signal });
  if (!r.ok) throw new Error(await reason(r));
  const end = { finish: null, usage: null };
  const reader = r.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let held = ""; ;) {
    const { value, done } = await reader.read();
    if (done) return end;
    held += value;
    for (let at; (at = held.indexOf("\n\n")) >= 0; held = held.slice(at + 2)) {
      const data = held.slice(0, at).split("\n").filter((l) => l.startsWith("data: ")).map((l) => l.slice(6)).join("\n");
      if (!data || data === "[DONE]") continue;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      if (event.usage) end.usage = event.usage;
      const choice = event.choices?.[0];
      if (!choice) continue;
      if (choice.finish_reason) end.finish = choice.finish_reason;
      onDelta(choice.delta);
    }
  }
}
