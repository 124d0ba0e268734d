/* The terminal chat's parts: the conversation, and the line editor. */
#ifndef RG_CLI_CHAT_H
#define RG_CLI_CHAT_H

#include "cli/cli.h"

#define CHAT_TURNS_MAX 4096
#define CHAT_LINE_MAX  65536

typedef struct chat_turn {
    rg_role role;
    char *text, *reasoning; /* own; reasoning may be NULL */
} chat_turn;

typedef struct chat_talk {
    chat_turn *turns; /* [CHAT_TURNS_MAX] */
    size_t n;
    char *system; /* own; NULL = none */
    bool thinking;
    char effort[32]; /* empty = the template's */
} chat_talk;

/* chat_talk.c */
rg_code chat_talk_init(chat_talk *t, rg_status *st);
void chat_talk_deinit(chat_talk *t);
/* Copies the texts. */
rg_code chat_add(chat_talk *t, rg_role role, const char *text, const char *reasoning,
                 rg_status *st);
/* Takes the last turns back, down to n. */
void chat_cut(chat_talk *t, size_t n);
rg_code chat_set_system(chat_talk *t, const char *text, rg_status *st);
/* Ids of the whole conversation with the head of the reply. Release with rg_release. */
rg_code chat_prompt(const chat_talk *t, const rg_engine *engine, int32_t **ids, size_t *n,
                    rg_status *st);
rg_code chat_save(const chat_talk *t, const char *path, rg_status *st);
/* Replaces the conversation; a file that does not fit leaves it as it was. */
rg_code chat_load(chat_talk *t, const char *path, rg_status *st);

/* chat_input.c */
typedef struct chat_input chat_input;
/* A line editor with history on a terminal; plain lines otherwise. */
rg_code chat_input_open(chat_input **out, rg_status *st);
void chat_input_close(chat_input *in);
/* The next message, its lines joined: a line that ends in a backslash goes on, and so do those
 * between two lines of three quotes. NULL at the end of the input. Valid until the next call. */
const char *chat_input_next(chat_input *in);

#endif
