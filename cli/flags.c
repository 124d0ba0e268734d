/* Flags: one table for all commands. */
#include "cli/cli.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* Groups: m model, e engine, i text input, I ids input, g generation, s sampling, l logits,
 * t tokenize, j json, c chat, f file, x context, b bench, k kld, y synth, d doctor, M routing,
 * r replay, o output file, D drafts, S server, q quantize, w model-making, C convert, O imatrix,
 * P pull. */
typedef struct flag {
    char group;
    char letter; /* 0 = none */
    const char *name;
    const char *arg;  /* NULL = a switch */
    const char *help; /* NULL = not shown */
} flag;

// clang-format off
static const flag flags[] = {
    {'m', 'm', "model", "FILE", "model file (GGUF; any part of a split model)"},
    {'e', 0, "threads", "N", "compute threads (default: physical cores)"},
    {'x', 0, "ctx", "N", "context in tokens"},
    {'e', 0, "chunk", "N", "tokens of a prefill chunk (default 512)"},
    {'e', 0, "kernels", "auto|ref", "8-bit activations, or the float reference (default auto)"},
    {'e', 0, "kv", "f16|f32", "element type of the KV cache (default f16)"},
    {'e', 0, "backend", "cpu|vulkan|auto",
     "where to compute (default cpu; auto: a GPU if there is one that will do)"},
    {'e', 0, "device", "N", "GPU to use, as doctor lists them (default: the best)"},
    {'e', 0, "gpu-check", NULL, NULL},
    {'e', 0, "gpu-arena", "auto|mapped|staged|host", NULL},
    {'e', 0, "no-mtp", NULL, "leave the draft block out"},
    {'e', 0, "ram", "SIZE", "memory for everything, e.g. 8G (default: what is free)"},
    {'e', 0, "arena", "SIZE", "stream experts through an arena of this size"},
    {'e', 0, "arena-experts", "N", "the same, in slots of the largest expert"},
    {'e', 0, "mlock", NULL, "keep weights from being paged out"},
    {'e', 0, "io", "auto|uring|pread|null", "how to read; null skips reads (wrong answers)"},
    {'e', 0, "direct", "auto|on|off", "read past the page cache (default auto)"},
    {'e', 0, "io-depth", "N", "reads in flight (default 32)"},
    {'e', 0, "lookahead", "auto|off|N", "experts read ahead of a layer in decode (default auto)"},
    {'e', 0, "head", "full|two-stage", "how greedy picks find the best token (default full)"},
    {'e', 0, "split", "on|off", "compute what is there while the rest is read (default on)"},
    {'e', 0, "pack", "FILE|off", "expert pack to stream from (default: the one beside the model)"},
    {'e', 0, "faults", "SPEC", NULL},
    {'e', 0, "trace", "FILE", "record what is asked of the experts (see trace replay)"},
    {'e', 0, "profile", "FILE|off", "usage profile to start warm from (default MODEL.rgprofile)"},
    {'D', 0, "draft", "off|mtp|suffix|auto", "guess ahead; the text stays the same (default off)"},
    {'D', 0, "draft-max", "N", "guesses in a window, 1..7 (default 4)"},
    {'D', 0, "draft-fixed", NULL, NULL},
    {'D', 0, "logits-hash", NULL, NULL},
    {'e', 0, "draft-model", "FILE", "a file with the draft block, for a model without one"},
    {'e', 0, "mtp-hnorm", "global|stream", "the draft block's hidden norm (default global)"},
    {'M', 0, "moce", "L", "prefer experts in memory by 0..1 in decode; text changes (default 0)"},
    {'M', 0, "moce-slots", "N", NULL},
    {'r', 0, "arena-experts", "N,N,...", "arenas, in slots of the largest expert"},
    {'r', 0, "policy", "P,P,...", "lru, slru, lfu"},
    {'r', 0, "lookahead", "N,N,...", "experts read ahead of a layer in decode: numbers, auto, off"},
    {'r', 0, "guard", "on,off", "whether a guess may not evict a warmer expert"},
    {'r', 0, "drive-latency", "US", "of the virtual drive (default 100)"},
    {'r', 0, "drive-rate", "GB/S", "of the virtual drive (default 2)"},
    {'r', 0, "layer-us", "US", "computing one layer for one row (default 500)"},
    {'r', 0, "row-us", "US", "and for each further row of a window (default 50)"},
    {'o', 'o', "out", "FILE", "write the profile there"},
    {'v', 'v', "verbose", NULL, "report every tensor"},
    {'m', 'v', "verbose", NULL, "log to standard error; twice for more"},
    {'i', 'p', "prompt", "TEXT", "prompt"},
    {'f', 'f', "file", "FILE", "read the text from a file (- = standard input)"},
    {'I', 0, "ids", "FILE", "token ids, whitespace-separated decimals (- = standard input)"},
    {'c', 0, "raw", NULL, "no chat template; special tokens in the text are parsed"},
    {'c', 0, "system", "TEXT", "system message"},
    {'c', 0, "no-think", NULL, "answer without a thinking part"},
    {'c', 0, "reasoning-effort", "LEVEL", "as the model's template knows it (low, medium, xhigh)"},
    {'c', 0, "chat-template", "NAME", "force a chat template family"},
    {'g', 'n', "n-predict", "N", "tokens to generate at most (default: until the end)"},
    {'g', 0, "ignore-eos", NULL, "end-of-generation tokens are ordinary tokens"},
    {'g', 0, "stop", "TEXT", "end at this text (repeatable)"},
    {'g', 0, "print-ids", NULL, "print generated ids on one line instead of text"},
    {'g', 0, "show-special", NULL, "print control tokens as text"},
    {'s', 0, "temp", "T", "temperature, 0 = greedy (default 0.8)"},
    {'s', 0, "top-k", "K", "keep the K best tokens, 0 = off (default 40)"},
    {'s', 0, "top-p", "P", "keep the best tokens of total probability P (default 0.95)"},
    {'s', 0, "min-p", "P", "drop tokens below P x the best probability (default 0.05)"},
    {'s', 0, "seed", "N", "seed of the draws (default 0)"},
    {'s', 0, "repeat-penalty", "X", "divide the logits of repeated tokens (default 1 = off)"},
    {'s', 0, "presence-penalty", "X", "subtract once from tokens seen (default 0)"},
    {'s', 0, "frequency-penalty", "X", "subtract for each occurrence (default 0)"},
    {'s', 0, "penalty-last-n", "N", "tokens the penalties see, -1 = all (default 64)"},
    {'s', 0, "logit-bias", "ID=X", "add X to the logit of a token, -inf bans it (repeatable)"},
    {'l', 0, "out", "FILE", "write logits as raw f32 [tokens][vocabulary]"},
    {'l', 0, "top", "K", "print the K best tokens of each position"},
    {'l', 0, "hash", NULL, "print the XXH3-128 hash of the logits"},
    {'l', 0, "ref", "FILE", "compare with logits that --out wrote"},
    {'l', 0, "decode", "N", "evaluate the last N tokens one at a time"},
    {'l', 0, "dump", "DIR", "write the values inside every layer"},
    {'l', 0, "dump-ref", "DIR", "name the first layer and tensor that differ from that dump"},
    {'l', 0, "dump-tol", "X", "relative difference that --dump-ref lets pass (default 0)"},
    {'b', 'p', "n-prompt", "N", "tokens of the prompt (default 512)"},
    {'b', 'n', "n-gen", "N", "tokens decoded behind it (default 64)"},
    {'b', 0, "reps", "R", "repetitions (default 3)"},
    {'b', 0, "seed", "N", "seed of the random token ids (default 0)"},
    {'b', 0, "ab", "FLAG=A,B", "compare values of a flag, interleaved; twice: all combinations"},
    {'b', 0, "cold", NULL, "drop the model's files from the page cache before each cold run"},
    {'b', 0, "generate", NULL, "decode what the model would write, with sampling, not given ids"},
    {'b', 0, "sweep", "OP", "keep the best GPU shapes of rows, slots, tiles, experts, or all"},
    {'b', 0, "ceiling", "GB/S", "the drive's best rate (default: measured when experts stream)"},
    {'k', 0, "ref", "FILE", "reference logits: of --save, or raw f32 of logits --out"},
    {'k', 0, "save", "FILE", "write this model's logits as a reference, compressed"},
    {'k', 0, "csv", "FILE", "write one line for each position"},
    {'k', 0, "top-k", "N", "share of the N best tokens that agree, at most 64 (default 5)"},
    {'t', 0, "decode", NULL, "ids to text"},
    {'t', 0, "special", NULL, "parse special tokens in the text"},
    {'y', 0, "preset", "NAME", "shape to start from: release, demo or tiny (default release)"},
    {'y', 0, "set", "KEY=VALUE", "change one number of the shape (repeatable)"},
    {'y', 0, "type", "REGEX=TYPE", "type of the tensors that match, first match wins (repeatable)"},
    {'y', 0, "default-type", "TYPE", "type of the other matrices (default: a published-like mix)"},
    {'y', 0, "seed", "N", "seed (default 1)"},
    {'y', 0, "skew", "X", "Zipf exponent of expert usage (default 1.35)"},
    {'y', 0, "correlation", "X", "share of routing that changes slowly (default 0.6)"},
    {'y', 0, "predictability", "X", "how well the next layer can be guessed (default 0.76)"},
    {'y', 0, "split", "N", "write N files"},
    {'y', 0, "fused", NULL, "gate and up in one tensor"},
    {'y', 0, "threads", "N", "threads (default: all)"},
    {'y', 0, "overwrite", NULL, "replace an existing file"},
    {'q', 0, "type", "TYPE", "type or named mix to make (--list shows them)"},
    {'q', 0, "tensor-type", "REGEX=TYPE", "type of the tensors that match, first match wins"},
    {'q', 0, "imatrix", "FILE", "importance of the columns, of `regolith imatrix`"},
    {'q', 0, "target-bytes", "SIZE", "choose types by measured error so that the file has SIZE"},
    {'q', 0, "sensitivity", "FILE", "factors of the errors: lines REGEX<tab>FACTOR"},
    {'q', 0, "list", NULL, "show the named mixes"},
    {'q', 0, "dry-run", NULL, "report types and sizes, write nothing"},
    {'C', 0, "type", "TYPE", "type of the matrices (default: as the checkpoint has them)"},
    {'C', 0, "tensor-type", "REGEX=TYPE", "type of the tensors that match, first match wins"},
    {'C', 0, "name", "TEXT", "general.name (default: the folder's)"},
    {'C', 0, "no-mtp", NULL, "leave the draft block out"},
    {'O', 'n', "n-tokens", "N", "tokens of the text at most (default: all)"},
    {'O', 0, "overwrite", NULL, "replace an existing file"},
    {'P', 0, "dir", "FOLDER", "store (default: REGOLITH_MODELS, or the user's cache folder)"},
    {'P', 0, "sha256", "HEX", "of the file of a URL"},
    {'w', 0, "split", "N", "write N files"},
    {'w', 0, "threads", "N", "threads (default: all)"},
    {'w', 0, "overwrite", NULL, "replace an existing file"},
    {'d', 0, "quick", NULL, "a few seconds instead of half a minute"},
    {'S', 0, "host", "ADDRESS", "listen there (default 127.0.0.1)"},
    {'S', 0, "port", "N", "listen there (default 8080; 0 = any free one)"},
    {'S', 0, "parallel", "N", "requests worked on at once (default 1)"},
    {'S', 0, "queue", "N", "requests that may wait (default 64)"},
    {'S', 0, "api-key", "KEY", "clients must send it (also REGOLITH_API_KEY)"},
    {'S', 0, "insecure", NULL, "allow a host that others can reach without a key"},
    {'S', 0, "cors", "ORIGIN", "let pages of this origin ask (* = any)"},
    {'S', 0, "alias", "NAME", "what clients see as the model's name (default: its file's)"},
    {'S', 0, "snapshots", "SIZE", "memory for earlier states of conversations (default 256M)"},
    {'S', 0, "cache-dir", "DIR", "keep prefixes there over restarts"},
    {'S', 0, "cache-size", "SIZE", "quota of that folder (default 4G)"},
    {'S', 0, "grace", "SECONDS", "what running replies get after a stop (default 10)"},
    {'S', 0, "heartbeat", "SECONDS", "between comments in a quiet stream (default 10)"},
    {'S', 0, "ceiling", "GB/S", "the drive's best rate, for the live view (default: measured)"},
    {'S', 0, "time-limit", "SECONDS", "of one reply, waiting included (default: none)"},
    {'j', 0, "json", NULL, "print figures as JSON"},
    {'h', 'h', "help", NULL, "show this help"},
};
// clang-format on
#define N_FLAGS (sizeof flags / sizeof flags[0])

