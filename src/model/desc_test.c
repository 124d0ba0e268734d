/* The description of the tiny models, and of those models with one thing changed: a key or tensor
 * dropped, reshaped, retyped, a number out of range. Each change must give one clear line.
 */
#include "model/model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "support/gguf_writer.h"

#define TINY RG_TEST_DATA "/tiny/"

static const char *const all_models[] = {
    "a-f32", "a-fused-00001-of-00003", "a-mix", "b-f16", "c-f32", "k-mtp"};

static rg_gguf *open_tiny(const char *name) {
    char path[512];
    snprintf(path, sizeof path, TINY "%s.gguf", name);
    rg_gguf *g = NULL;
    rg_status st = {0};
    const rg_code rc = rg_gguf_open(&g, path, &st);
    if (rc != RG_OK) print_error("%s\n", st.message);
    assert_int_equal(rc, RG_OK);
    return g;
}

/* What to change in the copy of a model's header. */
typedef struct edit {
    const char *drop_key;
    const char *drop_tensor;
    const char *tensor; /* gets these dims and this type */
    uint64_t ne[4];
    rg_type type;
    const char *rename, *to; /* a part of tensor names */
} edit;

static void copy_tensor(rg_gguf_writer *w, const rg_tensor *t, const edit *e) {
    char name[2 * RG_GGUF_NAME_MAX];
    (void)snprintf(name, sizeof name, "%s", t->name);
    const char *at = e->rename ? strstr(t->name, e->rename) : NULL;
    if (at) {
        snprintf(name, sizeof name, "%.*s%s%s", (int)(at - t->name), t->name, e->to,
                 at + strlen(e->rename));
    }
    const bool changed = e->tensor && strcmp(e->tensor, t->name) == 0;
    rg_gguf_writer_tensor(w, name, changed ? e->type : t->type, changed ? 4 : t->n_dims,
                          changed ? e->ne : t->ne, NULL);
}

static rg_gguf_writer copy(const rg_gguf *g, edit e) {
    rg_gguf_writer w;
    rg_gguf_writer_init(&w);
    w.no_data = true;
    for (size_t i = 0; i < rg_gguf_kv_count(g); i++) {
        const rg_gguf_kv *kv = rg_gguf_kv_at(g, i);
        if (kv->key.len > 6 && memcmp(kv->key.data, "split.", 6) == 0) continue;
        if (e.drop_key && kv->key.len == strlen(e.drop_key) &&
            memcmp(kv->key.data, e.drop_key, kv->key.len) == 0)
            continue;
        rg_gguf_writer_copy_kv(&w, kv);
    }
    for (size_t i = 0; i < rg_gguf_tensor_count(g); i++) {
        const rg_tensor *t = rg_gguf_tensor_at(g, i);
        if (e.drop_tensor && strcmp(e.drop_tensor, t->name) == 0) continue;
        copy_tensor(&w, t, &e);
    }
    return w;
}

/* Parses and describes; the writer is used up. Whoever gets a model closes both. */
static rg_code describe(rg_gguf_writer *w, rg_gguf **g, rg_model **m, const rg_model_options *opt,
                        rg_status *st) {
    rg_buf out;
    rg_buf_init(&out, 0);
    const uint64_t size = rg_gguf_writer_finish(w, &out);
    *m = NULL;
    rg_code rc = rg_gguf_parse(g, out.data, out.len, size, st);
    if (rc == RG_OK) rc = rg_model_create(m, *g, opt, st);
    if (rc != RG_OK) {
        assert_null(*m);
        rg_gguf_close(*g);
        *g = NULL;
    }
    rg_buf_deinit(&out);
    rg_gguf_writer_deinit(w);
    return rc;
}

static void refuse(rg_gguf_writer w, rg_code code, const char *part) {
    rg_gguf *g = NULL;
    rg_model *m = NULL;
    rg_status st = {0};
    const rg_code rc = describe(&w, &g, &m, NULL, &st);
    if (rc != code || !strstr(st.message, part)) {
        print_error("code %d, message '%s', wanted %d '%s'\n", (int)rc, st.message, (int)code,
                    part);
    }
    assert_int_equal(rc, code);
    assert_non_null(strstr(st.message, part));
    assert_null(strchr(st.message, '\n'));
    assert_int_equal(strncmp(st.message, "(memory): ", 10), 0);
}

/* For checks in one expression: describes and keeps both alive until `done`. */
typedef struct pair {
    rg_gguf *g;
    rg_model *m;
} pair;

