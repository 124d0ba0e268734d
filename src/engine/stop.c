/* stop: one automaton of Knuth, Morris and Pratt (1977) for each stop string, stepped side by side.
 *
 * The bytes held back are not stored: they are the first n_held bytes of a stop string whose
 * n_matched equals n_held.
 *
 * Invariants of a state: n_matched[i] < length of string i; n_held = max n_matched; after a hit
 * n_held = 0. Threads: rg_stop is constant; a state belongs to one thread at a time.
 */
#include "engine/stop.h"

#include <string.h>

#include "base/base.h"

typedef struct stop_string {
    const char *text;
    const uint32_t *border; /* [len] border[j]: longest proper border of the first j + 1 bytes */
    uint32_t len;
} stop_string;

struct rg_stop {
    stop_string string[RG_STOP_STRINGS_MAX];
    size_t n;
    char *text;       /* all strings, end to end */
    uint32_t *border; /* beside text */
};

/* The state after byte `c` in state `at` < len. A result of len is a match. */
static uint32_t step(const stop_string *s, uint32_t at, char c) {
    while (at > 0 && s->text[at] != c)
        at = s->border[at - 1];
    return s->text[at] == c ? at + 1 : 0;
}

static rg_code check_strings(const char *const *strings, const size_t *len, size_t n, size_t *total,
                             rg_status *st) {
    *total = 0;
    if (n > RG_STOP_STRINGS_MAX) {
        return rg_fail(st, RG_INVALID, "%zu stop strings, at most %d are allowed", n,
                       RG_STOP_STRINGS_MAX);
    }
    for (size_t i = 0; i < n; i++) {
        const size_t bytes = len ? len[i] : strnlen(strings[i], RG_STOP_BYTES_MAX + 1);
        if (bytes == 0) return rg_fail(st, RG_INVALID, "stop string %zu of %zu is empty", i + 1, n);
        if (bytes > RG_STOP_BYTES_MAX) {
            return rg_fail(st, RG_INVALID, "stop string %zu has %zu bytes or more, at most %d",
                           i + 1, bytes, RG_STOP_BYTES_MAX);
        }
        *total += bytes;
    }
    return RG_OK;
}

rg_code rg_stop_create(rg_stop **out, const char *const *strings, const size_t *len, size_t n,
                       rg_status *st) {
    size_t total = 0;
    *out = NULL;
    RG_TRY(check_strings(strings, len, n, &total, st));
    rg_stop *m = rg_alloc(1, sizeof *m, st);
    if (!m) return RG_NOMEM;
    if (!(m->text = rg_alloc(total, 1, st)) ||
        !(m->border = rg_alloc(total, sizeof *m->border, st))) {
        rg_stop_destroy(m);
        return RG_NOMEM;
    }
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        const size_t bytes = len ? len[i] : strlen(strings[i]);
        memcpy(m->text + at, strings[i], bytes);
        stop_string *s = &m->string[i];
        *s = (stop_string){m->text + at, m->border + at, (uint32_t)bytes};
        for (size_t j = 1; j < bytes; j++) {
            m->border[at + j] = step(s, m->border[at + j - 1], s->text[j]);
        }
        at += bytes;
    }
    m->n = n;
    *out = m;
    return RG_OK;
}

void rg_stop_destroy(rg_stop *m) {
    if (!m) return;
    rg_free(m->text);
    rg_free(m->border);
    rg_free(m);
}

rg_stop_state rg_stop_begin(void) {
    return (rg_stop_state){.hit = -1};
}

static const char *held_text(const rg_stop *m, const rg_stop_state *state) {
    for (size_t i = 0; i < m->n; i++) {
        if (state->n_matched[i] == state->n_held) return m->string[i].text;
    }
    RG_ASSERT(state->n_held == 0);
    return "";
}

/* Steps every automaton by one byte. Returns the length of the stop string that ends here, or 0. */
static uint32_t step_all(const rg_stop *m, rg_stop_state *state, char c) {
    uint32_t found = 0;
    state->n_held = 0;
    for (size_t i = 0; i < m->n; i++) {
        const uint32_t to = step(&m->string[i], state->n_matched[i], c);
        state->n_matched[i] = to;
        if (to > state->n_held) state->n_held = to;
        if (to == m->string[i].len && to > found) {
            found = to;
            state->hit = (int32_t)i;
        }
    }
    return found;
}

static rg_code check_room(const rg_stop_state *state, size_t len, size_t cap, rg_status *st) {
    if (cap >= state->n_held && cap - state->n_held >= len) return RG_OK;
    return rg_fail(st, RG_INVALID, "stop: room for %zu bytes, %u held and %zu new", cap,
                   state->n_held, len);
}

rg_code rg_stop_feed(const rg_stop *m, rg_stop_state *state, const char *piece, size_t len,
                     char *out, size_t cap, size_t *n_out, rg_status *st) {
    *n_out = 0;
    if (state->hit >= 0) return RG_OK;
    RG_TRY(check_room(state, len, cap, st));
    const size_t n_held = state->n_held;
    if (n_held) memcpy(out, held_text(m, state), n_held);
    if (len) memcpy(out + n_held, piece, len);
    for (size_t i = 0; i < len; i++) {
        const uint32_t found = step_all(m, state, piece[i]);
        if (found == 0) continue;
        RG_ASSERT(found <= n_held + i + 1);
        *n_out = n_held + i + 1 - found;
        state->n_held = 0;
        memset(state->n_matched, 0, sizeof state->n_matched);
        return RG_OK;
    }
    RG_ASSERT(state->n_held <= n_held + len);
    *n_out = n_held + len - state->n_held;
    return RG_OK;
}

rg_code rg_stop_flush(const rg_stop *m, rg_stop_state *state, char *out, size_t cap, size_t *n_out,
                      rg_status *st) {
    *n_out = 0;
    RG_TRY(check_room(state, 0, cap, st));
    const size_t n_held = state->n_held;
    if (n_held) memcpy(out, held_text(m, state), n_held);
    *n_out = n_held;
    state->n_held = 0;
    memset(state->n_matched, 0, sizeof state->n_matched);
    return RG_OK;
}