static bool accepts(const cli_command *c, const flag *f) {
    return f->group == 'h' || strchr(c->flags, f->group) != NULL;
}

/* ---- values --------------------------------------------------------------------------------- */

typedef struct value {
    const char *command, *flag, *text;
} value;

static int bad(const value *v, const char *wanted) {
    return cli_usage(v->command, "--%s %s: %s expected", v->flag, v->text, wanted);
}

static int parse_uint(const value *v, uint64_t max, uint64_t *out) {
    char *end = NULL;
    errno = 0;
    const unsigned long long n = strtoull(v->text, &end, 10);
    if (errno || *end || !isdigit((unsigned char)v->text[0]) || n > max) {
        char wanted[64];
        snprintf(wanted, sizeof wanted, "a whole number up to %llu", (unsigned long long)max);
        return bad(v, wanted);
    }
    *out = n;
    return CLI_OK;
}

static int parse_u32(const value *v, uint32_t max, uint32_t *out) {
    uint64_t n = 0;
    const int rc = parse_uint(v, max, &n);
    if (rc == CLI_OK) *out = (uint32_t)n;
    return rc;
}

static int parse_int(const value *v, int32_t min, int32_t max, int32_t *out) {
    char *end = NULL;
    errno = 0;
    const long n = strtol(v->text, &end, 10);
    if (errno || end == v->text || *end || n < min || n > max) {
        char wanted[64];
        snprintf(wanted, sizeof wanted, "a whole number in %d..%d", min, max);
        return bad(v, wanted);
    }
    *out = (int32_t)n;
    return CLI_OK;
}

