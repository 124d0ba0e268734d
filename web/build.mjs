// Bundles src/ into one self-contained file, dist/index.html, which the server embeds.
import { readFileSync, writeFileSync } from "node:fs";
import { build } from "esbuild";

const bundle = async (entry) => {
  const r = await build({ entryPoints: [entry], bundle: true, minify: true, write: false,
    format: "iife", target: "es2020", charset: "utf8", legalComments: "none" });
  return r.outputFiles[0].text.trim();
};

const script = (await bundle("src/main.js")).replaceAll("</script", "<\\/script");
const style = await bundle("src/style.css");
const page = readFileSync("src/page.html", "utf8")
  .replace("/*STYLE*/", () => style)
  .replace("/*SCRIPT*/", () => script);
writeFileSync("dist/index.html", page);
console.log(`dist/index.html: ${Buffer.byteLength(page)} bytes`);
