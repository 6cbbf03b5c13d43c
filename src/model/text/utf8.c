#include "model/text/utf8.h"

int m2_utf8_check(const char *text, size_t bytes, int with_surrogates, size_t *bad_out,
                  size_t *n_chars_out)
{
    const unsigned char *s = (const unsigned char *)text;
    size_t at = 0, n_chars = 0;
    while (at < bytes) {
        const unsigned char first = s[at];
        if (first < 0x80) {
            at++;
            n_chars++;
            continue;
        }
        const size_t width = first >= 0xc2 && first < 0xe0   ? 2
                             : first >= 0xe0 && first < 0xf0 ? 3
                             : first >= 0xf0 && first < 0xf5 ? 4
                                                             : 0;
        if (width == 0 || width > bytes - at) break;
        size_t k = 1;
        while (k < width && (s[at + k] & 0xc0) == 0x80) k++;
        if (k < width) break;
        const unsigned char second = s[at + 1];
        if (first == 0xe0 && second < 0xa0) break;                      /* over-long        */
        if (first == 0xed && second >= 0xa0 && !with_surrogates) break; /* half of a pair   */
        if (first == 0xf0 && second < 0x90) break;                      /* over-long        */
        if (first == 0xf4 && second >= 0x90) break;                     /* beyond U+10FFFF  */
        at += width;
        n_chars++;
    }
    *bad_out = at;
    *n_chars_out = n_chars;
    return at == bytes;
}
