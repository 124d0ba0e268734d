/* One test for each rule of the container about what must be refused (format notes, A.6), and that
 * what is odd but legal loads. Headers are built in memory.
 */
#include "model/gguf.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/gguf_writer.h"

static const uint64_t ne_32[] = {32};
static const uint64_t ne_32x2[] = {32, 2};

/* Parses bytes that must be refused with `code`, in one line that holds `part`. */
static void refuse_bytes(const void *data, size_t len, uint64_t file_size, rg_code code,
                         const char *part) {
    rg_gguf *g = NULL;
    rg_status st = {0};
    const rg_code rc = rg_gguf_parse(&g, data, len, file_size, &st);
    if (rc != code || !strstr(st.message, part)) {
        print_error("code %d, message '%s', wanted %d '%s'\n", (int)rc, st.message, (int)code,
                    part);
    }
    assert_int_equal(rc, code);
    assert_null(g);
    assert_non_null(strstr(st.message, part));
    assert_null(strchr(st.message, '\n'));
}

static void refuse(rg_gguf_writer *w, rg_code code, const char *part) {
    rg_buf out;
    rg_buf_init(&out, 0);
    const uint64_t size = rg_gguf_writer_finish(w, &out);
    refuse_bytes(out.data, out.len, size, code, part);
    rg_buf_deinit(&out);
    rg_gguf_writer_deinit(w);
}

/* Parses what must load; the caller closes. */
static rg_gguf *accept(rg_gguf_writer *w) {
    rg_buf out;
    rg_buf_init(&out, 0);
    const uint64_t size = rg_gguf_writer_finish(w, &out);
    rg_gguf *g = NULL;
    rg_status st = {0};
    const rg_code rc = rg_gguf_parse(&g, out.data, out.len, size, &st);
    if (rc != RG_OK) print_error("%s\n", st.message);
    assert_int_equal(rc, RG_OK);
    rg_buf_deinit(&out);
    rg_gguf_writer_deinit(w);
    return g;
}

static rg_gguf_writer begin(void) {
    rg_gguf_writer w;
    rg_gguf_writer_init(&w);
    return w;
}

/* A key of every type and two tensors. */
static rg_gguf_writer full(void) {
    rg_gguf_writer w = begin();
    static const char *const words[] = {"a", "", "long one"};
    static const uint64_t wide[] = {1, UINT64_MAX};
    static const uint8_t flags[] = {0, 1, 1};
    rg_gguf_writer_str(&w, "general.architecture", "other");
    rg_gguf_writer_raw(&w, "t.u8", RG_GGUF_U8, "\xff", 1);
    rg_gguf_writer_raw(&w, "t.i8", RG_GGUF_I8, "\xff", 1);
    rg_gguf_writer_raw(&w, "t.u16", RG_GGUF_U16, "\xff\xff", 2);
    rg_gguf_writer_raw(&w, "t.i16", RG_GGUF_I16, "\xfe\xff", 2);
    rg_gguf_writer_u32(&w, "t.u32", 7);
    rg_gguf_writer_i32(&w, "t.i32", -7);
    rg_gguf_writer_f32(&w, "t.f32", 1.5f);
    rg_gguf_writer_bool(&w, "t.bool", true);
    rg_gguf_writer_u64(&w, "t.u64", UINT64_MAX);
    rg_gguf_writer_raw(&w, "t.i64", RG_GGUF_I64, "\xff\xff\xff\xff\xff\xff\xff\xff", 8);
    rg_gguf_writer_raw(&w, "t.f64", RG_GGUF_F64, "\0\0\0\0\0\0\xf8\x3f", 8);
    rg_gguf_writer_array(&w, "t.wide", RG_GGUF_U64, 2, wide, 8);
    rg_gguf_writer_array(&w, "t.flags", RG_GGUF_BOOL, 3, flags, 1);
    rg_gguf_writer_strings(&w, "t.words", words, 3);
    rg_gguf_writer_tensor(&w, "first", RG_TYPE_F32, 1, ne_32, NULL);
    rg_gguf_writer_tensor(&w, "second", RG_TYPE_Q8_0, 2, ne_32x2, NULL);
    return w;
}

