/* split: a reply's text taken apart as it comes: thinking, answer, tool calls.
 *
 * The qwen form (docs of the chat template):
 *
 *     reasoning </think> \n\n answer <tool_call>\n<function=NAME>\n
 *     <parameter=KEY>\nVALUE\n</parameter>\n ... </function>\n</tool_call>
 *
 * Text is held back only while it may be the beginning of a tag. The arguments of a call become a
 * JSON object, given in pieces: a string parameter as it is written, another when it is complete.
 * What looks like a call and is none is given as answer text.
 *
 *   THINK --</think>--> ANSWER --<tool_call>--> CALL --<function=..>--> PARAMS
 *   PARAMS --<parameter=..>--> VALUE --\n</parameter>--> PARAMS --</function>--> AFTER
 *   AFTER --</tool_call>--> ANSWER
 *
 * Owner: whoever holds the struct.
 */
#ifndef RG_SERVE_SPLIT_H
#define RG_SERVE_SPLIT_H

#include <jansson.h>

#include "base/base.h"

#define RG_SPLIT_NAME_MAX  128u
#define RG_SPLIT_CALLS_MAX 128u

typedef enum rg_part_kind {
    RG_PART_REASONING,  /* text */
    RG_PART_ANSWER,     /* text */
    RG_PART_CALL_BEGIN, /* text: the function's name */
    RG_PART_CALL_ARGS,  /* text: a piece of JSON */
    RG_PART_CALL_END
} rg_part_kind;

typedef struct rg_part {
    rg_part_kind kind;
    uint32_t call; /* index of the call, from 0 */
    rg_str text;
} rg_part;

typedef rg_code rg_part_fn(void *user, const rg_part *part, rg_status *st);

typedef enum rg_split_state {
    RG_SPLIT_THINK,
    RG_SPLIT_ANSWER,
    RG_SPLIT_CALL,
    RG_SPLIT_PARAMS,
    RG_SPLIT_VALUE,
    RG_SPLIT_AFTER
} rg_split_state;

typedef struct rg_split {
    rg_split_state state;
    const json_t *tools; /* array of {name, parameters}; NULL: calls are answer text. Borrowed */
    rg_part_fn *fn;
    void *user;
    rg_buf held;  /* not decided yet */
    rg_buf value; /* of a parameter that is no string */
    char name[RG_SPLIT_NAME_MAX];
    char key[RG_SPLIT_NAME_MAX];
    bool value_is_string, value_begun;
    bool answer_begun; /* white space in front of it is dropped */
    uint32_t n_call, n_param;
} rg_split;

void rg_split_init(rg_split *s, bool thinking, const json_t *tools, rg_part_fn *fn, void *user);
void rg_split_deinit(rg_split *s);
RG_MUST_CHECK rg_code rg_split_push(rg_split *s, const char *text, size_t len, rg_status *st);
/* The end of the reply: gives what is held; an open call is closed so that its arguments are whole
 * JSON. */
RG_MUST_CHECK rg_code rg_split_finish(rg_split *s, rg_status *st);
/* Whether a parameter of a function is written as plain text. */
bool rg_tool_param_is_string(const json_t *tools, const char *function, const char *key);

#endif