static pair accept_with(rg_gguf_writer w, const rg_model_options *opt) {
    pair p = {0};
    rg_status st = {0};
    const rg_code rc = describe(&w, &p.g, &p.m, opt, &st);
    if (rc != RG_OK) print_error("%s\n", st.message);
    assert_int_equal(rc, RG_OK);
    return p;
}

static pair accept(rg_gguf_writer w) {
    return accept_with(w, NULL);
}

static void done(pair p) {
    rg_model_destroy(p.m);
    rg_gguf_close(p.g);
}

/* A copy of `g` with key replaced by a u32. */
static rg_gguf_writer with_u32(const rg_gguf *g, const char *key, uint32_t v) {
    rg_gguf_writer w = copy(g, (edit){.drop_key = key});
    rg_gguf_writer_u32(&w, key, v);
    return w;
}

static rg_gguf_writer with_array(const rg_gguf *g, const char *key, uint32_t elem_type,
                                 uint64_t count, const void *elems, size_t elem_bytes) {
    rg_gguf_writer w = copy(g, (edit){.drop_key = key});
    rg_gguf_writer_array(&w, key, elem_type, count, elems, elem_bytes);
    return w;
}

/* ---- the models as they are ----------------------------------------------------------------- */

static void describes_a_f32(void **state) {
    (void)state;
    rg_gguf *g = open_tiny("a-f32");
    rg_model *m = NULL;
    assert_int_equal(rg_model_create(&m, g, NULL, NULL), RG_OK);
    const rg_hparams *hp = &m->hp;
    assert_int_equal(hp->n_layer, 4);
    assert_int_equal(hp->n_mtp, 0);
    assert_int_equal(hp->n_embd, 64);
    assert_int_equal(hp->n_vocab, 512);
    assert_int_equal(hp->n_v_head, 6);
    assert_int_equal(hp->n_k_head, 2);
    assert_int_equal(hp->n_hc, 4);
    assert_int_equal(hp->idx_budget, 2048);
    assert_true(hp->expert_scale == 1.0f);
    assert_int_equal(hp->ple_ngram, 3);
    assert_int_equal(hp->ple_n_head, 8);
    assert_int_equal(hp->ple_image, -1);
    assert_int_equal(hp->ple_eos, 504);
    assert_true(hp->ple_mult[1] == 17440218147737327u);
    assert_int_equal(hp->ple_offset[7] + hp->ple_size[7], 928);
    for (uint32_t i = 0; i < 4; i++) {
        const rg_layer_desc *l = &m->layers[i];
        assert_int_equal(l->is_attn, i == 3);
        assert_int_equal(l->has_ple, i == 1);
        assert_int_equal(l->moe.n_ff, 32);
        assert_non_null(l->moe.gate);
        assert_null(l->moe.gate_up);
        assert_int_equal(l->gdn.qkv != NULL, i != 3);
        assert_int_equal(l->attn.q != NULL, i == 3);
        assert_int_equal(l->ple.key != NULL, i == 1);
    }
    assert_int_equal(m->layers[3].attn.ratio, 4);
    assert_string_equal(m->layers[0].gdn.a->name, "blk.0.ssm_a");
    assert_string_equal(m->layers[2].hc_ffn.inject->name, "blk.2.hc_ffn_inject.weight");
    assert_null(m->output_hc.inject);
    assert_ptr_not_equal(m->output, m->token_embd);
    rg_model_destroy(m);
    rg_gguf_close(g);
}

