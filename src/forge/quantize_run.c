/* The front of quantize: types, metadata, order, report. */
#include "forge/quantize.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "forge/quantize_parts.h"

#define IDENTITY_SAMPLE 4096u
#define NOTES_MAX       16u

typedef unsigned long long ull;

static bool key_is(const rg_gguf_kv *kv, const char *key) {
    return kv->key.len == strlen(key) && memcmp(kv->key.data, key, kv->key.len) == 0;
}

/* ---- types ----------------------------------------------------------------------------------- */

bool rg_quantize_ruled(const rg_quantize_job *j, uint32_t i, rg_type *type) {
    return rg_type_rules_match(j->rules, j->out[i].name, type);
}

void rg_quantize_set_type(rg_quantize_job *j, uint32_t i, rg_type type) {
    j->out[i].type = type;
    j->out[i].size_bytes = rg_out_tensor_bytes(&j->out[i]);
}

static bool is_float(rg_type type) {
    return type == RG_TYPE_F32 || type == RG_TYPE_F16 || type == RG_TYPE_BF16;
}

/* What was asked for, before rows are looked at. Vectors and convolutions stay: engines read them
 * as floats. */
static rg_type wanted_type(const rg_quantize_job *j, uint32_t i) {
    const rg_tensor *in = rg_gguf_tensor_at(j->gguf, i);
    rg_type type = in->type;
    const rg_tensor_role role = rg_role_of(in->name, in->n_dims);
    if (rg_type_get((uint32_t)in->type)->use != RG_USE_WEIGHT) return type;
    if (rg_quantize_ruled(j, i, &type) &&
        (in->n_dims > 1 || is_float(type) || strstr(in->name, "shexp"))) {
        return type;
    }
    return role == RG_ROLE_KEEP ? in->type : j->mix->types[role];
}

typedef struct note {
    rg_type wanted, got;
    uint64_t cols;
    uint32_t n;
    const char *example;
} note;

static void add_note(note *notes, uint32_t *n, rg_type wanted, const rg_out_tensor *t) {
    for (uint32_t k = 0; k < *n; k++) {
        if (notes[k].wanted == wanted && notes[k].got == t->type && notes[k].cols == t->ne[0]) {
            notes[k].n++;
            return;
        }
    }
    if (*n < NOTES_MAX) notes[(*n)++] = (note){wanted, t->type, t->ne[0], 1, t->name};
}

static rg_code choose_types(rg_quantize_job *j, rg_buf *report, rg_status *st) {
    note notes[NOTES_MAX];
    uint32_t n_notes = 0;
    for (uint32_t i = 0; i < j->n; i++) {
        const rg_tensor *in = rg_gguf_tensor_at(j->gguf, i);
        rg_out_tensor *t = &j->out[i];
        memcpy(t->name, in->name, sizeof t->name);
        memcpy(t->ne, in->ne, sizeof t->ne);
        t->n_dims = in->n_dims;
        t->type = in->type;
        const rg_type wanted = wanted_type(j, i);
        const rg_type got = wanted == in->type ? wanted : rg_type_fit(wanted, in->ne[0]);
        rg_quantize_set_type(j, i, got);
        if (got != wanted) add_note(notes, &n_notes, wanted, t);
    }
    for (uint32_t k = 0; k < n_notes && !j->opt->target_bytes; k++) {
        RG_TRY(rg_buf_printf(report, st,
                             "note: rows of %llu values do not fit %s: %u tensor%s such as %s "
                             "become %s\n",
                             (ull)notes[k].cols, rg_type_get((uint32_t)notes[k].wanted)->name,
                             notes[k].n, notes[k].n > 1 ? "s" : "", notes[k].example,
                             rg_type_get((uint32_t)notes[k].got)->name));
    }
    return RG_OK;
}

/* ---- metadata -------------------------------------------------------------------------------- */

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static bool replaced_key(const rg_gguf_kv *kv) {
    return (kv->key.len > 6 && memcmp(kv->key.data, "split.", 6) == 0) ||
           (kv->key.len > 9 && memcmp(kv->key.data, "quantize.", 9) == 0) ||
           key_is(kv, "general.file_type") || key_is(kv, "general.quantization_version") ||
           key_is(kv, "general.alignment");
}

