// The page in a browser: node page_test.mjs BINARY MODEL [SCREENSHOT_DIR]. Exit status 77: no
// playwright-core, or no Chromium.
import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import assert from "node:assert/strict";

let chromium;
try {
  ({ chromium } = await import("playwright-core"));
} catch (e) {
  console.error(`skipped: ${e.message}`);
  process.exit(77);
}
const executablePath = ["/usr/bin/chromium", "/usr/bin/chromium-browser"].find(existsSync);
if (!executablePath) {
  console.error("skipped: there is no Chromium");
  process.exit(77);
}

const [binary, model, shots] = process.argv.slice(2);
// Experts stream, so that the live view has a drive to show.
const child = spawn(binary, ["serve", "-m", model, "--port", "0", "--no-think", "--temp", "0",
  "--arena-experts", "96", "--chunk", "64", "--ceiling", "2"],
  { stdio: ["ignore", "ignore", "pipe"] });
const url = await new Promise((resolve, reject) => {
  let text = "";
  child.stderr.on("data", (d) => {
    text += d;
    const m = /(http:\/\/[^/]*\/)/.exec(text);
    if (m) resolve(m[1]);
  });
  child.on("exit", () => reject(new Error(text)));
});

const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
let code = 1;
try {
  const page = await browser.newPage({ colorScheme: "light", viewport: { width: 1200, height: 800 } });
  const errors = [];
  page.on("pageerror", (e) => errors.push(e.message));
  page.on("console", (m) => { if (m.type() === "error") errors.push(m.text()); });
  const last = () => page.locator(".message.assistant").last();
  const send = async (text) => {
    await page.fill("#input", text);
    await page.press("#input", "Enter");
  };

  await page.goto(url);
  await page.waitForFunction(() => document.querySelector("#model").textContent.includes("4096"));
  await page.click("#show-live");
  await send("Define reparation.");
  await page.waitForFunction(() => /[1-9]\d* tokens in/.test(document.querySelector("#messages").textContent));
  assert.match(await last().innerText(), /^Reparation, n\. Satisfaction/);
  console.log("ok   a reply");

  // The live view moves while tokens come.
  await page.fill("#input", "Who art thou?");
  await page.press("#input", "Enter");
  await page.waitForFunction(() => Number(document.querySelector("#map").dataset.moves || 0) > 0);
  assert.match(await page.locator("#map-note").innerText(), /9 layers × 64 experts/);
  const gauge = page.locator("#figures .gauge");
  await gauge.waitFor();
  assert.equal(await gauge.getAttribute("aria-valuemax"), "2.00");
  assert.ok(Number(await gauge.getAttribute("aria-valuenow")) > 0);
  assert.match(await page.locator("#figures").innerText(), /% of 2\.00/);
  if (shots) await page.screenshot({ path: `${shots}/light.png` });
  await page.waitForFunction(() => document.querySelector("#send").textContent === "Send");
  console.log("ok   the live view");

  // Text streams, and Stop stops it.
  await page.click("#show-settings");
  await page.fill("#set-temperature", "1.2");
  await page.click("#settings-close");
  let stopped = false;
  for (let i = 0; i < 8 && !stopped; i++) {
    await send(`Tell me of kindness and of the sea, part ${i}.`);
    await page.waitForFunction(() => {
      const all = document.querySelectorAll(".message.assistant .text");
      return all[all.length - 1].textContent.length > 2;
    });
    await page.evaluate(() => { if (document.querySelector("#send").textContent === "Stop") document.querySelector("#send").click(); });
    await page.waitForFunction(() => document.querySelector("#send").textContent === "Send");
    stopped = (await last().innerText()).includes("stopped");
  }
  assert.ok(stopped, "no reply was stopped");
  console.log("ok   stop");

  // Edit, retry, history over a reload.
  const before = await page.locator(".message").count();
  await page.reload();
  assert.equal(await page.locator(".message").count(), before);
  assert.match(await page.locator(".message.assistant").first().innerText(), /^Reparation/);
  await page.locator(".message.user").first().getByText("Edit").click();
  assert.equal(await page.inputValue("#input"), "Define reparation.");
  await page.fill("#input", "Define kindness.");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => document.querySelector("#messages").textContent.includes("Kindness, n."));
  await page.waitForFunction(() => document.querySelector("#send").textContent === "Send");
  console.log("ok   reload and edit");

  // A tool call is shown, and its result goes back.
  await page.click("#new-talk");
  await page.click("#show-settings");
  await page.fill("#set-temperature", "");
  await page.fill("#set-tools", JSON.stringify([{ type: "function", function: { name: "get_weather",
    description: "Report the weather in a town.", parameters: { type: "object",
      properties: { city: { type: "string" } }, required: ["city"] } } }]));
  await page.click("#settings-close");
  await send("I am going to Ankara. What weather shall I have?");
  await page.waitForSelector(".call button");
  assert.match(await page.locator(".call").innerText(), /get_weather[\s\S]*Ankara/);
  await page.fill(".call textarea", "rain, 9 degrees");
  await page.click(".call button");
  await page.waitForFunction(() => document.querySelectorAll(".message.assistant").length === 2 &&
    document.querySelector("#send").textContent === "Send");
  assert.match(await page.locator(".call").innerText(), /result: rain, 9 degrees/);
  assert.match(await last().innerText(), /Ankara/);
  console.log("ok   tools");

  // Markup in text is text.
  const harmless = await page.evaluate(() => document.querySelectorAll("#messages img, #messages script").length);
  assert.equal(harmless, 0);

  await page.emulateMedia({ colorScheme: "dark" });
  if (shots) await page.screenshot({ path: `${shots}/dark.png` });
  await page.setViewportSize({ width: 390, height: 780 });
  const wide = await page.evaluate(() => document.documentElement.scrollWidth > innerWidth);
  assert.ok(!wide, "the page is wider than a phone");
  if (shots) {
    await page.reload();
    await page.screenshot({ path: `${shots}/phone.png` });
  }
  console.log("ok   dark, phone");
  assert.deepEqual(errors, []);
  code = 0;
} catch (e) {
  console.log(`FAIL ${e.stack}`);
} finally {
  await browser.close();
  child.removeAllListeners("exit");
  child.kill("SIGTERM");
}
process.exit(code);
