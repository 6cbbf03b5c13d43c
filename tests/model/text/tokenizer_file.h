/* tokenizer_file.h - small tokenizer.json files for tests. */
#ifndef M2_TESTS_TOKENIZER_FILE_H
#define M2_TESTS_TOKENIZER_FILE_H

/* Writes DIR/tokenizer.json: ids 0 ... 255 are the bytes, 256 + k is merges[k] ("a b", NULL ends the
 * list; `as_pairs` writes ["a", "b"]).  `added` is the text of the list of added tokens.  Returns its
 * path, which the caller frees. */
char *test_write_tokenizer(const char *dir, const char *const *merges, int as_pairs,
                           const char *added);
/* The release's split pattern and the rest of the layout, with one part's text exchanged: `what` is
 * "normalizer", "pre_tokenizer", "post_processor", "model_head" (fields before the vocabulary). */
char *test_write_tokenizer_with(const char *dir, const char *what, const char *text);

#endif
