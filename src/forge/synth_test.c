#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

#include "engine/engine.h"
#include "forge/synth_parts.h"
#include "forge/test_folder.h"

#define TOKENS 8

/* ---- helpers --------------------------------------------------------------------------------- */

static void preset(rg_synth_options *opt, const char *name) {
    rg_synth_options_init(opt);
    assert_int_equal(rg_synth_preset(&opt->shape, name, NULL), RG_OK);
    opt->n_threads = 2;
}

/* A shape whose rows all types can hold. */
static void wide(rg_synth_options *opt) {
    static const char *const fields[] = {"hidden=256",  "ff=256",       "ff_shared=256", "rank=256",
                                         "ssm_dim=64",  "k_heads=2",    "v_heads=4",     "heads=4",
                                         "head_dim=64", "layers=4",     "experts=4",     "used=2",
                                         "vocab=320",   "ngram_heads=4"};
    preset(opt, "tiny");
    for (size_t i = 0; i < RG_ARRAY_LEN(fields); i++)
        assert_int_equal(rg_synth_set(&opt->shape, fields[i], NULL), RG_OK);
}

static void write_ok(const char *path, const rg_synth_options *opt, rg_synth_result *r) {
    rg_status st = {0};
    if (rg_synth_write(path, opt, r, &st) != RG_OK) fail_msg("%s", st.message);
}

static rg_code finite_row(void *user, uint32_t position, const float *logits, rg_status *st) {
    const uint32_t n = *(const uint32_t *)user;
    double sum = 0, square = 0;
    (void)position;
    for (uint32_t i = 0; i < n; i++) {
        if (!isfinite(logits[i])) return rg_fail(st, RG_BUG, "logit %u", i);
        sum += (double)logits[i];
        square += (double)logits[i] * (double)logits[i];
    }
    /* Neither flat nor wild. */
    const double std = sqrt(fmax(0, square / n - sum / n * (sum / n)));
    if (std < 0.05 || std > 20) return rg_fail(st, RG_BUG, "logits have deviation %g", std);
    return RG_OK;
}

static rg_code eval_tokens(const rg_gguf *g, const rg_model *m, rg_status *st) {
    rg_core *core = NULL;
    rg_seq *seq = NULL;
    rg_code rc = RG_OK;
    int32_t ids[TOKENS];
    uint32_t n_vocab = m->hp.n_vocab;
    rg_core_options opt = {.n_threads = 1, .kernels = RG_KERNELS_AUTO, .chunk = TOKENS};
    const rg_seq_options seq_opt = {.n_ctx = 16, .kv = RG_KV_F16, .mtp = m->hp.n_mtp > 0};
    for (int i = 0; i < TOKENS; i++)
        ids[i] = (i * 37 + 11) % (int)n_vocab;
    RG_GO(rg_cpu_level_pick(&opt.level, NULL, st));
    RG_GO(rg_core_create(&core, g, m, &opt, st));
    RG_GO(rg_seq_create(&seq, core, &seq_opt, st));
    RG_GO(rg_core_eval(core, seq, ids, TOKENS, 0, RG_WANT_ALL,
                       &(rg_logits_sink){finite_row, &n_vocab}, NULL, st));
cleanup:
    rg_seq_destroy(seq);
    rg_core_destroy(core);
    return rc;
}

/* Opens, checks every block, describes, runs. */
static void check_runs(const char *path) {
    rg_gguf *g = NULL;
    rg_model *m = NULL;
    rg_status st = {0};
    rg_code rc = rg_gguf_open(&g, path, &st);
    if (rc == RG_OK) rc = rg_gguf_check_data(g, &st);
    if (rc == RG_OK) rc = rg_model_create(&m, g, &(rg_model_options){0}, &st);
    if (rc == RG_OK) rc = eval_tokens(g, m, &st);
    rg_model_destroy(m);
    rg_gguf_close(g);
    if (rc != RG_OK) fail_msg("%s: %s", path, st.message);
}

static void slurp(const char *path, char **data, size_t *len) {
    assert_int_equal(rg_file_slurp(data, len, path, (size_t)64 << 20, NULL), RG_OK);
}

