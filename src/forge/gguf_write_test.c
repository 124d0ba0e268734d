/* A writer killed at any step, in children that end without a word: the next one goes on, and the
 * bytes are those of a run that nobody disturbed.
 */
#include "forge/gguf_write.h"

#include <sys/wait.h>

#include "forge/test_folder.h"

enum { TENSORS = 6, COLS = 32, ROWS = 40, BYTES = COLS * ROWS * 4 };

static const uint8_t identity[16] = "job one of tests";

typedef struct plan {
    rg_gguf_out head;
    rg_out_tensor tensors[TENSORS];
    rg_write_options opt;
    test_folder folder;
    char path[TEST_PATH_BYTES + 64];
} plan;

static void plan_make(plan *p, uint32_t parts) {
    memset(p, 0, sizeof *p);
    folder_make(&p->folder);
    memcpy(p->path, folder_file(&p->folder, "m.gguf"), sizeof p->folder.file);
    rg_gguf_out_init(&p->head);
    assert_int_equal(rg_gguf_out_str(&p->head, "general.architecture", "test", NULL), RG_OK);
    for (unsigned i = 0; i < TENSORS; i++) {
        rg_out_tensor *t = &p->tensors[i];
        *t = (rg_out_tensor){.type = RG_TYPE_F32, .n_dims = 2, .ne = {COLS, ROWS, 1, 1}};
        snprintf(t->name, sizeof t->name, "tensor.%u", i);
        t->size_bytes = rg_out_tensor_bytes(t);
        assert_int_equal(t->size_bytes, BYTES);
    }
    p->opt = (rg_write_options){
        .path = p->path, .parts = parts, .identity = identity, .sync_bytes = (uint64_t)2 * BYTES};
}

static void plan_end(plan *p) {
    rg_gguf_out_deinit(&p->head);
    folder_remove(&p->folder);
}

static rg_code begin(plan *p, rg_gguf_write **w, rg_status *st) {
    return rg_gguf_write_create(w, &p->opt, &p->head, p->tensors, TENSORS, st);
}

/* Two halves; `half`: only the first. */
static void give(rg_gguf_write *w, unsigned i, bool half) {
    uint8_t data[BYTES];
    for (unsigned k = 0; k < BYTES; k++)
        data[k] = (uint8_t)(k * 31 + i * 7 + k / 251);
    assert_int_equal(rg_gguf_write_at(w, i, 0, data, BYTES / 2, NULL), RG_OK);
    if (half) return;
    assert_int_equal(rg_gguf_write_at(w, i, BYTES / 2, data + BYTES / 2, BYTES / 2, NULL), RG_OK);
    assert_int_equal(rg_gguf_write_end(w, i, NULL), RG_OK);
}

