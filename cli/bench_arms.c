/* The settings to compare: every combination of the values that --ab lists. */
#include <string.h>

#include "cli/bench.h"

/* Value number `index` of "flag=a,b,c" into text; false when there are fewer. */
static bool nth_value(const char *ab, size_t index, char *text, size_t cap) {
    const char *at = strchr(ab, '=') + 1;
    for (size_t i = 0; i < index; i++) {
        at = strchr(at, ',');
        if (!at) return false;
        at++;
    }
    const size_t len = strcspn(at, ",");
    if (len >= cap) return false;
    memcpy(text, at, len);
    text[len] = 0;
    return true;
}

static size_t count_values(const char *ab) {
    size_t n = 1;
    for (const char *c = strchr(ab, '='); *c; c++)
        n += *c == ',';
    return n;
}

/* The run itself is the same for all arms, and each arm opens the same kind of thing. */
static bool fixed_flag(const char *name) {
    static const char *const fixed[] = {"ab",   "reps",     "n-prompt", "n-gen",   "seed",   "json",
                                        "cold", "generate", "file",     "ceiling", "verbose"};
    for (size_t i = 0; i < RG_ARRAY_LEN(fixed); i++) {
        if (strcmp(fixed[i], name) == 0) return true;
    }
    return false;
}

/* Applies value `index` of one --ab to the arm. */
static int apply(bench_arm *arm, const char *ab, size_t index) {
    char name[32], text[96];
    const size_t len = strcspn(ab, "=");
    if (!ab[len] || len == 0 || len >= sizeof name) {
        return cli_usage("bench", "--ab %s: FLAG=A,B expected", ab);
    }
    memcpy(name, ab, len);
    name[len] = 0;
    if (fixed_flag(name)) {
        return cli_usage("bench", "--ab %s: --%s is the same for all arms", ab, name);
    }
    if (!nth_value(ab, index, text, sizeof text) || !text[0]) {
        return cli_usage("bench", "--ab %s: value %zu is empty or longer than %zu bytes", ab,
                         index + 1, sizeof text - 1);
    }
    const size_t used = strlen(arm->name);
    snprintf(arm->name + used, sizeof arm->name - used, "%s%s=%s", used ? " " : "", name, text);
    /* The arm's own options are parsed from this text: it must live as long as they do. */
    char *kept = rg_strndup(text, strlen(text), NULL);
    if (!kept) {
        const rg_status st = {.code = RG_NOMEM};
        return cli_fail(&st);
    }
    arm->opt.n_models = 0;
    arm->texts[arm->n_text++] = kept;
    return cli_set_flag(&arm->opt, name, kept);
}

int bench_make_arms(bench_job *job) {
    const cli_options *opt = job->opt;
    size_t n = 1;
    for (size_t i = 0; i < opt->n_ab; i++) {
        if (!strchr(opt->ab[i], '=')) {
            return cli_usage("bench", "--ab %s: FLAG=A,B expected", opt->ab[i]);
        }
        n *= count_values(opt->ab[i]);
        if (n > BENCH_ARMS_MAX) {
            return cli_usage("bench", "--ab asks for more than %u arms", BENCH_ARMS_MAX);
        }
    }
    for (size_t a = 0; a < n; a++) {
        bench_arm *arm = &job->arms[job->n_arm++];
        arm->opt = *opt;
        size_t rest = a;
        for (size_t i = opt->n_ab; i-- > 0;) { /* the last --ab varies fastest */
            arm->choice[i] = rest % count_values(opt->ab[i]);
            rest /= count_values(opt->ab[i]);
        }
        for (size_t i = 0; i < opt->n_ab; i++) {
            const int rc = apply(arm, opt->ab[i], arm->choice[i]);
            if (rc != CLI_OK) return rc;
        }
    }
    return CLI_OK;
}

rg_code bench_take_room(bench_arm *arm, uint32_t reps, rg_status *st) {
    arm->n_layer = rg_engine_get_layer_meters(arm->engine, NULL, 0);
    if (arm->cold) return RG_OK;
    arm->cold = rg_alloc(reps, sizeof *arm->cold, st);
    arm->warm = rg_alloc(reps, sizeof *arm->warm, st);
    arm->layer_store = rg_alloc((size_t)2 * reps * arm->n_layer, sizeof *arm->layer_store, st);
    if (!arm->cold || !arm->warm || !arm->layer_store) return RG_NOMEM;
    for (uint32_t i = 0; i < reps; i++) {
        arm->cold[i].layers = arm->layer_store + (size_t)2 * i * arm->n_layer;
        arm->warm[i].layers = arm->layer_store + ((size_t)2 * i + 1) * arm->n_layer;
    }
    return RG_OK;
}

void bench_free_arms(bench_job *job) {
    for (size_t a = 0; a < job->n_arm; a++) {
        bench_arm *arm = &job->arms[a];
        rg_session_destroy(arm->session);
        rg_engine_close(arm->engine);
        rg_free(arm->cold);
        rg_free(arm->warm);
        rg_free(arm->layer_store);
        for (size_t i = 0; i < arm->n_text; i++)
            rg_free(arm->texts[i]);
    }
}