/* Removes the file; 1 when both files hold the same bytes. */
static int same_bytes(const char *path, const char *data, size_t len) {
    char *other = NULL;
    size_t n = 0;
    slurp(path, &other, &n);
    const int same = n == len && memcmp(other, data, len) == 0;
    rg_free(other);
    return same;
}

/* ---- types ----------------------------------------------------------------------------------- */

/* Mean and deviation of the first rows of the experts' gates. */
static void check_statistics(const char *path, rg_type type, double sigma) {
    rg_gguf *g = NULL;
    assert_int_equal(rg_gguf_open(&g, path, NULL), RG_OK);
    const rg_tensor *t = rg_gguf_tensor(g, "blk.0.ffn_gate_exps.weight");
    assert_non_null(t);
    assert_int_equal(t->type, type);
    uint8_t *raw = rg_alloc(1, (size_t)t->size_bytes, NULL);
    const size_t n = (size_t)(t->ne[0] * t->ne[1]);
    float *x = rg_alloc(n, sizeof *x, NULL);
    assert_non_null(raw);
    assert_non_null(x);
    assert_int_equal(rg_gguf_read(g, t, 0, (size_t)t->size_bytes, raw, NULL), RG_OK);
    rg_unpack_row(type, raw, x, n);
    double sum = 0, square = 0;
    for (size_t i = 0; i < n; i++) {
        sum += (double)x[i];
        square += (double)x[i] * (double)x[i];
    }
    const double mean = sum / (double)n, std = sqrt(square / (double)n);
    if (fabs(std / sigma - 1) > 0.2) fail_msg("type %d: deviation %g, %g wanted", type, std, sigma);
    if (fabs(mean) > 0.1 * sigma) fail_msg("type %d: mean %g at deviation %g", type, mean, sigma);
    rg_free(raw);
    rg_free(x);
    rg_gguf_close(g);
}

static void every_type(void **state) {
    (void)state;
    test_folder f;
    folder_make(&f);
    int n = 0;
    for (uint32_t id = 0; id < RG_TYPE_COUNT; id++) {
        const rg_type_info *info = rg_type_get(id);
        if (!info || info->use != RG_USE_WEIGHT) continue;
        rg_synth_options opt;
        rg_synth_result r;
        wide(&opt);
        opt.type_default = info->name;
        write_ok(folder_file(&f, "m.gguf"), &opt, &r);
        check_runs(f.file);
        check_statistics(f.file, (rg_type)id, 2 / sqrt(256));
        assert_int_equal(unlink(f.file), 0);
        n++;
    }
    assert_true(n >= 27);
    folder_remove(&f);
}

/* Rules reach small operands too, chosen values or not. */
static void every_type_everywhere(void **state) {
    (void)state;
    static const char *const types[] = {"f16", "bf16", "q8_0", "q4_K", "iq1_m", "mxfp4", "nvfp4"};
    test_folder f;
    folder_make(&f);
    for (size_t i = 0; i < RG_ARRAY_LEN(types); i++) {
        char rule[32];
        rg_synth_options opt;
        rg_synth_result r;
        wide(&opt);
        snprintf(rule, sizeof rule, ".*=%s", types[i]);
        const char *rules[] = {rule};
        opt.type_rules = rules;
        opt.n_type_rules = 1;
        write_ok(folder_file(&f, "m.gguf"), &opt, &r);
        check_runs(f.file);
        assert_int_equal(unlink(f.file), 0);
    }
    folder_remove(&f);
}

static rg_type type_in(const rg_gguf *g, const char *name) {
    const rg_tensor *t = rg_gguf_tensor(g, name);
    assert_non_null(t);
    return t->type;
}