static int parse_double(const value *v, double *out) {
    char *end = NULL;
    const double x = strtod(v->text, &end);
    if (end == v->text || *end || isnan(x)) return bad(v, "a number");
    *out = x;
    return CLI_OK;
}

static int parse_float(const value *v, float *out) {
    double x = 0;
    const int rc = parse_double(v, &x);
    if (rc == CLI_OK) *out = (float)x;
    return rc;
}

static int parse_choice(const value *v, const char *const words[], int n, int *out) {
    for (int i = 0; i < n; i++) {
        if (strcmp(v->text, words[i]) == 0) {
            *out = i;
            return CLI_OK;
        }
    }
    char wanted[96] = "";
    for (int i = 0; i < n; i++) {
        const size_t len = strlen(wanted);
        snprintf(wanted + len, sizeof wanted - len, "%s%s", i ? " or " : "", words[i]);
    }
    return bad(v, wanted);
}

static int parse_bias(const value *v, cli_options *o) {
    char *end = NULL;
    const long id = strtol(v->text, &end, 10);
    if (end == v->text || *end != '=' || id < 0 || id > INT32_MAX) return bad(v, "ID=BIAS");
    const value rest = {v->command, v->flag, end + 1};
    rg_logit_bias *b = &o->bias[o->sampling.n_logit_bias];
    if (o->sampling.n_logit_bias == sizeof o->bias / sizeof o->bias[0]) {
        return cli_usage(v->command, "--%s is given more than %zu times", v->flag,
                         sizeof o->bias / sizeof o->bias[0]);
    }
    b->id = (int32_t)id;
    const int rc = parse_float(&rest, &b->bias);
    if (rc == CLI_OK) o->sampling.n_logit_bias++;
    return rc;
}

