/* governor: whether drafts pay, and how many.
 *
 * It knows from measurement what a window of T rows takes (waiting for the experts that its rows
 * pull included), what a draft of the draft block takes, and how often drafts are right: by source
 * and confidence. For each window it takes the length with the most expected tokens a second,
 * including none. When a source does not pay it is tried again ever more rarely. A window whose
 * experts did not fit the arena at once lowers the number of rows.
 *
 * Times decide how many drafts there are, never what the text is. Belongs to one thread.
 */
#ifndef RG_ENGINE_DRAFT_GOVERNOR_H
#define RG_ENGINE_DRAFT_GOVERNOR_H

#include "base/base.h"
#include "engine/draft.h"

#define RG_CONFIDENCES 8u

typedef struct rg_governor_options {
    uint32_t draft_max; /* 1..RG_DRAFT_MAX */
    bool mtp, suffix;   /* sources it may choose */
    bool fixed;         /* as many drafts as there are, always: for measurements */
} rg_governor_options;

/* How often drafts of one kind were right; old ones fade. */
typedef struct rg_hit_rate {
    double right, all;
} rg_hit_rate;

typedef struct rg_hit_rates {
    rg_hit_rate by_confidence[RG_SOURCE_COUNT][RG_CONFIDENCES];
    rg_hit_rate by_position[RG_SOURCE_COUNT][RG_DRAFT_MAX];
} rg_hit_rates;

/* What all sequences of an engine learn together. */
typedef struct rg_governor_memory {
    /* Windows of T rows: mean time, 0 = never seen; and how many were seen, up to a few. */
    double window_ns[RG_VERIFY_ROWS + 1];
    uint32_t n_window[RG_VERIFY_ROWS + 1];
    uint32_t learned;
    double slope; /* what a further row takes, of a plain window: mean of all lengths */
    double first_ns, chain_ns; /* of the first draft of the draft block, and of each further one */
    rg_hit_rates rates;
    uint32_t rows_max; /* lowered by unions that exceed the arena */
    uint32_t calm;     /* windows since rows_max changed */
    /* Windows without a source until it is tried again; grows while it does not pay. */
    uint32_t idle[RG_SOURCE_COUNT], patience[RG_SOURCE_COUNT];
    uint64_t seen[RG_SOURCE_COUNT]; /* drafts */
    uint32_t since_plain;           /* windows since one without drafts */
} rg_governor_memory;

typedef struct rg_governor {
    rg_governor_options opt;
    rg_governor_memory *m; /* borrowed */
    rg_hit_rates rates;    /* of this text, beginning with what others were like */
    uint32_t trial;        /* windows of a trial that are left */
    bool on_trial;         /* the window in progress is one */
    uint32_t trial_right;  /* windows of the trial without a wrong draft */
    uint32_t unused;       /* windows since the draft block drafted */
    uint32_t others;       /* rows of other texts in the window in progress */
} rg_governor;

void rg_governor_memory_init(rg_governor_memory *m);
void rg_governor_init(rg_governor *g, const rg_governor_options *opt, rg_governor_memory *m);
/* Another text begins. */
void rg_governor_new_text(rg_governor *g);

/* Confidence of suffix drafts by length of the match; of the draft block by the lead of its best
 * logit. */
uint32_t rg_confidence_of_match(uint32_t match);
uint32_t rg_confidence_of_lead(float lead);

typedef struct rg_governor_plan {
    rg_draft_source source;
    uint32_t n; /* drafts wanted; 0 with RG_SOURCE_NONE */
} rg_governor_plan;

/* What to do for the next window. `match`: of the suffix source, 0 = it has nothing; at most
 * n_max drafts can be used; the window holds `others` rows that give a token each whatever is
 * drafted here. */
rg_governor_plan rg_governor_choose(rg_governor *g, uint32_t match, uint32_t n_max,
                                    uint32_t others);
/* Whether another draft of the draft block is worth making behind n. */
bool rg_governor_go_on(const rg_governor *g, const uint32_t *confidence, uint32_t n);
/* Of n drafts of the draft block with these confidences, how many go into the window. */
uint32_t rg_governor_trim(const rg_governor *g, const uint32_t *confidence, uint32_t n);
/* Whether the draft block is out of use, so that rows need not be fed to it. */
bool rg_governor_mtp_rests(const rg_governor *g);

/* What happened. */
typedef struct rg_governor_window {
    rg_draft_source source;
    uint32_t n;                 /* drafts in the window */
    uint32_t right;             /* of them */
    const uint32_t *confidence; /* [n] */
    uint32_t rows;              /* of the whole window, those of other texts included */
    uint64_t window_ns;         /* 0: tells nothing about windows of drafts (a prompt was in it) */
    uint64_t draft_ns;          /* making the drafts */
    uint32_t n_made;            /* drafts made, trimmed ones included */
    uint64_t waves;             /* turns that did not fit the arena at once */
} rg_governor_window;
void rg_governor_learn(rg_governor *g, const rg_governor_window *w);

/* Expected time of a window of `rows` rows; expected share of right drafts at a position. */
double rg_governor_window_ns(const rg_governor *g, uint32_t rows);
double rg_governor_rate(const rg_governor *g, rg_draft_source source, uint32_t position);

#endif
