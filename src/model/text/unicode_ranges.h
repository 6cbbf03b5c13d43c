/* unicode_ranges.h - the character classes that token ids depend on, as committed ranges.
 *
 * A system library's classes change with its Unicode version, and ids would change with them, so
 * the classes of the library that conditioned the model are kept here, made by
 * tools/make_unicode_ranges.py.  Ranges are sorted, closed and disjoint.
 */
#ifndef M2_MODEL_TEXT_UNICODE_RANGES_H
#define M2_MODEL_TEXT_UNICODE_RANGES_H

#include <stdint.h>

typedef struct m2_unicode_range {
    uint32_t first, last;
} m2_unicode_range;

typedef struct m2_unicode_set {
    const m2_unicode_range *ranges;
    int n_ranges;
} m2_unicode_set;

extern const m2_unicode_set m2_unicode_letters;     /* \p{L}                                     */
extern const m2_unicode_set m2_unicode_marks;       /* \p{M}                                     */
extern const m2_unicode_set m2_unicode_numbers;     /* \p{N}                                     */
extern const m2_unicode_set m2_unicode_white_space; /* \s                                        */
extern const m2_unicode_set m2_unicode_word;        /* word characters, for single_word          */
extern const m2_unicode_set m2_unicode_nfc_active;  /* all that NFC does not pass unchanged      */
extern const m2_unicode_set m2_unicode_printable;   /* Python's str.isprintable                  */

static inline int m2_unicode_has(const m2_unicode_set *set, uint32_t code_point)
{
    int low = 0, high = set->n_ranges;
    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (code_point > set->ranges[middle].last)
            low = middle + 1;
        else if (code_point < set->ranges[middle].first)
            high = middle;
        else
            return 1;
    }
    return 0;
}

#endif