/* A number with K, M or G (powers of 1024); fractions allowed: 6.5G. */
static int parse_size(const value *v, uint64_t *out) {
    char *end = NULL;
    double x = strtod(v->text, &end);
    if (end == v->text || !(x > 0)) return bad(v, "a size such as 512M or 6.5G");
    if (*end == 'K' || *end == 'k') {
        x *= 0x1p10;
        end++;
    } else if (*end == 'M' || *end == 'm') {
        x *= 0x1p20;
        end++;
    } else if (*end == 'G' || *end == 'g') {
        x *= 0x1p30;
        end++;
    }
    if (*end || x >= 0x1p60) return bad(v, "a size such as 512M or 6.5G");
    *out = (uint64_t)x;
    return CLI_OK;
}

/* auto, off, or a number of experts. */
static int parse_lookahead(const value *v, int32_t *out) {
    *out = 0;
    if (strcmp(v->text, "auto") == 0) return CLI_OK;
    if (strcmp(v->text, "off") == 0) {
        *out = -1;
        return CLI_OK;
    }
    const int rc = parse_int(v, 0, 32, out);
    if (rc == CLI_OK && *out == 0) *out = -1;
    return rc;
}

/* The last one counts, except for commands that compare models. */
static int add_model(const value *v, cli_options *o) {
    if (o->n_models == sizeof o->models / sizeof o->models[0]) {
        return cli_usage(v->command, "--%s is given more than %zu times", v->flag,
                         sizeof o->models / sizeof o->models[0]);
    }
    o->models[o->n_models++] = v->text;
    o->model = v->text;
    return CLI_OK;
}

static int add_ab(const value *v, cli_options *o) {
    if (o->n_ab == sizeof o->ab / sizeof o->ab[0]) {
        return cli_usage(v->command, "--%s is given more than %zu times", v->flag,
                         sizeof o->ab / sizeof o->ab[0]);
    }
    o->ab[o->n_ab++] = v->text;
    return CLI_OK;
}

static int add_stop(const value *v, cli_options *o) {
    if (o->n_stop == sizeof o->stop / sizeof o->stop[0]) {
        return cli_usage(v->command, "--%s is given more than %zu times", v->flag,
                         sizeof o->stop / sizeof o->stop[0]);
    }
    o->stop[o->n_stop++] = v->text;
    return CLI_OK;
}

/* ---- assignment ----------------------------------------------------------------------------- */

static bool is(const flag *f, const char *name) {
    return strcmp(f->name, name) == 0;
}

/* Switches and plain strings; true when the flag was one. */
static bool set_plain(const flag *f, const char *text, cli_options *o) {
    const struct {
        const char *name;
        bool *on;
    } switches[] = {{"no-mtp", &o->no_mtp},
                    {"raw", &o->raw},
                    {"no-think", &o->no_think},
                    {"ignore-eos", &o->ignore_eos},
                    {"print-ids", &o->print_ids},
                    {"show-special", &o->show_special},
                    {"hash", &o->hash},
                    {"special", &o->parse_special},
                    {"json", &o->json},
                    {"fused", &o->fused},
                    {"overwrite", &o->overwrite},
                    {"quick", &o->quick},
                    {"mlock", &o->mlock},
                    {"cold", &o->cold},
                    {"generate", &o->generate},
                    {"draft-fixed", &o->draft_fixed},
                    {"logits-hash", &o->logits_hash},
                    {"gpu-check", &o->gpu_check}};
    const struct {
        const char *name;
        const char **to;
    } strings[] = {{"save", &o->save},
                   {"csv", &o->csv},
                   {"prompt", &o->prompt},
                   {"file", &o->file},
                   {"ids", &o->ids},
                   {"system", &o->system},
                   {"out", &o->out},
                   {"chat-template", &o->chat_template},
                   {"ref", &o->ref},
                   {"dump", &o->dump},
                   {"dump-ref", &o->dump_ref},
                   {"faults", &o->faults},
                   {"preset", &o->preset},
                   {"default-type", &o->type_default},
                   {"pack", &o->pack},
                   {"reasoning-effort", &o->effort},
                   {"trace", &o->trace},
                   {"profile", &o->profile},
                   {"draft-model", &o->draft_model}};
    for (size_t i = 0; i < sizeof switches / sizeof switches[0]; i++) {
        if (is(f, switches[i].name)) {
            *switches[i].on = true;
            return true;
        }
    }
    for (size_t i = 0; i < sizeof strings / sizeof strings[0]; i++) {
        if (is(f, strings[i].name)) {
            *strings[i].to = text;
            return true;
        }
    }
    return false;
}

