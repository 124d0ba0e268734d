#include "engine/draft_governor.h"

#include <string.h>

#define MARGIN          1.02 /* drafts must beat none by this */
#define SLOPE_DEFAULT   0.4  /* of a plain window, for each further row, until one is measured */
#define DRAFT_DEFAULT   0.2  /* of a plain window, for a draft of the draft block */
#define SMOOTHING       0.125
#define SAMPLE_MAX      2.0 /* times the mean: one hiccup moves it by an eighth at most */
#define LINE_WEIGHT     2.0 /* windows of a length that the line through the others stands for */
#define LINE_WINDOWS    16u /* of a length, from which on it alone counts */
#define SLOPE_MAX       3.0
#define FORGET_WINDOWS  32u /* after so many, each other length counts for one window less */
#define FADE            0.98
#define PRIOR_WEIGHT    2.0
#define TEXT_WEIGHT     8.0 /* of what other texts were like */
#define PATIENCE_FIRST  16u
#define KNOWN_DRAFTS    2u
#define TRUSTED_MATCH   8u /* such a match is used before anything is known */
#define PATIENCE_MAX    512u
#define TRIAL_WINDOWS   2u
#define TRIAL_DRAFTS    3u /* of a trusted match: one row may be dear where several are not */
#define TRIAL_WEIGHT    6.0
#define SURPRISED_BELOW 0.6
#define PLAIN_PERIOD    64u  /* windows with drafts until a plain one is measured again */
#define REST_WINDOWS    4u   /* the draft block rests when it was not used for so many */
#define CALM_WINDOWS    256u /* until one more row is tried */

/* What is believed before anything was seen. */
static const double believed_match[RG_CONFIDENCES] = {.3, .45, .55, .65, .75, .85, .92, .95};
static const double believed_lead[RG_CONFIDENCES] = {.3, .35, .4, .5, .6, .7, .85, .95};

uint32_t rg_confidence_of_match(uint32_t match) {
    static const uint32_t above[RG_CONFIDENCES - 1] = {2, 3, 4, 6, 10, 20, 40};
    uint32_t c = 0;
    while (c < RG_CONFIDENCES - 1 && match > above[c])
        c++;
    return c;
}

uint32_t rg_confidence_of_lead(float lead) {
    static const float above[RG_CONFIDENCES - 1] = {0.25f, 0.5f, 1.0f, 1.75f, 2.75f, 4.0f, 6.0f};
    uint32_t c = 0;
    while (c < RG_CONFIDENCES - 1 && lead > above[c])
        c++;
    return c;
}

void rg_governor_memory_init(rg_governor_memory *m) {
    *m = (rg_governor_memory){.rows_max = RG_VERIFY_ROWS, .slope = SLOPE_DEFAULT};
    for (uint32_t s = 0; s < RG_SOURCE_COUNT; s++) {
        m->patience[s] = PATIENCE_FIRST;
        for (uint32_t c = 0; c < RG_CONFIDENCES; c++) {
            const double p = s == RG_SOURCE_MTP ? believed_lead[c] : believed_match[c];
            m->rates.by_confidence[s][c] = (rg_hit_rate){p * PRIOR_WEIGHT, PRIOR_WEIGHT};
        }
        for (uint32_t i = 0; i < RG_DRAFT_MAX; i++)
            m->rates.by_position[s][i] = (rg_hit_rate){0.6 * PRIOR_WEIGHT, PRIOR_WEIGHT};
    }
}

void rg_governor_init(rg_governor *g, const rg_governor_options *opt, rg_governor_memory *m) {
    RG_ASSERT(opt->draft_max >= 1);
    RG_ASSERT(opt->draft_max <= RG_DRAFT_MAX);
    *g = (rg_governor){.opt = *opt, .m = m};
    rg_governor_new_text(g);
}

/* Keeps the rate, with the weight of a few drafts. */
static void lighten(rg_hit_rate *r) {
    if (r->all <= TEXT_WEIGHT) return;
    r->right *= TEXT_WEIGHT / r->all;
    r->all = TEXT_WEIGHT;
}

void rg_governor_new_text(rg_governor *g) {
    g->rates = g->m->rates;
    for (uint32_t s = 0; s < RG_SOURCE_COUNT; s++) {
        for (uint32_t c = 0; c < RG_CONFIDENCES; c++)
            lighten(&g->rates.by_confidence[s][c]);
        for (uint32_t i = 0; i < RG_DRAFT_MAX; i++)
            lighten(&g->rates.by_position[s][i]);
    }
    g->trial = 0;
}

/* ---- estimates ------------------------------------------------------------------------------ */

static double share(const rg_hit_rate *r) {
    return r->right / r->all;
}

