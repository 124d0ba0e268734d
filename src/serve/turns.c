/* turns: the engine thread's loop body. Jobs take sessions; each round runs one window.
 *
 * Life of a job in a slot:
 *
 *   queued --take--> evaluating --(all tokens evaluated)--> picking --> evaluating ...
 *                        |                                     |
 *                        +---- client left, failure -----------+--> done
 *
 * A window holds the one next row of every reply under way and a chunk of one prompt, in turn. So
 * each expert that is read serves all of them, no prompt keeps replies waiting for longer than a
 * chunk, and by the charter nobody's bits change. A shared window that fails is taken back: its
 * jobs start again from their last kept state, each in windows of its own, so that only those fail
 * that would fail alone.
 */
#include <string.h>

#include "serve/disk.h"
#include "serve/server.h"

#define CHUNK_SHARED 256u /* rows of a prompt while replies wait for the window */
#define LIVE_NS      100000000u
#define RATE_NS      2000000000u
#define MARKER_MAX   8u

typedef struct slot {
    rg_job *job;  /* NULL: idle */
    int32_t *ids; /* [n_ctx] prompt and reply */
    uint32_t n_ids;
    uint32_t first, turn; /* where the first and the last user turn begin; 0: nowhere */
    bool alone;           /* a shared window failed */
    bool routed;          /* cache-aware routing is on */
    /* What the last picks came to, until the window is closed. */
    rg_ending ending;
    rg_code broken;
    rg_status why;
    uint32_t unsaved; /* tokens of the prompt whose reply is not on disk yet; 0: nothing to save */
} slot;

struct rg_turns {
    rg_server *server;
    rg_prefix *prefix;
    rg_vault *vault; /* NULL: none */
    slot slots[RG_SERVE_SESSIONS_MAX];
    uint32_t n_slot;
    uint32_t next_prefill;      /* whose prompt has the next chunk */
    int32_t *rows;              /* [chunk] ids of a window */
    int32_t marker[MARKER_MAX]; /* what begins a user turn */
    uint32_t n_marker;
    rg_live now; /* counters; its arrays are the server's */
    uint64_t shown_ns, rate_ns;
    uint64_t rate_made, rate_prompt;
    uint64_t prompt_rows; /* evaluated */
};

/* ---- disk ----------------------------------------------------------------------------------- */

/* Saves one idle session that is not on disk yet; false when there is none. */
static bool save_one(rg_turns *t) {
    for (uint32_t i = 0; i < t->n_slot; i++) {
        slot *s = &t->slots[i];
        if (s->job || !s->unsaved) continue;
        const rg_disk_marks marks = {.prompt = s->unsaved, .turn = s->turn, .first = s->first};
        rg_disk_save(t->vault, t->prefix, i, &marks);
        s->unsaved = 0;
        return true;
    }
    return false;
}

/* ---- jobs in and out ------------------------------------------------------------------------ */

/* States of tokens that cache-aware routing made serve no other reply: the session goes back. */
static void release(rg_turns *t, uint32_t i) {
    slot *s = &t->slots[i];
    if (s->routed) rg_prefix_restore(t->prefix, i, s->ids, s->job->n_ids);
    s->routed = false;
    rg_job_destroy(s->job);
    s->job = NULL;
}

static void fail(rg_turns *t, uint32_t i, int http, const char *message) {
    rg_job_fail(t->slots[i].job, http, message);
    t->now.jobs_failed++;
    release(t, i);
}

static void find_turns(const rg_turns *t, const rg_job *job, slot *s) {
    const size_t m = t->n_marker;
    s->first = s->turn = 0;
    if (!job->chat || m == 0) return;
    for (size_t i = 0; i + m <= job->n_ids; i++) {
        if (memcmp(job->ids + i, t->marker, m * sizeof *job->ids) != 0) continue;
        s->turn = (uint32_t)i;
        if (!s->first) s->first = s->turn;
    }
}

