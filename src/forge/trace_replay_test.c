/* The simulator on traces made here: whole tables, equal counts, and files that are wrong. */
#include "forge/forge.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "engine/engine.h"

#define TRACE   "trace_replay_test.trace"
#define OTHER   "trace_replay_test.other"
#define PROFILE "trace_replay_test.rgprofile"

enum { GROUPS = 4, EXPERTS = 16, USED = 3, WINDOWS = 60 };

/* Recent experts come again: something for a cache to find. */
static uint32_t draw_expert(uint64_t seed, uint64_t window, uint32_t group, uint32_t k) {
    const uint64_t age = rg_random_u64(seed, (window * GROUPS + group) * USED + k) % 4;
    return (uint32_t)(rg_random_u64(seed, (window / (age + 1)) * 64 + k) % (EXPERTS / USED) +
                      (uint64_t)k * (EXPERTS / USED));
}

static rg_code add_window(rg_trace *t, uint64_t window, rg_status *st) {
    const uint32_t rows = window % 20 == 0 ? 12 : 1;
    const rg_stream_mode mode = rows > 8 ? RG_MODE_PREFILL : RG_MODE_DECODE;
    for (uint32_t g = 0; g < GROUPS; g++) {
        uint32_t ids[12 * USED], guess[5];
        for (uint32_t i = 0; i < rows * USED; i++)
            ids[i] = draw_expert(1, window + i / USED, g, i % USED);
        rg_trace_turn(t, g, ids, rows, mode);
        if (g + 1 == GROUPS) continue;
        for (uint32_t i = 0; i < 5; i++) /* the first two are right */
            guess[i] = i < 2 ? draw_expert(1, window, g + 1, i) : (uint32_t)(window + i) % EXPERTS;
        rg_trace_ahead(t, g + 1, guess, 5, mode);
    }
    const rg_trace_window w = {.lookahead = 6};
    return rg_trace_end_window(t, &w, st);
}

static void make_trace(const char *path, uint64_t arena_bytes, uint8_t identity) {
    static rg_stream_group groups[GROUPS];
    rg_trace_header h = {.n_used = USED,
                         .chunk = 64,
                         .arena_bytes = arena_bytes,
                         .lookahead = -1,
                         .n_group = GROUPS,
                         .groups = groups};
    memset(h.identity, identity, sizeof h.identity);
    for (uint32_t g = 0; g < GROUPS; g++) {
        groups[g] = (rg_stream_group){.n_item = EXPERTS, .n_extent = 1};
        groups[g].extents[0] = (rg_stream_extent){
            .bytes = 4096u << (g / 2), .offset = (uint64_t)g << 24, .stride = 4096u << (g / 2)};
    }
    rg_trace *t;
    rg_status st = {0};
    rg_code rc = rg_trace_create(&t, path, &h, &st);
    for (uint64_t i = 0; i < WINDOWS && rc == RG_OK; i++)
        rc = add_window(t, i, &st);
    rg_trace_close(t);
    if (rc != RG_OK) fail_msg("%s", st.message);
}

static uint32_t count(const char *text, const char *part) {
    uint32_t n = 0;
    for (const char *at = text; (at = strstr(at, part)); at++)
        n++;
    return n;
}

static rg_buf replay(const rg_replay_options *o) {
    rg_buf out;
    rg_buf_init(&out, 0);
    rg_status st = {0};
    if (rg_forge_trace_replay(TRACE, o, &out, &st) != RG_OK) fail_msg("%s", st.message);
    return out;
}

static void compares_every_combination(void **state) {
    (void)state;
    make_trace(TRACE, 0, 1);
    const rg_replay_options o = {
        .slots = {4, 9, 64},
        .n_slots = 3,
        .policies = {RG_POLICY_LRU, RG_POLICY_SLRU, RG_POLICY_LFU},
        .n_policies = 3,
        .lookaheads = {0, 3, -1},
        .n_lookaheads = 3,
        .guards = {true, false},
        .n_guards = 2,
    };
    rg_buf out = replay(&o);
    assert_int_equal(count(out.data, "\n"), 2 + 3 * 3 * 3 * 2);
    assert_int_equal(count(out.data, "\n slru "), 18);
    assert_null(strstr(out.data, "recorded:"));
    rg_buf again = replay(&o); /* times are virtual: equal to the last digit */
    assert_string_equal(out.data, again.data);
    rg_buf_deinit(&out);
    rg_buf_deinit(&again);
}

