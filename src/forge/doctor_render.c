/* The report as text and as JSON. */
#include <inttypes.h>
#include <jansson.h>
#include <string.h>

#include "forge/doctor_parts.h"

/* ---- text ------------------------------------------------------------------------------------ */

static rg_code limit_text(rg_buf *out, const char *label, uint64_t bytes, rg_status *st) {
    if (bytes == RG_DOCTOR_UNLIMITED) return rg_buf_printf(out, st, "  %-22s unlimited\n", label);
    return rg_buf_printf(out, st, "  %-22s %" PRIu64 " MiB\n", label, bytes >> 20);
}

static rg_code machine_text(const rg_doctor_machine *m, rg_buf *out, rg_status *st) {
    RG_TRY(rg_buf_printf(out, st, "machine\n  %-22s %s, %d cores\n", "processor", m->cpu_level,
                         m->cores));
    RG_TRY(rg_buf_printf(out, st, "  %-22s %" PRIu64 " MiB free", "memory",
                         m->memory_available_bytes >> 20));
    if (m->memory_gb_s > 0) RG_TRY(rg_buf_printf(out, st, ", %.1f GB/s read", m->memory_gb_s));
    RG_TRY(rg_buf_printf(out, st, "\n  %-22s %s\n", "huge pages", m->huge_pages));
    if (m->io_uring) {
        RG_TRY(rg_buf_printf(out, st, "  %-22s yes\n", "io_uring"));
    } else {
        char why[96];
        RG_TRY(rg_buf_printf(out, st, "  %-22s no (%s)\n", "io_uring",
                             strerror_r(m->io_uring_errno, why, sizeof why)));
    }
    RG_TRY(limit_text(out, "lockable memory", m->memlock_bytes, st));
    RG_TRY(limit_text(out, "address space", m->address_space_bytes, st));
    RG_TRY(limit_text(out, "control group", m->cgroup_memory_bytes, st));
    if (m->nofile == RG_DOCTOR_UNLIMITED)
        return rg_buf_printf(out, st, "  %-22s unlimited\n", "open files");
    return rg_buf_printf(out, st, "  %-22s %" PRIu64 "\n", "open files", m->nofile);
}

static rg_code model_text(const rg_doctor_model *m, rg_buf *out, rg_status *st) {
    if (!m->given) return RG_OK;
    RG_TRY(rg_buf_printf(out, st, "model\n"));
    if (!m->ok) return rg_buf_printf(out, st, "  %-22s %s\n", "bad", m->error);
    RG_TRY(rg_buf_printf(out, st, "  %-22s %u files, %" PRIu64 " tensors, %" PRIu64 " MiB\n",
                         "whole", m->n_file, m->n_tensor, m->size_bytes >> 20));
    RG_TRY(rg_buf_printf(out, st, "  %-22s %" PRIu64 " MiB\n", "trunk", m->trunk_bytes >> 20));
    RG_TRY(rg_buf_printf(out, st, "  %-22s %" PRIu64 " MiB, %u x %u of %" PRIu64 " KiB\n",
                         "experts", m->experts_bytes >> 20, m->n_layer, m->n_expert,
                         m->expert_bytes >> 10));
    RG_TRY(
        rg_buf_printf(out, st, "  %-22s %" PRIu64 " MiB\n", "n-gram table", m->ngram_bytes >> 20));
    RG_TRY(rg_buf_printf(out, st, "  %-22s %s\n", "data",
                         m->data_checked ? "every block is finite" : "not read"));
    if (!m->pack_found) return RG_OK;
    const char *whole = m->pack_checked ? "every expert has its checksum" : "whole, data not read";
    return rg_buf_printf(out, st, "  %-22s %s\n", "pack", m->pack_ok ? whole : m->pack_error);
}

static rg_code drive_text(const rg_doctor_drive *d, rg_buf *out, rg_status *st) {
    RG_TRY(rg_buf_printf(out, st, "drive\n"));
    if (!d->measured) return rg_buf_printf(out, st, "  not measured: %s\n", d->error);
    RG_TRY(rg_buf_printf(out, st, "  %-22s %s, direct reads: %s\n", "file system", d->file_system,
                         d->direct ? "yes" : "no"));
    RG_TRY(rg_buf_printf(out, st, "  %-22s %.2f GB/s, %.2f with reads of %u KiB (%s, depth %u)\n",
                         "ceiling", d->ceiling_gb_s, d->expert_ceiling_gb_s, d->expert_bytes >> 10,
                         rg_doctor_io_name(d->best_io), d->best_depth));
    RG_TRY(rg_buf_printf(out, st, "  %8s %6s %6s %9s %9s %12s\n", "KiB", "depth", "io", "", "GB/s",
                         "us a read"));
    for (uint32_t i = 0; i < d->n_point; i++) {
        const rg_doctor_point *p = &d->points[i];
        RG_TRY(rg_buf_printf(out, st, "  %8u %6u %6s %9s %9.2f %12.0f\n", p->read_bytes >> 10,
                             p->depth, rg_doctor_io_name(p->io), p->direct ? "direct" : "buffered",
                             p->gb_s, p->latency_us));
    }
    return RG_OK;
}

