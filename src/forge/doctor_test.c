#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "forge/doctor_parts.h"
#include "forge/forge.h"
#include "forge/test_folder.h"

static void count_step(void *user, const char *what, uint32_t done, uint32_t total) {
    assert_non_null(what);
    assert_true(done <= total);
    (*(int *)user)++;
}

static void plausible_machine(const rg_doctor_machine *m) {
    assert_true(m->cores >= 1);
    assert_true(strlen(m->cpu_level) > 0);
    assert_true(m->memory_available_bytes > 0);
    assert_true(m->memory_gb_s > 0.1 && m->memory_gb_s < 10000);
    assert_true(m->nofile > 0);
    assert_true(m->io_uring == (m->io_uring_errno == 0));
    assert_true(strlen(m->huge_pages) > 0);
    assert_in_range(m->cgroup_version, 0, 2);
}

static void plausible_drive(const rg_doctor_drive *d) {
    if (!d->measured) fail_msg("%s", d->error);
    assert_true(d->n_point > 0);
    double best = 0;
    for (uint32_t i = 0; i < d->n_point; i++) {
        const rg_doctor_point *p = &d->points[i];
        assert_true(p->reads > 0);
        assert_true(p->gb_s > 0 && p->gb_s < 10000);
        assert_true(p->latency_us > 0);
        assert_in_range(p->depth, 1, 64);
        assert_true(p->read_bytes % 4096 == 0);
        if (p->direct == d->direct) best = fmax(best, p->gb_s);
    }
    assert_true(d->ceiling_gb_s >= d->expert_ceiling_gb_s);
    assert_true(fabs(d->ceiling_gb_s - best) < 1e-9);
    assert_in_range(d->best_depth, 1, 64);
    assert_true(strlen(d->file_system) > 0);
}

static json_t *parse(const rg_doctor_report *r) {
    rg_buf text;
    rg_buf_init(&text, 0);
    assert_int_equal(rg_doctor_json(r, &text, NULL), RG_OK);
    json_error_t err;
    json_t *o = json_loadb(text.data, text.len, JSON_REJECT_DUPLICATES, &err);
    if (!o) fail_msg("%s: %s", err.text, text.data);
    rg_buf_deinit(&text);
    return o;
}

/* Without a model: a scratch file that leaves no trace. */
static void scratch_folder(void **state) {
    (void)state;
    test_folder f;
    rg_doctor_report *r = rg_alloc(1, sizeof *r, NULL);
    int steps = 0;
    rg_status st = {0};
    folder_make(&f);
    const rg_doctor_options opt = {.folder = f.path,
                                   .quick = true,
                                   .n_threads = 2,
                                   .progress = count_step,
                                   .progress_user = &steps};
    if (rg_doctor_run(r, &opt, &st) != RG_OK) fail_msg("%s", st.message);
    folder_remove(&f);
    plausible_machine(&r->machine);
    plausible_drive(&r->drive);
    assert_false(r->model.given);
    assert_true(steps > 10);
    assert_true(r->seconds > 0 && r->seconds < 60);
    json_t *o = parse(r);
    static const char *const top[] = {"quick",       "elapsed_s", "drive_ceiling_gb_s",
                                      "memory_gb_s", "machine",   "gpus",
                                      "drive",       "model",     "advice"};
    for (size_t i = 0; i < RG_ARRAY_LEN(top); i++)
        assert_non_null(json_object_get(o, top[i]));
    assert_int_equal(json_object_size(o), RG_ARRAY_LEN(top));
    assert_true(json_real_value(json_object_get(o, "drive_ceiling_gb_s")) > 0);
    assert_true(json_is_null(json_object_get(o, "model")));
    const json_t *points = json_object_get(json_object_get(o, "drive"), "points");
    assert_int_equal(json_array_size(points), r->drive.n_point);
    json_decref(o);
    rg_free(r);
}

