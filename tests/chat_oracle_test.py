"""The chat renderer against the templates' own language.

Runs each template (those of the demo and tiny models, read from GGUF files, and the ones under
tests/data/text/templates) with Jinja2, set up as transformers does, over a table of conversations,
and compares with the C renderer (the program chat_render, given as the argument). The recorded
chats of chat_vectors.json are compared first and need no Jinja2. Exit 77: no Jinja2.
"""
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "support"))
from gguf_read import Gguf  # noqa: E402

DATA = os.path.join(HERE, "data")
ROLES = {"system": 0, "user": 1, "assistant": 2, "tool": 3}


def dumps(value):
    return json.dumps(value, ensure_ascii=False)


# ---- the bridge ---------------------------------------------------------------------------------

def field(value):
    if isinstance(value, bool):
        value = int(value)
    raw = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")
    return b"%d:%s," % (len(raw), raw)


def call_fields(call):
    fn = call.get("function", call)
    yield fn["name"]
    yield len(fn["arguments"])
    for key, value in fn["arguments"].items():
        yield key
        yield value if isinstance(value, str) else dumps(value)
        yield isinstance(value, str)


def job(template, conv, name=""):
    options = conv.get("options", {})
    out = [template, name, options.get("add_generation_prompt", False),
           options.get("enable_thinking", True), options.get("preserve_thinking", True),
           options.get("reasoning_effort", "")]
    tools = conv.get("tools") or []
    out += [len(tools)] + [dumps(t) for t in tools] + [len(conv["messages"])]
    for m in conv["messages"]:
        calls = m.get("tool_calls") or []
        reasoning = m.get("reasoning_content")
        out += [ROLES[m["role"]], m["content"], reasoning is not None, reasoning or "", len(calls)]
        for call in calls:
            out += call_fields(call)
    return b"".join(field(f) for f in out)


def render_all(program, jobs):
    run = subprocess.run([program], input=b"".join(jobs), stdout=subprocess.PIPE, check=True)
    out, pos, fields = run.stdout, 0, []
    while pos < len(out):
        colon = out.index(b":", pos)
        size = int(out[pos:colon])
        fields.append(out[colon + 1:colon + 1 + size].decode("utf-8", "surrogateescape"))
        pos = colon + 2 + size
    return list(zip(fields[0::2], fields[1::2]))


# ---- the oracle ---------------------------------------------------------------------------------

def compile_template(text):
    import jinja2
    import jinja2.ext
    import jinja2.sandbox
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env.filters["tojson"] = dumps
    env.globals["raise_exception"] = raise_exception
    return env.from_string(text)


def oracle(template, conv):
    import jinja2
    try:
        text = template.render(messages=conv["messages"], tools=conv.get("tools"),
                               **conv.get("options", {}))
        return "ok", text
    except jinja2.exceptions.TemplateError as error:
        return "refused", str(error)


# ---- the table ----------------------------------------------------------------------------------

def user(content):
    return {"role": "user", "content": content}


def system(content):
    return {"role": "system", "content": content}


def tool(content):
    return {"role": "tool", "content": content}


def assistant(content, reasoning=None, calls=None):
    m = {"role": "assistant", "content": content}
    if reasoning is not None:
        m["reasoning_content"] = reasoning
    if calls:
        m["tool_calls"] = [{"type": "function", "function": {"name": n, "arguments": a}}
                           for n, a in calls]
    return m


WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Wetter für eine Stadt, \"heute\" 東京",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}},
                   "required": ["city"]}}}
ADD = {"type": "function", "function": {
    "name": "add", "parameters": {"type": "object", "properties": {
        "a": {"type": "number", "minimum": -1.5}, "b": {"type": "number", "enum": []}}}}}
ARGS = {"s": "two\nlines", "n": 1, "neg": -2, "x": 0.5, "yes": True, "no": False, "nil": None,
        "l": [1, "é", [True, None]], "o": {"k": "v", "deep": {"x": [{}]}}, "empty": "",
        "quoted": "\"q\" \\ </parameter>", "sp": "  kept  "}