/* A run that is gone behind `n` tensors and half of another, as by a kill. */
static void die_behind(plan *p, unsigned n) {
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        rg_gguf_write *w = NULL;
        if (begin(p, &w, NULL) != RG_OK) _exit(1);
        for (unsigned i = 0; i < n; i++) {
            if (!rg_gguf_write_has(w, i)) give(w, i, false);
        }
        if (n < TENSORS) give(w, n, true);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

/* The rest of the work; how many tensors were there already. */
static unsigned complete(plan *p) {
    rg_gguf_write *w = NULL;
    rg_status st = {0};
    unsigned had = 0;
    if (begin(p, &w, &st) != RG_OK) {
        fail_msg("%s", st.message);
        abort(); /* not reached: fail_msg does not return */
    }
    for (unsigned i = 0; i < TENSORS; i++) {
        had += rg_gguf_write_has(w, i);
        if (!rg_gguf_write_has(w, i)) give(w, i, false);
    }
    assert_int_equal(rg_gguf_write_finish(w, &st), RG_OK);
    rg_gguf_write_destroy(w);
    return had;
}

static char *part_name(plan *p, unsigned i, const char *end) {
    static char name[TEST_PATH_BYTES + 96];
    if (p->opt.parts > 1) {
        snprintf(name, sizeof name, "%s/m-%05u-of-%05u.gguf%s", p->folder.path, i + 1, p->opt.parts,
                 end);
    } else {
        snprintf(name, sizeof name, "%s/m.gguf%s", p->folder.path, end);
    }
    return name;
}

/* Reads all parts behind each other and removes them. */
static char *take(plan *p, size_t *len) {
    char *all = calloc(1, (size_t)4 * TENSORS * BYTES);
    assert_non_null(all);
    *len = 0;
    for (unsigned i = 0; i < (p->opt.parts ? p->opt.parts : 1); i++) {
        FILE *f = fopen(part_name(p, i, ""), "rbe");
        assert_non_null(f);
        *len += fread(all + *len, 1, (size_t)2 * TENSORS * BYTES, f);
        fclose(f);
        assert_int_equal(unlink(part_name(p, i, "")), 0);
    }
    return all;
}

static void killed_anywhere(uint32_t parts) {
    plan p;
    size_t n_want = 0, n = 0;
    plan_make(&p, parts);
    assert_int_equal(complete(&p), 0);
    char *want = take(&p, &n_want);
    assert_true(n_want > (size_t)TENSORS * BYTES);
    for (unsigned n_done = 0; n_done <= TENSORS; n_done++) {
        die_behind(&p, n_done);
        for (unsigned i = 0; i < (parts ? parts : 1); i++)
            assert_int_equal(access(part_name(&p, i, ""), F_OK), -1);
        /* Every two tensors are a line of the journal. */
        assert_int_equal(complete(&p), n_done / 2 * 2);
        char *got = take(&p, &n);
        assert_int_equal(n, n_want);
        assert_memory_equal(got, want, n);
        free(got);
    }
    free(want);
    plan_end(&p);
}

static void one_file_goes_on(void **state) {
    (void)state;
    killed_anywhere(0);
}

static void parts_go_on(void **state) {
    (void)state;
    killed_anywhere(3);
}

/* Killed while the parts get their names: some have them, the journal is still there. */
static void names_are_given_later(void **state) {
    (void)state;
    for (unsigned named = 1; named <= 3; named++) {
        plan p;
        size_t n_want = 0, n = 0;
        plan_make(&p, 3);
        assert_int_equal(complete(&p), 0);
        char *want = take(&p, &n_want);
        die_behind(&p, TENSORS);
        for (unsigned i = 0; i < named; i++) {
            char temp[TEST_PATH_BYTES + 96];
            memcpy(temp, part_name(&p, i, ".part"), sizeof temp);
            assert_int_equal(rename(temp, part_name(&p, i, "")), 0);
        }
        assert_int_equal(complete(&p), TENSORS);
        char *got = take(&p, &n);
        assert_int_equal(n, n_want);
        assert_memory_equal(got, want, n);
        free(got);
        free(want);
        plan_end(&p);
    }
}

/* Another job does not go on with these bytes, and an older file is not taken for a result. */
static void another_job_starts_over(void **state) {
    (void)state;
    static const uint8_t other[16] = "another job of t";
    plan p;
    rg_gguf_write *w = NULL;
    rg_status st = {0};
    size_t n = 0;
    plan_make(&p, 0);
    die_behind(&p, 5);
    p.opt.identity = other;
    assert_int_equal(complete(&p), 0);
    free(take(&p, &n));
    p.opt.identity = identity;
    die_behind(&p, 5);
    FILE *f = fopen(part_name(&p, 0, ""), "wbe");
    assert_non_null(f);
    fclose(f);
    assert_int_equal(begin(&p, &w, &st), RG_INVALID);
    assert_non_null(strstr(st.message, "exists"));
    p.opt.overwrite = true;
    assert_int_equal(complete(&p), 4);
    free(take(&p, &n));
    plan_end(&p);
}

/* A run that fails, unlike one that is killed, leaves nothing. */
static void failure_leaves_nothing(void **state) {
    (void)state;
    plan p;
    rg_gguf_write *w = NULL;
    plan_make(&p, 3);
    assert_int_equal(begin(&p, &w, NULL), RG_OK);
    give(w, 0, false);
    rg_gguf_write_destroy(w);
    plan_end(&p); /* demands an empty folder */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_file_goes_on),       cmocka_unit_test(parts_go_on),
        cmocka_unit_test(names_are_given_later),  cmocka_unit_test(another_job_starts_over),
        cmocka_unit_test(failure_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