static void describes_the_other_tiny_models(void **state) {
    (void)state;
    rg_gguf *g = NULL;
    rg_model *m = NULL;
    g = open_tiny("k-mtp");
    assert_int_equal(rg_model_create(&m, g, NULL, NULL), RG_OK);
    assert_int_equal(m->hp.n_mtp, 1);
    assert_int_equal(m->hp.n_layer, 4);
    assert_int_equal(m->hp.n_hc, 3);
    assert_true(m->mtp.layer.is_attn);
    assert_int_equal(m->mtp.layer.attn.ratio, 0);
    assert_int_equal(m->mtp.eh_proj->ne[0], 512);
    assert_null(m->mtp.fc_embd);
    assert_null(m->mtp.shared_head);
    assert_string_equal(m->mtp.head.norm->name, "blk.4.nextn.hc_head_norm.weight");
    rg_model_destroy(m);
    rg_gguf_close(g);
    g = open_tiny("a-fused-00001-of-00003");
    assert_int_equal(rg_model_create(&m, g, NULL, NULL), RG_OK);
    assert_int_equal(rg_gguf_file_count(g), 3);
    assert_int_equal(m->layers[0].moe.gate_up->ne[1], 64);
    assert_int_equal(m->layers[0].moe.n_ff, 32);
    assert_null(m->layers[0].moe.gate);
    rg_model_destroy(m);
    rg_gguf_close(g);
    g = open_tiny("b-f16");
    assert_int_equal(rg_model_create(&m, g, NULL, NULL), RG_OK);
    assert_int_equal(m->hp.ple_ngram, 0);
    assert_null(m->ple_table);
    assert_int_equal(m->hp.n_hc, 2);
    assert_true(m->layers[1].is_attn && m->layers[3].is_attn && !m->layers[2].is_attn);
    assert_int_equal(m->hp.n_rot, 16);
    rg_model_destroy(m);
    rg_gguf_close(g);
    g = open_tiny("c-f32");
    assert_int_equal(rg_model_create(&m, g, NULL, NULL), RG_OK);
    assert_int_equal(m->hp.idx_budget, 64);
    assert_int_equal(m->hp.n_head, 12);
    assert_int_equal(m->hp.n_head_kv, 1);
    assert_int_equal(m->hp.ple_n_head, 16);
    rg_model_destroy(m);
    rg_gguf_close(g);
}

static void describes_the_demo(void **state) {
    (void)state;
    rg_gguf *g = NULL;
    rg_model *m = NULL;
    assert_int_equal(rg_gguf_open(&g, RG_SOURCE_DIR "/models/regolith-demo-q4.gguf", NULL), RG_OK);
    assert_int_equal(rg_model_create(&m, g, NULL, NULL), RG_OK);
    assert_int_equal(m->hp.n_layer, 8);
    assert_int_equal(m->hp.n_mtp, 1);
    assert_int_equal(m->hp.n_expert, 64);
    assert_int_equal(m->ple_table->ne[1], 65920);
    rg_model_destroy(m);
    rg_gguf_close(g);
}

/* ---- variants that must load ---------------------------------------------------------------- */

static void accepts_a_tied_head(void **state) {
    (void)state;
    rg_gguf *g = open_tiny("a-f32");
    pair p = accept(copy(g, (edit){.drop_tensor = "output.weight"}));
    assert_ptr_equal(p.m->output, p.m->token_embd);
    done(p);
    rg_gguf_close(g);
}

static void accepts_older_draft_names(void **state) {
    (void)state;
    rg_gguf *g = open_tiny("k-mtp");
    pair p = accept(copy(g, (edit){.rename = "nextn.hc_head_", .to = "nextn.hc_"}));
    assert_string_equal(p.m->mtp.head.up->name, "blk.4.nextn.hc_up.weight");
    done(p);
    static const uint64_t ne[] = {256, 256};
    rg_gguf_writer w = copy(g, (edit){.drop_tensor = "blk.4.nextn.eh_proj.weight"});
    rg_gguf_writer_tensor(&w, "blk.4.nextn.fc_embd.weight", RG_TYPE_F32, 2, ne, NULL);
    rg_gguf_writer_tensor(&w, "blk.4.nextn.fc_hidden.weight", RG_TYPE_F32, 2, ne, NULL);
    p = accept(w);
    assert_null(p.m->mtp.eh_proj);
    assert_non_null(p.m->mtp.fc_embd);
    assert_non_null(p.m->mtp.fc_hidden);
    done(p);
    w = copy(g, (edit){.drop_tensor = "blk.4.nextn.eh_proj.weight"});
    rg_gguf_writer_tensor(&w, "blk.4.nextn.fc_embd.weight", RG_TYPE_F32, 2, ne, NULL);
    refuse(w, RG_FORMAT, "tensor 'blk.4.nextn.fc_hidden.weight' is missing");
    rg_gguf_close(g);
}

static void leaves_out_the_draft_block(void **state) {
    (void)state;
    rg_gguf *g = open_tiny("k-mtp");
    const rg_model_options opt = {.no_mtp = true};
    /* Not even looked at: one of its tensors is missing. */
    pair p = accept_with(copy(g, (edit){.drop_tensor = "blk.4.nextn.enorm.weight"}), &opt);
    assert_int_equal(p.m->hp.n_mtp, 0);
    assert_int_equal(p.m->hp.n_layer, 4);
    done(p);
    rg_gguf_close(g);
}

