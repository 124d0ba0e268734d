/* The two-stage head against the full product on a model's own output matrix.
 *
 *   head_bench MODEL [THREADS [STEPS]]
 *
 * The input of a step is a mix of one row of the matrix, drawn anew, and noise: their share makes
 * the cosine of input and best row, which is what decides whether the bound separates. For each
 * cosine: steps decided, rows computed exactly in those, the median time of both heads, in turn,
 * and how often the best rough row was the best. Ends with an error if the two heads ever disagree.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/core.h"

#define STEPS_MAX 1000

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, uint32_t n) {
    qsort(v, n, sizeof *v, by_value);
    return v[n / 2];
}

static double gauss(uint64_t seed, uint64_t at) {
    double sum = -6.0;
    for (uint64_t k = 0; k < 12; k++)
        sum += (double)(rg_random_u64(seed, 12 * at + k) >> 11) * 0x1p-53;
    return sum;
}

/* s.u = cosine * row / |row| + sqrt(1 - cosine^2) * noise / |noise|. */
static void make_input(rg_core *core, double cosine, uint64_t seed) {
    const rg_mat *w = &core->w.output;
    const uint32_t n = w->n_in;
    const size_t r = rg_random_u64(seed, 1) % w->n_out;
    float *row = core->threads[0].row;
    double a = 0.0, b = 0.0;
    rg_unpack_row(w->type, w->data + r * w->row_bytes, row, n);
    for (uint32_t i = 0; i < n; i++) {
        core->s.u[i] = (float)gauss(seed, i + 2);
        a += (double)row[i] * (double)row[i];
        b += (double)core->s.u[i] * (double)core->s.u[i];
    }
    const double p = cosine / sqrt(a), q = sqrt(1.0 - cosine * cosine) / sqrt(b);
    for (uint32_t i = 0; i < n; i++)
        core->s.u[i] = (float)(p * (double)row[i] + q * (double)core->s.u[i]);
}

static uint32_t first_best(const float *y, uint32_t n) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++) {
        if (y[i] > y[best]) best = i;
    }
    return best;
}

static bool run_cosine(rg_core *core, double cosine, uint32_t steps) {
    static double full_ms[STEPS_MAX], two_ms[STEPS_MAX];
    rg_two_stage *h = core->two_stage;
    rg_two_stage_meters before, after;
    rg_two_stage_tune(h, 0, false);
    rg_two_stage_get_meters(h, &before);
    for (uint32_t i = 0; i < steps; i++) {
        uint32_t best[2];
        make_input(core, cosine, 1000 + i);
        for (uint32_t k = 0; k < 2; k++) {
            const bool two = (k ^ i) & 1u;
            rg_input in;
            core->u_forms = 0;
            const uint64_t begin = rg_now_ns();
            rg_input_mixed(core, &in, 1);
            const rg_act act = rg_input_as(core, &in, core->w.output.type);
            if (!two || !rg_two_stage_run(h, core, core->s.u, &act, core->s.logits)) {
                rg_core_mul(core, &in, &(rg_product){&core->w.output, core->s.logits}, 1);
            }
            (two ? two_ms : full_ms)[i] = (double)(rg_now_ns() - begin) * 1e-6;
            best[two] = first_best(core->s.logits, core->w.output.n_out);
        }
        if (best[0] != best[1]) {
            fprintf(stderr, "head_bench: step %u: %u and %u\n", i, best[0], best[1]);
            return false;
        }
    }
    rg_two_stage_get_meters(h, &after);
    const uint64_t n = after.steps - before.steps, undecided = after.full - before.full;
    const double decided = (double)(n - undecided);
    const double full = median(full_ms, steps), two = median(two_ms, steps);
    printf("cosine %.2f: decided %5.1f %%, exact rows %8.1f, best rough row right %5.1f %%, full "
           "%8.4f ms, two-stage %8.4f ms (%.3f x)\n",
           cosine, 100.0 * decided / (double)n,
           decided > 0 ? (double)(after.exact - before.exact) / decided : 0.0,
           decided > 0 ? 100.0 * (double)(after.rough_hit - before.rough_hit) / decided : 0.0, full,
           two, full / two);
    return true;
}

int main(int argc, char **argv) {
    const int threads = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 2,
              steps = argc > 3 ? (int)strtol(argv[3], NULL, 10) : 60;
    static const double cosines[] = {0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.6};
    if (argc < 2 || steps < 1 || steps > STEPS_MAX) {
        fprintf(stderr, "usage: head_bench MODEL [THREADS [STEPS]]\n");
        return 2;
    }
    rg_status st = {0};
    rg_gguf *gguf = NULL;
    rg_model *model = NULL;
    rg_core *core = NULL;
    const rg_model_options mo = {0};
    /* An arena: the experts are not needed. */
    rg_core_options co = {
        .n_threads = threads, .chunk = 16, .two_stage_head = true, .arena_bytes = 256u << 20};
    rg_code rc = rg_cpu_level_pick(&co.level, getenv("RG_CPU"), &st);
    if (rc == RG_OK) rc = rg_gguf_open(&gguf, argv[1], &st);
    if (rc == RG_OK) rc = rg_model_create(&model, gguf, &mo, &st);
    const uint64_t begin = rg_now_ns();
    if (rc == RG_OK) rc = rg_core_create(&core, gguf, model, &co, &st);
    bool same = rc == RG_OK;
    if (!same) {
        fprintf(stderr, "head_bench: %s\n", st.message);
    } else {
        printf("%s: %u x %u %s, loaded in %.1f s\n", argv[1], core->w.output.n_in,
               core->w.output.n_out, rg_type_get((uint32_t)core->w.output.type)->name,
               (double)(rg_now_ns() - begin) * 1e-9);
        for (size_t i = 0; i < RG_ARRAY_LEN(cosines) && same; i++)
            same = run_cosine(core, cosines[i], (uint32_t)steps);
    }
    rg_core_destroy(core);
    rg_model_destroy(model);
    rg_gguf_close(gguf);
    return same ? 0 : 1;
}