static void rules_and_fallback(void **state) {
    (void)state;
    test_folder f;
    rg_synth_options opt;
    rg_synth_result r;
    rg_gguf *g = NULL;
    folder_make(&f);
    preset(&opt, "tiny"); /* rows of 64, 32 and 16 */
    const char *rules[] = {"blk\\.1\\.ffn_gate_exps=q8_0", "ffn_gate_exps=iq2_xs",
                           "ffn_up_exps=Q6_K", "hc_attn_up=q4_0", "attn_gate=q1_0"};
    opt.type_rules = rules;
    opt.n_type_rules = RG_ARRAY_LEN(rules);
    write_ok(folder_file(&f, "m.gguf"), &opt, &r);
    assert_int_equal(rg_gguf_open(&g, f.file, NULL), RG_OK);
    assert_int_equal(type_in(g, "blk.1.ffn_gate_exps.weight"), RG_TYPE_Q8_0);
    assert_int_equal(type_in(g, "blk.0.ffn_gate_exps.weight"), RG_TYPE_IQ4_NL);
    assert_int_equal(type_in(g, "blk.0.ffn_up_exps.weight"), RG_TYPE_Q8_0);
    assert_int_equal(type_in(g, "blk.0.hc_attn_up.weight"), RG_TYPE_F16);
    assert_int_equal(type_in(g, "blk.0.attn_gate.weight"), RG_TYPE_IQ4_NL);
    assert_int_equal(type_in(g, "blk.0.ffn_gate_inp.weight"), RG_TYPE_F32);
    rg_gguf_close(g);
    check_runs(f.file);
    assert_int_equal(unlink(f.file), 0);
    folder_remove(&f);
}

/* ---- shapes ---------------------------------------------------------------------------------- */

static void shapes(void **state) {
    (void)state;
    static const char *const sets[][4] = {
        {"layers=4"},
        {"mtp=1", "layers=3"},
        {"mtp=1", "mtp_halves=1", "layers=3"},
        {"tied=1"},
        {"fused=1"},
        {"ngram=0"},
        {"ngram=4", "ngram_heads=2", "hidden=96", "ngram_layer=0"},
        {"idx_ratio=0"},
        {"interval=1"},
        {"interval=100"},
        {"hc=2", "v_heads=2"},
        {"layers=1", "ngram_layer=0"},
        {"used=8"},
        {"experts=1", "used=1"},
        {"layers=48", "experts=16", "used=4"},
    };
    test_folder f;
    folder_make(&f);
    for (size_t i = 0; i < RG_ARRAY_LEN(sets); i++) {
        rg_synth_options opt;
        rg_synth_result r;
        preset(&opt, "tiny");
        for (size_t k = 0; k < 4 && sets[i][k]; k++)
            assert_int_equal(rg_synth_set(&opt.shape, sets[i][k], NULL), RG_OK);
        write_ok(folder_file(&f, "m.gguf"), &opt, &r);
        check_runs(f.file);
        assert_int_equal(unlink(f.file), 0);
    }
    rg_synth_options opt;
    rg_synth_result r;
    preset(&opt, "demo");
    write_ok(folder_file(&f, "m.gguf"), &opt, &r);
    check_runs(f.file);
    assert_int_equal(unlink(f.file), 0);
    folder_remove(&f);
}

static void split_files(void **state) {
    (void)state;
    test_folder f;
    rg_synth_options opt;
    rg_synth_result r, whole;
    folder_make(&f);
    preset(&opt, "tiny");
    opt.shape.fused = 1;
    opt.split = 3;
    write_ok(folder_file(&f, "m.gguf"), &opt, &r);
    assert_int_equal(folder_count(&f), 3);
    assert_int_equal(r.n_file, 3);
    assert_non_null(strstr(r.first_path, "m-00001-of-00003.gguf"));
    check_runs(r.first_path);
    opt.split = 0;
    write_ok(folder_file(&f, "one.gguf"), &opt, &whole);
    assert_int_equal(whole.n_tensor, r.n_tensor);
    assert_true(whole.expert_bytes == r.expert_bytes);
    assert_int_equal(unlink(f.file), 0);
    for (int i = 1; i <= 3; i++) {
        char name[64];
        snprintf(name, sizeof name, "m-%05d-of-00003.gguf", i);
        assert_int_equal(unlink(folder_file(&f, name)), 0);
    }
    folder_remove(&f);
}