static void accepts_expert_widths_by_layer(void **state) {
    (void)state;
    rg_gguf *g = open_tiny("a-f32");
    static const uint32_t widths[] = {32, 32, 64, 32};
    static const struct {
        const char *name;
        uint64_t ne[4];
    } wide[] = {{"blk.2.ffn_gate_exps.weight", {64, 64, 8, 1}},
                {"blk.2.ffn_up_exps.weight", {64, 64, 8, 1}},
                {"blk.2.ffn_down_exps.weight", {64, 64, 8, 1}}};
    rg_gguf_writer w;
    rg_gguf_writer_init(&w);
    w.no_data = true;
    for (size_t i = 0; i < rg_gguf_kv_count(g); i++) {
        const rg_gguf_kv *kv = rg_gguf_kv_at(g, i);
        if (kv == rg_gguf_find(g, "qwen4exp.expert_feed_forward_length")) continue;
        rg_gguf_writer_copy_kv(&w, kv);
    }
    rg_gguf_writer_array(&w, "qwen4exp.expert_feed_forward_length", RG_GGUF_U32, 4, widths, 4);
    for (size_t i = 0; i < rg_gguf_tensor_count(g); i++) {
        const rg_tensor *t = rg_gguf_tensor_at(g, i);
        edit e = {0};
        for (size_t k = 0; k < RG_ARRAY_LEN(wide); k++) {
            if (strcmp(wide[k].name, t->name) != 0) continue;
            e.tensor = t->name;
            memcpy(e.ne, wide[k].ne, sizeof e.ne);
        }
        copy_tensor(&w, t, &e);
    }
    pair p = accept(w);
    assert_int_equal(p.m->layers[1].moe.n_ff, 32);
    assert_int_equal(p.m->layers[2].moe.n_ff, 64);
    done(p);
    refuse(with_array(g, "qwen4exp.expert_feed_forward_length", RG_GGUF_U32, 3, widths, 4),
           RG_FORMAT, "has 3 elements, allowed are 4..4");
    static const uint32_t zero[] = {32, 0, 32, 32};
    refuse(with_array(g, "qwen4exp.expert_feed_forward_length", RG_GGUF_U32, 4, zero, 4), RG_FORMAT,
           "block 1 is 0");
    refuse(with_array(g, "qwen4exp.expert_feed_forward_length", RG_GGUF_U32, 4, widths, 4),
           RG_FORMAT, "tensor 'blk.2.ffn_gate_exps.weight' has dims [64,32,8], expected [64,64,8]");
    rg_gguf_close(g);
}

static void accepts_explicit_layer_kinds(void **state) {
    (void)state;
    rg_gguf *g = open_tiny("b-f16");
    static const char key[] = "qwen4exp.attention.recurrent_layers";
    static const uint8_t flags[] = {1, 0, 1, 0};
    static const int32_t ints[] = {1, 0, 1, 0};
    static const uint32_t wrong[] = {1, 1, 0, 0}, not_flag[] = {1, 0, 2, 0};
    /* The interval says otherwise and must not matter. */
    rg_gguf_writer w = with_u32(g, "qwen4exp.full_attention_interval", 4);
    rg_gguf_writer_array(&w, key, RG_GGUF_BOOL, 4, flags, 1);
    pair p = accept(w);
    assert_true(!p.m->layers[0].is_attn && p.m->layers[1].is_attn);
    done(p);
    done(accept(with_array(g, key, RG_GGUF_I32, 4, ints, 4)));
    refuse(with_array(g, key, RG_GGUF_U32, 4, wrong, 4), RG_FORMAT, "'blk.1.attn_qkv.weight'");
    refuse(with_array(g, key, RG_GGUF_U32, 4, not_flag, 4), RG_FORMAT, "element 2");
    refuse(with_array(g, key, RG_GGUF_U32, 3, wrong, 4), RG_FORMAT, "has 3 elements");
    refuse(with_u32(g, "qwen4exp.full_attention_interval", 4), RG_FORMAT,
           "'blk.1.attn_qkv.weight'");
    rg_gguf_close(g);
}

static void checks_compress_ratios(void **state) {
    (void)state;
    rg_gguf *g = open_tiny("a-f32");
    static const char key[] = "qwen4exp.attention.compress_ratios";
    pair p = accept(copy(g, (edit){.drop_key = key}));
    assert_int_equal(p.m->layers[3].attn.ratio, 0);
    done(p);
    static const int32_t eight[] = {0, 0, 0, 8}, three[] = {0, 0, 0, 3}, negative[] = {0, 0, 0, -4};
    p = accept(with_array(g, key, RG_GGUF_I32, 4, eight, 4));
    assert_int_equal(p.m->layers[3].attn.ratio, 8);
    done(p);
    refuse(with_array(g, key, RG_GGUF_I32, 3, eight, 4), RG_FORMAT, "has 3 elements");
    refuse(with_array(g, key, RG_GGUF_I32, 4, negative, 4), RG_FORMAT, "is -4");
    refuse(with_array(g, key, RG_GGUF_I32, 4, three, 4), RG_FORMAT,
           "top_k is 2048, no multiple of ratio 3 of block 3");
    rg_gguf_close(g);
}

