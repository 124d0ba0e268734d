#include "cli/draft_print.h"

static double rate(uint64_t tokens, double ms) {
    return ms > 0 ? 1e3 * (double)tokens / ms : 0;
}

/* Experts and the drive; only when something streams. */
static void print_stream(const rg_engine_info *info, const rg_engine_meters *m) {
    const double wanted = (double)(m->hits + m->misses);
    char copies[64] = "";
    if (m->copied_bytes) {
        snprintf(copies, sizeof copies, ", %.1f MiB copied in %.1f ms",
                 (double)m->copied_bytes / 0x1p20, m->copy_ms);
    }
    fprintf(stderr,
            "stream: %s%s, arena %.1f MiB%s%s (peak %.1f), hits %.1f %% of %.0f, late %llu, read "
            "ahead %llu useful %llu wasted, %.1f MiB read at %.2f GB/s%s, %llu retries\n",
            info->io_backend, info->pack_path[0] ? ", pack" : "",
            (double)info->arena_bytes / 0x1p20, info->gpu_arena[0] ? " " : "", info->gpu_arena,
            (double)m->arena_peak_bytes / 0x1p20, wanted > 0 ? 100 * (double)m->hits / wanted : 0.0,
            wanted, (unsigned long long)m->late, (unsigned long long)m->readahead_useful,
            (unsigned long long)m->readahead_wasted, (double)m->read_bytes / 0x1p20, m->drive_gb_s,
            copies, (unsigned long long)m->retries);
}

/* Rows of the n-gram table; only when they are read. */
static void print_ngram(const rg_engine_meters *m) {
    fprintf(
        stderr, "n-gram: %llu rows, %.1f %% without a read, %llu reads of %.1f MiB, wait %.1f ms\n",
        (unsigned long long)m->ngram_rows, 100 * (double)m->ngram_hits / (double)m->ngram_rows,
        (unsigned long long)m->ngram_reads, (double)m->ngram_read_bytes / 0x1p20, m->ple_wait_ms);
}

void cli_print_moce(const rg_moce_receipt *m, float lambda) {
    const double routes = (double)m->routes;
    fprintf(stderr,
            "moce: strength %g, %llu tokens, %llu of %llu routes changed (%.2f %%), %.2f %% of the "
            "router's weight moved\n",
            (double)lambda, (unsigned long long)m->tokens, (unsigned long long)m->routes_changed,
            (unsigned long long)m->routes,
            routes > 0 ? 100 * (double)m->routes_changed / routes : 0.0, 100 * m->mass_moved);
}

void cli_print_profile(const rg_engine *engine, const rg_session *session) {
    rg_engine_info info;
    rg_session_stats s;
    rg_engine_meters m;
    rg_engine_get_info(engine, &info);
    rg_session_get_stats(session, &s);
    rg_engine_get_meters(engine, &m);
    if (info.arena_bytes) print_stream(&info, &m);
    if (m.ngram_reads) print_ngram(&m);
    cli_print_drafts(session);
    char drafts[64] = "";
    if (m.draft_offered) {
        snprintf(drafts, sizeof drafts, ", drafts %llu of %llu",
                 (unsigned long long)m.draft_accepted, (unsigned long long)m.draft_offered);
    }
    fprintf(stderr,
            "profile: load %.0f ms, prefill %llu tokens %.1f tok/s, first token %.0f ms, decode "
            "%llu tokens %.1f tok/s%s; compute %.0f ms, wait %.0f ms, host %.1f ms; %d threads %s, "
            "weights %.1f MiB, state %.1f MiB, peak %.1f MiB, %llu major faults\n",
            info.load_ms, (unsigned long long)s.prefill_tokens,
            rate(s.prefill_tokens, s.prefill_ms), s.ttft_ms, (unsigned long long)s.decode_tokens,
            rate(s.decode_tokens, s.decode_ms), drafts, m.compute_ms, m.wait_ms, m.host_ms,
            info.n_threads, info.cpu_level, (double)info.weight_bytes / 0x1p20,
            (double)s.state_bytes / 0x1p20, (double)m.rss_peak_bytes / 0x1p20,
            (unsigned long long)m.major_faults);
}