static void loads_every_type(void **state) {
    (void)state;
    for (uint32_t version = 2; version <= 3; version++) {
        rg_gguf_writer w = full();
        w.version = version;
        rg_gguf *g = accept(&w);
        assert_int_equal(rg_gguf_version(g), version);
        assert_int_equal(rg_gguf_file_count(g), 1);
        assert_string_equal(rg_gguf_file_path(g, 0), "(memory)");
        assert_int_equal(rg_gguf_kv_count(g), 15);
        const rg_gguf_kv *kv = rg_gguf_find(g, "t.words");
        assert_non_null(kv);
        assert_int_equal(kv->count, 3);
        assert_int_equal(rg_gguf_elem_str(kv, 1).len, 0);
        assert_int_equal(rg_gguf_elem_str(kv, 2).len, 8);
        assert_memory_equal(rg_gguf_elem_str(kv, 2).data, "long one", 8);
        assert_null(rg_gguf_find(g, "t.word"));
        assert_ptr_equal(rg_gguf_kv_at(g, 14), kv);
        assert_int_equal(rg_gguf_tensor_count(g), 2);
        const rg_tensor *t = rg_gguf_tensor(g, "second");
        assert_ptr_equal(t, rg_gguf_tensor_at(g, 1));
        assert_int_equal(t->size_bytes, 68);
        assert_int_equal(t->ne[1], 2);
        assert_int_equal(t->ne[3], 1);
        assert_int_equal(t->offset - rg_gguf_tensor_at(g, 0)->offset, 128);
        assert_int_equal(t->offset % 32, 0);
        assert_null(rg_gguf_tensor(g, "third"));
        uint8_t byte = 0;
        rg_status st = {0};
        assert_int_equal(rg_gguf_read(g, t, 0, 1, &byte, &st), RG_INVALID);
        rg_gguf_close(g);
    }
}

/* ---- header (rules 1-4) ---------------------------------------------------------------------- */

static void refuses_short_files(void **state) {
    (void)state;
    static const char bytes[24] = "GGUF\3";
    for (size_t n = 0; n < sizeof bytes; n++) {
        refuse_bytes(bytes, n, n, RG_FORMAT, "a GGUF header has at least 24");
    }
    refuse_bytes(bytes, 24, 23, RG_INVALID, "24 header bytes of a file of 23");
}