static rg_code make_metadata(const rg_quantize_job *j, rg_gguf_out *head, rg_status *st) {
    for (size_t i = 0; i < rg_gguf_kv_count(j->gguf); i++) {
        const rg_gguf_kv *kv = rg_gguf_kv_at(j->gguf, i);
        if (!replaced_key(kv)) RG_TRY(rg_gguf_out_copy(head, kv, st));
    }
    RG_TRY(rg_gguf_out_u32(head, "general.quantization_version", 2, st));
    RG_TRY(rg_gguf_out_u32(head, "general.file_type", j->mix->file_type, st));
    if (!j->opt->imatrix_path) return RG_OK;
    RG_TRY(rg_gguf_out_str(head, "quantize.imatrix.file", base_name(j->opt->imatrix_path), st));
    return rg_gguf_out_u32(head, "quantize.imatrix.entries_count", rg_imatrix_count(j->imatrix),
                           st);
}

/* Of the job: sources, importance and what comes out. */
static rg_code make_identity(const rg_quantize_job *j, const rg_gguf_out *head, uint8_t id[16],
                             rg_status *st) {
    XXH3_state_t *h = XXH3_createState();
    uint8_t *sample = rg_alloc(IDENTITY_SAMPLE, 1, st);
    rg_code rc = h && sample ? RG_OK : rg_fail(st, RG_NOMEM, "no memory for a hash");
    if (rc == RG_OK) {
        const uint64_t importance = j->imatrix ? rg_imatrix_hash(j->imatrix) : 0;
        XXH3_128bits_reset(h);
        XXH3_128bits_update(h, head->kv.data, head->kv.len);
        XXH3_128bits_update(h, j->out, j->n * sizeof *j->out);
        XXH3_128bits_update(h, &importance, sizeof importance);
    }
    for (uint32_t i = 0; i < j->n && rc == RG_OK; i++) {
        const rg_tensor *t = rg_gguf_tensor_at(j->gguf, i);
        const size_t n = t->size_bytes < IDENTITY_SAMPLE ? (size_t)t->size_bytes : IDENTITY_SAMPLE;
        rc = rg_gguf_read(j->gguf, t, 0, n, sample, st);
        if (rc == RG_OK) XXH3_128bits_update(h, sample, n);
    }
    if (rc == RG_OK) {
        XXH128_canonical_t c;
        XXH128_canonicalFromHash(&c, XXH3_128bits_digest(h));
        memcpy(id, c.digest, 16);
    }
    rg_free(sample);
    XXH3_freeState(h);
    return rc;
}

/* ---- report ---------------------------------------------------------------------------------- */

/* Name, type, bytes, and the relative error of what the matrix gives (rg_quantize_measure). */
static rg_code report_tensor(rg_quantize_job *j, uint32_t i, rg_buf *out, rg_status *st) {
    const rg_out_tensor *t = &j->out[i];
    double error = 0;
    if (t->type != rg_gguf_tensor_at(j->gguf, i)->type) {
        RG_TRY(rg_quantize_measure(j, i, t->type, &error, st));
    }
    return rg_buf_printf(out, st, "  %-40s %-8s %12llu %.6e\n", t->name,
                         rg_type_get((uint32_t)t->type)->name, (ull)t->size_bytes, error);
}