double rg_governor_rate(const rg_governor *g, rg_draft_source source, uint32_t position) {
    return share(
        &g->rates.by_position[source][position < RG_DRAFT_MAX ? position : RG_DRAFT_MAX - 1]);
}

/* A length seen once or twice may have met a hiccup: the line through what all lengths take stands
 * beside it, so that a bad start does not end it, nor the lengths behind it. */
double rg_governor_window_ns(const rg_governor *g, uint32_t rows) {
    const rg_governor_memory *m = g->m;
    RG_ASSERT(rows <= RG_VERIFY_ROWS);
    const double plain = m->window_ns[1], n = m->n_window[rows];
    if (rows <= 1 || !(plain > 0) || n >= LINE_WINDOWS) return m->window_ns[rows];
    const double line = plain * (1 + m->slope * (rows - 1));
    return (line * LINE_WEIGHT + m->window_ns[rows] * n) / (LINE_WEIGHT + n);
}

static double first_ns(const rg_governor *g) {
    return g->m->first_ns > 0 ? g->m->first_ns : DRAFT_DEFAULT * g->m->window_ns[1];
}
static double chain_ns(const rg_governor *g) {
    return g->m->chain_ns > 0 ? g->m->chain_ns : first_ns(g);
}

/* Tokens a second of a window of `rows` rows of this text that gives `tokens`, and of the rows
 * beside them, which give one each. A row costs there what it costs here. */
static double rate_of(const rg_governor *g, double tokens, uint32_t rows, double draft_ns) {
    const double row = rg_governor_window_ns(g, 2) - rg_governor_window_ns(g, 1);
    const double beside = row > 0 ? g->others * row : 0;
    return (tokens + g->others) / (rg_governor_window_ns(g, rows) + beside + draft_ns);
}

/* A number of drafts, and the tokens a second expected of it. */
typedef struct bid {
    uint32_t n;
    double rate;
} bid;

static bid bid_plain(const rg_governor *g) {
    return (bid){.rate = rate_of(g, 1.0, 1, 0)};
}

/* Chance that draft i is right when those before it are. */
static double chance_suffix(const rg_governor *g, uint32_t match, uint32_t i) {
    return share(&g->rates.by_confidence[RG_SOURCE_SUFFIX][rg_confidence_of_match(match + i)]);
}

static bid bid_of(const rg_governor *g, rg_draft_source source, uint32_t match, uint32_t n_max) {
    bid best = {0};
    double all = 1.0, tokens = 1.0;
    for (uint32_t n = 1; n <= n_max; n++) {
        const bool mtp = source == RG_SOURCE_MTP;
        all *= mtp ? rg_governor_rate(g, source, n - 1) : chance_suffix(g, match, n - 1);
        tokens += all;
        const double draft_ns = mtp ? first_ns(g) + (n - 1) * chain_ns(g) : 0;
        const double rate = rate_of(g, tokens, n + 1, draft_ns);
        if (rate > best.rate) best = (bid){n, rate};
    }
    return best;
}

uint32_t rg_governor_trim(const rg_governor *g, const uint32_t *confidence, uint32_t n) {
    if (g->opt.fixed) return n;
    uint32_t best = 0;
    double all = 1.0, tokens = 1.0, rate = bid_plain(g).rate;
    for (uint32_t i = 0; i < n; i++) {
        all *= share(&g->rates.by_confidence[RG_SOURCE_MTP][confidence[i]]);
        tokens += all;
        const double r = rate_of(g, tokens, i + 2, 0);
        if (r <= rate) continue;
        rate = r;
        best = i + 1;
    }
    /* A trial is there to see whether drafts are right. */
    return best || !g->on_trial || !n ? best : 1;
}

bool rg_governor_go_on(const rg_governor *g, const uint32_t *confidence, uint32_t n) {
    if (g->opt.fixed) return true;
    double all = 1.0, tokens = 1.0;
    for (uint32_t i = 0; i < n; i++) {
        all *= share(&g->rates.by_confidence[RG_SOURCE_MTP][confidence[i]]);
        tokens += all;
    }
    const double one = all * rg_governor_rate(g, RG_SOURCE_MTP, n);
    return rate_of(g, tokens + one, n + 2, chain_ns(g)) > rate_of(g, tokens, n + 1, 0);
}

/* ---- choice --------------------------------------------------------------------------------- */

/* A source that was not chosen for long is tried; the better it did, the sooner. */
static bool is_due(rg_governor *g, rg_draft_source source) {
    if (++g->m->idle[source] < g->m->patience[source]) return false;
    g->m->idle[source] = 0;
    g->on_trial = true;
    g->trial_right = 0;
    g->m->patience[source] *= 4;
    if (g->m->patience[source] > PATIENCE_MAX) g->m->patience[source] = PATIENCE_MAX;
    return true;
}