static rg_job *next_job(rg_server *s) {
    pthread_mutex_lock(&s->job_lock);
    rg_job *job = s->jobs;
    if (job) {
        s->jobs = job->next;
        if (!s->jobs) s->last_job = NULL;
        s->n_jobs--;
        job->next = NULL;
    }
    pthread_mutex_unlock(&s->job_lock);
    return job;
}

/* Clients that left while their jobs wait make room in the queue. */
static void sweep_queue(rg_turns *t) {
    rg_server *s = t->server;
    rg_job *gone = NULL;
    pthread_mutex_lock(&s->job_lock);
    s->last_job = NULL;
    for (rg_job **at = &s->jobs; *at;) {
        rg_job *job = *at;
        if (rg_pipe_left(job->pipe)) {
            *at = job->next;
            job->next = gone;
            gone = job;
            s->n_jobs--;
        } else {
            s->last_job = job;
            at = &job->next;
        }
    }
    t->now.n_queued = (uint32_t)s->n_jobs;
    pthread_mutex_unlock(&s->job_lock);
    while (gone) {
        rg_job *next = gone->next;
        rg_job_destroy(gone);
        gone = next;
        t->now.jobs_left++;
    }
}

static rg_code on_part(void *job, const rg_part *part, rg_status *st) {
    return rg_job_part(job, part, st);
}

/* How many of the best logits the job's picks look at; 0: all, as a guide may forbid any token. */
static uint32_t best_of(const rg_job *job) {
    return job->guide ? 0 : rg_reply_best(job->reply);
}

static void take(rg_turns *t, rg_job *job) {
    bool busy[RG_SERVE_SESSIONS_MAX];
    for (uint32_t i = 0; i < t->n_slot; i++)
        busy[i] = t->slots[i].job != NULL;
    uint32_t cached = 0;
    /* One of the idle sessions may change: none may lose what is not on disk. */
    while (t->vault && save_one(t))
        continue;
    const rg_prefix_wish wish = {.ids = job->ids, .n = job->n_ids, .n_best = best_of(job)};
    const uint32_t i = rg_prefix_choose(t->prefix, &wish, busy, &cached);
    cached = rg_disk_load(t->vault, t->prefix, i, job->ids, job->n_ids, cached);
    slot *s = &t->slots[i];
    memcpy(s->ids, job->ids, job->n_ids * sizeof *job->ids);
    s->n_ids = (uint32_t)job->n_ids;
    find_turns(t, job, s);
    s->alone = s->routed = false;
    s->ending = RG_ENDING_NONE;
    s->broken = RG_OK;
    s->why = (rg_status){0};
    s->job = job;
    job->n_cached = cached;
    t->now.prompt_tokens += job->n_ids;
    t->now.cached_tokens += cached;
    const bool tools = json_array_size(job->tools) && job->choice != RG_CHOICE_NONE;
    rg_split_init(&job->split, job->thinking, tools ? job->tools : NULL, on_part, job);
}

static void take_jobs(rg_turns *t) {
    uint32_t idle = 0;
    for (uint32_t i = 0; i < t->n_slot; i++)
        idle += t->slots[i].job == NULL;
    while (idle) {
        rg_job *job = next_job(t->server);
        if (!job) return;
        if (rg_pipe_left(job->pipe)) {
            rg_job_destroy(job);
            t->now.jobs_left++;
            continue;
        }
        take(t, job);
        idle--;
    }
}

/* ---- replies -------------------------------------------------------------------------------- */

static rg_code give_text(rg_job *job, rg_str text, rg_status *st) {
    if (text.len == 0) return RG_OK;
    if (job->chat) return rg_split_push(&job->split, text.data, text.len, st);
    return rg_job_part(job, &(rg_part){RG_PART_ANSWER, 0, text}, st);
}

