"""Writes a Hugging Face checkpoint folder from a float GGUF file of a qwen4exp model.

The inverse of `regolith convert`, written from the architecture notes alone. Options cut and store
it in the forms that occur: several files, fused experts, more than ten shards of the n-gram table,
fp8 blocks.
"""
import json
import os
import re
import struct

import numpy as np

from gguf_read import Gguf

BLOCK = 128


def read_tensors(path):
    g, out = Gguf(path), {}
    with open(path, "rb") as f:
        for t in g.tensors:
            f.seek(t.offset)
            raw = f.read(t.size_bytes)
            if t.type == 0:
                x = np.frombuffer(raw, "<f4")
            elif t.type == 30:
                x = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
            else:
                raise ValueError(f"{t.name}: {t.type_name}")
            out[t.name] = x.reshape([int(d) for d in reversed(t.dims)])
    return g, out


def untile(x, axis, start, k_heads, r, unit):
    """[r][k heads][unit] back to [k heads][r][unit] behind `start`."""
    x = np.moveaxis(x, axis, 0)
    head, rest = x[:start], x[start:]
    shape = rest.shape[1:]
    rest = rest.reshape(r, k_heads, unit, *shape).swapaxes(0, 1).reshape(-1, *shape)
    return np.moveaxis(np.concatenate([head, rest]), 0, axis)


def e4m3_table():
    v = np.zeros(256, np.float32)
    for c in range(256):
        e, m, s = (c >> 3) & 15, c & 7, -1.0 if c & 128 else 1.0
        v[c] = s * (m * 2.0 ** -9 if e == 0 else (1 + m / 8) * 2.0 ** (e - 7))
    v[127] = v[255] = np.nan
    return v


