/* The description of a header with the shapes of the released model (48 layers, 512 experts, 320
 * million n-gram rows, a draft block): no limit may refuse it, and the trunk has the 1224 tensors
 * that its published split announces.
 */
#include "model/model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "support/gguf_writer.h"

enum { LAYERS = 48, EMBD = 2560, WIDE = 4 * EMBD, VOCAB = 248320, FF = 640, EXPERTS = 512 };

static void tensor(rg_gguf_writer *w, const char *name, rg_type type, uint64_t a, uint64_t b,
                   uint64_t c) {
    const uint64_t ne[] = {a, b, c};
    rg_gguf_writer_tensor(w, name, type, c > 1 ? 3 : b > 1 ? 2 : 1, ne, NULL);
}

static void in_block(rg_gguf_writer *w, int block, const char *name, rg_type type, uint64_t a,
                     uint64_t b, uint64_t c) {
    char full[2 * RG_GGUF_NAME_MAX];
    (void)snprintf(full, sizeof full, "blk.%d.%s", block, name);
    tensor(w, full, type, a, b, c);
}

static void put_block(rg_gguf_writer *w, int b, bool attn) {
    static const char *const mixers[] = {"attn", "ffn"};
    for (size_t i = 0; i < 2; i++) {
        char name[40];
        (void)snprintf(name, sizeof name, "hc_%s_norm.weight", mixers[i]);
        in_block(w, b, name, RG_TYPE_F32, WIDE, 1, 1);
        (void)snprintf(name, sizeof name, "hc_%s_down.weight", mixers[i]);
        in_block(w, b, name, RG_TYPE_Q6_K, WIDE, 320, 1);
        (void)snprintf(name, sizeof name, "hc_%s_up.weight", mixers[i]);
        in_block(w, b, name, RG_TYPE_IQ4_NL, 320, WIDE, 1);
        (void)snprintf(name, sizeof name, "hc_%s_inject.weight", mixers[i]);
        in_block(w, b, name, RG_TYPE_F32, WIDE, 4, 1);
    }
    in_block(w, b, "ffn_gate_inp.weight", RG_TYPE_F32, EMBD, EXPERTS, 1);
    in_block(w, b, "ffn_gate_exps.weight", RG_TYPE_IQ2_XS, EMBD, FF, EXPERTS);
    in_block(w, b, "ffn_up_exps.weight", RG_TYPE_IQ2_XS, EMBD, FF, EXPERTS);
    in_block(w, b, "ffn_down_exps.weight", RG_TYPE_IQ4_NL, FF, EMBD, EXPERTS);
    in_block(w, b, "ffn_gate_inp_shexp.weight", RG_TYPE_F32, EMBD, 1, 1);
    in_block(w, b, "ffn_gate_shexp.weight", RG_TYPE_Q4_K, EMBD, FF, 1);
    in_block(w, b, "ffn_up_shexp.weight", RG_TYPE_Q4_K, EMBD, FF, 1);
    in_block(w, b, "ffn_down_shexp.weight", RG_TYPE_Q5_1, FF, EMBD, 1);
    if (attn) {
        in_block(w, b, "attn_q.weight", RG_TYPE_Q4_K, EMBD, 12288, 1);
        in_block(w, b, "attn_k.weight", RG_TYPE_Q4_K, EMBD, 512, 1);
        in_block(w, b, "attn_v.weight", RG_TYPE_Q4_K, EMBD, 512, 1);
        in_block(w, b, "attn_output.weight", RG_TYPE_Q4_K, 6144, EMBD, 1);
        in_block(w, b, "attn_q_norm.weight", RG_TYPE_F32, 256, 1, 1);
        in_block(w, b, "attn_k_norm.weight", RG_TYPE_F32, 256, 1, 1);
        in_block(w, b, "indexer.q_proj.weight", RG_TYPE_Q8_0, EMBD, 512, 1);
        in_block(w, b, "indexer.k_proj.weight", RG_TYPE_Q8_0, EMBD, 128, 1);
        in_block(w, b, "indexer.q_norm.weight", RG_TYPE_F32, 128, 1, 1);
        in_block(w, b, "indexer.k_norm.weight", RG_TYPE_F32, 128, 1, 1);
    } else {
        in_block(w, b, "attn_qkv.weight", RG_TYPE_Q4_K, EMBD, 10240, 1);
        in_block(w, b, "attn_gate.weight", RG_TYPE_Q4_K, EMBD, 6144, 1);
        in_block(w, b, "ssm_conv1d.weight", RG_TYPE_F32, 4, 10240, 1);
        in_block(w, b, "ssm_dt.bias", RG_TYPE_F32, 48, 1, 1);
        in_block(w, b, "ssm_a", RG_TYPE_F32, 48, 1, 1);
        in_block(w, b, "ssm_alpha.weight", RG_TYPE_BF16, EMBD, 48, 1);
        in_block(w, b, "ssm_beta.weight", RG_TYPE_BF16, EMBD, 48, 1);
        in_block(w, b, "ssm_norm.weight", RG_TYPE_F32, 128, 1, 1);
        in_block(w, b, "ssm_out.weight", RG_TYPE_Q4_K, 6144, EMBD, 1);
    }
}