static rg_code end_reply(rg_turns *t, uint32_t i, rg_ending ending, rg_status *st) {
    slot *s = &t->slots[i];
    rg_job *job = s->job;
    rg_str rest;
    RG_TRY(rg_reply_finish(job->reply, &rest, st));
    RG_TRY(give_text(job, rest, st));
    if (job->chat) RG_TRY(rg_split_finish(&job->split, st));
    job->ending = ending == RG_ENDING_STOP && job->n_calls ? RG_ENDING_CALLS : ending;
    rg_session_moce_receipt(rg_prefix_session(t->prefix, i), &job->receipt);
    RG_TRY(rg_job_finish(job, st));
    if (!s->routed) rg_prefix_keep(t->prefix, i);
    s->unsaved = t->vault ? (uint32_t)job->n_ids : 0;
    t->now.jobs_done++;
    release(t, i);
    return RG_OK;
}

/* One token; s->ending tells when it was the last. */
static rg_code pick_one(rg_turns *t, uint32_t i, int32_t *id, rg_status *st) {
    slot *s = &t->slots[i];
    rg_job *job = s->job;
    const uint8_t *allowed = NULL;
    rg_reply_step step;
    if (job->guide) RG_TRY(rg_guide_allowed(job->guide, &allowed, st));
    RG_TRY(rg_reply_pick(job->reply, rg_prefix_session(t->prefix, i), allowed, &step, st));
    if (job->guide) RG_TRY(rg_guide_accept(job->guide, step.id, st));
    if (!job->first_ns) job->first_ns = rg_now_ns();
    job->n_made++;
    job->n_reasoning += job->chat && job->split.state == RG_SPLIT_THINK;
    t->now.made_tokens++;
    if (job->options.logprobs && !step.end) RG_TRY(rg_job_logprob(job, &step, st));
    RG_TRY(give_text(job, step.text, st));
    *id = step.id;
    if (step.end) {
        s->ending = RG_ENDING_STOP;
    } else if (step.stopped) {
        job->stop_hit = (rg_str){job->stops[step.stop], strlen(job->stops[step.stop])};
        s->ending = RG_ENDING_SEQUENCE;
    } else {
        s->ids[s->n_ids++] = step.id;
        const bool full = s->n_ids > t->server->opt.n_ctx;
        if (full || (job->n_predict && job->n_made >= job->n_predict)) {
            s->ending = RG_ENDING_LENGTH;
        }
    }
    return RG_OK;
}

/* The token behind the last row; in an open window also those that were guessed rightly. */
static void pick(rg_turns *t, uint32_t i) {
    slot *s = &t->slots[i];
    rg_session *session = rg_prefix_session(t->prefix, i);
    int32_t id = -1;
    do {
        s->broken = pick_one(t, i, &id, &s->why);
    } while (s->broken == RG_OK && !s->ending && rg_session_follow(session, id));
}

/* Ends the reply if its last picks did. */
static void settle(rg_turns *t, uint32_t i) {
    slot *s = &t->slots[i];
    rg_code rc = s->broken;
    if (rc == RG_OK && s->ending) rc = end_reply(t, i, s->ending, &s->why);
    if (rc != RG_OK) fail(t, i, rg_http_status(rc), s->why.message);
}

static uint32_t rest_of(rg_turns *t, uint32_t i) {
    return t->slots[i].n_ids - rg_session_length(rg_prefix_session(t->prefix, i));
}

/* Everything that is evaluated to its end gets its next token. */
static void pick_all(rg_turns *t) {
    for (uint32_t i = 0; i < t->n_slot; i++) {
        if (!t->slots[i].job || rest_of(t, i)) continue;
        pick(t, i);
        settle(t, i);
    }
}

static void check_clients(rg_turns *t, bool cut) {
    const uint64_t limit_ns = (uint64_t)t->server->opt.time_limit_s * 1000000000u;
    for (uint32_t i = 0; i < t->n_slot; i++) {
        rg_job *job = t->slots[i].job;
        if (!job) continue;
        if (rg_pipe_left(job->pipe)) {
            t->now.jobs_left++;
            release(t, i);
        } else if (cut) {
            fail(t, i, 503, "the server is ending");
        } else if (limit_ns && rg_now_ns() - job->begin_ns > limit_ns) {
            fail(t, i, 504, "the time limit of a reply is over");
        }
    }
}

