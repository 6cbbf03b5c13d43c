/* nfc.h - Unicode normalisation form C, keeping where every character came from.
 *
 * Which characters it knows is fixed by a committed table (Unicode 9, as in the library that
 * conditioned the model); utf8proc gives their decompositions and compositions, which Unicode
 * promises never to change.
 *
 * Origins   counted as the reference's library does: a decomposition stands on its original, a
 *           composition on the first of its originals alone, and reordered marks keep the order of
 *           the positions, not their own.
 * Cost      linear: marks between two starters are sorted by counting.
 */
#ifndef M2_MODEL_TEXT_NFC_H
#define M2_MODEL_TEXT_NFC_H

#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

/* Called for every character of the result, in order; `origin` is the index of the character of
 * the input that it stands on.  A result other than M2_OK stops and is passed on. */
typedef m2_status m2_nfc_sink(void *context, uint32_t code_point, uint32_t origin);

/* text[0, bytes) must be checked UTF-8 of less than 2^31 bytes.
 * Errors  M2_ERR_MEMORY, and what the sink gives */
m2_status m2_nfc(const char *text, size_t bytes, m2_nfc_sink *sink, void *context);

#endif
