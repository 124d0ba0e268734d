/* Chat template families. Private to the room. A template object is immutable after creation. */
#ifndef RG_TEXT_CHAT_H
#define RG_TEXT_CHAT_H

#include "text/jinja_scan.h"

#define RG_CHAT_EFFORTS_MAX 8

/* What the qwen family leaves to the file (see chat_qwen.c). Texts lie in the scanned template or
 * are constants. */
typedef struct rg_chat_qwen {
    rg_str tools_head, tools_tail[2];

    rg_str effort_names[RG_CHAT_EFFORTS_MAX]; /* efforts that put a sentence in front */
    rg_str effort_texts[RG_CHAT_EFFORTS_MAX];
    size_t n_efforts;
    rg_str effort_default;
    rg_str effort_alias_from, effort_alias_to;
    rg_str effort_allowed[RG_CHAT_EFFORTS_MAX]; /* none: any word is taken */
    size_t n_effort_allowed;
    rg_str effort_error[2]; /* in front of the refused word, and behind it */
    bool effort_needs_thinking;

    bool split_inline;           /* <think> parts inside the content count as reasoning */
    bool split_strips_newlines;  /* ... and only newlines are stripped around the cut */
    bool reasoning_may_be_empty; /* given but empty reasoning still counts as given */
    bool has_preserve;           /* knows preserve_thinking */
    bool skip_wrapped_results;   /* a user turn that is one <tool_response> is no query */
    bool merge_system;           /* several leading system turns are joined */
    bool empty_system_turn;      /* an empty system message still makes a turn */
    bool first_tool_unopened;
    bool python_scalars; /* True, False, None in arguments */
    rg_str error_no_messages, error_no_user, error_system_first;
} rg_chat_qwen;

typedef struct rg_chatml {
    bool trim;
} rg_chatml;

typedef struct rg_conversation {
    const rg_message *messages;
    size_t n_messages;
    const rg_str *tools;
    size_t n_tools;
    const rg_chat_options *options;
} rg_conversation;

typedef struct rg_chat_family {
    const char *name;
    /* Whether the template is of this family. */
    bool (*matches)(const rg_jinja *j);
    /* Reads what the family leaves to the file; every text must do, since a family can be forced.
     */
    void (*read)(rg_chat_template *c);
    rg_code (*render)(const rg_chat_template *c, const rg_conversation *conv, rg_buf *out,
                      rg_status *st);
} rg_chat_family;

extern const rg_chat_family rg_chat_family_qwen;
extern const rg_chat_family rg_chat_family_chatml;

struct rg_chat_template {
    const rg_chat_family *family;
    rg_jinja jinja;
    union {
        rg_chat_qwen qwen;
        rg_chatml chatml;
    };
};

/* Python's str.strip(): Unicode white space at both ends. */
rg_str rg_chat_trim(rg_str s);
/* Strips '\n' alone. */
rg_str rg_chat_trim_newlines(rg_str s, bool left, bool right);

RG_MUST_CHECK rg_code rg_chat_put(rg_buf *out, rg_str s, rg_status *st);

#endif