/* ---- windows -------------------------------------------------------------------------------- */

typedef struct window {
    rg_batch_part parts[RG_SERVE_SESSIONS_MAX];
    uint32_t slots[RG_SERVE_SESSIONS_MAX];
    uint32_t n_part, n_row;
} window;

/* Drafts stand behind the one next row of a reply. */
static void add_part(rg_turns *t, window *w, uint32_t i, uint32_t n) {
    rg_session *session = rg_prefix_session(t->prefix, i);
    const slot *s = &t->slots[i];
    const rg_job *job = s->job;
    const uint32_t from = rg_session_length(session);
    memcpy(t->rows + w->n_row, s->ids + from, n * sizeof *t->rows);
    rg_batch_part *part = &w->parts[w->n_part];
    *part = (rg_batch_part){
        .session = session, .n_ids = n, .want_logits = true, .n_best = best_of(job)};
    if (n == 1 && from >= job->n_ids && from + 1 == s->n_ids && !s->alone) {
        part->reply = job->reply;
        part->n_more = job->n_predict ? job->n_predict - job->n_made - 1 : UINT32_MAX;
    }
    if (from < job->n_ids) t->prompt_rows += n;
    w->slots[w->n_part++] = i;
    w->n_row += n;
}

/* Rows that slot i may put into a window with room for `room`. */
static uint32_t rows_of(rg_turns *t, uint32_t i, uint32_t room) {
    const rg_session *session = rg_prefix_session(t->prefix, i);
    const slot *s = &t->slots[i];
    const uint32_t from = rg_session_length(session), n_prompt = (uint32_t)s->job->n_ids;
    uint32_t to = rg_prefix_next(t->prefix, from, s->n_ids, s->turn);
    if (s->job->moce > 0 && from < n_prompt && to > n_prompt) to = n_prompt;
    return rg_session_window_rows(session, to - from < room ? to - from : room);
}

/* Cache-aware routing begins with the first generated token, also when it is evaluated again. */
static void begin_routing(rg_turns *t) {
    for (uint32_t i = 0; i < t->n_slot; i++) {
        slot *s = &t->slots[i];
        if (!s->job || s->routed || !(s->job->moce > 0) || rest_of(t, i) == 0) continue;
        rg_session *session = rg_prefix_session(t->prefix, i);
        if (rg_session_length(session) != s->job->n_ids) continue;
        rg_status st = {0};
        const rg_code rc = rg_session_moce(session, s->job->moce, t->server->opt.moce_slots, &st);
        if (rc != RG_OK) fail(t, i, rg_http_status(rc), st.message);
        s->routed = rc == RG_OK;
    }
}

/* Whoever must run alone does, one window each time it is met. */
static bool fill_alone(rg_turns *t, window *w) {
    for (uint32_t k = 0; k < t->n_slot; k++) {
        const uint32_t i = (t->next_prefill + k) % t->n_slot;
        if (!t->slots[i].job || !t->slots[i].alone || rest_of(t, i) == 0) continue;
        t->next_prefill = (i + 1) % t->n_slot;
        add_part(t, w, i, rows_of(t, i, t->server->info.chunk));
        return true;
    }
    return false;
}

static void fill(rg_turns *t, window *w) {
    const uint32_t chunk = t->server->info.chunk;
    *w = (window){0};
    if (fill_alone(t, w)) return;
    for (uint32_t i = 0; i < t->n_slot && w->n_row < chunk; i++) {
        if (t->slots[i].job && rest_of(t, i) == 1) add_part(t, w, i, 1);
    }
    uint32_t room = chunk - w->n_row;
    if (w->n_part && room > CHUNK_SHARED) room = CHUNK_SHARED;
    for (uint32_t k = 0; k < t->n_slot && room; k++) {
        const uint32_t i = (t->next_prefill + k) % t->n_slot;
        if (!t->slots[i].job || rest_of(t, i) <= 1) continue;
        t->next_prefill = (i + 1) % t->n_slot;
        add_part(t, w, i, rows_of(t, i, room));
        return;
    }
}

