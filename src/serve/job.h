/* job: one reply to be made, from its request to its last byte.
 *
 * Made by the prepare thread, then handed to the engine thread, which owns it until it is done. The
 * pipe alone is shared. Texts point into `root`, the parsed request, or into scraps of the job.
 */
#ifndef RG_SERVE_JOB_H
#define RG_SERVE_JOB_H

#include <jansson.h>

#include "serve/field.h"
#include "serve/guide.h"
#include "serve/lexicon.h"
#include "serve/pipe.h"
#include "serve/serve.h"
#include "serve/split.h"

#define RG_MESSAGES_MAX 4096u
#define RG_TOOLS_MAX    256u
#define RG_STOPS_MAX    16u
#define RG_TOP_MAX      20u

typedef enum rg_ending {
    RG_ENDING_NONE,
    RG_ENDING_STOP,     /* the model ended it */
    RG_ENDING_SEQUENCE, /* a stop string did */
    RG_ENDING_LENGTH,   /* tokens or context used up */
    RG_ENDING_CALLS,    /* the model ended it and calls tools */
    RG_ENDING_ERROR
} rg_ending;

typedef enum rg_tool_choice {
    RG_CHOICE_NONE,
    RG_CHOICE_AUTO,
    RG_CHOICE_REQUIRED,
    RG_CHOICE_NAMED
} rg_tool_choice;

typedef struct rg_made_call {
    rg_buf name, args;
    char id[32];
    bool done;
} rg_made_call;

typedef struct rg_job rg_job;

/* How a dialect speaks. Each appends text to `out`: events of a stream, or a whole body. */
typedef struct rg_dialect {
    rg_code (*begin)(rg_job *job, rg_buf *out, rg_status *st);
    rg_code (*part)(rg_job *job, const rg_part *part, rg_buf *out, rg_status *st);
    rg_code (*end)(rg_job *job, rg_buf *out, rg_status *st);
    rg_code (*body)(rg_job *job, rg_buf *out, rg_status *st);
    /* Something failed: in a stream that has begun, or as a body. */
    rg_code (*error)(int http, const char *message, bool in_stream, rg_buf *out, rg_status *st);
} rg_dialect;

extern const rg_dialect rg_dialect_chat, rg_dialect_text, rg_dialect_responses, rg_dialect_messages;

typedef struct rg_scrap {
    struct rg_scrap *next;
    max_align_t data[];
} rg_scrap;

struct rg_job {
    rg_job *next; /* in a queue */
    rg_pipe *pipe;
    const rg_dialect *dialect;
    json_t *root;
    json_t *any_object; /* own; of json_object */
    rg_scrap *scraps;

    /* what is asked */
    bool chat; /* messages under the template; else plain text */
    rg_message *messages;
    size_t n_messages;
    json_t *tools;      /* own: array of {name, parameters, [strict]} */
    rg_str *tool_texts; /* [array size] as the template shows them */
    rg_tool_choice choice;
    rg_str chosen; /* the named tool */
    bool one_call; /* no parallel calls */
    bool thinking;
    rg_str effort;
    const json_t *schema; /* of the answer; an empty object: any JSON object. NULL: free text */
    rg_reply_options options;
    const char *stops[RG_STOPS_MAX];
    uint32_t n_predict; /* 0 = as many as fit */
    bool stream, usage_in_stream;
    bool echo;
    float moce; /* cache-aware routing of the reply; 0 = off */
    int32_t *ids;
    size_t n_ids;

    /* what is made; engine thread */
    char id[48];
    int64_t created; /* seconds */
    const char *model_name;
    const rg_lexicon *lexicon;
    uint64_t begin_ns, first_ns;
    rg_split split;
    rg_reply *reply;
    rg_guide *guide; /* NULL: nothing is constrained */
    rg_buf reasoning, answer;
    rg_made_call *calls;
    size_t n_calls, cap_calls;
    rg_buf logprobs; /* JSON objects with commas, not sent yet (stream) or all (whole) */
    size_t n_logprobs;
    rg_buf text_offsets, token_texts, token_logprobs, top_logprobs; /* of /v1/completions */
    uint32_t n_made, n_reasoning, n_cached;
    rg_ending ending;
    rg_moce_receipt receipt;
    rg_str stop_hit;

