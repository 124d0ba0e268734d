/* Any body through the parsers of every dialect and the schema compiler: it is taken or refused
 * with a message, nothing else. Byte 0 chooses the dialect; 3 takes the body as a schema and feeds
 * the grammar what an example of it might begin with.
 */
#include "fuzz_target.h"

#include <string.h>

#include "serve/job.h"
#include "serve/schema.h"

static rg_code parse(rg_job *job, unsigned which, rg_status *st) {
    const rg_serve_options o = {.sampling = rg_sampling_defaults()};
    switch (which) {
    case 0:
        return rg_parse_chat(job, &o, st);
    case 1:
        return rg_parse_messages(job, &o, false, st);
    default:
        return rg_parse_responses(job, &o, st);
    }
}

static rg_code guide(rg_job *job, const rg_lexicon *l, rg_status *st) {
    const rg_guide_options o = {.schema = job->schema,
                                .tools = job->tools,
                                .thinking = job->thinking,
                                .must_call = job->choice == RG_CHOICE_REQUIRED};
    return rg_guide_create(&job->guide, l, &o, st);
}

static void try_schema(const json_t *schema) {
    static const char *const texts[] = {"{\"a\": 1, \"b\": [true, null]}", "\"text\"", "[1, 2.5e3]",
                                        "-12", "{}"};
    rg_grammar *g = NULL;
    rg_schema_rules r;
    rg_status st = {0};
    uint32_t rule = 0;
    RG_ASSERT(rg_grammar_create(&g, &st) == RG_OK);
    rg_schema_init(&r, g);
    rg_code rc = rg_schema_compile(&r, schema, schema, &rule, &st);
    if (rc == RG_OK) rc = rg_grammar_prune(g, rule, &st);
    if (rc == RG_OK) {
        for (size_t i = 0; i < RG_ARRAY_LEN(texts); i++) {
            bool fits = false;
            if (rg_grammar_start(g, rule, &st) != RG_OK) break;
            if (rg_grammar_feed(g, texts[i], strlen(texts[i]), &fits, &st) != RG_OK) break;
        }
    } else {
        RG_ASSERT(st.message[0] != 0);
    }
    rg_grammar_destroy(g);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1) return 0;
    static char bytes[] = "ab";
    static uint32_t offsets[] = {0, 1, 2}, order[] = {0, 1};
    static uint8_t kinds[] = {0, 0};
    static uint16_t shared[] = {0, 0};
    const rg_lexicon l = {2, bytes, offsets, kinds, order, shared, 2};
    static const rg_dialect *const dialects[] = {&rg_dialect_chat, &rg_dialect_messages,
                                                 &rg_dialect_responses, &rg_dialect_chat};
    const unsigned which = data[0] % 4;
    rg_status st = {0};
    rg_pipe *pipe = NULL;
    rg_job *job = NULL;
    RG_ASSERT(rg_pipe_create(&pipe, NULL, &st) == RG_OK);
    RG_ASSERT(rg_job_create(&job, pipe, dialects[which], &st) == RG_OK);
    job->model_name = "m";
    job->lexicon = &l;
    rg_code rc = rg_body_parse(&job->root, (const char *)data + 1, size - 1, &st);
    if (rc == RG_OK && which == 3) {
        try_schema(job->root);
    } else if (rc == RG_OK) {
        rc = parse(job, which, &st);
        if (rc == RG_OK) rc = guide(job, &l, &st);
    }
    if (rc != RG_OK) {
        RG_ASSERT(rc == RG_INVALID || rc == RG_UNSUPPORTED);
        RG_ASSERT(st.message[0] != 0);
    }
    rg_job_destroy(job);
    rg_pipe_drop(pipe);
    return 0;
}