/* A state worth keeping: the end of the prompt, the start of the last user turn, the grid. */
static void keep(rg_turns *t, uint32_t i) {
    const slot *s = &t->slots[i];
    const uint32_t length = rg_session_length(rg_prefix_session(t->prefix, i));
    if (length > s->job->n_ids) return;
    if (length == s->job->n_ids || length == s->turn || length % RG_PREFIX_GRID == 0) {
        rg_prefix_keep(t->prefix, i);
    }
}

static void take_back(rg_turns *t, const window *w, rg_code rc, const char *why) {
    for (uint32_t k = 0; k < w->n_part; k++) {
        const uint32_t i = w->slots[k];
        slot *s = &t->slots[i];
        rg_prefix_restore(t->prefix, i, s->ids, s->routed ? s->job->n_ids : s->n_ids);
        s->routed = false;
        if (s->ending || s->broken) {
            settle(t, i);
        } else if (w->n_part == 1) {
            fail(t, i, rg_http_status(rc), why);
        } else {
            s->alone = true;
        }
    }
    rg_log(RG_LOG_WARN, "a window of %u requests failed: %s", w->n_part, why);
}

static void run(rg_turns *t, const window *w) {
    rg_status st = {0};
    rg_engine *engine = t->server->engine;
    rg_code rc = rg_session_eval_batch(engine, w->parts, w->n_part, t->rows, NULL, &st);
    t->now.windows++;
    t->now.window_rows += w->n_row;
    for (uint32_t k = 0; k < w->n_part && rc == RG_OK; k++) {
        if (rg_session_is_open(w->parts[k].session)) pick(t, w->slots[k]);
    }
    if (rc == RG_OK) rc = rg_session_close_batch(engine, w->parts, w->n_part, &st);
    if (rc != RG_OK) {
        take_back(t, w, rc, st.message);
        return;
    }
    for (uint32_t k = 0; k < w->n_part; k++) {
        keep(t, w->slots[k]);
        settle(t, w->slots[k]);
    }
}

/* ---- watching ------------------------------------------------------------------------------- */

static void show(rg_turns *t, bool idle) {
    rg_server *s = t->server;
    const uint64_t now = rg_now_ns();
    if (now - t->shown_ns < LIVE_NS) return;
    t->shown_ns = now;
    t->now.n_active = t->now.n_prefill = 0;
    for (uint32_t i = 0; i < t->n_slot; i++) {
        t->now.n_active += t->slots[i].job != NULL;
        t->now.n_prefill += t->slots[i].job && rest_of(t, i) > 1;
    }
    if (now - t->rate_ns >= RATE_NS) {
        const double seconds = (double)(now - t->rate_ns) * 1e-9;
        rg_live *l = &t->now;
        l->decode_tok_s = (double)(l->made_tokens - t->rate_made) / seconds;
        l->prefill_tok_s = (double)(t->prompt_rows - t->rate_prompt) / seconds;
        t->rate_made = l->made_tokens;
        t->rate_prompt = t->prompt_rows;
        t->rate_ns = now;
    }
    t->now.snapshots = rg_prefix_count(t->prefix);
    t->now.snapshot_bytes = rg_prefix_bytes(t->prefix);
    rg_vault_meters disk = {0};
    if (t->vault) rg_vault_get_meters(t->vault, &disk);
    t->now.disk_hits = disk.hits;
    t->now.disk_writes = disk.writes;
    rg_engine_get_meters(s->engine, &t->now.meters);
    pthread_mutex_lock(&s->live_lock);
    rg_live *l = &s->live;
    t->now.resident = l->resident;
    t->now.uses = l->uses;
    t->now.before = l->before;
    t->now.n_experts = l->n_experts;
    t->now.info = l->info;
    *l = t->now;
    if (!idle) rg_engine_get_experts(s->engine, l->resident, l->uses, l->n_experts);
    pthread_mutex_unlock(&s->live_lock);
}