static rg_code report_totals(rg_quantize_job *j, uint64_t file_bytes, rg_buf *out, rg_status *st) {
    uint64_t bytes[RG_TYPE_COUNT] = {0}, values[RG_TYPE_COUNT] = {0}, all = 0, expert = 0, X = 0;
    uint32_t n[RG_TYPE_COUNT] = {0};
    for (uint32_t i = 0; i < j->n; i++) {
        const rg_out_tensor *t = &j->out[i];
        const uint64_t count = t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
        bytes[t->type] += t->size_bytes;
        values[t->type] += count;
        n[t->type]++;
        all += count;
        if (strstr(t->name, "_exps.")) {
            expert += t->size_bytes;
            if (strstr(t->name, "ffn_down_exps")) X += t->ne[2];
        }
        if (j->opt->verbose) RG_TRY(report_tensor(j, i, out, st));
    }
    RG_TRY(rg_buf_printf(out, st, "%-9s %8s %14s %14s\n", "type", "tensors", "weights", "bytes"));
    for (uint32_t t = 0; t < RG_TYPE_COUNT; t++) {
        if (!n[t]) continue;
        RG_TRY(rg_buf_printf(out, st, "%-9s %8u %14llu %14llu\n", rg_type_get(t)->name, n[t],
                             (ull)values[t], (ull)bytes[t]));
    }
    if (X) {
        RG_TRY(rg_buf_printf(out, st, "experts   %llu bytes, %.0f an expert\n", (ull)expert,
                             (double)expert / (double)X));
    }
    return rg_buf_printf(out, st, "file      %llu bytes, %.3f bits a weight\n", (ull)file_bytes,
                         8.0 * (double)file_bytes / (double)all);
}

/* ---- run ------------------------------------------------------------------------------------- */

static rg_code open_inputs(rg_quantize_job *j, rg_status *st) {
    const rg_quantize_options *o = j->opt;
    j->mix = rg_type_mix_find(o->mix);
    if (!j->mix) {
        return rg_fail(st, RG_INVALID, "unknown type '%.40s' (quantize --list shows them)", o->mix);
    }
    RG_TRY(rg_type_rules_create(&j->rules, o->rules, o->n_rules, st));
    RG_TRY(rg_cpu_level_pick(&j->level, o->cpu_level, st));
    RG_TRY(rg_gguf_open(&j->gguf, o->in_path, st));
    if (o->imatrix_path) RG_TRY(rg_imatrix_open(&j->imatrix, o->imatrix_path, st));
    j->n = (uint32_t)rg_gguf_tensor_count(j->gguf);
    if (j->n == 0) return rg_fail(st, RG_INVALID, "%s holds no tensors", o->in_path);
    j->out = rg_alloc(j->n, sizeof *j->out, st);
    if (!j->out) return RG_NOMEM;
    RG_TRY(rg_pool_create(&j->pool, o->n_threads ? o->n_threads : rg_cpu_count(), st));
    return rg_quantize_rows_init(j, st);
}

static rg_code count_importance(const rg_quantize_job *j, rg_buf *report, rg_status *st) {
    uint32_t without = 0, made = 0;
    const char *example = NULL;
    for (uint32_t i = 0; i < j->n; i++) {
        const rg_tensor *in = rg_gguf_tensor_at(j->gguf, i);
        if (j->out[i].type == in->type || is_float(j->out[i].type)) continue;
        made++;
        if (rg_imatrix_rows(j->imatrix, in) > 0) continue;
        without++;
        example = in->name;
    }
    if (!without) return RG_OK;
    return rg_buf_printf(report, st,
                         "note: no importance for %u of %u tensors, such as %s; all their columns "
                         "count alike\n",
                         without, made, example);
}

static rg_code write_all(rg_quantize_job *j, const rg_gguf_out *head, uint64_t *bytes,
                         rg_status *st) {
    uint8_t id[16] = {0};
    rg_gguf_write *w = NULL;
    RG_TRY(make_identity(j, head, id, st));
    const rg_write_options o = {.path = j->opt->out_path,
                                .parts = j->opt->parts,
                                .overwrite = j->opt->overwrite,
                                .identity = id};
    RG_TRY(rg_gguf_write_create(&w, &o, head, j->out, j->n, st));
    rg_code rc = RG_OK;
    uint64_t done = 0;
    for (uint32_t i = 0; i < j->n && rc == RG_OK; i++) {
        if (!rg_gguf_write_has(w, i)) rc = rg_quantize_tensor(j, i, w, done, st);
        done += j->out[i].size_bytes;
    }
    if (rc == RG_OK) rc = rg_gguf_write_finish(w, st);
    *bytes = rg_gguf_write_bytes(w);
    rg_gguf_write_destroy(w);
    return rc;
}