static void accepts_small_variations(void **state) {
    (void)state;
    rg_gguf *g = open_tiny("a-f32");
    /* One row instead of a vector, another float type, a tensor of no interest. */
    done(accept(copy(g, (edit){.tensor = "blk.0.ffn_gate_inp_shexp.weight",
                               .ne = {64, 1, 1, 1},
                               .type = RG_TYPE_BF16})));
    done(accept(copy(
        g,
        (edit){.tensor = "blk.0.ssm_conv1d.weight", .ne = {4, 320, 1, 1}, .type = RG_TYPE_F16})));
    static const uint64_t ne[] = {3, 5};
    rg_gguf_writer w = copy(g, (edit){0});
    rg_gguf_writer_tensor(&w, "v.patch_embd.weight", RG_TYPE_I32, 2, ne, NULL);
    done(accept(w));
    w = copy(g, (edit){0});
    rg_gguf_writer_f32(&w, "qwen4exp.expert_weights_scale", 2.5f);
    rg_gguf_writer_u32(&w, "qwen4exp.ple.image_token_id", 9);
    pair p = accept(w);
    assert_true(p.m->hp.expert_scale == 2.5f);
    assert_int_equal(p.m->hp.ple_image, 9);
    done(p);
    rg_gguf_close(g);
}

/* ---- one thing wrong ------------------------------------------------------------------------ */

static void refuses_other_architectures(void **state) {
    (void)state;
    rg_gguf *g = open_tiny("a-f32");
    rg_gguf_writer w = copy(g, (edit){.drop_key = "general.architecture"});
    rg_gguf_writer_str(&w, "general.architecture", "llama");
    refuse(w, RG_UNSUPPORTED, "general.architecture is 'llama', this build runs qwen4exp");
    refuse(copy(g, (edit){.drop_key = "general.architecture"}), RG_FORMAT,
           "required key 'general.architecture' is missing");
    rg_gguf_close(g);
}

static void refuses_each_missing_tensor(void **state) {
    (void)state;
    for (size_t k = 0; k < RG_ARRAY_LEN(all_models); k++) {
        rg_gguf *g = open_tiny(all_models[k]);
        for (size_t i = 0; i < rg_gguf_tensor_count(g); i++) {
            const char *name = rg_gguf_tensor_at(g, i)->name;
            if (strcmp(name, "output.weight") == 0) continue;
            char part[128];
            /* Without the fused tensor its two halves are looked for. */
            const char *fused = strstr(name, "ffn_gate_up_exps");
            snprintf(part, sizeof part, "tensor '%.*s%s' is missing, expected dims [",
                     fused ? (int)(fused - name) : (int)strlen(name), name,
                     fused ? "ffn_gate_exps.weight" : "");
            refuse(copy(g, (edit){.drop_tensor = name}), RG_FORMAT, part);
        }
        rg_gguf_close(g);
    }
}

static void refuses_each_wrong_shape(void **state) {
    (void)state;
    for (size_t k = 0; k < RG_ARRAY_LEN(all_models); k++) {
        rg_gguf *g = open_tiny(all_models[k]);
        for (size_t i = 0; i < rg_gguf_tensor_count(g); i++) {
            const rg_tensor *t = rg_gguf_tensor_at(g, i);
            for (uint32_t d = 0; d < 4; d++) {
                edit e = {.tensor = t->name, .type = t->type};
                memcpy(e.ne, t->ne, sizeof e.ne);
                e.ne[d] *= 2;
                /* The table's rows are its own. */
                if (d == 1 && strcmp(t->name, "per_layer_token_embd.weight") == 0) continue;
                char part[128];
                snprintf(part, sizeof part, "tensor '%s' has dims [", t->name);
                refuse(copy(g, e), RG_FORMAT, part);
            }
        }
        rg_gguf_close(g);
    }
}

