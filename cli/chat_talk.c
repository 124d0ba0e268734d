/* A conversation: turns, their rendering, and its file. */
#include <jansson.h>
#include <string.h>

#include "cli/chat_parts.h"
#include "forge/forge.h"

static rg_str str_of(const char *s) {
    return (rg_str){s ? s : "", s ? strlen(s) : 0};
}

rg_code chat_talk_init(chat_talk *t, rg_status *st) {
    *t = (chat_talk){.thinking = true};
    t->turns = rg_alloc(CHAT_TURNS_MAX, sizeof *t->turns, st);
    return t->turns ? RG_OK : RG_NOMEM;
}

void chat_cut(chat_talk *t, size_t n) {
    while (t->n > n) {
        t->n--;
        rg_free(t->turns[t->n].text);
        rg_free(t->turns[t->n].reasoning);
    }
}

void chat_talk_deinit(chat_talk *t) {
    chat_cut(t, 0);
    rg_free(t->turns);
    rg_free(t->system);
}

rg_code chat_add(chat_talk *t, rg_role role, const char *text, const char *reasoning,
                 rg_status *st) {
    if (t->n == CHAT_TURNS_MAX) {
        return rg_fail(st, RG_INVALID, "the conversation has %d turns, more are not possible",
                       CHAT_TURNS_MAX);
    }
    chat_turn turn = {.role = role, .text = rg_strndup(text, strlen(text), st)};
    if (!turn.text) return RG_NOMEM;
    if (reasoning && reasoning[0]) {
        turn.reasoning = rg_strndup(reasoning, strlen(reasoning), st);
        if (!turn.reasoning) {
            rg_free(turn.text);
            return RG_NOMEM;
        }
    }
    t->turns[t->n++] = turn;
    return RG_OK;
}

rg_code chat_set_system(chat_talk *t, const char *text, rg_status *st) {
    char *copy = NULL;
    if (text && text[0]) {
        copy = rg_strndup(text, strlen(text), st);
        if (!copy) return RG_NOMEM;
    }
    rg_free(t->system);
    t->system = copy;
    return RG_OK;
}

rg_code chat_prompt(const chat_talk *t, const rg_engine *engine, int32_t **ids, size_t *n,
                    rg_status *st) {
    rg_message *m = rg_alloc(t->n + 1, sizeof *m, st);
    if (!m) return RG_NOMEM;
    size_t count = 0;
    if (t->system) m[count++] = (rg_message){.role = RG_ROLE_SYSTEM, .content = str_of(t->system)};
    for (size_t i = 0; i < t->n; i++) {
        const chat_turn *turn = &t->turns[i];
        m[count++] = (rg_message){.role = turn->role,
                                  .content = str_of(turn->text),
                                  .reasoning = str_of(turn->reasoning),
                                  .has_reasoning = turn->reasoning != NULL};
    }
    const rg_chat_options o = {.add_generation_prompt = true,
                               .enable_thinking = t->thinking,
                               .preserve_thinking = true,
                               .reasoning_effort = str_of(t->effort)};
    char *text = NULL;
    size_t len = 0;
    rg_code rc = rg_engine_render_chat(engine, m, count, NULL, 0, &o, &text, &len, st);
    if (rc == RG_OK) rc = rg_engine_tokenize(engine, text, len, true, ids, n, st);
    rg_release(text);
    rg_free(m);
    return rc;
}

/* ---- file ----------------------------------------------------------------------------------- */

rg_code chat_save(const chat_talk *t, const char *path, rg_status *st) {
    json_t *messages = json_array();
    if (t->system) {
        json_array_append_new(messages,
                              json_pack("{s:s, s:s}", "role", "system", "content", t->system));
    }
    for (size_t i = 0; i < t->n; i++) {
        const chat_turn *turn = &t->turns[i];
        json_t *m =
            json_pack("{s:s, s:s}", "role", turn->role == RG_ROLE_USER ? "user" : "assistant",
                      "content", turn->text);
        if (m && turn->reasoning) {
            json_object_set_new(m, "reasoning_content", json_string(turn->reasoning));
        }
        json_array_append_new(messages, m);
    }
    json_t *root = json_pack("{s:o}", "messages", messages);
    const int failed = root ? json_dump_file(root, path, JSON_INDENT(2)) : -1;
    json_decref(root);
    return failed ? rg_fail(st, RG_IO, "%s could not be written", path) : RG_OK;
}

static rg_code load_message(chat_talk *to, const json_t *m, const char *path, rg_status *st) {
    const char *role = json_string_value(json_object_get(m, "role"));
    const char *text = json_string_value(json_object_get(m, "content"));
    if (role && text && strcmp(role, "system") == 0) return chat_set_system(to, text, st);
    const bool user = role && strcmp(role, "user") == 0;
    if (!text || (!user && !(role && strcmp(role, "assistant") == 0))) {
        return rg_fail(st, RG_FORMAT, "%s: message %zu has no role or text", path, to->n);
    }
    return chat_add(to, user ? RG_ROLE_USER : RG_ROLE_ASSISTANT, text,
                    json_string_value(json_object_get(m, "reasoning_content")), st);
}

rg_code chat_load(chat_talk *t, const char *path, rg_status *st) {
    json_error_t e;
    char *text = NULL;
    size_t len = 0;
    RG_TRY(cli_read_file(path, &text, &len, st));
    json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &e);
    rg_release(text);
    const json_t *messages = json_object_get(root, "messages");
    chat_talk fresh = {0};
    rg_code rc = chat_talk_init(&fresh, st);
    if (rc == RG_OK && !json_is_array(messages)) {
        rc = rg_fail(st, RG_FORMAT, "%s is no conversation: %s", path,
                     root ? "no messages" : e.text);
    }
    size_t i;
    json_t *m;
    json_array_foreach(messages, i, m) {
        if (rc == RG_OK) rc = load_message(&fresh, m, path, st);
    }
    json_decref(root);
    if (rc != RG_OK) {
        chat_talk_deinit(&fresh);
        return rc;
    }
    fresh.thinking = t->thinking;
    memcpy(fresh.effort, t->effort, sizeof fresh.effort);
    chat_talk_deinit(t);
    *t = fresh;
    return RG_OK;
}
