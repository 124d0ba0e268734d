/* api: what include/regolith.h promises, by joining engine and text. No logic of its own. */
#ifndef RG_API_ROOM_H
#define RG_API_ROOM_H

#include "engine/engine.h"
#include "text/text.h"

#define RG_CTX_DEFAULT 4096u

struct rg_vocab {
    rg_gguf *gguf;
    rg_tokenizer *tokenizer;
};

struct rg_engine {
    rg_vocab vocab;
    rg_model *model;
    rg_chat_template *chat; /* NULL: chat_status says why */
    rg_status chat_status;
    rg_pack *pack; /* NULL: experts stream from the model file, or not at all */
    rg_core *core;
    rg_cpu_level level;
    rg_plan plan;
    rg_kernel_set kernels;
    rg_seq_options planned; /* the session the plan makes room for */
    double load_ms;
    double host_ms;        /* of all sessions: sampling, text */
    double call_ms;        /* of all evaluations and generations */
    uint64_t window_ns;    /* of the open window; 0: with a prompt in it */
    uint64_t major_faults; /* when the engine was open */
};

struct rg_session {
    rg_engine *engine;
    rg_seq *seq;
    rg_seq_options options; /* of the sequence */
    rg_drafter *drafter;    /* NULL: one token at a time */
    float *logits;          /* [n_vocab] of the last evaluated token */
    rg_few few; /* the best of them alone, n > 0: `logits` are of an earlier token then */
    bool has_logits;
    int32_t pending; /* chosen, not evaluated; -1 = none */
    atomic_bool cancel;
    rg_dump *dump;    /* NULL = none */
    rg_buf raw, text; /* bytes of a token; whole characters */
    rg_buf shown;     /* behind the stop matcher */
    rg_session_stats stats;
    uint64_t first_ns; /* of the first eval, 0 before */
    /* An open part of a shared window (api_batch.c): its rows, their logits, the row that the next
     * pick is from. */
    rg_drafter_window open; /* open.n == 0: none */
    uint32_t open_at;
    const rg_reply *drafted; /* the reply that drafts were made for; compared, never followed */
};

/* Logits of the last evaluated token, a row that the core gave: all of them, or the few that are
 * there. */
void rg_session_take_logits(rg_session *s, const float *logits);
/* Whether a list has all that a pick looks at: rg_sampler_few of it, or 0. */
bool rg_few_has(const rg_few *few, uint32_t n_best, uint32_t n_vocab);
/* Evaluates the chosen token that the last generation left, if there is one. */
rg_code rg_session_eval_pending(rg_session *s, rg_status *st);

/* api_reply.c: draws as the reply would; NULL when it is greedy. */
rg_sampler *rg_reply_sampler(rg_reply *r);

/* api_draft.c: windows with drafts. The session has a drafter and a pending token. */
typedef struct rg_draft_call {
    rg_sampler *sampler;
    const rg_generate_options *opt;
    uint32_t n_left; /* tokens that may still be given */
} rg_draft_call;
bool rg_session_drafts(const rg_session *s);
rg_code rg_session_create_drafter(rg_session *s, const rg_session_options *opt, rg_status *st);
/* What the options ask of a sequence. */
void rg_session_draft_needs(rg_seq_options *seq, const rg_model *m, const rg_session_options *opt);
rg_code rg_session_draft(rg_session *s, const rg_draft_call *call, rg_drafter_window *win,
                         rg_status *st);
/* Ends the window with its first n_kept rows; the logits of the last of them become the session's.
 */
rg_code rg_session_keep(rg_session *s, const rg_drafter_window *win, uint32_t n_kept,
                        rg_status *st);

#endif