static void put_tensors(rg_gguf_writer *w) {
    tensor(w, "token_embd.weight", RG_TYPE_Q6_K, EMBD, VOCAB, 1);
    tensor(w, "output.weight", RG_TYPE_Q6_K, EMBD, VOCAB, 1);
    tensor(w, "output_hc_norm.weight", RG_TYPE_F32, WIDE, 1, 1);
    tensor(w, "output_hc_down.weight", RG_TYPE_Q8_0, WIDE, 320, 1);
    tensor(w, "output_hc_up.weight", RG_TYPE_Q8_0, 320, WIDE, 1);
    tensor(w, "per_layer_token_embd.weight", RG_TYPE_IQ4_NL, 160, 320001536, 1);
    for (int b = 0; b < LAYERS; b++) {
        put_block(w, b, b % 4 == 3);
    }
    in_block(w, 1, "ple_key.weight", RG_TYPE_Q8_0, EMBD, WIDE, 1);
    in_block(w, 1, "ple_value.weight", RG_TYPE_Q8_0, EMBD, EMBD, 1);
    in_block(w, 1, "ple_norm_key.weight", RG_TYPE_F32, WIDE, 1, 1);
    in_block(w, 1, "ple_norm_query.weight", RG_TYPE_F32, WIDE, 1, 1);
    in_block(w, 1, "ple_norm_conv.weight", RG_TYPE_F32, WIDE, 1, 1);
    in_block(w, 1, "ple_conv1d.weight", RG_TYPE_F32, 4, WIDE, 1);
    assert_int_equal(w->n_tensor, 1224);
    put_block(w, LAYERS, true);
    in_block(w, LAYERS, "nextn.enorm.weight", RG_TYPE_F32, EMBD, 1, 1);
    in_block(w, LAYERS, "nextn.hnorm.weight", RG_TYPE_F32, WIDE, 1, 1);
    in_block(w, LAYERS, "nextn.eh_proj.weight", RG_TYPE_Q8_0, (uint64_t)2 * EMBD, EMBD, 1);
    in_block(w, LAYERS, "nextn.hc_head_norm.weight", RG_TYPE_F32, WIDE, 1, 1);
    in_block(w, LAYERS, "nextn.hc_head_down.weight", RG_TYPE_Q8_0, WIDE, 320, 1);
    in_block(w, LAYERS, "nextn.hc_head_up.weight", RG_TYPE_Q8_0, 320, WIDE, 1);
}

static void put_ngram_keys(rg_gguf_writer *w) {
    static const uint64_t mult[] = {23703573157769u, 20109073645365u, 8052911324071u};
    static const uint32_t ends[] = {3,  23, 33,  47,  59,  63,  69,  77,
                                    81, 93, 107, 147, 153, 159, 161, 171};
    static const int32_t layer[] = {1};
    uint64_t sizes[16], offsets[16], sum = 0;
    for (size_t i = 0; i < 16; i++) {
        sizes[i] = 20000000 + ends[i];
        offsets[i] = sum;
        sum += sizes[i];
    }
    assert_int_equal(sum, 320001446);
    rg_gguf_writer_array(w, "qwen4exp.ple.layers", RG_GGUF_I32, 1, layer, 4);
    rg_gguf_writer_array(w, "qwen4exp.ple.layer_multipliers", RG_GGUF_U64, 3, mult, 8);
    rg_gguf_writer_array(w, "qwen4exp.ple.head_offsets", RG_GGUF_U64, 16, offsets, 8);
    rg_gguf_writer_array(w, "qwen4exp.ple.head_vocab_sizes", RG_GGUF_U64, 16, sizes, 8);
}