static int set_sampling(const flag *f, const value *v, cli_options *o) {
    rg_sampling_params *s = &o->sampling;
    if (is(f, "temp")) return parse_float(v, &s->temperature);
    if (is(f, "top-k")) return parse_int(v, 0, INT32_MAX, &s->top_k);
    if (is(f, "top-p")) return parse_float(v, &s->top_p);
    if (is(f, "min-p")) return parse_float(v, &s->min_p);
    if (is(f, "seed")) return parse_uint(v, UINT64_MAX, &s->seed);
    if (is(f, "repeat-penalty")) return parse_float(v, &s->repeat_penalty);
    if (is(f, "presence-penalty")) return parse_float(v, &s->presence_penalty);
    if (is(f, "frequency-penalty")) return parse_float(v, &s->frequency_penalty);
    if (is(f, "penalty-last-n")) return parse_int(v, -1, INT32_MAX, &s->penalty_last_n);
    return parse_bias(v, o);
}

static int parse_head(const value *v, bool *two_stage) {
    *two_stage = strcmp(v->text, "two-stage") == 0;
    if (*two_stage || strcmp(v->text, "full") == 0) return CLI_OK;
    return cli_usage(v->command, "--head %s: full or two-stage expected", v->text);
}

static int parse_toggle(const value *v, rg_toggle *out) {
    static const char *const words[] = {"auto", "on", "off"};
    int choice = 0;
    const int rc = parse_choice(v, words, 3, &choice);
    if (rc == CLI_OK) *out = (rg_toggle)choice;
    return rc;
}

static int parse_io(const value *v, cli_options *o) {
    static const char *const words[] = {"auto", "uring", "pread", "null"};
    int choice = 0;
    const int rc = parse_choice(v, words, 4, &choice);
    if (rc != CLI_OK) return rc;
    o->io_null = choice == 3;
    o->io = choice == 3 ? RG_IO_AUTO : (rg_io_backend)choice;
    return CLI_OK;
}

/* Benchmarks; false when the flag is none of them. */
static bool set_bench(const flag *f, const value *v, cli_options *o, int *rc) {
    if (f->group != 'b') return false;
    if (is(f, "n-prompt")) {
        *rc = parse_u32(v, INT32_MAX, &o->n_prompt);
    } else if (is(f, "n-gen")) {
        *rc = parse_u32(v, INT32_MAX, &o->n_gen);
    } else if (is(f, "reps")) {
        *rc = parse_u32(v, CLI_REPS_MAX, &o->reps);
    } else if (is(f, "seed")) {
        *rc = parse_uint(v, UINT64_MAX, &o->sampling.seed);
    } else if (is(f, "ceiling")) {
        *rc = parse_double(v, &o->ceiling_gb_s);
    } else if (is(f, "sweep")) {
        static const char *const ops[] = {"rows", "slots", "tiles", "experts", "all"};
        int choice = 0;
        *rc = parse_choice(v, ops, 5, &choice);
        o->sweep = *rc == CLI_OK ? ops[choice] : NULL;
    } else if (is(f, "ab")) {
        *rc = add_ab(v, o);
    }
    return true;
}

static int parse_gpu_arena(const value *v, rg_gpu_arena *out) {
    static const char *const words[RG_GPU_ARENA_COUNT] = {"auto", "mapped", "staged", "host"};
    int choice = 0;
    const int rc = parse_choice(v, words, RG_GPU_ARENA_COUNT, &choice);
    if (rc == CLI_OK) *out = (rg_gpu_arena)choice;
    return rc;
}