static void with_model(void **state) {
    (void)state;
    rg_doctor_report *r = rg_alloc(1, sizeof *r, NULL);
    rg_status st = {0};
    const rg_doctor_options opt = {
        .model = RG_SOURCE_DIR "/models/regolith-demo-q4.gguf", .quick = true, .n_threads = 2};
    if (rg_doctor_run(r, &opt, &st) != RG_OK) fail_msg("%s", st.message);
    const rg_doctor_model *m = &r->model;
    assert_true(m->given);
    if (!m->ok) fail_msg("%s", m->error);
    assert_int_equal(m->n_layer, 8);
    assert_int_equal(m->n_expert, 64);
    assert_true(m->expert_bytes > 0);
    assert_true(m->trunk_bytes + m->experts_bytes + m->ngram_bytes <= m->size_bytes);
    plausible_drive(&r->drive);
    assert_true(r->drive.file_bytes == m->size_bytes);
    assert_true(r->drive.expert_bytes >= m->expert_bytes);
    rg_buf text;
    rg_buf_init(&text, 0);
    assert_int_equal(rg_doctor_text(r, &text, NULL), RG_OK);
    static const char *const parts[] = {"machine\n", "model\n", "drive\n", "GB/s", "io_uring"};
    for (size_t i = 0; i < RG_ARRAY_LEN(parts); i++)
        assert_non_null(strstr(text.data, parts[i]));
    rg_buf_deinit(&text);
    json_t *o = parse(r);
    const json_t *model = json_object_get(o, "model");
    assert_int_equal(json_integer_value(json_object_get(model, "experts")), 64);
    json_decref(o);
    rg_free(r);
}

/* A bad model is a finding, and the rest is examined all the same. */
static void bad_model(void **state) {
    (void)state;
    test_folder f;
    rg_doctor_report *r = rg_alloc(1, sizeof *r, NULL);
    folder_make(&f);
    FILE *file = fopen(folder_file(&f, "bad.gguf"), "w");
    assert_non_null(file);
    fputs("this is no model, but long enough for a header of one", file);
    fclose(file);
    const rg_doctor_options opt = {
        .model = f.file, .folder = f.path, .quick = true, .n_threads = 1};
    rg_status st = {0};
    if (rg_doctor_run(r, &opt, &st) != RG_OK) fail_msg("%s", st.message);
    assert_true(r->model.given);
    assert_false(r->model.ok);
    assert_non_null(strstr(r->model.error, "bad.gguf"));
    assert_non_null(strstr(r->advice[0], "the model cannot be used"));
    plausible_drive(&r->drive);
    assert_int_equal(unlink(f.file), 0);
    folder_remove(&f);
    rg_free(r);
}

static void copy_file(const char *from, const char *to) {
    char *data = NULL;
    size_t len = 0;
    assert_int_equal(rg_file_slurp(&data, &len, from, 1u << 24, NULL), RG_OK);
    FILE *f = fopen(to, "wbe");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
    rg_free(data);
}

/* The pack beside a model is looked at; a bad one is a finding of its own. */
static void with_pack(void **state) {
    (void)state;
    test_folder f;
    char model[600];
    rg_buf line;
    rg_doctor_report *r = rg_alloc(1, sizeof *r, NULL);
    folder_make(&f);
    snprintf(model, sizeof model, "%s", folder_file(&f, "m.gguf"));
    copy_file(RG_TEST_DATA "/tiny/a-mix.gguf", model);
    const rg_forge_pack_options pack = {.model_path = model};
    rg_buf_init(&line, 0);
    assert_int_equal(rg_forge_pack(&pack, &line, NULL), RG_OK);
    const rg_doctor_options opt = {.model = model, .quick = true, .n_threads = 1};
    assert_int_equal(rg_doctor_run(r, &opt, NULL), RG_OK);
    assert_true(r->model.ok && r->model.pack_found && r->model.pack_ok);
    assert_false(r->model.pack_checked); /* not read: quick */
    assert_int_equal(truncate(folder_file(&f, "m.rgpack"), 5000), 0);
    assert_int_equal(rg_doctor_run(r, &opt, NULL), RG_OK);
    assert_true(r->model.ok && r->model.pack_found);
    assert_false(r->model.pack_ok);
    assert_non_null(strstr(r->model.pack_error, "m.rgpack"));
    json_t *o = parse(r);
    assert_true(json_is_string(json_object_get(json_object_get(o, "model"), "pack_error")));
    json_decref(o);
    bool advised = false;
    for (uint32_t i = 0; i < r->n_advice; i++)
        advised = advised || strstr(r->advice[i], "remove the pack");
    assert_true(advised);
    assert_int_equal(unlink(folder_file(&f, "m.rgpack")), 0);
    assert_int_equal(unlink(model), 0);
    folder_remove(&f);
    rg_buf_deinit(&line);
    rg_free(r);
}

