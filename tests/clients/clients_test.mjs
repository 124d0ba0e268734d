// The official openai and @anthropic-ai/sdk clients against `regolith serve` on the demo model.
// Usage: node clients_test.mjs BINARY MODEL. Exit status 77: a client is not installed.
import { spawn } from "node:child_process";
import assert from "node:assert/strict";

let OpenAI, Anthropic;
try {
  ({ default: OpenAI } = await import("openai"));
  ({ default: Anthropic } = await import("@anthropic-ai/sdk"));
} catch (e) {
  console.error(`skipped: ${e.message}`);
  process.exit(77);
}

const [binary, model] = process.argv.slice(2);
const KEY = "k-1234";

function serve() {
  const child = spawn(binary, ["serve", "-m", model, "--port", "0", "--no-think", "--temp", "0",
    "--parallel", "3", "--api-key", KEY], { stdio: ["ignore", "ignore", "pipe"] });
  return new Promise((resolve, reject) => {
    let text = "";
    child.stderr.on("data", (d) => {
      text += d;
      const m = /http:\/\/[^/]*:(\d+)\//.exec(text);
      if (m) resolve({ child, url: `http://127.0.0.1:${m[1]}` });
    });
    child.on("exit", () => reject(new Error(text)));
  });
}

const { child, url } = await serve();
const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: KEY, maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: url, apiKey: KEY, maxRetries: 0 });
const MODEL = "regolith-demo-q4";
const ask = (content) => [{ role: "user", content }];
const DEFINE = ask("Define reparation.");
const WEATHER = ask("I am going to Ankara. What weather shall I have?");
const PARAMETERS = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const TOOL = { type: "function", function: { name: "get_weather",
  description: "Report the weather in a town.", parameters: PARAMETERS } };
const TOOL_A = { name: "get_weather", description: "Report the weather in a town.", input_schema: PARAMETERS };
const LONG = ask(Array(500).fill("kindness abscond").join(" "));
const sleep = (ms) => new Promise((r) => setTimeout(r, ms));
const health = async () => (await fetch(`${url}/health`)).json();

async function idle() {
  for (let i = 0; i < 300; i++) {
    if ((await health()).active === 0) return;
    await sleep(20);
  }
  assert.fail("a reply goes on although its client left");
}

