/* damage.h - copies of golden files with one value changed. */
#ifndef M2_TESTS_GOLDEN_DAMAGE_H
#define M2_TESTS_GOLDEN_DAMAGE_H

#include <stdint.h>

/* How many places of the file can be changed: tensors with values (.safetensors, .pth, .ckpt), numbers
 * (.json; strings where there is none), lines (.jsonl), or 1 (.png).  0 for another kind of file. */
int64_t damage_n_places(const char *path);

/* Copy `path` to `to` with one value at place `idx` changed: a high bit of an element, a number, a
 * letter, a block of pixels.
 * Gives   the place's name: a tensor, the way to a JSON value, a line; a static buffer.  NULL if
 *         nothing was changed: a line that expects nothing, a tensor of a torch file whose values
 *         stand there twice */
const char *damage_write(const char *path, const char *to, int64_t idx);

/* Copy a safetensors file with one more entry. */
void damage_add_entry(const char *path, const char *to);

#endif