static void refuses_each_type_without_kernel(void **state) {
    (void)state;
    rg_gguf *g = open_tiny("k-mtp");
    for (size_t i = 0; i < rg_gguf_tensor_count(g); i++) {
        const rg_tensor *t = rg_gguf_tensor_at(g, i);
        const bool is_vector = t->ne[1] == 1 && !strstr(t->name, "ffn_gate_inp_shexp");
        edit e = {.tensor = t->name, .type = RG_TYPE_I32};
        memcpy(e.ne, t->ne, sizeof e.ne);
        char part[128];
        snprintf(part, sizeof part, "tensor '%s' has type i32", t->name);
        refuse(copy(g, e), RG_UNSUPPORTED, part);
        if (!is_vector || t->ne[0] % 32 != 0) continue;
        e.type = RG_TYPE_Q8_0;
        snprintf(part, sizeof part, "tensor '%s' has type q8_0, expected f32, f16 or bf16",
                 t->name);
        refuse(copy(g, e), RG_UNSUPPORTED, part);
    }
    rg_gguf_close(g);
}

static bool is_optional(const char *key) {
    static const char *const optional[] = {
        "general.name",
        "general.quantization_version",
        "qwen4exp.full_attention_interval", /* 4 is what the file says */
        "qwen4exp.attention.compress_ratios",
        "qwen4exp.ple.layers", /* without it there is no n-gram memory */
        "tokenizer.ggml.model",
        "tokenizer.ggml.pre",
        "tokenizer.ggml.token_type",
        "tokenizer.ggml.merges",
        "tokenizer.ggml.eos_token_id",
        "tokenizer.ggml.padding_token_id",
        "tokenizer.ggml.bos_token_id",
        "tokenizer.ggml.add_bos_token",
        "tokenizer.chat_template",
    };
    for (size_t i = 0; i < RG_ARRAY_LEN(optional); i++) {
        if (strcmp(key, optional[i]) == 0) return true;
    }
    return false;
}

/* Every key of a-f32 in turn: dropped, then turned into a string, then out of range. */
static void refuses_each_missing_or_wild_key(void **state) {
    (void)state;
    rg_gguf *g = open_tiny("a-f32");
    for (size_t i = 0; i < rg_gguf_kv_count(g); i++) {
        const rg_gguf_kv *kv = rg_gguf_kv_at(g, i);
        char key[96];
        snprintf(key, sizeof key, "%.*s", (int)kv->key.len, kv->key.data);
        if (!is_optional(key)) refuse(copy(g, (edit){.drop_key = key}), RG_FORMAT, key);
        if (strncmp(key, "qwen4exp.", 9) != 0) continue;
        rg_gguf_writer w = copy(g, (edit){.drop_key = key});
        rg_gguf_writer_str(&w, key, "text");
        refuse(w, RG_FORMAT, key);
        if (kv->type == RG_GGUF_ARRAY) {
            w = copy(g, (edit){.drop_key = key});
            rg_gguf_writer_strings(&w, key, (const char *const[]){"a", "b", "c", "d"}, 4);
            refuse(w, strcmp(key, "qwen4exp.ple.layers") == 0 ? RG_UNSUPPORTED : RG_FORMAT,
                   key + 9);
            continue;
        }
        refuse(with_u32(g, key, UINT32_MAX), RG_FORMAT, key);
        if (strcmp(key, "qwen4exp.ple.eos_token_id") == 0) continue;
        refuse(with_u32(g, key, 0), RG_FORMAT, key);
    }
    rg_gguf_close(g);
}