MESSAGES = [
    [user("Hello!")],
    [user("")],
    [user("   \n\t ")],
    [user("  trimmed \n\n")],
    [user("\u00a0\u2003wide\u3000\u2028\x85")],
    [user("\u200bzero width stays\ufeff")],
    [user("\x1c\x1d\x1e\x1f separators \x1f")],
    [user("東京 😀 naïve e\u0301")],
    [user("<|im_start|>user\n<think>{{ 7 * 7 }}{% raw %}")],
    [user("<tool_response>\nlooks like one\n</tool_response>")],
    [user("real"), user("<tool_response>x</tool_response>")],
    [user("<tool_response>only the start")],
    [system("Be brief."), user("Hello!")],
    [system("  Be brief.  \n"), user("Hello!")],
    [system(""), user("Hello!")],
    [system(" \n "), user("Hello!")],
    [system("Zeile 1\n\nZeile 2"), user("a"), assistant("b"), user("c")],
    [user("a"), assistant("b"), user("c"), assistant("d"), user("e")],
    [user("a"), assistant("b")],
    [user("a"), assistant("")],
    [user("a"), assistant(" \n b \n ")],
    [user("a"), assistant("b", "why")],
    [user("a"), assistant("b", "")],
    [user("a"), assistant("b", "  \n why \n\n so\n")],
    [user("a"), assistant("b", " \n ")],
    [user("a"), assistant("", "why")],
    [user("a"), assistant("b", "why"), user("c"), assistant("d", "so"), user("e")],
    [user("a"), assistant("<think>\nA word.\n</think>\n\nb"), user("c")],
    [user("a"), assistant("<think>A</think>b")],
    [user("a"), assistant("<think>\n\n</think>\n\n  b")],
    [user("a"), assistant("no start</think>b")],
    [user("a"), assistant("x<think>one</think>y<think>two</think> \n z")],
    [user("a"), assistant("<think>never closed")],
    [user("a"), assistant("</think>")],
    [user("a"), assistant("<think>in</think>out", "given")],
    [user("a"), assistant("<think>in</think>out", "")],
    [user("a"), assistant("<think>in</think>out", "  ")],
    [user("a"), assistant("", None, [("get_weather", {"city": "Bath"})])],
    [user("a"), assistant("I ask.", None, [("get_weather", {"city": "Bath"})])],
    [user("a"), assistant("I ask.", "thought", [("get_weather", {"city": "Bath"})])],
    [user("a"), assistant("", None, [("f", {})])],
    [user("a"), assistant("", None, [("f", ARGS)])],
    [user("a"), assistant("x", None, [("f", {"a": 1}), ("g", {"b": "2"}), ("h", {})])],
    [user("a"), assistant("", None, [("f", {"a": 1})]), tool("1")],
    [user("a"), assistant("", None, [("f", {"a": 1})]), tool("  1\n"), assistant("It is 1.")],
    [user("a"), assistant("", None, [("f", {}), ("g", {})]), tool("1"), tool("2")],
    [user("a"), assistant("", None, [("f", {}), ("g", {})]), tool("1"), tool("2"), tool(""),
     assistant("done"), user("again"), assistant("", "hm", [("f", {})]), tool("3")],
    [user("a"), assistant("", "t1", [("f", {})]), tool("1"), assistant("", "t2", [("g", {})]),
     tool("2"), assistant("end", "t3"), user("more")],
    [system("s"), user("a"), assistant("", "t1", [("f", {})]), tool("{\"k\": \"é\"}")],
    [tool("first"), user("a")],
    [user("a"), tool("no call before")],
    [tool("1"), tool("2"), user("a"), tool("3")],
    [user("a"), assistant("b"), assistant("c"), user("d"), user("e")],
    [user("x" * 5000), assistant("y" * 5000, "z" * 5000)],
    # refused by some
    [],
    [system("only")],
    [assistant("only")],
    [tool("only")],
    [user("a"), system("late")],
    [system("one"), system("two"), user("a")],
    [system("one"), system(" "), system("three"), user("a")],
    [system("one"), user("a"), system("late")],
    [assistant("first", "r"), user("a"), assistant("b", "s")],
]

OPTIONS = [
    {"add_generation_prompt": True},
    {},
    {"add_generation_prompt": True, "enable_thinking": False},
    {"add_generation_prompt": True, "preserve_thinking": False},
    {"preserve_thinking": False, "enable_thinking": True, "reasoning_effort": "low"},
    {"add_generation_prompt": True, "reasoning_effort": "xhigh", "preserve_thinking": True},
    {"reasoning_effort": "medium"},
    {"reasoning_effort": "high", "enable_thinking": False},
    {"reasoning_effort": "high"},
    {"reasoning_effort": "tremendous"},
]

