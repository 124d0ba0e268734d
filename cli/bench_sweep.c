/* bench --sweep OP: what the shapes of the GPU's products take in this model's windows. The best go
 * into a table that later starts on this device read.
 */
#include <jansson.h>
#include <string.h>

#include "cli/bench.h"

typedef struct sweep_job {
    const cli_options *opt;
    json_t *rows; /* NULL: a table for people */
    uint32_t n_row, n_better;
} sweep_job;

/* The shape in words. */
static void describe(const rg_sweep_row *r, char out[64]) {
    int n = 0;
    if (r->group_rows) n = snprintf(out, 64, "rows of a lane %u", r->group_rows);
    if (r->side) n = snprintf(out, 64, "tile of %u columns", 16 * r->side);
    if (!r->group_rows && !r->side) n = snprintf(out, 64, "the usual one");
    if (r->depth) n += snprintf(out + n, 64 - (size_t)n, ", depth %u", r->depth);
    if (r->loop) n += snprintf(out + n, 64 - (size_t)n, ", loop");
    if (r->no_matrix) snprintf(out + n, 64 - (size_t)n, ", no matrix units");
}

static rg_code add_json(sweep_job *job, const rg_sweep_row *r, rg_status *st) {
    json_t *o = json_pack(
        "{s:s, s:s, s:i, s:i, s:i, s:i, s:b, s:b, s:i, s:i, s:i, s:b, s:b, s:i, s:f, s:f}", "op",
        r->op, "type", r->type, "n_in", (int)r->n_in, "n_out", (int)r->n_out, "n_out2",
        (int)r->n_out2, "columns", (int)r->columns, "fused", r->fused, "coding", r->coding,
        "group_rows", (int)r->group_rows, "side", (int)r->side, "depth", (int)r->depth, "loop",
        r->loop, "no_matrix", r->no_matrix, "tried", (int)r->n_tried, "usual_us", r->usual_us,
        "best_us", r->best_us);
    if (json_array_append_new(job->rows, o) == 0) return RG_OK;
    return rg_fail(st, RG_NOMEM, "no memory for the JSON of bench --sweep");
}

static rg_code show(void *user, const rg_sweep_row *r, rg_status *st) {
    sweep_job *job = user;
    char shape[64];
    job->n_row++;
    job->n_better += r->best_us < r->usual_us;
    if (job->rows) return add_json(job, r, st);
    describe(r, shape);
    char n_out[24];
    const int end = snprintf(n_out, sizeof n_out, "%u", r->n_out);
    if (r->n_out2) snprintf(n_out + end, sizeof n_out - (size_t)end, "+%u", r->n_out2);
    if (job->n_row == 1) {
        printf("%-7s %-8s %7s %11s %4s %5s %10s %10s %6s  %s\n", "op", "type", "n_in", "n_out",
               "cols", "tried", "usual us", "best us", "ratio", "shape");
    }
    printf("%-7s %-8s %7u %11s %4u %5u %10.2f %10.2f %6.3f  %s%s%s\n", r->op, r->type, r->n_in,
           n_out, r->columns, r->n_tried, r->usual_us, r->best_us,
           r->usual_us > 0 ? r->best_us / r->usual_us : 0, shape, r->fused ? " (gate and up)" : "",
           r->coding ? " (makes codes)" : "");
    return RG_OK;
}

static int finish(sweep_job *job, const rg_engine *engine) {
    rg_engine_info info;
    rg_engine_get_info(engine, &info);
    if (!job->rows) {
        printf("%s: %u products, %u of them better in another shape; kept in %s\n", info.gpu,
               job->n_row, job->n_better, rg_engine_sweep_path(engine));
        return CLI_OK;
    }
    json_t *o = json_pack("{s:s, s:s, s:s, s:O}", "model", job->opt->model, "gpu", info.gpu, "kept",
                          rg_engine_sweep_path(engine), "products", job->rows);
    return bench_print_object(o, "--sweep");
}

int bench_sweep(const cli_options *opt) {
    rg_status st = {0};
    rg_engine *engine = NULL;
    sweep_job job = {.opt = opt, .rows = opt->json ? json_array() : NULL};
    rg_code rc = cli_open_engine(opt, &engine, &st);
    cli_progress_clear();
    if (rc == RG_OK) rc = rg_engine_sweep(engine, opt->sweep, show, &job, &st);
    const int code = rc == RG_OK ? finish(&job, engine) : cli_fail(&st);
    json_decref(job.rows);
    rg_engine_close(engine);
    return code;
}
