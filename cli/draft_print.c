/* Figures of drafts: a line for people, an object for scripts. */
#include "cli/draft_print.h"

static double per(uint64_t a, uint64_t b) {
    return b ? (double)a / (double)b : 0.0;
}

/* Windows of a source, and the tokens chosen from them. */
static rg_draft_windows sum_of(const rg_draft_stats *s, uint32_t source) {
    rg_draft_windows sum = {0};
    for (uint32_t n = 0; n <= RG_DRAFTS_MAX; n++) {
        const rg_draft_windows *w = &s->windows[source][n];
        sum.n += w->n;
        sum.tokens += w->tokens;
        sum.window_ns += w->window_ns;
        sum.draft_ns += w->draft_ns;
        sum.experts += w->experts;
        sum.read_bytes += w->read_bytes;
        sum.waves += w->waves;
    }
    return sum;
}

void cli_print_drafts(const rg_session *session) {
    rg_draft_stats s;
    rg_session_get_draft_stats(session, &s);
    uint64_t windows = 0;
    for (uint32_t i = 0; i < RG_SOURCE_COUNT; i++)
        windows += sum_of(&s, i).n;
    if (!windows) return;
    fprintf(stderr, "draft: %llu of %llu accepted", (unsigned long long)s.accepted,
            (unsigned long long)s.offered);
    for (uint32_t i = 0; i < RG_SOURCE_COUNT; i++) {
        const rg_draft_windows w = sum_of(&s, i);
        if (!w.n) continue;
        fprintf(stderr, "; %s %llu windows, %.2f tokens each", rg_draft_source_text(i),
                (unsigned long long)w.n, per(w.tokens, w.n));
        if (i == RG_SOURCE_MTP) fprintf(stderr, ", %.2f ms drafting", per(w.draft_ns, w.n) * 1e-6);
    }
    fprintf(stderr, "; a window of 1 row %.2f ms, of 2 %.2f, of 4 %.2f, of 8 %.2f",
            s.window_ns[1] * 1e-6, s.window_ns[2] * 1e-6, s.window_ns[4] * 1e-6,
            s.window_ns[8] * 1e-6);
    if (s.rows_max <= RG_DRAFTS_MAX) fprintf(stderr, "; the arena holds %u rows", s.rows_max);
    fputc('\n', stderr);
}

static json_t *numbers(const double *x, size_t n) {
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, json_real(x[i]));
    return list;
}

static json_t *window_json(uint32_t source, uint32_t n, const rg_draft_windows *w) {
    return json_pack("{s:s, s:i, s:I, s:I, s:f, s:f, s:f, s:f, s:I}", "source",
                     rg_draft_source_text(source), "drafts", (int)n, "windows", (json_int_t)w->n,
                     "tokens", (json_int_t)w->tokens, "window_ms", per(w->window_ns, w->n) * 1e-6,
                     "draft_ms", per(w->draft_ns, w->n) * 1e-6, "experts", per(w->experts, w->n),
                     "read_bytes", per(w->read_bytes, w->n), "waves", (json_int_t)w->waves);
}

json_t *cli_draft_json(const rg_draft_stats *s) {
    json_t *windows = json_array(), *accepted = json_object(), *chance = json_object();
    for (uint32_t i = 0; i < RG_SOURCE_COUNT; i++) {
        double rate[RG_DRAFTS_MAX];
        size_t n_rate = 0;
        for (uint32_t n = 0; n <= RG_DRAFTS_MAX; n++) {
            const rg_draft_windows *w = &s->windows[i][n];
            if (w->n) json_array_append_new(windows, window_json(i, n, w));
        }
        while (n_rate < RG_DRAFTS_MAX && s->tried[i][n_rate]) {
            rate[n_rate] = per(s->right[i][n_rate], s->tried[i][n_rate]);
            n_rate++;
        }
        if (!n_rate) continue;
        json_object_set_new(accepted, rg_draft_source_text(i), numbers(rate, n_rate));
        json_object_set_new(chance, rg_draft_source_text(i), numbers(s->chance[i], RG_DRAFTS_MAX));
    }
    double ms[RG_DRAFTS_MAX + 1];
    for (size_t i = 0; i <= RG_DRAFTS_MAX; i++)
        ms[i] = s->window_ns[i + 1] * 1e-6;
    return json_pack("{s:I, s:I, s:o, s:o, s:o, s:o, s:I}", "offered", (json_int_t)s->offered,
                     "accepted", (json_int_t)s->accepted, "windows", windows,
                     "acceptance_by_position", accepted, "chance_by_position", chance,
                     "window_ms_by_rows", numbers(ms, RG_DRAFTS_MAX + 1), "rows_max",
                     (json_int_t)s->rows_max);
}