/* The counts written above are zeros, so the verdict must see that the run differs. */
static void compares_with_what_was_counted(void **state) {
    (void)state;
    make_trace(TRACE, (uint64_t)40 * 8192, 1);
    rg_buf out = replay(&(rg_replay_options){0});
    assert_non_null(strstr(out.data, "\n*lru "));
    assert_non_null(strstr(out.data, "recorded: 60 windows, 93 tokens, 0 hits, 0 misses; "
                                     "the replay (*) differs in 60 windows, first in 0\n"));
    rg_buf_deinit(&out);
}

static void expect_failure(const char *path, const rg_replay_options *o, rg_code code,
                           const char *part) {
    rg_buf out;
    rg_buf_init(&out, 0);
    rg_status st = {0};
    assert_int_equal(rg_forge_trace_replay(path, o, &out, &st), code);
    if (!strstr(st.message, part)) fail_msg("no '%s' in: %s", part, st.message);
    rg_buf_deinit(&out);
}

static void says_what_is_wrong(void **state) {
    (void)state;
    make_trace(TRACE, 0, 1);
    expect_failure(TRACE, &(rg_replay_options){0}, RG_INVALID, "--arena-experts");
    expect_failure(TRACE, &(rg_replay_options){.slots = {3}, .n_slots = 1}, RG_INVALID,
                   "an arena of 3 experts, 4 at least");
    expect_failure(TRACE, &(rg_replay_options){.slots = {UINT32_MAX}, .n_slots = 1}, RG_INVALID,
                   "the replay takes");
    expect_failure("no/such/trace", &(rg_replay_options){0}, RG_IO, "no/such/trace");
}

/* Any byte changed: a status, never a failed assertion; with an arena of our own size. */
static void survives_any_changed_byte(void **state) {
    (void)state;
    make_trace(TRACE, 0, 1);
    char *data;
    size_t size;
    assert_int_equal(rg_file_slurp(&data, &size, TRACE, 1 << 20, NULL), RG_OK);
    const rg_replay_options o = {.slots = {7}, .n_slots = 1};
    for (size_t at = 0; at < size; at += at < 300 ? 1 : 41) {
        data[at] = (char)(data[at] ^ (1 << (at % 8)));
        FILE *f = fopen(OTHER, "wb");
        assert_non_null(f);
        assert_int_equal(fwrite(data, 1, size, f), size);
        fclose(f);
        rg_buf out;
        rg_buf_init(&out, 0);
        rg_status st = {0};
        const rg_code rc = rg_forge_trace_replay(OTHER, &o, &out, &st);
        assert_true(rc == RG_OK || st.message[0] != '\0');
        rg_buf_deinit(&out);
        data[at] = (char)(data[at] ^ (1 << (at % 8)));
    }
    rg_free(data);
}

static void leaks_nothing_when_memory_is_out(void **state) {
    (void)state;
    make_trace(TRACE, (uint64_t)40 * 8192, 1);
    rg_code rc = RG_NOMEM;
    for (uint64_t n = 1; rc != RG_OK; n++) {
        rg_buf out;
        rg_buf_init(&out, 0);
        rg_alloc_fail_at(n, false);
        rc = rg_forge_trace_replay(TRACE, &(rg_replay_options){0}, &out, NULL);
        rg_alloc_fail_at(0, false);
        rg_buf_deinit(&out);
        assert_true(rc == RG_OK || rc == RG_NOMEM);
        assert_true(n < 1000);
    }
}

static void sums_uses_into_a_profile(void **state) {
    (void)state;
    make_trace(TRACE, 0, 1);
    static const char *const twice[] = {TRACE, TRACE};
    rg_buf out;
    rg_buf_init(&out, 0);
    rg_status st = {0};
    if (rg_forge_trace_profile(twice, 2, PROFILE, &out, &st) != RG_OK) fail_msg("%s", st.message);
    assert_non_null(strstr(out.data, "186 tokens of 2 traces"));
    rg_profile p;
    assert_int_equal(rg_profile_read(&p, PROFILE, &st), RG_OK);
    assert_int_equal(p.n_total, GROUPS * EXPERTS);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < p.n_total; i++)
        sum += p.uses[i];
    assert_int_equal(sum, 2 * 93 * GROUPS * USED);
    rg_profile_deinit(&p);
    make_trace(OTHER, 0, 2);
    static const char *const mixed[] = {TRACE, OTHER};
    assert_int_equal(rg_forge_trace_profile(mixed, 2, PROFILE, &out, &st), RG_INVALID);
    assert_non_null(strstr(st.message, "02020202"));
    rg_buf_deinit(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(compares_every_combination),
        cmocka_unit_test(compares_with_what_was_counted),
        cmocka_unit_test(says_what_is_wrong),
        cmocka_unit_test(survives_any_changed_byte),
        cmocka_unit_test(leaks_nothing_when_memory_is_out),
        cmocka_unit_test(sums_uses_into_a_profile),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