/* Memory and reads; false when the flag is none of them. */
static bool set_memory(const flag *f, const value *v, cli_options *o, int *rc) {
    if (is(f, "ram")) {
        *rc = parse_size(v, &o->ram);
    } else if (is(f, "arena")) {
        *rc = parse_size(v, &o->arena);
    } else if (is(f, "arena-experts")) {
        *rc = parse_u32(v, 1u << 20, &o->arena_experts);
    } else if (is(f, "io")) {
        *rc = parse_io(v, o);
    } else if (is(f, "direct")) {
        *rc = parse_toggle(v, &o->direct);
    } else if (is(f, "split")) {
        *rc = parse_toggle(v, &o->split);
    } else if (is(f, "head")) {
        *rc = parse_head(v, &o->two_stage_head);
    } else if (is(f, "gpu-arena")) {
        *rc = parse_gpu_arena(v, &o->gpu_arena);
    } else if (is(f, "lookahead")) {
        *rc = parse_lookahead(v, &o->lookahead);
    } else if (is(f, "io-depth")) {
        *rc = parse_u32(v, 256, &o->depth);
    } else {
        return false;
    }
    return true;
}

static int add_word(const value *v, const char **list, size_t max, size_t *n) {
    if (*n == max) {
        return cli_usage(v->command, "--%s is given more than %zu times", v->flag, max);
    }
    list[(*n)++] = v->text;
    return CLI_OK;
}

static int set_synth(const flag *f, const value *v, cli_options *o) {
    if (is(f, "set")) return add_word(v, o->sets, sizeof o->sets / sizeof *o->sets, &o->n_sets);
    if (is(f, "type")) {
        return add_word(v, o->types, sizeof o->types / sizeof *o->types, &o->n_types);
    }
    if (is(f, "seed")) return parse_uint(v, UINT64_MAX, &o->sampling.seed);
    if (is(f, "skew")) return parse_double(v, &o->skew);
    if (is(f, "correlation")) return parse_double(v, &o->correlation);
    if (is(f, "predictability")) return parse_double(v, &o->predictability);
    if (is(f, "split")) return parse_u32(v, 999, &o->split_files);
    return parse_int(v, 1, 256, &o->threads);
}

static int set_replay(const flag *f, const value *v, cli_options *o) {
    if (is(f, "arena-experts")) o->replay.slots = v->text;
    if (is(f, "policy")) o->replay.policies = v->text;
    if (is(f, "lookahead")) o->replay.lookaheads = v->text;
    if (is(f, "guard")) o->replay.guards = v->text;
    double *to = is(f, "drive-latency") ? &o->replay.latency_us
                 : is(f, "drive-rate")  ? &o->replay.gb_s
                 : is(f, "layer-us")    ? &o->replay.layer_us
                 : is(f, "row-us")      ? &o->replay.row_us
                                        : NULL;
    if (!to) return CLI_OK;
    const int rc = parse_double(v, to);
    return rc == CLI_OK && !(*to > 0 && *to <= 1e6) ? bad(v, "a number above 0 up to 1e6") : rc;
}

static int set_serve(const flag *f, const value *v, cli_options *o) {
    const struct {
        const char *name;
        const char **to;
    } texts[] = {{"host", &o->serve.host},
                 {"api-key", &o->serve.api_key},
                 {"cors", &o->serve.cors},
                 {"alias", &o->serve.alias},
                 {"cache-dir", &o->serve.cache_dir}};
    const struct {
        const char *name;
        uint32_t *to, max;
    } numbers[] = {
        {"port", &o->serve.port, 65535},          {"parallel", &o->serve.parallel, RG_BATCH_MAX},
        {"queue", &o->serve.queue, 4096},         {"grace", &o->serve.grace, 86400},
        {"heartbeat", &o->serve.heartbeat, 3600}, {"time-limit", &o->serve.time_limit, 864000}};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        if (!is(f, texts[i].name)) continue;
        *texts[i].to = v->text;
        return CLI_OK;
    }
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        if (is(f, numbers[i].name)) return parse_u32(v, numbers[i].max, numbers[i].to);
    }
    if (is(f, "snapshots")) return parse_size(v, &o->serve.snapshots);
    if (is(f, "cache-size")) return parse_size(v, &o->serve.cache_size);
    if (is(f, "ceiling")) return parse_double(v, &o->ceiling_gb_s);
    o->serve.insecure = true;
    return CLI_OK;
}

static int set_routing(const flag *f, const value *v, cli_options *o) {
    if (is(f, "moce-slots")) return parse_u32(v, 1u << 20, &o->moce_slots);
    const int rc = parse_float(v, &o->moce);
    return rc == CLI_OK && !(o->moce >= 0 && o->moce <= 1) ? bad(v, "a number in 0..1") : rc;
}

static int set_draft(const flag *f, const value *v, cli_options *o) {
    static const char *const modes[] = {"off", "mtp", "suffix", "auto"};
    static const char *const extents[] = {"global", "stream"};
    int choice = 0, rc = CLI_OK;
    if (is(f, "draft")) {
        rc = parse_choice(v, modes, 4, &choice);
        if (rc == CLI_OK) o->draft = (rg_draft_mode)choice;
    } else if (is(f, "draft-max")) {
        rc = parse_u32(v, RG_DRAFTS_MAX, &o->draft_max);
        if (rc == CLI_OK && !o->draft_max) rc = bad(v, "a whole number in 1..7");
    } else if (is(f, "mtp-hnorm")) {
        rc = parse_choice(v, extents, 2, &choice);
        o->mtp_stream_norm = choice == 1;
    }
    return rc;
}