let plain;
const tests = {
  async "openai: plain"() {
    const r = await openai.chat.completions.create({ model: MODEL, messages: DEFINE });
    plain = r.choices[0].message.content;
    assert.match(plain, /^Reparation, n\. /);
    assert.equal(r.choices[0].finish_reason, "stop");
    assert.equal(r.usage.total_tokens, r.usage.prompt_tokens + r.usage.completion_tokens);
    assert.equal((await openai.models.list()).data[0].id, MODEL);
    assert.equal((await openai.models.retrieve(MODEL)).id, MODEL);
  },
  async "openai: stream"() {
    let text = "", usage = null;
    const stream = await openai.chat.completions.create({ model: MODEL, messages: DEFINE,
      stream: true, stream_options: { include_usage: true } });
    for await (const c of stream) {
      text += c.choices[0]?.delta?.content ?? "";
      usage = c.usage ?? usage;
    }
    assert.equal(text, plain);
    assert.ok(usage.completion_tokens > 5);
  },
  async "openai: tools, round trip"() {
    const first = await openai.chat.completions.stream({ model: MODEL, messages: WEATHER,
      tools: [TOOL] }).finalChatCompletion();
    const message = first.choices[0].message;
    assert.equal(first.choices[0].finish_reason, "tool_calls");
    assert.deepEqual(JSON.parse(message.tool_calls[0].function.arguments), { city: "Ankara" });
    const second = await openai.chat.completions.create({ model: MODEL, tools: [TOOL], messages: [
      ...WEATHER, message, { role: "tool", tool_call_id: message.tool_calls[0].id,
        content: "rain, 9 degrees" }] });
    assert.match(second.choices[0].message.content, /Ankara/);
  },
  async "openai: JSON schema"() {
    const schema = { type: "object", additionalProperties: false, required: ["word", "good"],
      properties: { word: { type: "string", maxLength: 16 }, good: { type: "boolean" } } };
    const r = await openai.chat.completions.create({ model: MODEL, messages: DEFINE, max_tokens: 200,
      response_format: { type: "json_schema", json_schema: { name: "w", strict: true, schema } } });
    const v = JSON.parse(r.choices[0].message.content);
    assert.deepEqual(Object.keys(v), ["word", "good"]);
    assert.equal(typeof v.good, "boolean");
  },
  async "openai: stop, logprobs, seed"() {
    const r = await openai.chat.completions.create({ model: MODEL, messages: DEFINE, stop: [" made"],
      logprobs: true, top_logprobs: 2 });
    assert.equal(r.choices[0].message.content, "Reparation, n. Satisfaction that is");
    assert.equal(r.choices[0].logprobs.content[0].top_logprobs.length, 2);
    const warm = { model: MODEL, messages: ask("Who art thou?"), temperature: 1.2, max_tokens: 20 };
    const two = await Promise.all([1, 1].map((seed) => openai.chat.completions.create({ ...warm, seed })));
    assert.equal(two[0].choices[0].message.content, two[1].choices[0].message.content);
  },
  async "openai: text completions and responses"() {
    const t = await openai.completions.create({ model: MODEL, prompt: "It was a", max_tokens: 6 });
    assert.ok(t.choices[0].text.length > 3);
    const r = await openai.responses.create({ model: MODEL, input: "Define reparation." });
    assert.equal(r.output_text, plain);
    let text = "";
    const stream = await openai.responses.create({ model: MODEL, input: "Define reparation.", stream: true });
    let last;
    for await (const e of stream) {
      if (e.type === "response.output_text.delta") text += e.delta;
      last = e.type;
    }
    assert.equal(text, plain);
    assert.equal(last, "response.completed");
    const call = await openai.responses.create({ model: MODEL, input: WEATHER[0].content,
      tools: [{ type: "function", ...TOOL.function, strict: false }] });
    const item = call.output.find((o) => o.type === "function_call");
    assert.deepEqual(JSON.parse(item.arguments), { city: "Ankara" });
    const end = await openai.responses.create({ model: MODEL, tools: [{ type: "function", ...TOOL.function, strict: false }],
      input: [...WEATHER, item, { type: "function_call_output", call_id: item.call_id, output: "rain, 9 degrees" }] });
    assert.match(end.output_text, /Ankara/);
  },
  async "openai: abort in prefill and in decode"() {
    for (const [messages, wait] of [[LONG, 0], [ask("Who art thou?"), 100]]) {
      for (const stream of [true, false]) {
        const stop = new AbortController();
        const call = openai.chat.completions.create({ model: MODEL, messages, stream, max_tokens: 3000,
          ignore_eos: true }, { signal: stop.signal }).then(async (r) => { if (stream) for await (const c of r) void c; });
        const failed = assert.rejects(call);
        for (let i = 0; i < 200 && (await health()).active === 0; i++) await sleep(10);
        await sleep(wait);
        assert.equal((await health()).active, 1);
        stop.abort();
        await failed.catch(() => {}); // an aborted stream may end without an error
        await idle();
      }
    }
  },
  async "openai: over-long prompt, bad key, bad request"() {
    const long = ask(Array(4000).fill("kindness abscond").join(" "));
    await assert.rejects(openai.chat.completions.create({ model: MODEL, messages: long }),
      (e) => e instanceof OpenAI.BadRequestError && /\d+ tokens.*4096/.test(e.message));
    const other = new OpenAI({ baseURL: `${url}/v1`, apiKey: "wrong", maxRetries: 0 });
    await assert.rejects(other.models.list(), OpenAI.AuthenticationError);
    await assert.rejects(openai.chat.completions.create({ model: MODEL, messages: DEFINE, n: 3 }),
      OpenAI.BadRequestError);
    await assert.rejects(openai.embeddings.create({ model: MODEL, input: "x" }), (e) => e.status === 501);
  },
  async "anthropic: plain, stream, count"() {
    const base = { model: MODEL, max_tokens: 200, messages: DEFINE };
    const r = await anthropic.messages.create(base);
    assert.equal(r.content[0].text, plain);
    assert.equal(r.stop_reason, "end_turn");
    const s = await anthropic.messages.stream(base).finalMessage();
    assert.deepEqual(s.content, r.content);
    const n = await anthropic.messages.countTokens({ model: MODEL, messages: DEFINE });
    assert.equal(n.input_tokens, r.usage.input_tokens + r.usage.cache_read_input_tokens);
  },
  async "anthropic: tools, round trip"() {
    const base = { model: MODEL, max_tokens: 200, tools: [TOOL_A] };
    const first = await anthropic.messages.stream({ ...base, messages: WEATHER }).finalMessage();
    const use = first.content.find((b) => b.type === "tool_use");
    assert.equal(first.stop_reason, "tool_use");
    assert.deepEqual(use.input, { city: "Ankara" });
    const second = await anthropic.messages.create({ ...base, messages: [...WEATHER,
      { role: "assistant", content: first.content }, { role: "user", content: [
        { type: "tool_result", tool_use_id: use.id, content: "rain, 9 degrees" }] }] });
    assert.match(second.content[0].text, /Ankara/);
  },
  async "anthropic: thinking, stop, abort, bad key, over-long"() {
    const t = await anthropic.messages.stream({ model: MODEL, max_tokens: 1100, messages: DEFINE,
      thinking: { type: "enabled", budget_tokens: 1024 } }).finalMessage();
    assert.ok(t.content.every((b) => ["thinking", "text"].includes(b.type)));
    const s = await anthropic.messages.create({ model: MODEL, max_tokens: 99, messages: DEFINE,
      stop_sequences: [" made"] });
    assert.deepEqual([s.stop_reason, s.stop_sequence], ["stop_sequence", " made"]);
    const stream = anthropic.messages.stream({ model: MODEL, max_tokens: 3000, messages: LONG });
    stream.on("error", () => {});
    stream.on("abort", () => {});
    stream.done().catch(() => {}); // it ends as aborted
    await sleep(60);
    stream.abort();
    await idle();
    const other = new Anthropic({ baseURL: url, apiKey: "wrong", maxRetries: 0 });
    await assert.rejects(other.messages.create({ model: MODEL, max_tokens: 9, messages: DEFINE }),
      Anthropic.AuthenticationError);
    const long = ask(Array(4000).fill("kindness abscond").join(" "));
    await assert.rejects(anthropic.messages.create({ model: MODEL, max_tokens: 9, messages: long }),
      (e) => e instanceof Anthropic.BadRequestError && /4096/.test(e.message));
  },
};

let failed = 0;
for (const [name, test] of Object.entries(tests)) {
  try {
    await test();
    console.log(`ok   ${name}`);
  } catch (e) {
    failed++;
    console.log(`FAIL ${name}\n${e.stack}`);
  }
}
child.removeAllListeners("exit");
child.kill("SIGTERM");
const code = await new Promise((r) => child.on("exit", r));
if (code !== 0) {
  failed++;
  console.log(`FAIL the server ends with ${code}`);
}
process.exit(failed ? 1 : 0);
