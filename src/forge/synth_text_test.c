/* The vocabulary of synthetic models in the hands of the text room: text there and back, the chat
 * template rendered.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "forge/synth_parts.h"
#include "forge/test_folder.h"
#include "text/text.h"

static rg_gguf *make_model(test_folder *f) {
    rg_synth_options opt;
    rg_synth_result r;
    rg_gguf *g = NULL;
    rg_status st = {0};
    folder_make(f);
    rg_synth_options_init(&opt);
    assert_int_equal(rg_synth_preset(&opt.shape, "tiny", NULL), RG_OK);
    opt.n_threads = 1;
    if (rg_synth_write(folder_file(f, "m.gguf"), &opt, &r, &st) != RG_OK)
        fail_msg("%s", st.message);
    if (rg_gguf_open(&g, f->file, &st) != RG_OK) fail_msg("%s", st.message);
    assert_int_equal(unlink(f->file), 0);
    folder_remove(f);
    return g;
}

static void there_and_back(void **state) {
    (void)state;
    static const char *const texts[] = {"the thing and you of the in to",
                                        "x = {1, 2}; // \t\n\n  ok",
                                        "perch\xC3\xA9 no? \xE2\x82\xAC \xF0\x9F\x98\x80", ""};
    test_folder f;
    rg_gguf *g = make_model(&f);
    rg_tokenizer *t = NULL;
    rg_status st = {0};
    if (rg_tokenizer_create(&t, g, &st) != RG_OK) fail_msg("%s", st.message);
    for (size_t i = 0; i < RG_ARRAY_LEN(texts); i++) {
        rg_ids ids = {0};
        rg_buf back;
        rg_buf_init(&back, 0);
        const size_t len = strlen(texts[i]);
        assert_int_equal(rg_tokenize(t, texts[i], len, false, &ids, NULL), RG_OK);
        for (size_t k = 0; k < ids.count; k++)
            assert_int_equal(rg_detokenize(t, ids.ids[k], false, &back, NULL), RG_OK);
        assert_int_equal(back.len, len);
        if (len) assert_memory_equal(back.data, texts[i], len);
        if (i == 0) assert_true(ids.count < len / 2); /* merges are used */
        rg_free(ids.ids);
        rg_buf_deinit(&back);
    }
    assert_true(rg_tokenizer_is_eog(t, rg_tokenizer_eos(t)));
    assert_int_equal(rg_tokenizer_eos(t), rg_tokenizer_find(t, "<|im_end|>", 10));
    rg_tokenizer_destroy(t);
    rg_gguf_close(g);
}

static void chat_renders(void **state) {
    (void)state;
    test_folder f;
    rg_gguf *g = make_model(&f);
    rg_tokenizer *t = NULL;
    rg_chat_template *c = NULL;
    rg_status st = {0};
    rg_str text = {0};
    rg_buf out;
    rg_ids ids = {0};
    rg_buf_init(&out, 0);
    assert_int_equal(rg_gguf_get_str(g, "tokenizer.chat_template", &text, NULL), RG_OK);
    if (rg_chat_template_create(&c, text, NULL, &st) != RG_OK) fail_msg("%s", st.message);
    const rg_message user = {.role = RG_ROLE_USER, .content = {"Hello", 5}};
    const rg_chat_options opt = {
        .add_generation_prompt = true, .enable_thinking = true, .preserve_thinking = true};
    if (rg_chat_render(c, &user, 1, NULL, 0, &opt, &out, &st) != RG_OK) fail_msg("%s", st.message);
    assert_non_null(strstr(out.data, "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"));
    assert_int_equal(rg_tokenizer_create(&t, g, NULL), RG_OK);
    assert_int_equal(rg_tokenize(t, out.data, out.len, true, &ids, NULL), RG_OK);
    int starts = 0;
    for (size_t i = 0; i < ids.count; i++)
        starts += ids.ids[i] == rg_tokenizer_find(t, "<|im_start|>", 12);
    assert_true(starts >= 2);
    rg_free(ids.ids);
    rg_buf_deinit(&out);
    rg_chat_template_destroy(c);
    rg_tokenizer_destroy(t);
    rg_gguf_close(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(there_and_back),
        cmocka_unit_test(chat_renders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