/* Whether enough was seen of a source to rely on it. */
static bool is_known(const rg_governor *g, rg_draft_source source) {
    return g->m->seen[source] >= KNOWN_DRAFTS;
}

static rg_governor_plan choose_fixed(const rg_governor *g, uint32_t match, uint32_t n) {
    if (n && g->opt.suffix && match) return (rg_governor_plan){RG_SOURCE_SUFFIX, n};
    if (n && g->opt.mtp) return (rg_governor_plan){RG_SOURCE_MTP, n};
    return (rg_governor_plan){RG_SOURCE_NONE, 0};
}

/* The source is worth its time: it is tried soon when it stops being the best. */
static rg_governor_plan take(rg_governor *g, rg_draft_source source, uint32_t n) {
    g->m->idle[source] = 0;
    g->m->patience[source] = PATIENCE_FIRST;
    return (rg_governor_plan){source, n};
}

/* Drafts that the arena has room for: no limit is known until some window did not fit. */
static uint32_t fitting(const rg_governor *g, uint32_t n_max) {
    const uint32_t beside = g->m->rows_max < RG_VERIFY_ROWS ? g->others : 0;
    const uint32_t room = g->m->rows_max - 1 > beside ? g->m->rows_max - 1 - beside : 0;
    return n_max < room ? n_max : room;
}

rg_governor_plan rg_governor_choose(rg_governor *g, uint32_t match, uint32_t n_max,
                                    uint32_t others) {
    const rg_governor_plan none = {RG_SOURCE_NONE, 0};
    g->on_trial = false;
    g->others = others;
    if (n_max > g->opt.draft_max) n_max = g->opt.draft_max;
    if (g->opt.fixed) return choose_fixed(g, match, n_max);
    n_max = fitting(g, n_max);
    if (!n_max || !(g->m->window_ns[1] > 0)) return none;
    if (g->m->since_plain >= PLAIN_PERIOD) return none;
    if (g->trial) {
        g->trial--;
        g->on_trial = true;
        return (rg_governor_plan){RG_SOURCE_MTP, 1};
    }
    const bool has_suffix = g->opt.suffix && match;
    const bid plain = bid_plain(g);
    const bid suffix = has_suffix ? bid_of(g, RG_SOURCE_SUFFIX, match, n_max) : (bid){0};
    const bid mtp = g->opt.mtp ? bid_of(g, RG_SOURCE_MTP, 0, n_max) : (bid){0};
    const bool good_mtp = mtp.rate > plain.rate * MARGIN && is_known(g, RG_SOURCE_MTP);
    const bool trusted = is_known(g, RG_SOURCE_SUFFIX) || match >= TRUSTED_MATCH;
    const bool use_suffix =
        suffix.rate > plain.rate * MARGIN && trusted && (!good_mtp || suffix.rate >= mtp.rate);
    const bool use_mtp = good_mtp && !use_suffix;
    if (has_suffix && !use_suffix && is_due(g, RG_SOURCE_SUFFIX)) {
        const uint32_t n = match < TRUSTED_MATCH ? 1 : n_max < TRIAL_DRAFTS ? n_max : TRIAL_DRAFTS;
        return (rg_governor_plan){RG_SOURCE_SUFFIX, n};
    }
    if (g->opt.mtp && !use_mtp && !use_suffix && is_due(g, RG_SOURCE_MTP)) {
        g->trial = TRIAL_WINDOWS - 1;
        return (rg_governor_plan){RG_SOURCE_MTP, 1};
    }
    if (use_suffix) return take(g, RG_SOURCE_SUFFIX, suffix.n);
    return use_mtp ? take(g, RG_SOURCE_MTP, mtp.n) : none;
}

bool rg_governor_mtp_rests(const rg_governor *g) {
    return !g->opt.mtp || (!g->opt.fixed && !g->trial && g->unused > REST_WINDOWS);
}

/* ---- learning ------------------------------------------------------------------------------- */

static double within(double x, double least, double most) {
    return x < least ? least : x > most ? most : x;
}

static void learn_time(double *mean, double ns) {
    if (!(*mean > 0)) {
        *mean = ns;
        return;
    }
    *mean += SMOOTHING * (within(ns, 0, SAMPLE_MAX * *mean) - *mean);
}

/* The pace of the machine changes for seconds and minutes. A length that was not used for long
 * would be compared with what others took at another pace; so what one window tells about the pace
 * moves all of them, by half: the other half may be this length's own. */