def to_f8(x):
    """Codes and scales of 128 x 128 blocks; and the values they stand for."""
    table = e4m3_table()
    order = np.argsort(np.where(np.isnan(table), np.inf, table), kind="stable")[:-2]
    values = table[order]
    rows, cols = x.shape
    scale = np.zeros((-(-rows // BLOCK), -(-cols // BLOCK)), np.float32)
    codes = np.zeros(x.shape, np.uint8)
    back = np.zeros(x.shape, np.float32)
    for i in range(scale.shape[0]):
        for j in range(scale.shape[1]):
            at = np.s_[i * BLOCK:(i + 1) * BLOCK, j * BLOCK:(j + 1) * BLOCK]
            s = np.float32(max(float(np.abs(x[at]).max()), 1e-12) / 448)
            k = np.clip(np.searchsorted(values, x[at] / s), 0, len(values) - 1)
            scale[i, j], codes[at] = s, order[k]
            back[at] = values[k] * s
    return codes, scale, back


def plus(x):
    return (x.astype(np.float64) - 1).astype(np.float32)


def source_names(g, t, fused, shards, prefix):
    """name -> array, as a checkpoint has them; norms lose their 1."""
    a = "qwen4exp."
    kv = g.kv
    n_mtp = kv.get(a + "nextn_predict_layers", 0)
    n_layer = kv[a + "block_count"] - n_mtp
    hk, hv = kv[a + "ssm.group_count"], kv[a + "ssm.time_step_rank"]
    d, r = kv[a + "ssm.state_size"], hv // hk
    keys = 2 * hk * d
    out = {prefix + "embed_tokens.weight": t["token_embd.weight"]}
    if "output.weight" in t:
        out["lm_head.weight"] = t["output.weight"]

    def hyper(src, dst):
        out[dst + ".hc_norm.weight"] = plus(t[src + "_norm.weight"])
        out[dst + ".input_mix_weight_down.weight"] = t[src + "_down.weight"]
        out[dst + ".input_mix_weight_up.weight"] = t[src + "_up.weight"]
        if src + "_inject.weight" in t:
            out[dst + ".block_inject_weight.weight"] = t[src + "_inject.weight"]

    hyper("output_hc", prefix + "hyper_connection_mixer")
    for i in range(n_layer + n_mtp):
        b = f"blk.{i}."
        p = f"{prefix}layers.{i}." if i < n_layer else "mtp.layers.0."
        hyper(b + "hc_attn", p + "attn_hyper_connection")
        hyper(b + "hc_ffn", p + "mlp_hyper_connection")
        if b + "attn_qkv.weight" in t:
            q = p + "linear_attn."
            out[q + "in_proj_qkv.weight"] = untile(t[b + "attn_qkv.weight"], 0, keys, hk, r, d)
            out[q + "in_proj_z.weight"] = untile(t[b + "attn_gate.weight"], 0, 0, hk, r, d)
            out[q + "in_proj_a.weight"] = untile(t[b + "ssm_alpha.weight"], 0, 0, hk, r, 1)
            out[q + "in_proj_b.weight"] = untile(t[b + "ssm_beta.weight"], 0, 0, hk, r, 1)
            out[q + "A_log"] = np.log(-untile(t[b + "ssm_a"], 0, 0, hk, r, 1))
            out[q + "dt_bias"] = untile(t[b + "ssm_dt.bias"], 0, 0, hk, r, 1)
            conv = untile(t[b + "ssm_conv1d.weight"], 0, keys, hk, r, d)
            out[q + "conv1d.weight"] = conv[:, None, :]
            out[q + "norm.weight"] = t[b + "ssm_norm.weight"]
            out[q + "out_proj.weight"] = untile(t[b + "ssm_out.weight"], 1, 0, hk, r, d)
        else:
            q = p + "self_attn."
            for s, u in (("q", "q"), ("k", "k"), ("v", "v"), ("o", "output")):
                out[f"{q}{s}_proj.weight"] = t[f"{b}attn_{u}.weight"]
            for s in "qk":
                out[f"{q}{s}_norm.weight"] = plus(t[f"{b}attn_{s}_norm.weight"])
                out[f"{q}indexer.{s}_layernorm.weight"] = plus(t[f"{b}indexer.{s}_norm.weight"])
            out[q + "indexer.index_qk_proj.weight"] = np.concatenate(
                [t[b + "indexer.q_proj.weight"], t[b + "indexer.k_proj.weight"]])
        if b + "ple_key.weight" in t:
            for s in ("key", "value"):
                out[f"{p}ple.{s}_proj.weight"] = t[f"{b}ple_{s}.weight"]
            for s in ("key", "query", "conv"):
                out[f"{p}ple.norm_{s}.weight"] = plus(t[f"{b}ple_norm_{s}.weight"])
            out[p + "ple.conv1d.weight"] = t[b + "ple_conv1d.weight"][:, None, :]
            table = p + "ple.ple_embedding.ngram_embedding."
            rows = t["per_layer_token_embd.weight"]
            for k in range(shards):
                n = len(rows) // shards
                out[f"{table}shard_{k}.weight"] = rows[k * n:(k + 1) * n]
            if shards == 0:
                out[table + "weight"] = rows
            e = p + "ple.ple_embedding."
            for s, u in (("layer_multipliers", "layer_multipliers"),
                         ("ngram_heads_offsets", "head_offsets"),
                         ("ngram_heads_vocab_sizes", "head_vocab_sizes")):
                out[e + s] = np.array(kv[a + "ple." + u], np.int64)
        out[p + "mlp.gate.weight"] = t[b + "ffn_gate_inp.weight"]
        out[p + "mlp.shared_expert_gate.weight"] = t[b + "ffn_gate_inp_shexp.weight"][None]
        for s in ("gate", "up", "down"):
            out[f"{p}mlp.shared_expert.{s}_proj.weight"] = t[f"{b}ffn_{s}_shexp.weight"]
        gate, up, down = (t[f"{b}ffn_{s}_exps.weight"] for s in ("gate", "up", "down"))
        if fused:
            out[p + "mlp.experts.gate_up_proj"] = np.concatenate([gate, up], 1)
            out[p + "mlp.experts.down_proj"] = down
        for e in range(0 if fused else len(gate)):
            for s, x in (("gate", gate), ("up", up), ("down", down)):
                out[f"{p}mlp.experts.{e}.{s}_proj.weight"] = x[e]
    if n_mtp:
        b, e = f"blk.{n_layer}.nextn.", kv[a + "embedding_length"]
        out["mtp.pre_fc_norm_embedding.weight"] = plus(t[b + "enorm.weight"])
        out["mtp.pre_fc_norm_hidden.weight"] = plus(t[b + "hnorm.weight"])
        out["mtp.fc_embedding.weight"] = t[b + "eh_proj.weight"][:, :e]
        out["mtp.fc_hidden.weight"] = t[b + "eh_proj.weight"][:, e:]
        hyper(b + "hc_head", "mtp.hyper_connection_mixer")
    return out


def config(g, shards, text_config):
    a, kv = "qwen4exp.", g.kv
    n_mtp = kv.get(a + "nextn_predict_layers", 0)
    n = kv[a + "block_count"] - n_mtp
    step = kv.get(a + "full_attention_interval", 4)
    rot = kv[a + "rope.dimension_count"]
    c = {"model_type": "qwen4_exp_text", "num_hidden_layers": n, "mtp_num_hidden_layers": n_mtp,
         "max_position_embeddings": kv[a + "context_length"],
         "hidden_size": kv[a + "embedding_length"],
         "vocab_size": len(kv["tokenizer.ggml.tokens"]),
         "num_attention_heads": kv[a + "attention.head_count"],
         "num_key_value_heads": kv[a + "attention.head_count_kv"],
         "head_dim": kv[a + "attention.key_length"], "rms_norm_eps": 1e-6,
         "layer_types": ["qwen_sparse_attention" if i % step == step - 1 else "linear_attention"
                         for i in range(n)],
         "linear_conv_kernel_dim": kv[a + "ssm.conv_kernel"],
         "linear_key_head_dim": kv[a + "ssm.state_size"],
         "linear_value_head_dim": kv[a + "ssm.state_size"],
         "linear_num_key_heads": kv[a + "ssm.group_count"],
         "linear_num_value_heads": kv[a + "ssm.time_step_rank"],
         "num_experts": kv[a + "expert_count"], "num_experts_per_tok": kv[a + "expert_used_count"],
         "moe_intermediate_size": kv[a + "expert_feed_forward_length"],
         "shared_expert_intermediate_size": kv[a + "expert_shared_feed_forward_length"],
         "hc_count": kv[a + "hyper_connection.count"],
         "hc_lowrank": kv[a + "hyper_connection.low_rank"],
         "indexer_n_heads": kv[a + "attention.indexer.head_count"],
         "indexer_head_dim": kv[a + "attention.indexer.key_length"],
         "indexer_budget": kv[a + "attention.indexer.top_k"],
         "indexer_compress_ratio": max(kv[a + "attention.compress_ratios"]),
         "hidden_act": "silu", "output_gate_type": "sigmoid", "tie_word_embeddings": False,
         "rope_parameters": {"rope_theta": kv[a + "rope.freq_base"],
                             "partial_rotary_factor": rot / kv[a + "attention.key_length"],
                             "mrope_section": kv[a + "rope.dimension_sections"][:3]},
         "split_ngram_parts": shards, "ple_layer_ids": []}
    if a + "ple.layers" in kv:
        c.update(ple_layer_ids=[kv[a + "ple.layers"][0] + 1], ngram_size=kv[a + "ple.ngram_size"],
                 heads_per_ngram=kv[a + "ple.heads_per_ngram"],
                 ple_conv_kernel_size=kv[a + "ple.conv_kernel"],
                 eos_token_id=kv[a + "ple.eos_token_id"])
    return {"model_type": "qwen4_exp", "text_config": c} if text_config else c


def vocabulary(g, folder, merges_as_text):
    kv = g.kv
    tokens, kinds = kv["tokenizer.ggml.tokens"], kv["tokenizer.ggml.token_type"]
    merges = kv["tokenizer.ggml.merges"]
    fake = {"added_tokens": [{"id": i, "content": x, "special": k == 3}
                             for i, (x, k) in enumerate(zip(tokens, kinds)) if k in (3, 4)],
            "model": {"vocab": {x: i for i, (x, k) in enumerate(zip(tokens, kinds)) if k == 1},
                      "merges": merges if merges_as_text else [m.split(" ") for m in merges]}}
    name = {k: tokens[kv[f"tokenizer.ggml.{v}_token_id"]]
            for k, v in (("eos_token", "eos"), ("pad_token", "padding"), ("bos_token", "bos"))}
    with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as f:
        json.dump(fake, f)
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as f:
        json.dump(dict(name, add_bos_token=False,
                       chat_template=kv["tokenizer.chat_template"]), f)


def encode(x, dtype):
    if x.dtype == np.int64:
        return "I64", x.astype("<i8").tobytes()
    if x.dtype == np.uint8:
        return "F8_E4M3", x.tobytes()
    if dtype == "BF16":
        bits = x.astype("<f4").view("<u4").astype(np.uint64)
        return dtype, ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()
    if dtype == "F16":
        return dtype, x.astype("<f2").tobytes()
    return "F32", x.astype("<f4").tobytes()


def save(path, tensors, dtype):
    header, data, at = {"__metadata__": {"format": "pt"}}, [], 0
    for name, x in tensors.items():
        kind, raw = encode(x, "F32" if name.endswith("_scale_inv") else dtype)
        header[name] = {"dtype": kind, "shape": list(x.shape), "data_offsets": [at, at + len(raw)]}
        data.append(raw)
        at += len(raw)
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(data))


def write(gguf, folder, dtype="F32", files=1, fused=False, shards=4, prefix="model.", f8=False,
          text_config=False, merges_as_text=False, drop=None):
    """Returns name -> array of what was stored, fp8 ones as the values they stand for."""
    os.makedirs(folder, exist_ok=True)
    g, tensors = read_tensors(gguf)
    named = source_names(g, tensors, fused, shards, prefix)
    if drop:
        named = {k: v for k, v in named.items() if not re.search(drop, k)}
    stored, meant = {}, dict(named)
    for name, x in named.items():
        if f8 and x.ndim == 2 and name.endswith("proj.weight") and "indexer" not in name:
            codes, scale, meant[name] = to_f8(x)
            stored[name], stored[name + "_scale_inv"] = codes, scale
        else:
            stored[name] = x
    names = list(stored)
    index = {}
    for k in range(files):
        part = names[k::files]
        file = "model.safetensors" if files == 1 else f"model-{k + 1:05}-of-{files:05}.safetensors"
        save(os.path.join(folder, file), {n: stored[n] for n in part}, dtype)
        index.update({n: file for n in part})
    if files > 1:
        with open(os.path.join(folder, "model.safetensors.index.json"), "w",
                  encoding="utf-8") as f:
            json.dump({"weight_map": index}, f)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config(g, shards, text_config), f)
    vocabulary(g, folder, merges_as_text)
    return meant