/* Bytes of the file besides payloads, for any choice of types; and the whole of it. */
static rg_code measure_file(const rg_quantize_job *j, const rg_gguf_out *head, uint64_t *fixed,
                            uint64_t *all, rg_status *st) {
    rg_gguf_out g;
    rg_gguf_out_init(&g);
    rg_code rc = rg_buf_append(&g.kv, head->kv.data, head->kv.len, st);
    for (uint32_t i = 0; i < j->n && rc == RG_OK; i++) {
        const rg_out_tensor *t = &j->out[i];
        rc = rg_gguf_out_tensor(&g, t->name, t->type, t->ne, t->n_dims, t->size_bytes, st);
    }
    *fixed = rg_gguf_out_header_bytes(&g) + (uint64_t)j->n * RG_GGUF_OUT_ALIGN;
    *all = rg_gguf_out_file_bytes(&g);
    rg_gguf_out_deinit(&g);
    return rc;
}

static rg_code run(rg_quantize_job *j, rg_gguf_out *head, rg_buf *report, rg_status *st) {
    uint64_t fixed = 0, bytes = 0;
    RG_TRY(open_inputs(j, st));
    RG_TRY(choose_types(j, report, st));
    RG_TRY(make_metadata(j, head, st));
    RG_TRY(measure_file(j, head, &fixed, &bytes, st));
    if (j->opt->target_bytes) {
        RG_TRY(rg_quantize_budget(j, fixed, report, st));
        RG_TRY(measure_file(j, head, &fixed, &bytes, st));
    }
    if (j->imatrix) RG_TRY(count_importance(j, report, st));
    if (!j->opt->dry_run) RG_TRY(write_all(j, head, &bytes, st));
    return report_totals(j, bytes, report, st);
}

rg_code rg_forge_quantize(const rg_quantize_options *opt, rg_buf *out, rg_status *st) {
    rg_quantize_job j = {.opt = opt};
    rg_gguf_out head;
    rg_gguf_out_init(&head);
    const rg_code rc = run(&j, &head, out, st);
    rg_quantize_rows_deinit(&j);
    rg_pool_destroy(j.pool);
    rg_imatrix_close(j.imatrix);
    rg_type_rules_destroy(j.rules);
    rg_gguf_close(j.gguf);
    rg_free(j.out);
    rg_gguf_out_deinit(&head);
    return rc;
}

rg_code rg_forge_list_mixes(rg_buf *out, rg_status *st) {
    static const char *const heads[] = {"gate+up", "down",  "n-gram", "embed",
                                        "head",    "hyper", "trunk"};
    RG_TRY(rg_buf_printf(out, st, "%-9s", "mix"));
    for (size_t i = 0; i < RG_ARRAY_LEN(heads); i++)
        RG_TRY(rg_buf_printf(out, st, " %-8s", heads[i]));
    /* An expert of the release: gate and up 640 rows of 2560, down 2560 rows of 640. */
    RG_TRY(rg_buf_printf(out, st, " %s\n", "bytes an expert of 3 x 640 x 2560"));
    for (uint32_t i = 0; rg_type_mix_at(i); i++) {
        const rg_type_mix *m = rg_type_mix_at(i);
        RG_TRY(rg_buf_printf(out, st, "%-9s", m->name));
        for (uint32_t r = RG_ROLE_EXPERT_IN; r < RG_ROLE_COUNT; r++) {
            RG_TRY(rg_buf_printf(out, st, " %-8s", rg_type_get((uint32_t)m->types[r])->name));
        }
        const rg_type in = rg_type_fit(m->types[RG_ROLE_EXPERT_IN], 2560);
        const rg_type down = rg_type_fit(m->types[RG_ROLE_EXPERT_OUT], 640);
        RG_TRY(rg_buf_printf(out, st, " %zu\n",
                             (size_t)2 * 640 * rg_row_bytes(in, 2560) +
                                 (size_t)2560 * rg_row_bytes(down, 640)));
    }
    return RG_OK;
}