static void same_seed_same_bytes(void **state) {
    (void)state;
    test_folder f;
    rg_synth_options opt;
    rg_synth_result r;
    char *data = NULL;
    size_t len = 0;
    folder_make(&f);
    preset(&opt, "demo");
    opt.n_threads = 1;
    write_ok(folder_file(&f, "a.gguf"), &opt, &r);
    slurp(f.file, &data, &len);
    assert_true(len == r.size_bytes);
    assert_int_equal(unlink(f.file), 0);
    const int threads[] = {1, 2, 5};
    for (size_t i = 0; i < RG_ARRAY_LEN(threads); i++) {
        opt.n_threads = threads[i];
        write_ok(folder_file(&f, "b.gguf"), &opt, &r);
        assert_true(same_bytes(f.file, data, len));
        assert_int_equal(unlink(f.file), 0);
    }
    opt.seed++;
    write_ok(folder_file(&f, "b.gguf"), &opt, &r);
    assert_false(same_bytes(f.file, data, len));
    assert_int_equal(unlink(f.file), 0);
    rg_free(data);
    folder_remove(&f);
}

/* ---- vocabulary ------------------------------------------------------------------------------ */

static void vocabulary(void **state) {
    (void)state;
    test_folder f;
    rg_synth_options opt;
    rg_synth_result r;
    rg_gguf *g = NULL;
    rg_map tokens;
    folder_make(&f);
    preset(&opt, "tiny");
    write_ok(folder_file(&f, "m.gguf"), &opt, &r);
    assert_int_equal(rg_gguf_open(&g, f.file, NULL), RG_OK);
    const rg_gguf_kv *list = rg_gguf_find(g, "tokenizer.ggml.tokens");
    assert_non_null(list);
    assert_true(list->count == opt.shape.n_vocab);
    rg_map_init(&tokens);
    for (uint64_t i = 0; i < list->count; i++) {
        const rg_str s = rg_gguf_elem_str(list, i);
        bool existed = true;
        assert_int_equal(rg_map_add(&tokens, s.data, s.len, i, &existed, NULL), RG_OK);
        if (existed) fail_msg("token '%.*s' twice", (int)s.len, s.data);
    }
    const rg_gguf_kv *merges = rg_gguf_find(g, "tokenizer.ggml.merges");
    assert_non_null(merges);
    assert_true(merges->count > 0);
    for (uint64_t i = 0; i < merges->count; i++) { /* both parts and the whole are tokens */
        const rg_str s = rg_gguf_elem_str(merges, i);
        char text[64];
        const char *space = memchr(s.data, ' ', s.len);
        assert_non_null(space);
        const size_t left = (size_t)(space - s.data), right = s.len - left - 1;
        assert_true(s.len < sizeof text);
        memcpy(text, s.data, left);
        memcpy(text + left, space + 1, right);
        assert_true(rg_map_get(&tokens, text, left, NULL));
        assert_true(rg_map_get(&tokens, text + left, right, NULL));
        assert_true(rg_map_get(&tokens, text, left + right, NULL));
    }
    uint64_t id = 0;
    assert_true(rg_map_get(&tokens, "<|im_end|>", 10, &id));
    uint64_t eos = 0;
    assert_int_equal(rg_gguf_get_u64(g, "tokenizer.ggml.eos_token_id", 0, 1000, &eos, NULL), RG_OK);
    assert_true(id == eos);
    rg_str chat = {0};
    assert_int_equal(rg_gguf_get_str(g, "tokenizer.chat_template", &chat, NULL), RG_OK);
    assert_true(chat.len > 1000);
    rg_map_deinit(&tokens);
    rg_gguf_close(g);
    assert_int_equal(unlink(f.file), 0);
    folder_remove(&f);
}

/* ---- faults ---------------------------------------------------------------------------------- */

static void expect_failure(test_folder *f, const char *path, const rg_synth_options *opt,
                           rg_code code, const char *part) {
    rg_synth_result r;
    rg_status st = {0};
    const int before = folder_count(f);
    const rg_code rc = rg_synth_write(path, opt, &r, &st);
    if (rc != code || !strstr(st.message, part))
        fail_msg("code %d '%s', wanted %d with '%s'", rc, st.message, code, part);
    assert_null(strchr(st.message, '\n'));
    assert_int_equal(folder_count(f), before);
}