/* Model-making commands. */
static int set_tools(const flag *f, const value *v, cli_options *o) {
    if (is(f, "type")) o->tools.type = v->text;
    if (is(f, "n-tokens")) return parse_u32(v, INT32_MAX, &o->n_predict);
    if (is(f, "dir")) o->tools.dir = v->text;
    if (is(f, "sha256")) o->tools.sha256 = v->text;
    if (is(f, "name")) o->tools.name = v->text;
    if (is(f, "no-mtp")) o->no_mtp = true;
    if (is(f, "imatrix")) o->tools.imatrix = v->text;
    if (is(f, "sensitivity")) o->tools.sensitivity = v->text;
    if (is(f, "list")) o->tools.list = true;
    if (is(f, "dry-run")) o->tools.dry_run = true;
    if (is(f, "target-bytes")) return parse_size(v, &o->tools.target_bytes);
    if (is(f, "split")) return parse_u32(v, 999, &o->split_files);
    if (is(f, "threads")) return parse_int(v, 1, 256, &o->threads);
    if (is(f, "overwrite")) o->overwrite = true;
    if (is(f, "tensor-type")) {
        return add_word(v, o->types, sizeof o->types / sizeof *o->types, &o->n_types);
    }
    return CLI_OK;
}

/* bench --kernels alone is a table of kernels; with a value it is what other commands take. */
static bool optional(const cli_command *c, const flag *f) {
    return is(f, "kernels") && strcmp(c->name, "bench") == 0;
}

static bool kernel_set_name(const char *word) {
    return word && (strcmp(word, "auto") == 0 || strcmp(word, "ref") == 0);
}

static int set_value(const flag *f, const value *v, cli_options *o) {
    static const char *const kernels[] = {"auto", "ref"}, *const kv[] = {"f16", "f32"};
    static const char *const backends[] = {"cpu", "vulkan", "auto"};
    int choice = 0, rc = CLI_OK;
    if (f->group == 'r') return set_replay(f, v, o);
    if (f->group == 'M') return set_routing(f, v, o);
    if (f->group == 'S') return set_serve(f, v, o);
    if (strchr("qwCOP", f->group)) return set_tools(f, v, o);
    if (set_plain(f, v->text, o)) return CLI_OK;
    if (f->group == 'D' || is(f, "mtp-hnorm")) return set_draft(f, v, o);
    if (f->group == 's') return set_sampling(f, v, o);
    if (f->group == 'k' && is(f, "top-k")) return parse_u32(v, CLI_TOP_AGREE_MAX, &o->top_agree);
    if (f->group == 'y') return set_synth(f, v, o);
    if (is(f, "model")) return add_model(v, o);
    if (set_bench(f, v, o, &rc)) return rc;
    if (set_memory(f, v, o, &rc)) return rc;
    if (is(f, "verbose")) {
        o->verbose++;
    } else if (is(f, "threads")) {
        rc = parse_int(v, 1, 256, &o->threads);
    } else if (is(f, "ctx")) {
        rc = parse_u32(v, INT32_MAX, &o->ctx);
    } else if (is(f, "chunk")) {
        rc = parse_u32(v, INT32_MAX, &o->chunk);
    } else if (is(f, "kernels") && !v->text[0] && optional(o->command, f)) {
        o->time_kernels = true;
    } else if (is(f, "kernels")) {
        rc = parse_choice(v, kernels, 2, &choice);
        o->kernels = choice ? RG_KERNELS_REF : RG_KERNELS_AUTO;
    } else if (is(f, "kv")) {
        rc = parse_choice(v, kv, 2, &choice);
        o->kv = choice ? RG_KV_F32 : RG_KV_F16;
    } else if (is(f, "backend")) {
        rc = parse_choice(v, backends, 3, &choice);
        o->gpu = choice >= 1;
        o->gpu_or_cpu = choice == 2;
        if (o->gpu) cli_find_gpu_cache(o);
    } else if (is(f, "device")) {
        rc = parse_int(v, 0, 63, &o->device);
    } else if (is(f, "n-predict")) {
        rc = parse_u32(v, INT32_MAX, &o->n_predict);
    } else if (is(f, "stop")) {
        rc = add_stop(v, o);
    } else if (is(f, "top")) {
        rc = parse_u32(v, 1000, &o->top);
    } else if (is(f, "decode") && f->arg) {
        rc = parse_u32(v, INT32_MAX, &o->decode);
    } else if (is(f, "decode")) {
        o->decode_ids = true;
    } else if (is(f, "dump-tol")) {
        rc = parse_double(v, &o->dump_tolerance);
    }
    return rc;
}

/* ---- parsing -------------------------------------------------------------------------------- */

static const flag *flag_of(const cli_command *c, int letter) {
    for (size_t i = 0; i < N_FLAGS; i++) {
        if (flags[i].letter == letter && accepts(c, &flags[i])) return &flags[i];
    }
    return NULL;
}