static void refuses_numbers_that_disagree(void **state) {
    (void)state;
    rg_gguf *g = open_tiny("a-f32");
    static const struct {
        const char *key;
        uint32_t value;
        rg_code code;
        const char *part;
    } cases[] = {
        {"qwen4exp.nextn_predict_layers", 2, RG_UNSUPPORTED, "is 2, this build drafts with 1"},
        {"qwen4exp.nextn_predict_layers", 1, RG_FORMAT, "'blk.3.nextn.enorm.weight' is missing"},
        {"qwen4exp.block_count", 1025, RG_FORMAT, "is 1025, allowed are 1..1024"},
        {"qwen4exp.hyper_connection.count", 1, RG_FORMAT, "is 1, allowed are 2..8"},
        {"qwen4exp.attention.head_count_kv", 3, RG_FORMAT, "head_count 4 is no multiple"},
        {"qwen4exp.attention.value_length", 16, RG_UNSUPPORTED, "is 16, key_length is 32"},
        {"qwen4exp.rope.dimension_count", 7, RG_FORMAT, "is 7, it must be even"},
        {"qwen4exp.rope.dimension_count", 34, RG_FORMAT, "is 34, it must be even and at most"},
        {"qwen4exp.rope.dimension_count", 16, RG_FORMAT, "add up to 4 pairs, 16 dims have 8"},
        {"qwen4exp.attention.indexer.key_length", 4, RG_FORMAT, "is 4, less than"},
        {"qwen4exp.attention.indexer.top_k", 2047, RG_FORMAT, "top_k is 2047, no multiple"},
        {"qwen4exp.ssm.time_step_rank", 5, RG_FORMAT, "5 is no multiple of ssm.group_count 2"},
        {"qwen4exp.ssm.inner_size", 191, RG_FORMAT, "is 191, 6 heads of 32 make 192"},
        {"qwen4exp.expert_used_count", 9, RG_FORMAT, "is 9, expert_count is 8"},
        {"qwen4exp.expert_used_count", 65, RG_FORMAT, "is 65, allowed are 1..64"},
        {"qwen4exp.expert_count", 4097, RG_FORMAT, "is 4097"},
        {"qwen4exp.ple.ngram_size", 9, RG_FORMAT, "is 9, allowed are 2..8"},
        {"qwen4exp.ple.heads_per_ngram", 33, RG_FORMAT, "33 heads for each of 2 n-grams"},
        {"qwen4exp.ple.heads_per_ngram", 5, RG_FORMAT, "has 8 elements, allowed are 10..10"},
        {"qwen4exp.ple.ngram_size", 4, RG_FORMAT, "has 3 elements, allowed are 4..4"},
        {"qwen4exp.ple.eos_token_id", 512, RG_FORMAT, "is 512, allowed are 0..511"},
        {"qwen4exp.ple.image_token_id", 512, RG_FORMAT, "is 512, allowed are 0..511"},
        {"qwen4exp.embedding_length_per_layer_input", 16, RG_FORMAT,
         "'per_layer_token_embd.weight' has dims [8,928], expected [16,928]"},
        {"qwen4exp.attention.head_count", 1024, RG_FORMAT, "'blk.3.attn_q.weight' has dims"},
    };
    for (size_t i = 0; i < RG_ARRAY_LEN(cases); i++) {
        refuse(with_u32(g, cases[i].key, cases[i].value), cases[i].code, cases[i].part);
    }
    rg_gguf_writer w = with_u32(g, "qwen4exp.attention.key_length", 4096);
    refuse(w, RG_UNSUPPORTED, "value_length is 32, key_length is 4096");
    w = with_u32(g, "qwen4exp.block_count", 1);
    rg_gguf_writer_u32(&w, "qwen4exp.nextn_predict_layers", 1);
    refuse(w, RG_FORMAT, "block_count is 1 with 1 draft blocks, no trunk is left");
    w = copy(g, (edit){.drop_key = "qwen4exp.ssm.time_step_rank"});
    rg_gguf_writer_u32(&w, "qwen4exp.ssm.time_step_rank", 1024);
    refuse(w, RG_FORMAT, "ssm.inner_size is 192, 1024 heads of 32 make 32768");
    w = copy(g, (edit){.drop_key = "qwen4exp.attention.indexer.head_count"});
    rg_gguf_writer_u32(&w, "qwen4exp.attention.indexer.head_count", 1024);
    refuse(w, RG_FORMAT, "'blk.3.indexer.q_proj.weight' has dims [64,256], expected [64,32768]");
    static const uint32_t numbers[512];
    refuse(with_array(g, "tokenizer.ggml.tokens", RG_GGUF_U32, 512, numbers, 4), RG_FORMAT,
           "key 'tokenizer.ggml.tokens' is no array of strings");
    rg_gguf_close(g);
}

/* Heads and head size are each allowed, their product is not. */
static void refuses_wide_heads(void **state) {
    (void)state;
    rg_gguf *g = open_tiny("a-f32");
    static const char sizes[] = "qwen4exp.attention.indexer.key_length";
    static const char heads[] = "qwen4exp.attention.indexer.head_count";
    rg_gguf *wide = NULL;
    rg_buf out;
    rg_buf_init(&out, 0);
    rg_gguf_writer w = with_u32(g, sizes, 4096);
    const uint64_t size = rg_gguf_writer_finish(&w, &out);
    rg_gguf_writer_deinit(&w);
    assert_int_equal(rg_gguf_parse(&wide, out.data, out.len, size, NULL), RG_OK);
    rg_buf_deinit(&out);
    w = with_u32(wide, heads, 1024);
    refuse(w, RG_FORMAT, "attention.indexer: 1024 heads of 4096 exceed the limit of 1048576");
    rg_gguf_close(wide);
    rg_gguf_close(g);
}