static void faults_of_the_target(void **state) {
    (void)state;
    test_folder f;
    rg_synth_options opt;
    rg_synth_result r;
    folder_make(&f);
    preset(&opt, "tiny");
    expect_failure(&f, folder_file(&f, "no/such/m.gguf"), &opt, RG_IO, "no/such/m.gguf");
    write_ok(folder_file(&f, "m.gguf"), &opt, &r);
    expect_failure(&f, f.file, &opt, RG_INVALID, "exists already");
    opt.overwrite = true;
    write_ok(f.file, &opt, &r);
    assert_int_equal(unlink(f.file), 0);
    /* A target that is a folder cannot be replaced: the whole file is taken back. */
    expect_failure(&f, f.path, &opt, RG_IO, "cannot rename");
    /* More than any drive here has. */
    static const char *const huge[] = {"layers=1000", "experts=4096", "hidden=65536", "ff=1048576",
                                       "ngram=0"};
    for (size_t i = 0; i < RG_ARRAY_LEN(huge); i++)
        assert_int_equal(rg_synth_set(&opt.shape, huge[i], NULL), RG_OK);
    expect_failure(&f, folder_file(&f, "m.gguf"), &opt, RG_IO, "MiB free");
    folder_remove(&f);
}

/* The drive fills up in the middle: a limit on the file's size plays the part. */
static void faults_of_the_drive(void **state) {
    (void)state;
    test_folder f;
    rg_synth_options opt;
    struct rlimit old, small;
    folder_make(&f);
    preset(&opt, "demo"); /* 20 MB: three writes */
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    signal(SIGXFSZ, SIG_IGN);
    static const rlim_t limits[] = {4096, 10u << 20, 17u << 20};
    for (size_t i = 0; i < RG_ARRAY_LEN(limits); i++) {
        small.rlim_cur = limits[i];
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        expect_failure(&f, folder_file(&f, "m.gguf"), &opt, RG_IO, "cannot write");
        opt.split = i == 0 ? 2 : 0;
        expect_failure(&f, folder_file(&f, "m.gguf"), &opt, RG_IO, "cannot write");
        opt.split = 0;
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    }
    signal(SIGXFSZ, SIG_DFL);
    folder_remove(&f);
}

static void cancel_midway(void *user, const rg_synth_progress *p) {
    if (p->done_bytes * 2 > p->total_bytes) atomic_store((atomic_bool *)user, true);
}

static void canceled(void **state) {
    (void)state;
    test_folder f;
    rg_synth_options opt;
    atomic_bool cancel = false;
    folder_make(&f);
    preset(&opt, "demo");
    opt.cancel = &cancel;
    opt.progress = cancel_midway;
    opt.progress_user = &cancel;
    expect_failure(&f, folder_file(&f, "m.gguf"), &opt, RG_CANCELED, "canceled after");
    folder_remove(&f);
}

static void bad_options(void **state) {
    (void)state;
    test_folder f;
    rg_synth_options opt;
    folder_make(&f);
    static const struct {
        const char *rule, *part;
    } rules[] = {{"abc", "REGEX=TYPE"},           {"=q8_0", "REGEX=TYPE"},
                 {"a=q99", "unknown type 'q99'"}, {"a=q8_K", "hold weights"},
                 {"a=i32", "hold weights"},       {"(=q8_0", "type rule '('"}};
    for (size_t i = 0; i < RG_ARRAY_LEN(rules); i++) {
        preset(&opt, "tiny");
        opt.type_rules = &rules[i].rule;
        opt.n_type_rules = 1;
        expect_failure(&f, folder_file(&f, "m.gguf"), &opt, RG_INVALID, rules[i].part);
    }
    static const struct {
        const char *field, *part;
    } fields[] = {
        {"used=9", "experts=8"},       {"kv_heads=3", "heads=4"}, {"k_heads=4", "v_heads=6"},
        {"rot=34", "head_dim=32"},     {"rot=7", "odd"},          {"hidden=60", "n-gram heads"},
        {"ngram_layer=9", "4 layers"}, {"ngram=1", "at least 2"}, {"idx_budget=2047", "idx_ratio"}};
    for (size_t i = 0; i < RG_ARRAY_LEN(fields); i++) {
        preset(&opt, "tiny");
        assert_int_equal(rg_synth_set(&opt.shape, fields[i].field, NULL), RG_OK);
        expect_failure(&f, folder_file(&f, "m.gguf"), &opt, RG_INVALID, fields[i].part);
    }
    preset(&opt, "tiny");
    opt.split = 1000;
    expect_failure(&f, folder_file(&f, "m.gguf"), &opt, RG_INVALID, "1000 shards");
    folder_remove(&f);
}