/* ---- a round -------------------------------------------------------------------------------- */

bool rg_turns_idle(const rg_turns *t) {
    for (uint32_t i = 0; i < t->n_slot; i++) {
        if (t->slots[i].job) return false;
    }
    rg_server *s = t->server;
    pthread_mutex_lock(&s->job_lock);
    const bool none = s->jobs == NULL;
    pthread_mutex_unlock(&s->job_lock);
    return none;
}

bool rg_turns_round(rg_turns *t, bool cut) {
    sweep_queue(t);
    check_clients(t, cut);
    take_jobs(t);
    pick_all(t); /* a prompt that was evaluated before, to its end */
    begin_routing(t);
    window w;
    fill(t, &w);
    show(t, w.n_part == 0);
    if (w.n_part == 0) return t->vault && save_one(t);
    run(t, &w);
    pick_all(t);
    return true;
}

/* ---- creation ------------------------------------------------------------------------------- */

static rg_code find_marker(rg_turns *t, rg_status *st) {
    int32_t *ids = NULL;
    size_t n = 0;
    static const char text[] = "<|im_start|>user\n";
    RG_TRY(rg_engine_tokenize(t->server->engine, text, sizeof text - 1, true, &ids, &n, st));
    if (n <= MARKER_MAX) {
        memcpy(t->marker, ids, n * sizeof *ids);
        t->n_marker = (uint32_t)n;
    }
    rg_release(ids);
    return RG_OK;
}

static rg_code create_parts(rg_turns *t, rg_status *st) {
    rg_server *s = t->server;
    const rg_session_options so = {.n_ctx = s->opt.n_ctx,
                                   .kv = s->opt.kv,
                                   .draft = s->opt.draft,
                                   .draft_max = s->opt.draft_max,
                                   .draft_fixed = s->opt.draft_fixed};
    RG_TRY(
        rg_prefix_create(&t->prefix, s->engine, s->opt.n_session, &so, s->opt.snapshot_bytes, st));
    s->opt.n_ctx = rg_session_capacity(rg_prefix_session(t->prefix, 0));
    t->n_slot = s->opt.n_session;
    t->rows = rg_alloc(s->info.chunk, sizeof *t->rows, st);
    if (!t->rows) return RG_NOMEM;
    for (uint32_t i = 0; i < t->n_slot; i++) {
        t->slots[i].ids = rg_alloc(s->opt.n_ctx + 1, sizeof(int32_t), st);
        if (!t->slots[i].ids) return RG_NOMEM;
    }
    RG_TRY(rg_disk_open(&t->vault, s->opt.cache_dir, s->opt.cache_bytes,
                        rg_prefix_session(t->prefix, 0), st));
    return find_marker(t, st);
}

void rg_turns_destroy(rg_turns *t) {
    if (!t) return;
    while (t->prefix && save_one(t))
        continue;
    rg_vault_close(t->vault);
    for (uint32_t i = 0; i < t->n_slot; i++) {
        rg_job_destroy(t->slots[i].job);
        rg_free(t->slots[i].ids);
    }
    rg_prefix_destroy(t->prefix);
    rg_free(t->rows);
    rg_free(t);
}

rg_code rg_turns_create(rg_turns **out, rg_server *s, rg_status *st) {
    *out = NULL;
    rg_turns *t = rg_alloc(1, sizeof *t, st);
    if (!t) return RG_NOMEM;
    t->server = s;
    const rg_code rc = create_parts(t, st);
    if (rc != RG_OK) {
        rg_turns_destroy(t);
        return rc;
    }
    *out = t;
    return RG_OK;
}
