#include "cli/cli.h"

static double rate(uint64_t tokens, double ms) {
    return ms > 0 ? 1e3 * (double)tokens / ms : 0;
}

void cli_print_profile(const rg_engine *engine, const rg_session *session) {
    rg_engine_info info;
    rg_session_stats s;
    rg_engine_get_info(engine, &info);
    rg_session_get_stats(session, &s);
    fprintf(stderr,
            "profile: load %.0f ms, prefill %llu tokens %.1f tok/s, first token %.0f ms, decode "
            "%llu tokens %.1f tok/s, compute %.0f ms, host %.1f ms, %d threads %s, weights %.1f "
            "MiB, state %.1f MiB, peak %.1f MiB\n",
            info.load_ms, (unsigned long long)s.prefill_tokens,
            rate(s.prefill_tokens, s.prefill_ms), s.ttft_ms, (unsigned long long)s.decode_tokens,
            rate(s.decode_tokens, s.decode_ms), s.compute_ms, s.host_ms, info.n_threads,
            info.cpu_level, (double)info.weight_bytes / 0x1p20, (double)s.state_bytes / 0x1p20,
            (double)s.rss_peak_bytes / 0x1p20);
}