static int reject(const cli_command *c, int got, int optopt_value, const char *word) {
    if (got == ':') return cli_usage(c->name, "%s needs a value", word);
    if (optopt_value && flag_of(c, optopt_value)) {
        return cli_usage(c->name, "%s takes no value", word);
    }
    return cli_usage(c->name, "unknown option %s (see regolith %s --help)", word, c->name);
}

int cli_parse(const cli_command *c, int argc, char **argv, cli_options *o, bool *help) {
    struct option longs[N_FLAGS + 1] = {{0}};
    const flag *by_long[N_FLAGS];
    char shorts[2 * N_FLAGS + 2] = ":";
    int n = 0;
    for (size_t i = 0; i < N_FLAGS; i++) {
        const flag *f = &flags[i];
        if (!accepts(c, f)) continue;
        longs[n].name = f->name;
        longs[n].has_arg = !f->arg          ? no_argument
                           : optional(c, f) ? optional_argument
                                            : required_argument;
        longs[n].val = 0;
        by_long[n++] = f;
        if (!f->letter) continue;
        const size_t len = strlen(shorts);
        shorts[len] = f->letter;
        if (f->arg) shorts[len + 1] = ':';
    }
    *o = (cli_options){.command = c,
                       .device = -1,
                       .sampling = rg_sampling_defaults(),
                       .n_prompt = 512,
                       .n_gen = 64,
                       .reps = 3,
                       .serve = {.port = 8080, .snapshots = (uint64_t)256 << 20},
                       .skew = -1,
                       .correlation = -1,
                       .predictability = -1};
    *help = false;
    opterr = 0;
    optind = 1;
    for (;;) {
        int index = 0;
        const int at = optind;
        const int got = getopt_long(argc, argv, shorts, longs, &index);
        if (got == -1) break;
        if (got == '?' || got == ':') {
            return reject(c, got, optopt, argv[at < argc ? at : argc - 1]);
        }
        const flag *f = got == 0 ? by_long[index] : flag_of(c, got);
        if (!f) return reject(c, got, 0, argv[at < argc ? at : argc - 1]);
        if (f->group == 'h') {
            *help = true;
            return CLI_OK;
        }
        if (optional(c, f) && !optarg && kernel_set_name(argv[optind])) optarg = argv[optind++];
        const value v = {c->name, f->name, optarg ? optarg : ""};
        const int rc = set_value(f, &v, o);
        if (rc != CLI_OK) return rc;
    }
    o->args = argv + optind;
    o->n_args = argc - optind;
    o->sampling.logit_bias = o->bias;
    if (o->n_args > c->max_args) {
        return cli_usage(c->name, "unexpected word %s", o->args[c->max_args]);
    }
    return CLI_OK;
}

int cli_set_flag(cli_options *o, const char *name, const char *text) {
    const flag *f = NULL;
    for (size_t i = 0; i < N_FLAGS && !f; i++) {
        if (strcmp(flags[i].name, name) == 0 && accepts(o->command, &flags[i])) f = &flags[i];
    }
    if (!f || f->group == 'h') {
        return cli_usage(o->command->name, "--%s is no option of this command", name);
    }
    const value v = {o->command->name, f->name, text};
    if (f->arg) return set_value(f, &v, o);
    if (strcmp(text, "on") == 0) return set_value(f, &v, o);
    return strcmp(text, "off") == 0 ? CLI_OK : bad(&v, "on or off");
}

void cli_each_flag(const cli_command *c, void (*see)(void *user, const cli_flag_facts *f),
                   void *user) {
    for (size_t i = 0; i < N_FLAGS; i++) {
        const flag *f = &flags[i];
        const cli_flag_facts facts = {f->letter, f->name, f->arg, f->help};
        if (accepts(c, f)) see(user, &facts);
    }
}

/* In lines of at most 78 columns. */
static void print_details(const char *command) {
    const char *text = cli_details(command);
    size_t column = 0;
    if (!text) return;
    while (*text) {
        const size_t n = strcspn(text, " ");
        if (column && column + 1 + n > 78) {
            putchar('\n');
            column = 0;
        }
        column += (size_t)printf("%s%.*s", column ? " " : "", (int)n, text);
        text += n + strspn(text + n, " ");
    }
    printf("\n\n");
}

void cli_print_help(const cli_command *c) {
    printf("regolith %s %s\n\n%s\n\n", c->name, c->usage, c->summary);
    print_details(c->name);
    for (size_t i = 0; i < N_FLAGS; i++) {
        const flag *f = &flags[i];
        if (!accepts(c, f) || !f->help) continue;
        char left[64];
        if (f->letter) {
            snprintf(left, sizeof left, "-%c, --%s %s", f->letter, f->name, f->arg ? f->arg : "");
        } else {
            snprintf(left, sizeof left, "    --%s %s", f->name, f->arg ? f->arg : "");
        }
        printf("  %-32s %s\n", left, f->help);
    }
}
