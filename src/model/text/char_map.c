#include "model/text/split_regex.h"

#include "model/text/unicode_ranges.h"

#include <stdlib.h>
#include <string.h>

static void fill(uint8_t *flat, const m2_unicode_set *set, uint8_t class)
{
    for (int k = 0; k < set->n_ranges; k++)
        for (uint32_t c = set->ranges[k].first; c <= set->ranges[k].last; c++)
            if (c >= 0x80) flat[c] = class;
}

m2_status m2_char_map_create(m2_char_map *map)
{
    uint8_t *flat = malloc(0x110000);
    uint8_t(*pages)[256] = malloc(256 * sizeof *pages);
    if (!flat || !pages) {
        free(flat);
        free(pages);
        return m2_fail(M2_ERR_MEMORY, "tokenizer: no memory for the table of characters");
    }
    memset(flat, M2_CHAR_OTHER, 0x110000);
    for (int c = 0; c < 0x80; c++) flat[c] = (uint8_t)c;
    fill(flat, &m2_unicode_letters, M2_CHAR_LETTER);
    fill(flat, &m2_unicode_marks, M2_CHAR_MARK);
    fill(flat, &m2_unicode_numbers, M2_CHAR_NUMBER);
    fill(flat, &m2_unicode_white_space, M2_CHAR_SPACE);
    flat[0x17f] = M2_CHAR_LONG_S;
    flat[0x212a] = M2_CHAR_KELVIN;
    map->n_pages = 0;
    for (int p = 0; p < 0x1100; p++) {
        const uint8_t *page = flat + p * 256;
        int k = 0;
        while (k < map->n_pages && memcmp(pages[k], page, 256) != 0) k++;
        if (k == 256) { /* the committed tables have 130 different pages */
            free(flat);
            free(pages);
            return m2_fail(M2_ERR_INTERNAL, "tokenizer: the tables of characters do not fit");
        }
        if (k == map->n_pages) memcpy(pages[map->n_pages++], page, 256);
        map->page_of[p] = (uint8_t)k;
    }
    free(flat);
    map->pages = pages;
    return M2_OK;
}

void m2_char_map_destroy(m2_char_map *map)
{
    free(map->pages);
    map->pages = NULL;
}