static void refuses_wrong_magic_and_version(void **state) {
    (void)state;
    static const struct {
        uint32_t version;
        const char *part;
    } cases[] = {{0, "version 0"},           {1, "version 1"},
                 {4, "version 4"},           {0x03000000, "byte order"},
                 {0x02000000, "byte order"}, {UINT32_MAX, "version 4294967295"}};
    for (size_t i = 0; i < RG_ARRAY_LEN(cases); i++) {
        rg_gguf_writer w = begin();
        w.version = cases[i].version;
        refuse(&w, RG_UNSUPPORTED, cases[i].part);
    }
    refuse_bytes("GGML\3\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 24, 24, RG_FORMAT, "47 47 4d 4c");
}

static void refuses_impossible_counts(void **state) {
    (void)state;
    static const uint64_t counts[] = {UINT64_MAX,      1ull << 63,          (1ull << 63) + 1,
                                      UINT64_MAX / 14, UINT64_MAX / 14 + 1, UINT64_MAX / 25 + 1,
                                      1ull << 32};
    for (size_t i = 0; i < RG_ARRAY_LEN(counts); i++) {
        rg_gguf_writer w = full();
        w.n_kv = counts[i];
        refuse(&w, RG_FORMAT, "key count at byte 16");
        w = full();
        w.n_tensor = counts[i];
        refuse(&w, RG_FORMAT, "tensor count at byte 8");
    }
    /* A file large enough for the claim meets the ceiling. */
    rg_gguf_writer w = begin();
    w.n_kv = RG_GGUF_KVS_MAX + 1;
    w.no_data = true;
    w.data_bytes = 1ull << 40;
    refuse(&w, RG_FORMAT, "the limit is 1000000");
    w = begin();
    w.n_tensor = RG_GGUF_TENSORS_MAX + 1;
    w.no_data = true;
    w.data_bytes = 1ull << 40;
    refuse(&w, RG_FORMAT, "the limit is 1000000");
}

static void refuses_truncation_at_every_byte(void **state) {
    (void)state;
    rg_gguf_writer w = full();
    rg_buf out;
    rg_buf_init(&out, 0);
    const uint64_t size = rg_gguf_writer_finish(&w, &out);
    const size_t header = out.len - w.data.len;
    size_t end = 24 + w.kvs.len + w.infos.len; /* of the last record */
    for (size_t n = 0; n < out.len - (32 - 68 % 32); n++) {
        /* The payload of the last tensor ends 28 bytes before its padding does. */
        refuse_bytes(out.data, n, n, RG_FORMAT, "(memory): ");
    }
    for (size_t n = 24; n < end; n++) {
        refuse_bytes(out.data, n, size, RG_FORMAT, "are in memory");
    }
    rg_gguf *g = NULL;
    assert_true(end <= header);
    assert_int_equal(rg_gguf_parse(&g, out.data, end, size, NULL), RG_OK);
    rg_gguf_close(g);
    /* Only the padding behind the last tensor may be missing. */
    assert_int_equal(rg_gguf_parse(&g, out.data, end, size - (32 - 68 % 32), NULL), RG_OK);
    rg_gguf_close(g);
    rg_buf_deinit(&out);
    rg_gguf_writer_deinit(&w);
}

/* ---- keys and values (rules 5-10) ------------------------------------------------------------ */

/* A header with one key record of the given bytes, in a file of `file_size` (0 = its own size). */
static void refuse_kv(const void *record, size_t len, uint64_t file_size, rg_code code,
                      const char *part) {
    rg_gguf_writer w = begin();
    assert_int_equal(rg_buf_append(&w.kvs, record, len, NULL), RG_OK);
    /* Room behind, so that the count of records is plausible. */
    static const char zeros[64];
    assert_int_equal(rg_buf_append(&w.kvs, zeros, sizeof zeros, NULL), RG_OK);
    w.n_kv = 1;
    rg_buf out;
    rg_buf_init(&out, 0);
    const uint64_t size = rg_gguf_writer_finish(&w, &out);
    refuse_bytes(out.data, out.len, file_size ? file_size : size, code, part);
    rg_buf_deinit(&out);
    rg_gguf_writer_deinit(&w);
}

static void refuses_bad_keys(void **state) {
    (void)state;
    refuse_kv("\0\0\0\0\0\0\0\0", 8, 0, RG_FORMAT, "key at byte 24 has 0 bytes");
    refuse_kv("\0\0\1\0\0\0\0\0", 8, 1 << 20, RG_FORMAT, "has 65536 bytes");
    refuse_kv("\xff\xff\xff\xff\xff\xff\xff\xff", 8, 0, RG_FORMAT, "18446744073709551615");
    refuse_kv("\0\xff\0\0\0\0\0\0", 8, 0, RG_FORMAT, "key at byte 32 needs 65280 bytes");
    rg_gguf_writer w = begin();
    rg_gguf_writer_u32(&w, "one", 1);
    rg_gguf_writer_u32(&w, "two", 2);
    rg_gguf_writer_str(&w, "one", "again");
    refuse(&w, RG_FORMAT, "key 'one' at byte 62 is a duplicate of the one at byte 24");
}

static void refuses_bad_types(void **state) {
    (void)state;
    refuse_kv("\1\0\0\0\0\0\0\0k\x0d\0\0\0", 13, 0, RG_FORMAT,
              "key 'k': value type at byte 33 is 13");
    refuse_kv("\1\0\0\0\0\0\0\0k\xff\xff\xff\xff", 13, 0, RG_FORMAT, "is 4294967295");
    refuse_kv("\1\0\0\0\0\0\0\0k\x09\0\0\0\x0d\0\0\0\1", 18, 0, RG_FORMAT,
              "array element type at byte 37 is 13");
    refuse_kv("\1\0\0\0\0\0\0\0k\x09\0\0\0\x09\0\0\0\1", 18, 0, RG_UNSUPPORTED, "array of arrays");
}

static void refuses_long_strings(void **state) {
    (void)state;
    refuse_kv("\1\0\0\0\0\0\0\0k\x08\0\0\0\xff\0\0\0\0\0\0\0", 21, 0, RG_FORMAT,
              "string at byte 45 needs 255 bytes");
    refuse_kv("\1\0\0\0\0\0\0\0k\x08\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff", 21, 0, RG_FORMAT,
              "18446744073709551615");
    /* A file large enough: the ceiling of one string. */
    refuse_kv("\1\0\0\0\0\0\0\0k\x08\0\0\0\1\0\0\4\0\0\0\0", 21, 1ull << 40, RG_FORMAT,
              "the limit is 67108864");
}

static void refuses_long_arrays(void **state) {
    (void)state;
#define ARRAY_OF(elem) "\1\0\0\0\0\0\0\0k\x09\0\0\0" elem "\0\0\0"
    /* 2^62 elements of 4 bytes: the product wraps to 0. */
    refuse_kv(ARRAY_OF("\4") "\0\0\0\0\0\0\0\x40", 25, 0, RG_FORMAT,
              "claims 4611686018427387904 elements");
    refuse_kv(ARRAY_OF("\0") "\xff\xff\xff\xff\xff\xff\xff\xff", 25, 0, RG_FORMAT, "claims");
    refuse_kv(ARRAY_OF("\x08") "\0\0\0\0\0\0\0\x20", 25, 0, RG_FORMAT, "of 8 bytes");
    refuse_kv(ARRAY_OF("\x0a") "\x0a\0\0\0\0\0\0\0", 25, 0, RG_FORMAT, "claims 10 elements");
    refuse_kv(ARRAY_OF("\0") "\1\0\0\x40\0\0\0\0", 25, 1ull << 40, RG_FORMAT, "elements");
    /* Each string is checked on its own. */
    refuse_kv(ARRAY_OF("\x08") "\2\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0a\xff\0\0\0\0\0\0\0", 42, 0,
              RG_FORMAT, "element 1 of 2: string at byte");
#undef ARRAY_OF
}

static void refuses_bad_bools(void **state) {
    (void)state;
    static const uint8_t flags[] = {0, 1, 2};
    rg_gguf_writer w = begin();
    rg_gguf_writer_raw(&w, "flag", RG_GGUF_BOOL, "\2", 1);
    refuse(&w, RG_FORMAT, "key 'flag': bool at byte 40 is 2");
    w = begin();
    rg_gguf_writer_array(&w, "flag", RG_GGUF_BOOL, 3, flags, 1);
    refuse(&w, RG_FORMAT, "bool at byte 54 is 2");
}

static void checks_alignment(void **state) {
    (void)state;
    static const uint32_t bad[] = {0, 1, 4, 12, 33, 131072, UINT32_MAX};
    static const uint32_t good[] = {8, 64, 65536};
    for (size_t i = 0; i < RG_ARRAY_LEN(bad); i++) {
        rg_gguf_writer w = begin();
        rg_gguf_writer_u32(&w, "general.alignment", bad[i]);
        refuse(&w, RG_FORMAT, "key 'general.alignment' at byte 53 is");
    }
    rg_gguf_writer w = begin();
    rg_gguf_writer_u64(&w, "general.alignment", 32);
    refuse(&w, RG_FORMAT, "is u64, expected u32");
    for (size_t i = 0; i < RG_ARRAY_LEN(good); i++) {
        w = begin();
        w.alignment = good[i];
        rg_gguf_writer_u32(&w, "general.alignment", good[i]);
        rg_gguf_writer_tensor(&w, "a", RG_TYPE_F32, 1, ne_32, NULL);
        rg_gguf_writer_tensor(&w, "b", RG_TYPE_F32, 1, ne_32, NULL);
        rg_gguf *g = accept(&w);
        assert_int_equal(rg_gguf_tensor(g, "b")->offset % good[i], 0);
        rg_gguf_close(g);
    }
}

/* ---- tensor table (rules 12-23) -------------------------------------------------------------- */

/* A file with one tensor record and `data_bytes` of data. */
static void refuse_info(const char *name, size_t len, uint32_t n_dims, const uint64_t *ne,
                        uint32_t type, uint64_t offset, rg_code code, const char *part) {
    rg_gguf_writer w = begin();
    rg_gguf_writer_info(&w, name, len, n_dims, ne, type, offset);
    w.no_data = true;
    w.data_bytes = 1024;
    refuse(&w, code, part);
}

static void refuses_bad_names(void **state) {
    (void)state;
    char name[65];
    memset(name, 'n', sizeof name);
    refuse_info("", 0, 1, ne_32, RG_TYPE_F32, 0, RG_FORMAT, "tensor name at byte 24 has 0 bytes");
    refuse_info(name, 64, 1, ne_32, RG_TYPE_F32, 0, RG_FORMAT, "has 64 bytes, 1 to 63");
    refuse_info("a\0b", 3, 1, ne_32, RG_TYPE_F32, 0, RG_FORMAT, "NUL as byte 1 of 3");
    rg_gguf_writer w = begin();
    rg_gguf_writer_info(&w, name, 63, 1, ne_32, RG_TYPE_F32, 0);
    w.no_data = true;
    w.data_bytes = 1024;
    rg_gguf *g = accept(&w);
    assert_int_equal(strlen(rg_gguf_tensor_at(g, 0)->name), 63);
    rg_gguf_close(g);
    w = begin();
    rg_gguf_writer_tensor(&w, "same", RG_TYPE_F32, 1, ne_32, NULL);
    rg_gguf_writer_tensor(&w, "same", RG_TYPE_F32, 1, ne_32, NULL);
    refuse(&w, RG_FORMAT, "tensor 'same' at byte 60 is a duplicate: record 1 repeats 0");
}

static void refuses_bad_dims(void **state) {
    (void)state;
    static const uint64_t five[] = {1, 1, 1, 1, 1}, zero[] = {32, 0}, neg[] = {32, 1ull << 63};
    static const uint64_t wraps[] = {1ull << 32, 1ull << 32}, wraps3[] = {1 << 30, 1 << 30, 1 << 4};
    static const uint64_t wide[] = {1ull << 61, 2};
    refuse_info("t", 1, 5, five, RG_TYPE_F32, 0, RG_FORMAT, "n_dims at byte 33 is 5");
    refuse_info("t", 1, 2, zero, RG_TYPE_F32, 0, RG_FORMAT, "dimension 1 at byte 45 is 0");
    refuse_info("t", 1, 2, neg, RG_TYPE_F32, 0, RG_FORMAT, "is 9223372036854775808");
    refuse_info("t", 1, 2, wraps, RG_TYPE_F32, 0, RG_FORMAT,
                "4294967296 elements times 4294967296");
    refuse_info("t", 1, 3, wraps3, RG_TYPE_F32, 0, RG_FORMAT, "exceed 2^63-1");
    refuse_info("t", 1, 2, wide, RG_TYPE_F32, 0, RG_FORMAT, "blocks of 4 bytes exceed");
    rg_gguf_writer w = begin();
    rg_gguf_writer_info(&w, "scalar", 6, 0, NULL, RG_TYPE_F32, 0);
    w.no_data = true;
    w.data_bytes = 32;
    rg_gguf *g = accept(&w);
    assert_int_equal(rg_gguf_tensor_at(g, 0)->size_bytes, 4);
    rg_gguf_close(g);
}

static void refuses_bad_tensor_types(void **state) {
    (void)state;
    static const uint32_t ids[] = {4, 5, 31, 32, 33, 36, 37, 38, 43, 44, 1000, UINT32_MAX};
    static const uint64_t ne_512[] = {512};
    for (size_t i = 0; i < RG_ARRAY_LEN(ids); i++) {
        refuse_info("t", 1, 1, ne_512, ids[i], 0, RG_UNSUPPORTED, "tensor 't': type id at byte 45");
    }
    refuse_info("t", 1, 1, ne_512, RG_TYPE_Q8_1, 0, RG_FORMAT, "which no file may store");
    refuse_info("t", 1, 1, ne_512, RG_TYPE_Q8_K, 0, RG_FORMAT, "which no file may store");
    static const uint64_t ne_33[] = {33};
    refuse_info("t", 1, 1, ne_33, RG_TYPE_Q8_0, 0, RG_FORMAT, "rows of 33 elements");
    refuse_info("t", 1, 1, ne_32, RG_TYPE_Q4_K, 0, RG_FORMAT, "multiple of the 256");
}

static void refuses_bad_offsets(void **state) {
    (void)state;
    refuse_info("t", 1, 1, ne_32, RG_TYPE_F32, 16, RG_FORMAT, "is 16, no multiple of");
    refuse_info("t", 1, 1, ne_32, RG_TYPE_F32, 1024, RG_FORMAT, "128 bytes at 1024");
    refuse_info("t", 1, 1, ne_32, RG_TYPE_F32, 928, RG_FORMAT, "128 bytes at 928");
    refuse_info("t", 1, 1, ne_32, RG_TYPE_F32, UINT64_MAX - 31, RG_FORMAT,
                "at 18446744073709551584 of a data section");
    static const uint64_t huge[] = {1ull << 60};
    refuse_info("t", 1, 1, huge, RG_TYPE_F32, 32, RG_FORMAT, "of a data section");
}

static void checks_where_data_begins(void **state) {
    (void)state;
    rg_gguf_writer w = begin();
    rg_gguf_writer_u32(&w, "general.alignment", 4096);
    rg_gguf_writer_tensor(&w, "t", RG_TYPE_F32, 1, ne_32, NULL);
    w.no_data = true;
    w.data_bytes = 0; /* ends inside the padding behind the table */
    refuse(&w, RG_FORMAT, "data section begins at byte 4096");
    w = begin();
    rg_gguf_writer_u32(&w, "general.alignment", 4096);
    rg_gguf_close(accept(&w)); /* without tensors the padding may be missing */
}

static void checks_overlaps(void **state) {
    (void)state;
    rg_gguf_writer w = begin();
    w.no_data = true;
    w.data_bytes = 1024;
    rg_gguf_writer_info(&w, "a", 1, 1, ne_32, RG_TYPE_F32, 0);
    rg_gguf_writer_info(&w, "b", 1, 1, ne_32, RG_TYPE_F32, 96);
    refuse(&w, RG_FORMAT, "tensor 'a' ends at byte 128 of the data, inside 'b'");
    /* Out of order, the overlap between the first and the last. */
    w = begin();
    w.no_data = true;
    w.data_bytes = 1024;
    rg_gguf_writer_info(&w, "c", 1, 1, ne_32, RG_TYPE_F32, 512);
    rg_gguf_writer_info(&w, "a", 1, 1, ne_32, RG_TYPE_F32, 0);
    rg_gguf_writer_info(&w, "b", 1, 1, ne_32, RG_TYPE_F32, 256);
    rg_gguf_writer_info(&w, "d", 1, 1, ne_32, RG_TYPE_F32, 608);
    refuse(&w, RG_FORMAT, "tensor 'c' ends at byte 640 of the data, inside 'd'");
    /* The same place twice. */
    w = begin();
    w.no_data = true;
    w.data_bytes = 1024;
    rg_gguf_writer_info(&w, "a", 1, 1, ne_32, RG_TYPE_F32, 64);
    rg_gguf_writer_info(&w, "b", 1, 1, ne_32, RG_TYPE_F32, 64);
    refuse(&w, RG_FORMAT, "inside");
}

static void accepts_gaps_and_any_order(void **state) {
    (void)state;
    rg_gguf_writer w = begin();
    w.no_data = true;
    w.data_bytes = 100000;
    uint64_t random = 1;
    for (uint32_t i = 0; i < 500; i++) { /* places 0..499 in a scrambled order, gaps between */
        char name[16];
        snprintf(name, sizeof name, "t%u", i);
        random = (uint64_t)i * 211 % 500;
        rg_gguf_writer_info(&w, name, strlen(name), 1, ne_32, RG_TYPE_F32, random * 192);
    }
    rg_gguf *g = accept(&w);
    assert_int_equal(rg_gguf_tensor_count(g), 500);
    assert_int_equal(rg_gguf_tensor(g, "t1")->offset - rg_gguf_tensor(g, "t0")->offset, 211 * 192);
    rg_gguf_close(g);
}

static void refuses_shards_in_memory(void **state) {
    (void)state;
    rg_gguf_writer w = begin();
    rg_gguf_writer_u32(&w, "split.count", 2);
    refuse(&w, RG_UNSUPPORTED, "split.count is 2, one header was given");
    w = begin();
    rg_gguf_writer_u32(&w, "split.count", 1);
    rg_gguf_close(accept(&w));
}

/* ---- memory --------------------------------------------------------------------------------- */

/* What a header claims must not be allocated before the bytes behind the claim were seen. */
static void claims_take_no_memory(void **state) {
    (void)state;
    rg_gguf_writer w = begin();
    rg_gguf_writer_array(&w, "strings", RG_GGUF_STRING, 0, NULL, 0);
    const uint64_t claimed = 1 << 26;
    memcpy(w.kvs.data + w.kvs.len - 8, &claimed, 8);
    w.n_kv = 1000000;
    w.n_tensor = 1000000;
    w.no_data = true;
    w.data_bytes = 1ull << 50;
    rg_alloc_peak_reset();
    const uint64_t before = rg_alloc_peak_bytes();
    refuse(&w, RG_FORMAT, "are in memory");
    assert_true(rg_alloc_peak_bytes() - before < 65536);
}

static void survives_failing_allocations(void **state) {
    (void)state;
    rg_gguf_writer w = full();
    rg_buf out;
    rg_buf_init(&out, 0);
    const uint64_t size = rg_gguf_writer_finish(&w, &out);
    const uint64_t live = rg_alloc_live_bytes();
    rg_code rc = RG_NOMEM;
    uint64_t n = 1;
    for (; n < 100 && rc != RG_OK; n++) {
        rg_gguf *g = NULL;
        rg_status st = {0};
        rg_alloc_fail_at(n, n % 2 == 0);
        rc = rg_gguf_parse(&g, out.data, out.len, size, &st);
        rg_alloc_fail_at(0, false);
        if (rc != RG_OK) {
            assert_int_equal(rc, RG_NOMEM);
            assert_int_equal(st.code, RG_NOMEM);
            assert_null(g);
        }
        rg_gguf_close(g);
        assert_int_equal(rg_alloc_live_bytes(), live);
    }
    assert_int_equal(rc, RG_OK);
    assert_true(n > 6);
    rg_buf_deinit(&out);
    rg_gguf_writer_deinit(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loads_every_type),
        cmocka_unit_test(refuses_short_files),
        cmocka_unit_test(refuses_wrong_magic_and_version),
        cmocka_unit_test(refuses_impossible_counts),
        cmocka_unit_test(refuses_truncation_at_every_byte),
        cmocka_unit_test(refuses_bad_keys),
        cmocka_unit_test(refuses_bad_types),
        cmocka_unit_test(refuses_long_strings),
        cmocka_unit_test(refuses_long_arrays),
        cmocka_unit_test(refuses_bad_bools),
        cmocka_unit_test(checks_alignment),
        cmocka_unit_test(refuses_bad_names),
        cmocka_unit_test(refuses_bad_dims),
        cmocka_unit_test(refuses_bad_tensor_types),
        cmocka_unit_test(refuses_bad_offsets),
        cmocka_unit_test(checks_where_data_begins),
        cmocka_unit_test(checks_overlaps),
        cmocka_unit_test(accepts_gaps_and_any_order),
        cmocka_unit_test(refuses_shards_in_memory),
        cmocka_unit_test(claims_take_no_memory),
        cmocka_unit_test(survives_failing_allocations),
    };
    return cmocka_run_group_tests_name("gguf", tests, NULL, NULL);
}