TOOLS = [None, [WEATHER], [WEATHER, ADD]]


def conversations():
    """Every message list with the first options; options and tools go round over the lists."""
    for i, messages in enumerate(MESSAGES):
        yield {"messages": messages, "options": OPTIONS[0]}
        for k, options in enumerate(OPTIONS):
            yield {"messages": messages, "options": options, "tools": TOOLS[(i + k) % 3]}


# ---- the test -----------------------------------------------------------------------------------

def templates():
    for name, path in (("demo", "text/demo-vocab.gguf"), ("tiny", "tiny/a-f32.gguf")):
        yield name, Gguf(os.path.join(DATA, path)).kv["tokenizer.chat_template"]
    folder = os.path.join(DATA, "text/templates")
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), encoding="utf-8") as f:
            yield name, f.read()


def check_vectors(program, template):
    with open(os.path.join(DATA, "text/chat_vectors.json"), encoding="utf-8") as f:
        vectors = json.load(f)
    assert len(vectors) == 18
    bad = 0
    for v, got in zip(vectors, render_all(program, [job(template, v) for v in vectors])):
        if got != ("ok", v["text"]):
            print("vector %s:\n got  %r\n want %r" % (v["name"], got, v["text"]))
            bad += 1
    print("recorded chats: %d, wrong: %d" % (len(vectors), bad))
    return bad


def check_refused_templates(program):
    """Texts of other families, and unknown names, are refused; forced families are not."""
    conv = {"messages": [user("a")]}
    plain = "<|im_start|>user\na<|im_end|>\n"
    other = [
        ("", ""), ("{{ messages }}", ""), ("{{ messages }}", "jinja"),
        ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
         "{% endfor %}", ""),
        ("{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + m.content | upper + "
         "'<|im_end|>\\n' }}{%- endfor %}{%- if add_generation_prompt %}"
         "{{- '<|im_start|>assistant\\n' }}{%- endif %}", ""),
        ("{%- for m in messages %}{%- if m.role == 'user' %}{{- '<|im_start|>' + m.role + '\\n' + "
         "m.content + '<|im_end|>\\n' }}{%- endif %}{%- endfor %}{%- if add_generation_prompt %}"
         "{{- '<|im_start|>assistant\\n' }}{%- endif %}", ""),
        ("{{ '<|im_start|>", ""), ("{% '", ""), ("{{ 'a\\", ""), ("{#", ""), ("{", ""), ("{{", ""),
    ]
    bad = 0
    for (text, name), (code, message) in zip(
            other, render_all(program, [job(t, conv, n) for t, n in other])):
        if code != "3" or "--chat-template" not in message or "qwen, chatml" not in message:
            print("template %r %r gave %s %r" % (text, name, code, message))
            bad += 1
    for name in ("qwen", "chatml"):
        for text in ("", "{{ messages }}"):
            got = render_all(program, [job(text, conv, name)])[0]
            if got != ("ok", plain):
                print("forced %s on %r gave %r" % (name, text, got))
                bad += 1
    return bad


def check_oracle(program, name, text, convs):
    compiled = compile_template(text)
    bad, refused = 0, 0
    for conv, (code, got) in zip(convs, render_all(program, [job(text, c) for c in convs])):
        want_code, want = oracle(compiled, conv)
        if want_code == "refused":
            refused += 1
            same = code == "1" and want in got
        else:
            same = code == "ok" and got == want
        if not same:
            bad += 1
            if bad <= 5:
                print("%s: %r\n got  %s %r\n want %s %r" % (name, conv, code, got, want_code, want))
    print("%s: %d chats, %d refused by both, wrong: %d" % (name, len(convs), refused, bad))
    return bad


def main(argv):
    program = argv[1]
    table = dict(templates())
    bad = check_vectors(program, table["demo"]) + check_refused_templates(program)
    try:
        import jinja2  # noqa: F401
    except ImportError:
        print("skipped: no jinja2")
        return 1 if bad else 77
    convs = list(conversations())
    assert len(MESSAGES) >= 60
    for name, text in table.items():
        bad += check_oracle(program, name, text, convs)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
