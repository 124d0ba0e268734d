/* regolith serve: the model behind HTTP. */
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "serve/serve.h"
#include "cli/cli.h"
#include "forge/forge.h"

/* Written by the main thread before the handlers are set. */
static _Atomic(rg_server *) running;

static void on_stop(int signal_number) {
    (void)signal_number;
    rg_server *s = atomic_load(&running);
    if (s) rg_server_stop(s);
}

static void handle_signals(rg_server *server) {
    atomic_store(&running, server);
    struct sigaction action = {.sa_handler = server ? on_stop : SIG_DFL};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

/* The file's name without folder and ".gguf". */
static const char *model_name(const cli_options *opt, char *out, size_t cap) {
    if (opt->serve.alias) return opt->serve.alias;
    const char *slash = strrchr(opt->model, '/');
    snprintf(out, cap, "%s", slash ? slash + 1 : opt->model);
    char *dot = strrchr(out, '.');
    if (dot && strcmp(dot, ".gguf") == 0) *dot = 0;
    return out;
}

static rg_serve_options serve_options(const cli_options *opt, char *name, size_t cap) {
    const rg_session_options session = cli_session_options(opt, opt->ctx);
    const char *key = opt->serve.api_key ? opt->serve.api_key : getenv("REGOLITH_API_KEY");
    return (rg_serve_options){.host = opt->serve.host,
                              .port = (uint16_t)opt->serve.port,
                              .api_key = key && key[0] ? key : NULL,
                              .insecure = opt->serve.insecure,
                              .cors_origin = opt->serve.cors,
                              .model_name = model_name(opt, name, cap),
                              .n_session = opt->serve.parallel,
                              .queue_max = opt->serve.queue,
                              .n_ctx = opt->ctx,
                              .kv = opt->kv,
                              .draft = session.draft,
                              .draft_max = session.draft_max,
                              .draft_fixed = session.draft_fixed,
                              .moce = opt->moce,
                              .moce_slots = opt->moce_slots,
                              .snapshot_bytes = opt->serve.snapshots,
                              .cache_dir = opt->serve.cache_dir,
                              .cache_bytes = opt->serve.cache_size,
                              .grace_s = opt->serve.grace,
                              .heartbeat_s = opt->serve.heartbeat,
                              .time_limit_s = opt->serve.time_limit,
                              .no_think = opt->no_think,
                              .sampling = opt->sampling};
}

/* What the drive can do at the size of an expert, given or measured while nothing else reads. A
 * failure costs the figure only. */
static double find_ceiling(const cli_options *opt, const rg_engine *engine) {
    rg_engine_info info;
    rg_status st = {0};
    double gb_s = 0;
    rg_engine_get_info(engine, &info);
    if (opt->ceiling_gb_s > 0) return opt->ceiling_gb_s;
    if (!info.arena_bytes || opt->io_null) return 0;
    if (rg_doctor_expert_ceiling(&gb_s, opt->model, info.expert_bytes, &st) == RG_OK) return gb_s;
    fprintf(stderr, "regolith: serve: the drive's best rate is not known: %s\n", st.message);
    return 0;
}

int cli_serve(const cli_options *opt) {
    char name[256];
    rg_status st = {0};
    rg_engine *engine = NULL;
    rg_server *server = NULL;
    rg_serve_options so = serve_options(opt, name, sizeof name);
    rg_code rc = cli_open_engine(opt, &engine, &st);
    if (rc == RG_OK) so.drive_ceiling_gb_s = find_ceiling(opt, engine);
    if (rc == RG_OK) rc = rg_server_create(&server, engine, &so, &st);
    if (rc == RG_OK) {
        const char *host = so.host ? so.host : "127.0.0.1";
        const bool v6 = strchr(host, ':') != NULL;
        handle_signals(server);
        fprintf(stderr, "regolith: serve: listening on http://%s%s%s:%u/\n", v6 ? "[" : "", host,
                v6 ? "]" : "", rg_server_port(server));
        rg_server_run(server);
        handle_signals(NULL);
        fprintf(stderr, "regolith: serve: ended\n");
    }
    rg_server_destroy(server);
    rg_engine_close(engine);
    return rc == RG_OK ? CLI_OK : cli_fail(&st);
}