static void learn_pace(rg_governor_memory *m, uint32_t rows, double change) {
    for (uint32_t t = 1; t <= RG_VERIFY_ROWS; t++)
        if (t != rows) m->window_ns[t] *= 1 + (change - 1) / 2;
    m->first_ns *= 1 + (change - 1) / 2;
    m->chain_ns *= 1 + (change - 1) / 2;
}

static void learn_window(rg_governor *g, uint32_t rows, double ns) {
    rg_governor_memory *m = g->m;
    const double before = m->window_ns[rows], plain = m->window_ns[1];
    if (rows > 1 && plain > 0) {
        if (!(before > 0)) ns = within(ns, 0, SAMPLE_MAX * rg_governor_window_ns(g, rows));
        const double slope = (ns / plain - 1) / (rows - 1);
        m->slope += SMOOTHING * (within(slope, 0, SLOPE_MAX) - m->slope);
    }
    const uint32_t n = m->n_window[rows];
    if (++m->learned % FORGET_WINDOWS == 0) {
        for (uint32_t t = 2; t <= RG_VERIFY_ROWS; t++)
            m->n_window[t] -= m->n_window[t] > 0;
    }
    m->n_window[rows] += n < LINE_WINDOWS;
    if (n < 1 / SMOOTHING && before > 0) { /* the mean of the first few */
        m->window_ns[rows] += (within(ns, 0, SAMPLE_MAX * before) - before) / (n + 1);
    } else {
        learn_time(&m->window_ns[rows], ns);
        if (before > 0) learn_pace(m, rows, m->window_ns[rows] / before);
    }
}

/* Trials are few: theirs count for more. */
static void learn_hit(rg_hit_rate *r, bool right, bool on_trial) {
    const double weight = on_trial ? TRIAL_WEIGHT : 1.0;
    const double keep = 1.0 - (1.0 - FADE) * weight;
    if (r->all > TEXT_WEIGHT) {
        r->right *= keep;
        r->all *= keep;
    }
    r->right += right ? weight : 0.0;
    r->all += weight;
}

/* A source that was bad and is right throughout its trial has changed: it is tried again soon. */
static void learn_trial(rg_governor *g, const rg_governor_window *w) {
    if (!g->on_trial || !w->n) return;
    g->trial_right += w->right == w->n;
    const uint32_t all = w->source == RG_SOURCE_MTP ? TRIAL_WINDOWS : 1;
    if (g->trial_right >= all && rg_governor_rate(g, w->source, 0) < SURPRISED_BELOW) {
        g->m->patience[w->source] = PATIENCE_FIRST;
    }
}

/* Fewer rows when their experts did not fit; one more is tried after a calm while. */
static void learn_fit(rg_governor *g, const rg_governor_window *w) {
    if (w->waves && w->n) {
        const uint32_t most = w->rows - 1;
        g->m->rows_max = most < g->m->rows_max ? most : g->m->rows_max;
        g->m->calm = 0;
    } else if (++g->m->calm >= CALM_WINDOWS && g->m->rows_max < RG_VERIFY_ROWS) {
        g->m->rows_max++;
        g->m->calm = 0;
    }
}

void rg_governor_learn(rg_governor *g, const rg_governor_window *w) {
    RG_ASSERT(w->n <= RG_DRAFT_MAX);
    RG_ASSERT(w->right <= w->n);
    RG_ASSERT(w->n < w->rows);
    if (w->window_ns && w->rows <= RG_VERIFY_ROWS) {
        learn_window(g, w->rows, (double)w->window_ns);
    }
    g->m->since_plain = w->n ? g->m->since_plain + 1 : 0;
    if (w->window_ns) learn_fit(g, w);
    if (w->source == RG_SOURCE_MTP && w->n_made == 1)
        learn_time(&g->m->first_ns, (double)w->draft_ns);
    if (w->source == RG_SOURCE_MTP && w->n_made > 1) {
        const double rest = (double)w->draft_ns - first_ns(g);
        if (rest > 0) learn_time(&g->m->chain_ns, rest / (w->n_made - 1));
        if (!(g->m->first_ns > 0)) g->m->first_ns = (double)w->draft_ns / w->n_made;
    }
    g->unused = w->source == RG_SOURCE_MTP ? 0 : g->unused + 1;
    g->m->seen[w->source] += w->n;
    learn_trial(g, w);
    /* Behind the first wrong draft nothing is known. */
    for (uint32_t i = 0; i < w->n && i <= w->right; i++) {
        rg_hit_rates *both[2] = {&g->rates, &g->m->rates};
        for (uint32_t k = 0; k < 2; k++) {
            learn_hit(&both[k]->by_position[w->source][i], i < w->right, g->on_trial);
            learn_hit(&both[k]->by_confidence[w->source][w->confidence[i]], i < w->right,
                      g->on_trial);
        }
    }
}
