// A small reader of Markdown that makes DOM nodes: headings, lists, quotes, tables, fenced code,
// and inside lines code, bold, italics, strikes and links. Unknown things stay text.
import { el } from "./dom.js";

const INLINE = /(`+)([^`]|[^`][\s\S]*?[^`])\1(?!`)|\*\*([^*]+)\*\*|\*([^*\s][^*]*)\*|~~([^~]+)~~|\[([^\]]+)\]\(([^)\s]+)\)|(https?:\/\/[^\s<>()]+)/;

function link(text, url) {
  if (!/^(https?:|mailto:)/i.test(url)) return document.createTextNode(text);
  return el("a", { href: url, target: "_blank", rel: "noopener noreferrer" }, text);
}

export function inline(text) {
  const out = [];
  for (let m; (m = INLINE.exec(text)); text = text.slice(m.index + m[0].length)) {
    if (m.index) out.push(text.slice(0, m.index));
    if (m[1]) out.push(el("code", {}, m[2]));
    else if (m[3]) out.push(el("strong", {}, ...inline(m[3])));
    else if (m[4]) out.push(el("em", {}, ...inline(m[4])));
    else if (m[5]) out.push(el("s", {}, ...inline(m[5])));
    else if (m[6]) out.push(link(m[6], m[7]));
    else out.push(link(m[8], m[8]));
  }
  if (text) out.push(text);
  return out;
}

function code(lines, language) {
  const text = lines.join("\n");
  const copy = el("button", { type: "button", class: "copy", onclick: async () => {
    await navigator.clipboard.writeText(text);
    copy.textContent = "Copied";
    setTimeout(() => (copy.textContent = "Copy"), 1200);
  } }, "Copy");
  return el("div", { class: "code" }, el("div", { class: "actions" }, el("span", { class: "note" },
    language), copy), el("pre", {}, el("code", {}, text)));
}

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((c) => c.trim());

function table(lines) {
  const head = el("tr", {}, ...cells(lines[0]).map((c) => el("th", {}, ...inline(c))));
  const rows = lines.slice(2).map((l) => el("tr", {}, ...cells(l).map((c) => el("td", {}, ...inline(c)))));
  return el("table", {}, el("thead", {}, head), el("tbody", {}, ...rows));
}

const ITEM = /^(\s*)([-*+]|\d+[.)])\s+(.*)$/;

function list(lines) {
  const first = ITEM.exec(lines[0]);
  const root = el(/\d/.test(first[2]) ? "ol" : "ul", /\d/.test(first[2]) ? { start: parseInt(first[2], 10) } : {});
  for (let i = 0; i < lines.length;) {
    const m = ITEM.exec(lines[i]);
    const text = [m[3]], inner = [];
    for (i++; i < lines.length; i++) {
      const n = ITEM.exec(lines[i]);
      if (n && n[1].length <= first[1].length) break;
      if (n || inner.length) inner.push(lines[i]);
      else text.push(lines[i].trim());
    }
    root.append(el("li", {}, ...inline(text.join(" ")), inner.length ? markdown(inner.join("\n")) : null));
  }
  return root;
}

const STARTS = [/^```/, /^#{1,6}\s/, ITEM, /^>\s?/, /^(-{3,}|\*{3,})$/];

export function markdown(text) {
  const out = document.createDocumentFragment();
  const lines = text.split("\n");
  for (let i = 0; i < lines.length;) {
    const line = lines[i];
    const take = (test) => {
      const from = i;
      while (i < lines.length && test(lines[i])) i++;
      return lines.slice(from, i);
    };
    if (!line.trim()) { i++; continue; }
    if (line.startsWith("```")) {
      i++;
      const body = take((l) => !l.startsWith("```"));
      i++;
      out.append(code(body, line.slice(3).trim()));
    } else if (/^#{1,6}\s/.test(line)) {
      const level = /^#+/.exec(line)[0].length;
      out.append(el(`h${Math.min(level + 1, 6)}`, {}, ...inline(line.slice(level).trim())));
      i++;
    } else if (/^(-{3,}|\*{3,})$/.test(line.trim())) {
      out.append(el("hr"));
      i++;
    } else if (ITEM.test(line)) {
      out.append(list(take((l) => l.trim() && (ITEM.test(l) || /^\s/.test(l)))));
    } else if (line.startsWith(">")) {
      const quoted = take((l) => l.startsWith(">")).map((l) => l.replace(/^>\s?/, ""));
      out.append(el("blockquote", {}, markdown(quoted.join("\n"))));
    } else if (line.includes("|") && /^[\s|:-]+$/.test(lines[i + 1] || "") && (lines[i + 1] || "").includes("-")) {
      out.append(table(take((l) => l.includes("|"))));
    } else {
      const from = i;
      const para = take((l) => l.trim() && (i === from || !STARTS.some((s) => s.test(l))));
      out.append(el("p", {}, ...para.flatMap((l, k) => (k ? [el("br"), ...inline(l)] : inline(l)))));
    }
  }
  return out;
}