rg_code rg_doctor_text(const rg_doctor_report *r, rg_buf *out, rg_status *st) {
    RG_TRY(machine_text(&r->machine, out, st));
    RG_TRY(rg_doctor_gpus_text(r, out, st));
    RG_TRY(model_text(&r->model, out, st));
    RG_TRY(drive_text(&r->drive, out, st));
    if (r->n_advice) RG_TRY(rg_buf_printf(out, st, "advice\n"));
    for (uint32_t i = 0; i < r->n_advice; i++)
        RG_TRY(rg_buf_printf(out, st, "  - %s\n", r->advice[i]));
    return RG_OK;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

/* A number that no file would hold as such becomes null: no limit. */
static json_t *limit_json(uint64_t v) {
    return v == RG_DOCTOR_UNLIMITED || v > INT64_MAX ? json_null() : json_integer((json_int_t)v);
}

static json_t *number(uint64_t v) {
    return json_integer((json_int_t)v);
}

/* Text of the system or of a file, which may not be UTF-8. */
static json_t *text(const char *s) {
    json_t *t = json_string(s);
    return t ? t : json_string("(not UTF-8)");
}

typedef struct pair {
    const char *key;
    json_t *value; /* owned; NULL = no memory */
} pair;

/* Takes the values over; NULL when one is missing or memory is out. */
static json_t *object(const pair *pairs, size_t n) {
    json_t *o = json_object();
    bool whole = o != NULL;
    for (size_t i = 0; i < n; i++) { /* `set_new` releases the value even when it fails */
        if (whole && pairs[i].value) {
            whole = json_object_set_new(o, pairs[i].key, pairs[i].value) == 0;
        } else {
            json_decref(pairs[i].value);
            whole = false;
        }
    }
    if (whole) return o;
    json_decref(o);
    return NULL;
}

static json_t *machine_json(const rg_doctor_machine *m) {
    const pair pairs[] = {
        {"cpu_level", text(m->cpu_level)},
        {"cores", number((uint64_t)m->cores)},
        {"cache_bytes", number(m->cache_bytes)},
        {"memory_available_bytes", number(m->memory_available_bytes)},
        {"memory_gb_s", json_real(m->memory_gb_s)},
        {"huge_pages", text(m->huge_pages)},
        {"io_uring", json_boolean(m->io_uring)},
        {"io_uring_errno", number((uint64_t)m->io_uring_errno)},
        {"memlock_limit_bytes", limit_json(m->memlock_bytes)},
        {"address_space_limit_bytes", limit_json(m->address_space_bytes)},
        {"open_files_limit", limit_json(m->nofile)},
        {"cgroup_version", number((uint64_t)m->cgroup_version)},
        {"cgroup_memory_limit_bytes", limit_json(m->cgroup_memory_bytes)},
    };
    return object(pairs, RG_ARRAY_LEN(pairs));
}

static json_t *gpus_json(const rg_doctor_report *r) {
    json_t *list = json_array();
    for (uint32_t i = 0; list && i < r->n_gpu; i++) {
        const rg_doctor_gpu *g = &r->gpus[i];
        const pair pairs[] = {{"name", text(g->info.name)},
                              {"kind", text(g->info.kind)},
                              {"usable", json_boolean(g->info.usable)},
                              {"missing", text(g->info.missing)},
                              {"memory_bytes", number(g->info.device_bytes)},
                              {"mappable", json_boolean(g->info.mappable)},
                              {"transfer_queue", json_boolean(g->info.transfer)},
                              {"allocation_limit_bytes", number(g->info.alloc_bytes)},
                              {"subgroup_size", number(g->info.subgroup_size)},
                              {"shared_bytes", number(g->info.shared_bytes)},
                              {"to_device_gb_s", json_real(g->to_device_gb_s)},
                              {"from_device_gb_s", json_real(g->from_device_gb_s)},
                              {"handshake_us", json_real(g->handshake_us)}};
        json_array_append_new(list, object(pairs, sizeof pairs / sizeof *pairs));
    }
    return list;
}

static json_t *point_json(const rg_doctor_point *p) {
    const pair pairs[] = {
        {"io", text(rg_doctor_io_name(p->io))},
        {"direct", json_boolean(p->direct)},
        {"read_bytes", number(p->read_bytes)},
        {"depth", number(p->depth)},
        {"reads", number(p->reads)},
        {"drive_gb_s", json_real(p->gb_s)},
        {"latency_us", json_real(p->latency_us)},
    };
    return object(pairs, RG_ARRAY_LEN(pairs));
}

static json_t *drive_json(const rg_doctor_drive *d) {
    json_t *points = json_array();
    for (uint32_t i = 0; points && i < d->n_point; i++) {
        json_t *p = point_json(&d->points[i]);
        if (p && json_array_append_new(points, p) == 0) continue;
        json_decref(points);
        points = NULL;
    }
    const pair pairs[] = {
        {"measured", json_boolean(d->measured)},
        {"error", d->error[0] ? text(d->error) : json_null()},
        {"file_system", text(d->file_system)},
        {"in_memory", json_boolean(d->is_memory)},
        {"direct", json_boolean(d->direct)},
        {"file_bytes", number(d->file_bytes)},
        {"expert_read_bytes", number(d->expert_bytes)},
        {"drive_ceiling_gb_s", json_real(d->ceiling_gb_s)},
        {"drive_expert_ceiling_gb_s", json_real(d->expert_ceiling_gb_s)},
        {"best_io", text(rg_doctor_io_name(d->best_io))},
        {"best_depth", number(d->best_depth)},
        {"points", points},
    };
    return object(pairs, RG_ARRAY_LEN(pairs));
}

static json_t *model_json(const rg_doctor_model *m) {
    if (!m->given) return json_null();
    const pair pairs[] = {
        {"ok", json_boolean(m->ok)},
        {"data_checked", json_boolean(m->data_checked)},
        {"error", m->error[0] ? text(m->error) : json_null()},
        {"pack_found", json_boolean(m->pack_found)},
        {"pack_ok", json_boolean(m->pack_ok)},
        {"pack_checked", json_boolean(m->pack_checked)},
        {"pack_error", m->pack_error[0] ? text(m->pack_error) : json_null()},
        {"files", number(m->n_file)},
        {"tensors", number(m->n_tensor)},
        {"layers", number(m->n_layer)},
        {"experts", number(m->n_expert)},
        {"experts_used", number(m->n_expert_used)},
        {"size_bytes", number(m->size_bytes)},
        {"trunk_bytes", number(m->trunk_bytes)},
        {"experts_bytes", number(m->experts_bytes)},
        {"ngram_bytes", number(m->ngram_bytes)},
        {"expert_bytes", number(m->expert_bytes)},
    };
    return object(pairs, RG_ARRAY_LEN(pairs));
}

static json_t *advice_json(const rg_doctor_report *r) {
    json_t *lines = json_array();
    for (uint32_t i = 0; lines && i < r->n_advice; i++) {
        json_t *line = text(r->advice[i]);
        if (line && json_array_append_new(lines, line) == 0) continue;
        json_decref(lines);
        lines = NULL;
    }
    return lines;
}

typedef struct sink {
    rg_buf *out;
    rg_status *st;
    rg_code rc;
} sink;

static int take_text(const char *data, size_t len, void *user) {
    sink *to = user;
    to->rc = rg_buf_append(to->out, data, len, to->st);
    return to->rc == RG_OK ? 0 : -1;
}

rg_code rg_doctor_json(const rg_doctor_report *r, rg_buf *out, rg_status *st) {
    const pair pairs[] = {
        {"quick", json_boolean(r->quick)},
        {"elapsed_s", json_real(r->seconds)},
        /* the two figures scripts want, at the top */
        {"drive_ceiling_gb_s", json_real(r->drive.ceiling_gb_s)},
        {"memory_gb_s", json_real(r->machine.memory_gb_s)},
        {"machine", machine_json(&r->machine)},
        {"gpus", gpus_json(r)},
        {"drive", drive_json(&r->drive)},
        {"model", model_json(&r->model)},
        {"advice", advice_json(r)},
    };
    json_t *o = object(pairs, RG_ARRAY_LEN(pairs));
    if (!o) return rg_fail(st, RG_NOMEM, "no memory for the report as JSON");
    sink to = {.out = out, .st = st, .rc = RG_OK};
    const int failed =
        json_dump_callback(o, take_text, &to, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    json_decref(o);
    RG_TRY(to.rc);
    if (failed) return rg_fail(st, RG_NOMEM, "no memory for the report as JSON");
    return rg_buf_puts(out, "\n", st);
}
