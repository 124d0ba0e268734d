/* What commands read: files, id lists, the model; and the interrupt key. */
#include <ctype.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "forge/forge.h"
#include "cli/cli.h"

#define TEXT_MAX ((size_t)256 << 20)

rg_code cli_read_file(const char *path, char **text, size_t *len, rg_status *st) {
    return rg_file_slurp(text, len, path, TEXT_MAX, st);
}

static rg_code parse_ids(const char *path, const char *text, int32_t *ids, size_t *n,
                         rg_status *st) {
    const char *at = text;
    for (;;) {
        while (isspace((unsigned char)*at))
            at++;
        if (!*at) return RG_OK;
        char *end = NULL;
        errno = 0;
        const long id = strtol(at, &end, 10);
        if (end == at || errno || id < 0 || id > INT32_MAX ||
            (*end && !isspace((unsigned char)*end))) {
            const int word = (int)strcspn(at, " \t\n\v\f\r");
            return rg_fail(st, RG_INVALID, "%s: \"%.*s\" at byte %zu is no token id", path,
                           word < 24 ? word : 24, at, (size_t)(at - text));
        }
        ids[(*n)++] = (int32_t)id;
        at = end;
    }
}

rg_code cli_parse_ids(const char *name, const char *text, int32_t **ids, size_t *n, rg_status *st) {
    *ids = NULL;
    *n = 0;
    int32_t *list = rg_alloc(strlen(text) / 2 + 1, sizeof *list, st); /* digit and space each */
    if (!list) return RG_NOMEM;
    rg_code rc = parse_ids(name, text, list, n, st);
    if (rc == RG_OK && *n == 0) rc = rg_fail(st, RG_INVALID, "%s holds no token ids", name);
    if (rc == RG_OK) {
        *ids = list;
    } else {
        rg_free(list);
    }
    return rc;
}

rg_code cli_read_ids(const char *path, int32_t **ids, size_t *n, rg_status *st) {
    *ids = NULL;
    *n = 0;
    char *text = NULL;
    size_t len = 0;
    RG_TRY(cli_read_file(path, &text, &len, st));
    const rg_code rc =
        strlen(text) == len
            ? cli_parse_ids(path, text, ids, n, st)
            : rg_fail(st, RG_INVALID, "%s is no text: NUL at byte %zu", path, strlen(text));
    rg_free(text);
    return rc;
}

static void log_line(void *user, rg_log_level level, const char *line) {
    (void)user;
    static const char *const names[] = {"error", "warning", "info", "debug"};
    cli_progress_clear();
    fprintf(stderr, "regolith: %s: %s\n", names[level], line);
}

void cli_find_gpu_cache(cli_options *o) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char dir[sizeof o->gpu_cache - 24];
    int n = -1;
    o->gpu_cache[0] = 0;
    if (cache && cache[0]) {
        n = snprintf(dir, sizeof dir, "%s/regolith", cache);
    } else if (home && home[0]) {
        n = snprintf(dir, sizeof dir, "%s/.cache/regolith", home);
    }
    if (n < 0 || (size_t)n >= sizeof dir) return;
    if (mkdir(dir, 0700) != 0 && errno != EEXIST) return;
    snprintf(o->gpu_cache, sizeof o->gpu_cache, "%s/gpu-kernels.bin", dir);
}

static bool uses_mtp(const cli_options *opt) {
    return opt->draft == RG_DRAFT_MTP || opt->draft == RG_DRAFT_AUTO;
}

static uint32_t draft_max(const cli_options *opt) {
    if (opt->draft == RG_DRAFT_OFF) return 0;
    return opt->draft_max ? opt->draft_max : RG_DRAFT_DEFAULT;
}

rg_session_options cli_session_options(const cli_options *opt, uint32_t n_ctx) {
    return (rg_session_options){.n_ctx = n_ctx,
                                .kv = opt->kv,
                                .draft = opt->draft,
                                .draft_max = draft_max(opt),
                                .draft_fixed = opt->draft_fixed};
}

rg_engine_options cli_engine_options(const cli_options *opt) {
    const bool serves = opt->command->run == cli_serve;
    const bool goes_back = opt->command->run == cli_chat && opt->moce > 0;
    return (rg_engine_options){.model_path = opt->model,
                               .chat_template = opt->chat_template,
                               .cpu_level = getenv("RG_CPU"),
                               .n_threads = opt->threads,
                               .kernels = opt->kernels,
                               .chunk = opt->chunk,
                               .no_mtp = opt->no_mtp,
                               .draft_model_path = opt->draft_model,
                               .mtp_stream_norm = opt->mtp_stream_norm,
                               .two_stage_head = opt->two_stage_head,
                               .plan_mtp = uses_mtp(opt),
                               .plan_draft_max = draft_max(opt),
                               .ram_bytes = opt->ram,
                               .arena_bytes = opt->arena,
                               .arena_experts = opt->arena_experts,
                               .n_ctx = opt->ctx,
                               .kv = opt->kv,
                               .n_session = serves ? opt->serve.parallel : 0,
                               .snapshot_bytes = serves      ? opt->serve.snapshots
                                                 : goes_back ? CLI_CHAT_STATE_BYTES
                                                             : 0,
                               .lock_memory = opt->mlock,
                               .gpu = opt->gpu,
                               .gpu_or_cpu = opt->gpu_or_cpu,
                               .gpu_device = opt->device,
                               .gpu_check = opt->gpu_check,
                               .gpu_arena = opt->gpu_arena,
                               .gpu_cache_path = opt->gpu_cache[0] ? opt->gpu_cache : NULL,
                               .io = opt->io,
                               .direct = opt->direct,
                               .depth = opt->depth,
                               .lookahead = opt->lookahead,
                               .split = opt->split,
                               .pack_path =
                                   opt->pack && strcmp(opt->pack, "off") == 0 ? "" : opt->pack,
                               .io_null = opt->io_null,
                               .faults = opt->faults,
                               .trace_path = opt->trace,
                               .profile_path = opt->profile,
                               .progress = cli_progress};
}

rg_code cli_open_engine(const cli_options *opt, rg_engine **out, rg_status *st) {
    const char *want = getenv("RG_LOG");
    int level = (int)RG_LOG_WARN + opt->verbose;
    if (want && *want >= '0' && *want <= '3') level = *want - '0';
    rg_log_set(log_line, NULL, (rg_log_level)(level > RG_LOG_DEBUG ? RG_LOG_DEBUG : level));
    const rg_engine_options e = cli_engine_options(opt);
    const rg_code rc = rg_engine_open(out, &e, st);
    cli_progress_clear();
    return rc;
}

/* Written by the main thread, read by the signal handler on it: lock-free, so safe there. */
static _Atomic(rg_session *) interrupted_session;

static void on_interrupt(int signal_number) {
    (void)signal_number;
    rg_session *s = atomic_load(&interrupted_session);
    if (s) rg_session_cancel(s);
}

void cli_cancel_on_interrupt(rg_session *session) {
    atomic_store(&interrupted_session, session);
    struct sigaction action = {.sa_handler = session ? on_interrupt : SIG_DFL};
    /* A second Ctrl-C ends the process. */
    action.sa_flags = session ? (int)SA_RESETHAND : 0;
    sigaction(SIGINT, &action, NULL);
}