    /* of the dialect */
    int block; /* index of the open block or item, -1 none yet */
    int block_kind;
    uint32_t sequence;
};

RG_MUST_CHECK rg_code rg_job_create(rg_job **out, rg_pipe *pipe, const rg_dialect *dialect,
                                    rg_status *st);
void rg_job_destroy(rg_job *job); /* drops the pipe; NULL is allowed */
/* Zeroed memory that lives as long as the job. */
void *rg_job_take(rg_job *job, size_t count, size_t size, rg_status *st);
RG_MUST_CHECK rg_code rg_job_copy(rg_job *job, const char *text, size_t len, rg_str *out,
                                  rg_status *st);
/* A part of the reply: remembered, and sent when the job streams. */
RG_MUST_CHECK rg_code rg_job_begin(rg_job *job, rg_status *st); /* the stream's first event */
RG_MUST_CHECK rg_code rg_job_part(rg_job *job, const rg_part *part, rg_status *st);
/* A token's log probabilities, remembered for the dialect. */
RG_MUST_CHECK rg_code rg_job_logprob(rg_job *job, const rg_reply_step *step, rg_status *st);
/* The reply is complete. */
RG_MUST_CHECK rg_code rg_job_finish(rg_job *job, rg_status *st);
/* It failed: an error in the dialect's form, also inside a stream. */
void rg_job_fail(rg_job *job, int http, const char *message);
/* "prefix" and 24 random letters into out. */
void rg_job_make_id(char *out, size_t cap, const char *prefix);

/* What cache-aware routing changed, as a member behind others of the usage; nothing without it or
 * before the end. */
RG_MUST_CHECK rg_code rg_put_receipt(const rg_job *job, rg_buf *out, rg_status *st);

/* An object with no keywords: any JSON object. Borrowed, for `schema`. */
const json_t *rg_job_any_object(rg_job *job);

/* ---- reading requests (prepare thread) ------------------------------------------------------ */

RG_MUST_CHECK rg_code rg_parse_chat(rg_job *job, const rg_serve_options *opt, rg_status *st);
RG_MUST_CHECK rg_code rg_parse_text(rg_job *job, const rg_engine *engine,
                                    const rg_serve_options *opt, rg_status *st);
RG_MUST_CHECK rg_code rg_parse_responses(rg_job *job, const rg_serve_options *opt, rg_status *st);
/* `count_only`: /v1/messages/count_tokens, where max_tokens may be absent. */
RG_MUST_CHECK rg_code rg_parse_messages(rg_job *job, const rg_serve_options *opt, bool count_only,
                                        rg_status *st);

/* Shared by the parsers. */
RG_MUST_CHECK rg_code rg_parse_sampling(rg_job *job, const rg_serve_options *opt, rg_status *st);
RG_MUST_CHECK rg_code rg_parse_stop(rg_job *job, const char *key, rg_status *st);
RG_MUST_CHECK rg_code rg_parse_stream(rg_job *job, rg_status *st);
/* One tool under its template form. */
RG_MUST_CHECK rg_code rg_add_tool(rg_job *job, const json_t *name, const json_t *description,
                                  const json_t *parameters, const json_t *strict, rg_status *st);
/* Arguments of a call in the history: a JSON object. */
RG_MUST_CHECK rg_code rg_read_call(rg_job *job, rg_tool_call *call, const json_t *name,
                                   const json_t *arguments, rg_status *st);
/* A string, or parts of type `text`, joined. */
RG_MUST_CHECK rg_code rg_read_content(rg_job *job, const json_t *content, const char *where,
                                      rg_str *out, rg_status *st);
RG_MUST_CHECK rg_code rg_read_effort(rg_job *job, rg_str effort, rg_status *st);
RG_MUST_CHECK rg_code rg_check_named_tool(const rg_job *job, rg_status *st);

#endif