static void bad_folder(void **state) {
    (void)state;
    rg_doctor_report *r = rg_alloc(1, sizeof *r, NULL);
    const rg_doctor_options opt = {.folder = "no/such/folder", .quick = true, .n_threads = 1};
    assert_int_equal(rg_doctor_run(r, &opt, NULL), RG_OK);
    assert_false(r->drive.measured);
    assert_non_null(strstr(r->drive.error, "no/such/folder"));
    json_t *o = parse(r);
    assert_true(json_is_string(json_object_get(json_object_get(o, "drive"), "error")));
    json_decref(o);
    rg_free(r);
}

static void canceled(void **state) {
    (void)state;
    rg_doctor_report *r = rg_alloc(1, sizeof *r, NULL);
    const atomic_bool cancel = true;
    const rg_doctor_options opt = {.quick = true, .cancel = &cancel};
    assert_int_equal(rg_doctor_run(r, &opt, NULL), RG_CANCELED);
    rg_free(r);
}

/* Every limit, each reason for advice. */
static void advice(void **state) {
    (void)state;
    rg_doctor_report *r = rg_alloc(1, sizeof *r, NULL);
    r->machine = (rg_doctor_machine){.cpu_level = "scalar",
                                     .memory_available_bytes = (uint64_t)8 << 30,
                                     .huge_pages = "never",
                                     .io_uring_errno = 1,
                                     .memlock_bytes = 65536,
                                     .address_space_bytes = (uint64_t)1 << 30,
                                     .nofile = 64,
                                     .cgroup_version = 2,
                                     .cgroup_memory_bytes = (uint64_t)2 << 30};
    r->drive = (rg_doctor_drive){.measured = true, .is_memory = true, .ceiling_gb_s = 99};
    snprintf(r->drive.file_system, sizeof r->drive.file_system, "tmpfs");
    r->model = (rg_doctor_model){.given = true, .ok = true, .trunk_bytes = (uint64_t)9 << 30};
    rg_doctor_advise(r);
    static const char *const parts[] = {"data was not read",
                                        "trunk takes",
                                        "io_uring",
                                        "file system in memory",
                                        "no direct reads",
                                        "more than a drive",
                                        "control group allows 2048 MiB",
                                        "address space",
                                        "--mlock",
                                        "only 64 files",
                                        "huge pages",
                                        "vector level"};
    assert_int_equal(r->n_advice, RG_ARRAY_LEN(parts));
    for (size_t i = 0; i < RG_ARRAY_LEN(parts); i++) {
        if (!strstr(r->advice[i], parts[i])) fail_msg("'%s' lacks '%s'", r->advice[i], parts[i]);
    }
    rg_free(r);
}

/* Reads of every size and depth end in time and fail cleanly on a bad descriptor. */
static void readers(void **state) {
    (void)state;
    uint8_t *buffers = rg_alloc_aligned(4096, (size_t)4 * 4096, NULL);
    rg_doctor_reads r = {.fd = -1,
                         .file_bytes = 65536,
                         .read_bytes = 4096,
                         .depth = 4,
                         .buffers = buffers,
                         .deadline_ns = rg_now_ns() + 1000000000u};
    for (uint64_t i = 0; i < 1000; i++) {
        assert_true(rg_doctor_offset(&r, i) % 4096 == 0);
        assert_true(rg_doctor_offset(&r, i) + r.read_bytes <= r.file_bytes);
    }
    rg_doctor_read_pread(&r);
    assert_true(r.sys_errno != 0);
    int why = 0;
    if (rg_doctor_uring_works(&why)) {
        r.sys_errno = 0;
        rg_doctor_read_uring(&r);
        assert_true(r.sys_errno != 0);
    }
    rg_free(buffers);
}

/* Drivers keep files open from their first use on: they are loaded before files are counted. */
static int load_drivers(void **state) {
    rg_doctor_report *r = rg_alloc(1, sizeof *r, NULL);
    (void)state;
    assert_non_null(r);
    assert_int_equal(rg_doctor_measure_gpus(r, NULL), RG_OK);
    rg_free(r);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scratch_folder), cmocka_unit_test(with_model), cmocka_unit_test(bad_model),
        cmocka_unit_test(with_pack),      cmocka_unit_test(bad_folder), cmocka_unit_test(canceled),
        cmocka_unit_test(advice),         cmocka_unit_test(readers),
    };
    return cmocka_run_group_tests(tests, load_drivers, NULL);
}