static void refuses_wild_ngram_tables(void **state) {
    (void)state;
    rg_gguf *g = open_tiny("a-f32");
    static const uint64_t mult[] = {1, 2, INT64_MAX / 511 + 1};
    uint64_t offsets[8] = {0, 101, 204, 311, 420, 533, 660, 791};
    uint64_t sizes[8] = {101, 103, 107, 109, 113, 127, 131, 137};
    static const int32_t layers[] = {1, 2}, beyond[] = {4};
    refuse(with_array(g, "qwen4exp.ple.layer_multipliers", RG_GGUF_U64, 3, mult, 8), RG_FORMAT,
           "element 2: key 'qwen4exp.ple.layer_multipliers'");
    refuse(with_array(g, "qwen4exp.ple.layers", RG_GGUF_I32, 2, layers, 4), RG_UNSUPPORTED,
           "names 2 layers");
    refuse(with_array(g, "qwen4exp.ple.layers", RG_GGUF_I32, 1, beyond, 4), RG_FORMAT,
           "is 4, allowed are 0..3");
    offsets[7] = 792;
    refuse(with_array(g, "qwen4exp.ple.head_offsets", RG_GGUF_U64, 8, offsets, 8), RG_FORMAT,
           "has 928 rows, hash head 7 ends at row 929");
    sizes[3] = 0;
    refuse(with_array(g, "qwen4exp.ple.head_vocab_sizes", RG_GGUF_U64, 8, sizes, 8), RG_FORMAT,
           "head 3 of 8 has 0 rows");
    sizes[3] = UINT64_MAX;
    refuse(with_array(g, "qwen4exp.ple.head_vocab_sizes", RG_GGUF_U64, 8, sizes, 8), RG_FORMAT,
           "18446744073709551615");
    refuse(copy(g, (edit){.tensor = "per_layer_token_embd.weight",
                          .ne = {8, 927, 1, 1},
                          .type = RG_TYPE_F32}),
           RG_FORMAT, "has 927 rows, hash head 7 ends at row 928");
    refuse(copy(g, (edit){.tensor = "per_layer_token_embd.weight",
                          .ne = {8, (1ull << 31) + 1, 1, 1},
                          .type = RG_TYPE_F32}),
           RG_FORMAT, "has 2147483649 rows, the limit is 2147483648");
    rg_gguf_close(g);
}

static void survives_failing_allocations(void **state) {
    (void)state;
    rg_gguf *g = open_tiny("k-mtp");
    const uint64_t live = rg_alloc_live_bytes();
    rg_code rc = RG_NOMEM;
    uint64_t n = 1;
    for (; n < 100 && rc != RG_OK; n++) {
        rg_model *m = NULL;
        rg_status st = {0};
        rg_alloc_fail_at(n, n % 2 == 0);
        rc = rg_model_create(&m, g, NULL, &st);
        rg_alloc_fail_at(0, false);
        assert_true(rc == RG_OK || (rc == RG_NOMEM && !m && st.code == RG_NOMEM));
        rg_model_destroy(m);
        assert_int_equal(rg_alloc_live_bytes(), live);
    }
    assert_int_equal(rc, RG_OK);
    assert_int_equal(n, 6); /* model, plan, used, layers, then success */
    rg_gguf_close(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(describes_a_f32),
        cmocka_unit_test(describes_the_other_tiny_models),
        cmocka_unit_test(describes_the_demo),
        cmocka_unit_test(accepts_a_tied_head),
        cmocka_unit_test(accepts_older_draft_names),
        cmocka_unit_test(leaves_out_the_draft_block),
        cmocka_unit_test(accepts_expert_widths_by_layer),
        cmocka_unit_test(accepts_explicit_layer_kinds),
        cmocka_unit_test(checks_compress_ratios),
        cmocka_unit_test(accepts_small_variations),
        cmocka_unit_test(refuses_other_architectures),
        cmocka_unit_test(refuses_each_missing_tensor),
        cmocka_unit_test(refuses_each_wrong_shape),
        cmocka_unit_test(refuses_each_type_without_kernel),
        cmocka_unit_test(refuses_each_missing_or_wild_key),
        cmocka_unit_test(refuses_numbers_that_disagree),
        cmocka_unit_test(refuses_wide_heads),
        cmocka_unit_test(refuses_wild_ngram_tables),
        cmocka_unit_test(survives_failing_allocations),
    };
    return cmocka_run_group_tests_name("desc", tests, NULL, NULL);
}
