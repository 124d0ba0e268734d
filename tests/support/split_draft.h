/* A model file whose draft block projects by two matrices (spec 5.2) from one that has eh_proj. */
#ifndef RG_TEST_SPLIT_DRAFT_H
#define RG_TEST_SPLIT_DRAFT_H

/* Writes to `to` what `from` holds, eh_proj as its halves fc_embd and fc_hidden. The same weights:
 * the halves of a row are whole blocks. A failure ends the test process. */
void rg_test_split_draft(const char *from, const char *to);

#endif
