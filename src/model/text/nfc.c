#include "model/text/nfc.h"

#include "model/text/unicode_ranges.h"
#include "model/text/utf8.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* A decomposed character.  `change` counts what it does to the number of characters: 0 replaces
 * one of the input, 1 is one more, -n replaces one and swallows the n behind it. */
typedef struct nfc_part {
    uint32_t code_point : 24;
    uint32_t ccc : 8; /* canonical combining class */
    int32_t change;
} nfc_part;

/* The characters since the last one that nothing before it can join. */
typedef struct nfc_segment {
    nfc_part *parts;
    size_t n, room;
    nfc_part *sorted; /* [sorted_room], for sorting long runs of marks */
    size_t sorted_room;
    m2_nfc_sink *sink;
    void *context;
    uint32_t consumed; /* characters of the input that the output so far stands on */
} nfc_segment;

static int is_active(uint32_t code_point)
{
    return code_point >= 0xc0 && m2_unicode_has(&m2_unicode_nfc_active, code_point);
}

static uint8_t combining_class(uint32_t code_point)
{
    return is_active(code_point)
               ? (uint8_t)utf8proc_get_property((utf8proc_int32_t)code_point)->combining_class
               : 0;
}

/* Decomposition of one active character into at most 8; returns their number. */
static int decompose(uint32_t code_point, utf8proc_int32_t out[8])
{
    int boundary = 0;
    const utf8proc_ssize_t n = utf8proc_decompose_char(
        (utf8proc_int32_t)code_point, out, 8, UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, &boundary);
    if (n >= 1 && n <= 8) return (int)n;
    out[0] = (utf8proc_int32_t)code_point;
    return 1;
}

/* The composition of a pair, or 0. */
static uint32_t compose(uint32_t first, uint32_t second)
{
    if (!is_active(second)) return 0;
    utf8proc_int32_t pair[3] = { (utf8proc_int32_t)first, (utf8proc_int32_t)second, 0 };
    const utf8proc_ssize_t n =
        utf8proc_normalize_utf32(pair, 2, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    return n == 1 && is_active((uint32_t)pair[0]) ? (uint32_t)pair[0] : 0;
}

static m2_status segment_push(nfc_segment *segment, uint32_t code_point, int change)
{
    if (segment->n == segment->room) {
        const size_t room = segment->room ? segment->room + segment->room / 2 : 64;
        nfc_part *larger = realloc(segment->parts, room * sizeof *larger);
        if (!larger) return m2_fail(M2_ERR_MEMORY, "text: no memory to normalise a long run");
        segment->parts = larger;
        segment->room = room;
    }
    segment->parts[segment->n++] = (nfc_part){ code_point, combining_class(code_point), change };
    return M2_OK;
}

static m2_status emit(nfc_segment *segment, const nfc_part *part)
{
    uint32_t origin = segment->consumed;
    if (part->change > 0)
        origin -= origin > 0;
    else
        segment->consumed += (uint32_t)(1 - part->change);
    return segment->sink(segment->context, part->code_point, origin);
}

/* Sort marks by class, equal ones in their order. */
static m2_status sort_marks(nfc_segment *segment, nfc_part *marks, size_t n)
{
    size_t k = 1;
    while (k < n && marks[k - 1].ccc <= marks[k].ccc) k++;
    if (k >= n) return M2_OK;
    if (n <= 32) {
        for (; k < n; k++) {
            const nfc_part mark = marks[k];
            size_t to = k;
            for (; to > 0 && marks[to - 1].ccc > mark.ccc; to--) marks[to] = marks[to - 1];
            marks[to] = mark;
        }
        return M2_OK;
    }
    if (segment->sorted_room < n) {
        nfc_part *larger = realloc(segment->sorted, n * sizeof *larger);
        if (!larger) return m2_fail(M2_ERR_MEMORY, "text: no memory to sort %zu marks", n);
        segment->sorted = larger;
        segment->sorted_room = n;
    }
    size_t place[257] = { 0 };
    for (size_t i = 0; i < n; i++) place[marks[i].ccc + 1]++;
    for (int c = 0; c < 256; c++) place[c + 1] += place[c];
    for (size_t i = 0; i < n; i++) segment->sorted[place[marks[i].ccc]++] = marks[i];
    memcpy(marks, segment->sorted, n * sizeof *marks);
    return M2_OK;
}

/* Compose what has gathered, hand it to the sink, and be empty. */
static m2_status segment_flush(nfc_segment *segment)
{
    nfc_part *parts = segment->parts;
    const size_t n = segment->n;
    segment->n = 0;
    if (n == 1) return emit(segment, &parts[0]);
    for (size_t i = 0; i < n;) {
        size_t end = i + 1;
        if (parts[i].ccc) {
            while (end < n && parts[end].ccc) end++;
            M2_TRY(sort_marks(segment, parts + i, end - i));
        }
        i = end;
    }
    size_t i = 0;
    while (i < n && parts[i].ccc) M2_TRY(emit(segment, &parts[i++])); /* marks without a base */
    while (i < n) {
        nfc_part base = parts[i++];
        const size_t kept_begin = i;
        size_t kept_end = i; /* marks that did not join are moved down to [kept_begin, kept_end) */
        int last_ccc = -1;   /* class of the last kept one */
        for (; i < n; i++) {
            const nfc_part next = parts[i];
            const int is_blocked = last_ccc >= 0 && last_ccc >= next.ccc;
            const uint32_t joined = is_blocked ? 0 : compose(base.code_point, next.code_point);
            if (joined) {
                base.code_point = joined;
                base.change += next.change - 1;
            } else if (next.ccc == 0) {
                break;
            } else {
                parts[kept_end++] = next;
                last_ccc = next.ccc;
            }
        }
        M2_TRY(emit(segment, &base));
        for (size_t k = kept_begin; k < kept_end; k++) M2_TRY(emit(segment, &parts[k]));
    }
    return M2_OK;
}

static m2_status add(nfc_segment *segment, uint32_t code_point)
{
    if (!is_active(code_point)) {
        M2_TRY(segment_flush(segment));
        return segment_push(segment, code_point, 0);
    }
    utf8proc_int32_t parts[8];
    const int n = decompose(code_point, parts);
    /* A starter that is inactive is never the second of a pair: nothing before it can join. */
    if (!is_active((uint32_t)parts[0])) M2_TRY(segment_flush(segment));
    for (int k = 0; k < n; k++) M2_TRY(segment_push(segment, (uint32_t)parts[k], k > 0));
    return M2_OK;
}

m2_status m2_nfc(const char *text, size_t bytes, m2_nfc_sink *sink, void *context)
{
    nfc_segment segment = { .sink = sink, .context = context };
    m2_status status = M2_OK;
    for (size_t at = 0; at < bytes && status == M2_OK;)
        status = add(&segment, m2_utf8_next(text, &at));
    if (status == M2_OK) status = segment_flush(&segment);
    free(segment.parts);
    free(segment.sorted);
    return status;
}
