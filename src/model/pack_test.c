/* Packs: round trip, every kind of damage to a header, packs of other models and of a fine-tune of
 * the same shape, truncated files, failing allocations; the identity behind them.
 */
#include "model/pack.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <xxhash.h>

#include "model/model.h"
#include "support/gguf_writer.h"

#define TINY RG_TEST_DATA "/tiny/"

static char dir[64];

static int setup(void **state) {
    (void)state;
    (void)snprintf(dir, sizeof dir, "pack_test.XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static const char *in_dir(const char *name) {
    static char path[4][128];
    static unsigned turn;
    char *p = path[turn++ % 4];
    snprintf(p, sizeof path[0], "%s/%s", dir, name);
    return p;
}

static int teardown(void **state) {
    (void)state;
    static const char *const names[] = {"m.rgpack", "cut.rgpack", "tuned.gguf"};
    for (size_t i = 0; i < RG_ARRAY_LEN(names); i++)
        (void)unlink(in_dir(names[i]));
    return rmdir(dir);
}

typedef struct opened {
    rg_gguf *gguf;
    rg_model *model;
} opened;

static opened open_model(const char *path, bool no_mtp) {
    opened o = {0};
    const rg_model_options opt = {.no_mtp = no_mtp};
    assert_int_equal(rg_gguf_open(&o.gguf, path, NULL), RG_OK);
    assert_int_equal(rg_model_create(&o.model, o.gguf, &opt, NULL), RG_OK);
    return o;
}

static void close_model(opened *o) {
    rg_model_destroy(o->model);
    rg_gguf_close(o->gguf);
}

static rg_code to_buf(void *user, const void *data, size_t len, rg_status *st) {
    return rg_buf_append(user, data, len, st);
}

/* The whole pack of a model, as bytes. */
static void make_pack(rg_buf *out, const opened *o) {
    rg_pack *p = NULL;
    rg_pack_mover mover;
    rg_buf_init(out, 0);
    assert_int_equal(rg_pack_plan(&p, o->gguf, o->model, NULL), RG_OK);
    assert_int_equal(rg_pack_mover_init(&mover, NULL), RG_OK);
    const size_t header_bytes = rg_pack_header_bytes(p);
    uint8_t *header = rg_alloc(header_bytes, 1, NULL);
    assert_non_null(header);
    assert_int_equal(rg_buf_append(out, (const char *)header, header_bytes, NULL), RG_OK);
    for (uint32_t g = 0; g < rg_pack_group_count(p); g++) {
        const rg_pack_group *group = rg_pack_group_at(p, g);
        for (uint32_t i = 0; i < group->n_item; i++) {
            static const char zeros[RG_PACK_ALIGN];
            uint64_t sum = 0;
            assert_int_equal(
                rg_pack_mover_model(&mover, o->gguf, o->model, g, i, to_buf, out, &sum, NULL),
                RG_OK);
            assert_int_equal(
                rg_buf_append(out, zeros, (size_t)(group->stride - group->item_bytes), NULL),
                RG_OK);
            rg_pack_set_checksum(p, g, i, sum);
        }
    }
    rg_pack_write_header(p, true, header);
    memcpy(out->data, header, header_bytes);
    assert_int_equal(out->len, rg_pack_file_bytes(p));
    rg_free(header);
    rg_pack_mover_deinit(&mover);
    rg_pack_close(p);
}

static void make_pack_of(rg_buf *out, const char *model) {
    opened o = open_model(model, false);
    make_pack(out, &o);
    close_model(&o);
}

/* ---- round trip ----------------------------------------------------------------------------- */

static void names_packs_after_models(void **state) {
    (void)state;
    static const char *const names[][2] = {
        {"m.gguf", "m.rgpack"},
        {"a/m-00001-of-00003.gguf", "a/m.rgpack"},
        {"-00001-of-00003.gguf", "-00001-of-00003.rgpack"},
        {"m-00001-of-0003.gguf", "m-00001-of-0003.rgpack"},
        {"m-0000x-of-00003.gguf", "m-0000x-of-00003.rgpack"},
        {"m-00001-of-00003", "m-00001-of-00003.rgpack"},
        {".gguf", ".gguf.rgpack"},
        {"model.bin", "model.bin.rgpack"},
    };
    for (size_t i = 0; i < RG_ARRAY_LEN(names); i++) {
        char *path = NULL;
        assert_int_equal(rg_pack_default_path(&path, names[i][0], NULL), RG_OK);
        assert_string_equal(path, names[i][1]);
        rg_free(path);
    }
}

static void holds_every_expert(const char *model, uint32_t n_part) {
    rg_buf bytes;
    rg_pack *p = NULL;
    opened o = open_model(model, false);
    make_pack(&bytes, &o);
    rg_test_save(in_dir("m.rgpack"), bytes.data, bytes.len);
    assert_int_equal(rg_pack_open(&p, in_dir("m.rgpack"), NULL), RG_OK);
    assert_int_equal(rg_pack_check(p, o.gguf, o.model, NULL), RG_OK);
    assert_string_equal(rg_pack_path(p), in_dir("m.rgpack"));
    assert_int_equal(rg_pack_group_count(p), o.model->hp.n_layer + o.model->hp.n_mtp);
    for (uint32_t g = 0; g < rg_pack_group_count(p); g++) {
        const rg_pack_group *group = rg_pack_group_at(p, g);
        const rg_tensor *down = rg_model_moe(o.model, g)->down;
        const uint64_t down_bytes = down->size_bytes / group->n_item;
        uint8_t *want = rg_alloc((size_t)down_bytes, 1, NULL);
        assert_non_null(want);
        assert_int_equal(group->n_part, n_part);
        assert_int_equal(group->offset % RG_PACK_ALIGN, 0);
        for (uint32_t i = 0; i < group->n_item; i++) {
            const char *item = bytes.data + group->offset + i * group->stride;
            assert_int_equal(XXH3_64bits(item, group->item_bytes), group->checksums[i]);
            /* The last part lies at the end of the item, whole. */
            assert_int_equal(
                rg_gguf_read(o.gguf, down, i * down_bytes, (size_t)down_bytes, want, NULL), RG_OK);
            assert_memory_equal(item + group->item_bytes - down_bytes, want, down_bytes);
        }
        rg_free(want);
    }
    rg_pack_close(p);
    rg_buf_deinit(&bytes);
    close_model(&o);
}

static void holds_plain_fused_and_draft_experts(void **state) {
    (void)state;
    holds_every_expert(TINY "a-mix.gguf", 3);
    holds_every_expert(TINY "a-fused-00001-of-00003.gguf", 2);
    holds_every_expert(TINY "k-mtp.gguf", 3);
}

static void serves_the_trunk_alone(void **state) {
    (void)state;
    rg_buf bytes;
    rg_pack *p = NULL;
    make_pack_of(&bytes, TINY "k-mtp.gguf");
    assert_int_equal(rg_pack_parse(&p, bytes.data, bytes.len, bytes.len, NULL), RG_OK);
    opened trunk = open_model(TINY "k-mtp.gguf", true);
    assert_int_equal(trunk.model->hp.n_mtp, 0);
    assert_int_equal(rg_pack_check(p, trunk.gguf, trunk.model, NULL), RG_OK);
    rg_pack_close(p);
    rg_buf_deinit(&bytes);
    /* Not the other way round. */
    make_pack(&bytes, &trunk);
    close_model(&trunk);
    assert_int_equal(rg_pack_parse(&p, bytes.data, bytes.len, bytes.len, NULL), RG_OK);
    opened whole = open_model(TINY "k-mtp.gguf", false);
    rg_status st = {0};
    assert_int_equal(rg_pack_check(p, whole.gguf, whole.model, &st), RG_INVALID);
    assert_non_null(strstr(st.message, "4 layers, the model has 5"));
    rg_pack_close(p);
    rg_buf_deinit(&bytes);
    close_model(&whole);
}

/* ---- damage --------------------------------------------------------------------------------- */

static void refuse_bytes(const rg_buf *b, size_t len, const char *part) {
    rg_pack *p = NULL;
    rg_status st = {0};
    const uint64_t live = rg_alloc_live_bytes();
    const rg_code rc = rg_pack_parse(&p, b->data, len, len, &st);
    if (rc == RG_OK || !strstr(st.message, part)) {
        print_error("code %d, message '%s', wanted '%s'\n", (int)rc, st.message, part);
    }
    assert_true(rc == RG_FORMAT || rc == RG_UNSUPPORTED);
    assert_null(p);
    assert_non_null(strstr(st.message, part));
    assert_int_equal(rg_alloc_live_bytes(), live);
}

static void repair_sum(rg_buf *b, size_t header_bytes) {
    const uint64_t sum = rg_pack_header_sum((const uint8_t *)b->data, header_bytes);
    memcpy(b->data + RG_PACK_HEAD - sizeof sum, &sum, sizeof sum);
}

/* Any bit of the header: the checksum sees it. With the checksum made right again, no number that
 * places bytes may lie: only identity, checksums and the zeros behind them are free. */
static void refuses_every_flipped_bit(void **state) {
    (void)state;
    rg_buf b;
    rg_pack *p = NULL;
    make_pack_of(&b, TINY "a-mix.gguf");
    assert_int_equal(rg_pack_parse(&p, b.data, b.len, b.len, NULL), RG_OK);
    const size_t header = rg_pack_header_bytes(p);
    const size_t tables = RG_PACK_HEAD + rg_pack_group_count(p) * 40u;
    rg_pack_close(p);
    for (size_t bit = 0; bit < header * 8; bit++) {
        const size_t at = bit / 8;
        const char flip = (char)(1 << (bit % 8));
        b.data[at] ^= flip;
        refuse_bytes(&b, b.len, "");
        repair_sum(&b, header);
        p = NULL;
        const rg_code rc = rg_pack_parse(&p, b.data, b.len, b.len, NULL);
        const bool is_free = (at >= 32 && at < 48) || at >= tables;
        const bool is_sum = at >= RG_PACK_HEAD - 8 && at < RG_PACK_HEAD;
        /* Parts that still round up to the stride are for rg_pack_check to compare. */
        const bool is_part = at < tables && (at - RG_PACK_HEAD) % 40 >= 8 &&
                             (at - RG_PACK_HEAD) % 40 < 20 && at >= RG_PACK_HEAD;
        if (is_free || is_sum) {
            assert_int_equal(rc, RG_OK);
        } else if (!is_part) {
            assert_int_not_equal(rc, RG_OK);
        }
        rg_pack_close(p);
        if (!is_sum) b.data[at] ^= flip;
        repair_sum(&b, header);
    }
    rg_buf_deinit(&b);
}

static void put_u32(rg_buf *b, size_t at, uint32_t v) {
    memcpy(b->data + at, &v, sizeof v);
}

/* One number wrong, the checksum right: the message names it. */
static void names_what_disagrees(void **state) {
    (void)state;
    static const struct {
        size_t at;
        uint32_t value;
        const char *part;
    } cases[] = {
        {0, 0x46554747, "no expert pack: it begins with 47 47 55 46"},
        {8, 2, "pack version 2, this program knows 1"},
        {12, 0, "0 groups"},
        {12, 1025, "1025 groups"},
        {12, 3, "the layers have 24 experts"},
        {12, 200, "200 groups of 32 experts take"},
        {16, 8192, "a header of 8192 bytes"},
        {24, 100, "its header says 100"},
        {48, 0, "0 experts"},
        {48, 31, "the header says 31"},
        {48, 1u << 21, "2097152 experts"},
        {64, 0, "layer 0: 0 experts"},
        {64, 5000, "layer 0: 5000 experts"},
        {64, 9, "layer 1 begins at"},
        {68, 1, "layer 0: experts of 1 parts"},
        {68, 4, "layer 0: experts of 4 parts"},
        {68, 2, "layer 0: part 2 of"},
        {72, 0, "layer 0: part 0 of 0 bytes"},
        {76, UINT32_MAX, "layer 0: part 1 of 4294967295 bytes"},
        {72, 1u << 30, "layer 0: experts of"},
        {72, 65536, "layer 0: stride"},
        {84, 1, "layer 0: 1 where 0 stands"},
        {88, 0, "layer 0: stride 0"},
        {96, 0, "layer 0 begins at 0"},
    };
    rg_buf b;
    make_pack_of(&b, TINY "a-mix.gguf");
    for (size_t i = 0; i < RG_ARRAY_LEN(cases); i++) {
        uint32_t old = 0;
        memcpy(&old, b.data + cases[i].at, sizeof old);
        put_u32(&b, cases[i].at, cases[i].value);
        repair_sum(&b, RG_PACK_ALIGN);
        refuse_bytes(&b, b.len, cases[i].part);
        put_u32(&b, cases[i].at, old);
    }
    repair_sum(&b, RG_PACK_ALIGN);
    memcpy(b.data, "rgpart\r\n", 8);
    refuse_bytes(&b, b.len, "not finished");
    rg_buf_deinit(&b);
}

static void refuses_truncated_and_longer_files(void **state) {
    (void)state;
    rg_buf b;
    make_pack_of(&b, TINY "a-mix.gguf");
    const size_t whole = b.len;
    for (size_t len = 0; len < whole; len += len < 200 ? 1 : 997) {
        refuse_bytes(&b, len, len < RG_PACK_HEAD ? "bytes" : "truncated");
        rg_test_save(in_dir("cut.rgpack"), b.data, len);
        rg_pack *p = NULL;
        rg_status st = {0};
        assert_int_equal(rg_pack_open(&p, in_dir("cut.rgpack"), &st), RG_FORMAT);
        assert_non_null(strstr(st.message, "cut.rgpack: "));
        assert_null(p);
    }
    assert_int_equal(rg_buf_append(&b, "x", 1, NULL), RG_OK);
    refuse_bytes(&b, b.len, "bytes were appended");
    rg_buf_deinit(&b);
}

/* ---- whose ---------------------------------------------------------------------------------- */

static void refuse_model(const rg_buf *pack, const char *model, const char *part) {
    rg_pack *p = NULL;
    rg_status st = {0};
    opened o = open_model(model, false);
    assert_int_equal(rg_pack_parse(&p, pack->data, pack->len, pack->len, NULL), RG_OK);
    const rg_code rc = rg_pack_check(p, o.gguf, o.model, &st);
    if (rc != RG_INVALID || !strstr(st.message, part)) {
        print_error("code %d, message '%s', wanted '%s'\n", (int)rc, st.message, part);
    }
    assert_int_equal(rc, RG_INVALID);
    assert_non_null(strstr(st.message, part));
    rg_pack_close(p);
    close_model(&o);
}

static void refuses_packs_of_other_models(void **state) {
    (void)state;
    rg_buf b;
    make_pack_of(&b, TINY "a-f32.gguf");
    refuse_model(&b, TINY "a-mix.gguf", "layer 0, part 0 of an expert: 8192 bytes");
    refuse_model(&b, TINY "c-f32.gguf", "identity ");
    refuse_model(&b, TINY "k-mtp.gguf", "4 layers, the model has 5");
    refuse_model(&b, TINY "b-f16.gguf", "layer 0 has 8 experts");
    rg_buf_deinit(&b);
}

/* Copies a tiny model with one bit of a tensor's byte changed. */
static void fine_tune(const char *model, const char *tensor, uint64_t at) {
    char *data = NULL;
    size_t len = 0;
    opened o = open_model(model, false);
    const rg_tensor *t = rg_gguf_tensor(o.gguf, tensor);
    assert_non_null(t);
    assert_true(at < t->size_bytes);
    assert_int_equal(rg_file_slurp(&data, &len, model, 1u << 24, NULL), RG_OK);
    data[t->offset + at] ^= 1;
    close_model(&o);
    rg_test_save(in_dir("tuned.gguf"), data, len);
    rg_free(data);
}

static void refuses_packs_of_a_fine_tune(void **state) {
    (void)state;
    rg_buf b;
    make_pack_of(&b, TINY "a-f32.gguf");
    /* Anything in the samples changes the identity: of a norm, of the embedding, of experts. */
    fine_tune(TINY "a-f32.gguf", "output_hc_norm.weight", 5);
    refuse_model(&b, in_dir("tuned.gguf"), "identity ");
    fine_tune(TINY "a-f32.gguf", "token_embd.weight", 0);
    refuse_model(&b, in_dir("tuned.gguf"), "identity ");
    fine_tune(TINY "a-f32.gguf", "blk.2.ffn_up_exps.weight", 8 * 8192 - 1);
    refuse_model(&b, in_dir("tuned.gguf"), "identity ");
    /* A byte that no sample holds: the experts that are hashed anew. */
    fine_tune(TINY "a-f32.gguf", "blk.2.ffn_gate_exps.weight", 3 * 8192 - 100);
    refuse_model(&b, in_dir("tuned.gguf"), "layer 2 expert 2 has checksum ");
    rg_buf_deinit(&b);
}

static rg_hash128 identity_of(const char *model, bool no_mtp) {
    rg_hash128 id = {0};
    opened o = open_model(model, no_mtp);
    assert_int_equal(rg_model_identity(o.gguf, o.model, &id, NULL), RG_OK);
    close_model(&o);
    return id;
}

static void identity_is_of_the_model(void **state) {
    (void)state;
    static const char *const models[] = {
        TINY "a-f32.gguf", TINY "a-mix.gguf", TINY "a-fused-00001-of-00003.gguf",
        TINY "b-f16.gguf", TINY "c-f32.gguf", TINY "k-mtp.gguf"};
    rg_hash128 ids[RG_ARRAY_LEN(models)];
    for (size_t i = 0; i < RG_ARRAY_LEN(models); i++) {
        ids[i] = identity_of(models[i], false);
        assert_true(rg_hash128_equal(ids[i], identity_of(models[i], true)));
        for (size_t k = 0; k < i; k++)
            assert_false(rg_hash128_equal(ids[i], ids[k]));
    }
    /* Which part of a split model is named does not matter. */
    assert_true(rg_hash128_equal(ids[2], identity_of(TINY "a-fused-00003-of-00003.gguf", false)));
}

/* ---- memory --------------------------------------------------------------------------------- */

static rg_code open_and_check(const opened *o, rg_status *st) {
    rg_pack *p = NULL, *plan = NULL;
    char *path = NULL;
    rg_code rc = rg_pack_open(&p, in_dir("m.rgpack"), st);
    if (rc == RG_OK) rc = rg_pack_check(p, o->gguf, o->model, st);
    if (rc == RG_OK) rc = rg_pack_plan(&plan, o->gguf, o->model, st);
    if (rc == RG_OK) rc = rg_pack_default_path(&path, "m.gguf", st);
    rg_free(path);
    rg_pack_close(plan);
    rg_pack_close(p);
    return rc;
}

static void survives_failing_allocations(void **state) {
    (void)state;
    rg_buf b;
    opened o = open_model(TINY "a-mix.gguf", false);
    make_pack(&b, &o);
    rg_test_save(in_dir("m.rgpack"), b.data, b.len);
    rg_buf_deinit(&b);
    const uint64_t live = rg_alloc_live_bytes();
    rg_code rc = RG_NOMEM;
    uint64_t n = 1;
    for (; n < 100 && rc != RG_OK; n++) {
        rg_status st = {0};
        rg_alloc_fail_at(n, n % 2 == 0);
        rc = open_and_check(&o, &st);
        rg_alloc_fail_at(0, false);
        assert_true(rc == RG_OK || rc == RG_NOMEM);
        assert_int_equal(st.code, rc);
        assert_int_equal(rg_alloc_live_bytes(), live);
    }
    assert_int_equal(rc, RG_OK);
    assert_true(n > 10);
    close_model(&o);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_packs_after_models),
        cmocka_unit_test(holds_plain_fused_and_draft_experts),
        cmocka_unit_test(serves_the_trunk_alone),
        cmocka_unit_test(refuses_every_flipped_bit),
        cmocka_unit_test(names_what_disagrees),
        cmocka_unit_test(refuses_truncated_and_longer_files),
        cmocka_unit_test(refuses_packs_of_other_models),
        cmocka_unit_test(refuses_packs_of_a_fine_tune),
        cmocka_unit_test(identity_is_of_the_model),
        cmocka_unit_test(survives_failing_allocations),
    };
    return cmocka_run_group_tests_name("pack", tests, setup, teardown);
}