static void bad_fields(void **state) {
    (void)state;
    static const struct {
        const char *text, *part;
    } cases[] = {{"layers", "key=value"},   {"nope=3", "unknown field 'nope'"},
                 {"layers=0", "1 to 1023"}, {"layers=-1", "'-1'"},
                 {"layers=", "''"},         {"layers=4x", "'4x'"},
                 {"vocab=300", "320 to"},   {"hc=99999999999999999999", "2 to 8"}};
    rg_synth_shape s, before;
    assert_int_equal(rg_synth_preset(&s, "release", NULL), RG_OK);
    before = s;
    for (size_t i = 0; i < RG_ARRAY_LEN(cases); i++) {
        rg_status st = {0};
        assert_int_equal(rg_synth_set(&s, cases[i].text, &st), RG_INVALID);
        if (!strstr(st.message, cases[i].part)) fail_msg("'%s'", st.message);
    }
    assert_memory_equal(&s, &before, sizeof s);
    assert_int_equal(rg_synth_preset(&s, "nope", NULL), RG_INVALID);
    uint32_t n = 0;
    for (const char *meaning = NULL; rg_synth_field_name(n, &meaning); n++)
        assert_non_null(meaning);
    assert_true(n >= 30);
}

/* The published shape: 1,224 tensors in the trunk (spec section 2), planned, not written. */
static void release_plan(void **state) {
    (void)state;
    rg_synth_options opt;
    rg_synth_plan p;
    rg_status st = {0};
    rg_synth_options_init(&opt);
    if (rg_synth_plan_init(&p, &opt, &st) != RG_OK) fail_msg("%s", st.message);
    assert_int_equal(p.n_tensor, 1224);
    assert_true(p.ple.rows == 320001536u);
    assert_int_equal(p.routing.n_const, 256);
    rg_synth_plan_deinit(&p);
}

static void no_memory(void **state) {
    (void)state;
    test_folder f;
    rg_synth_options opt;
    rg_synth_result r;
    folder_make(&f);
    preset(&opt, "tiny");
    opt.n_threads = 1;
    opt.shape.n_layer = 2;
    bool done = false;
    for (uint64_t n = 1; n < 2000 && !done; n++) {
        rg_status st = {0};
        rg_alloc_fail_at(n, false);
        const rg_code rc = rg_synth_write(folder_file(&f, "m.gguf"), &opt, &r, &st);
        rg_alloc_fail_at(0, false);
        done = rc == RG_OK;
        if (!done && rc != RG_NOMEM) fail_msg("allocation %d: %s", (int)n, st.message);
        assert_int_equal(folder_count(&f), done ? 1 : 0);
    }
    assert_true(done);
    assert_int_equal(unlink(f.file), 0);
    folder_remove(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type),          cmocka_unit_test(every_type_everywhere),
        cmocka_unit_test(rules_and_fallback),  cmocka_unit_test(shapes),
        cmocka_unit_test(split_files),         cmocka_unit_test(same_seed_same_bytes),
        cmocka_unit_test(vocabulary),          cmocka_unit_test(faults_of_the_target),
        cmocka_unit_test(faults_of_the_drive), cmocka_unit_test(canceled),
        cmocka_unit_test(bad_options),         cmocka_unit_test(bad_fields),
        cmocka_unit_test(release_plan),        cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