static void put_keys(rg_gguf_writer *w) {
    static const struct {
        const char *key;
        uint32_t value;
    } numbers[] = {{"block_count", LAYERS + 1},
                   {"nextn_predict_layers", 1},
                   {"context_length", 262144},
                   {"embedding_length", EMBD},
                   {"attention.head_count", 24},
                   {"attention.head_count_kv", 2},
                   {"attention.key_length", 256},
                   {"attention.value_length", 256},
                   {"rope.dimension_count", 64},
                   {"ssm.conv_kernel", 4},
                   {"ssm.state_size", 128},
                   {"ssm.group_count", 16},
                   {"ssm.time_step_rank", 48},
                   {"ssm.inner_size", 6144},
                   {"expert_count", EXPERTS},
                   {"expert_used_count", 10},
                   {"expert_feed_forward_length", FF},
                   {"expert_shared_feed_forward_length", FF},
                   {"hyper_connection.count", 4},
                   {"hyper_connection.low_rank", 320},
                   {"attention.indexer.head_count", 4},
                   {"attention.indexer.key_length", 128},
                   {"attention.indexer.top_k", 2048},
                   {"ple.ngram_size", 3},
                   {"ple.heads_per_ngram", 8},
                   {"ple.conv_kernel", 4},
                   {"ple.eos_token_id", 248044},
                   {"ple.image_token_id", 248056},
                   {"embedding_length_per_layer_input", 160}};
    static const int32_t sections[] = {11, 11, 10, 0};
    int32_t ratios[LAYERS + 1] = {0};
    for (int i = 3; i < LAYERS; i += 4) {
        ratios[i] = 4;
    }
    rg_gguf_writer_str(w, "general.architecture", "qwen4exp");
    for (size_t i = 0; i < RG_ARRAY_LEN(numbers); i++) {
        char key[96];
        (void)snprintf(key, sizeof key, "qwen4exp.%s", numbers[i].key);
        rg_gguf_writer_u32(w, key, numbers[i].value);
    }
    rg_gguf_writer_f32(w, "qwen4exp.attention.layer_norm_rms_epsilon", 1e-6f);
    rg_gguf_writer_f32(w, "qwen4exp.rope.freq_base", 1e7f);
    rg_gguf_writer_array(w, "qwen4exp.rope.dimension_sections", RG_GGUF_I32, 4, sections, 4);
    rg_gguf_writer_array(w, "qwen4exp.attention.compress_ratios", RG_GGUF_I32, LAYERS + 1, ratios,
                         4);
    put_ngram_keys(w);
}

static void put_vocabulary(rg_gguf_writer *w) {
    const char **words = rg_alloc(VOCAB, sizeof *words, NULL);
    assert_non_null(words);
    for (size_t i = 0; i < VOCAB; i++) {
        words[i] = "token";
    }
    rg_gguf_writer_strings(w, "tokenizer.ggml.tokens", words, VOCAB);
    rg_free(words);
}

static void describes_the_released_shapes(void **state) {
    (void)state;
    rg_gguf_writer w;
    rg_buf out;
    rg_gguf *g = NULL;
    rg_model *m = NULL;
    rg_status st = {0};
    rg_gguf_writer_init(&w);
    rg_buf_init(&out, 0);
    w.no_data = true;
    put_keys(&w);
    put_vocabulary(&w);
    put_tensors(&w);
    const uint64_t size = rg_gguf_writer_finish(&w, &out);
    rg_gguf_writer_deinit(&w);
    assert_int_equal(rg_gguf_parse(&g, out.data, out.len, size, &st), RG_OK);
    rg_buf_deinit(&out);
    const rg_code rc = rg_model_create(&m, g, NULL, &st);
    if (rc != RG_OK) print_error("%s\n", st.message);
    assert_int_equal(rc, RG_OK);
    assert_int_equal(m->hp.n_layer, 48);
    assert_int_equal(m->hp.n_mtp, 1);
    assert_int_equal(m->hp.n_vocab, VOCAB);
    assert_int_equal(m->hp.ple_n_head, 16);
    assert_int_equal(m->hp.ple_offset[15], 300001275);
    assert_int_equal(m->hp.ple_image, 248056);
    assert_int_equal(m->layers[47].attn.ratio, 4);
    assert_int_equal(m->mtp.layer.attn.ratio, 0);
    /* 26.8 GiB of n-gram rows: sizes and offsets are 64-bit all the way. */
    assert_true(m->ple_table->size_bytes == 320001536ull * 90);
    assert_true(m->mtp.head.up->offset > 50ull << 30);
    rg_model_destroy(m);
    rg_gguf_close(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(describes_the_released_shapes),
    };
    return cmocka_run_group_tests_name("desc_release", tests, NULL, NULL);
}
