#include "model/text/tokenizer_internal.h"

#include "core/log.h"
#include "model/text/nfc.h"
#include "model/text/utf8.h"

#include <stdlib.h>
#include <string.h>

/* A text is one prompt; offsets within it are kept in 32 bits. */
#define TEXT_BYTES_MAX ((size_t)1 << 29)
#define CLASS_ISOLATED 0xff /* a character that the extra split cuts out */

/* The part between two added tokens, normalised, and what is needed to cut it. */
typedef struct encoder {
    const m2_tokenizer *tokenizer;
    m2_encode_options options;
    m2_buffer text;    /* normalised                                             */
    uint8_t *classes;  /* [n_chars] one a character (split_regex.h)              */
    uint32_t *origins; /* [n_chars] character of the section that it stands on   */
    size_t n_chars, room_chars;
    m2_split_matcher *matcher;
    m2_bpe_scratch scratch;
    m2_bpe_tokens piece_tokens;
    int64_t section_begin; /* characters of the text before the section */
    m2_tokens out;
    int64_t room_out;
    m2_pieces *pieces; /* where pieces are asked for, not tokens */
    int64_t room_pieces;
} encoder;

void m2_encode_options_init(m2_encode_options *options)
{
    *options = (m2_encode_options){ .max_tokens = M2_PROMPT_TOKENS_MAX, .has_cjk_split = 1 };
}

/* What the extra split isolates, as measured; see tokenizer.h. */
static int is_isolated(uint32_t c)
{
    return (c >= 0x30 && c <= 0x55) || (c >= 0x1100 && c <= 0x11ff) ||
           (c >= 0x2e80 && c <= 0xa4cf) || (c >= 0xa840 && c <= 0xd7af) ||
           (c >= 0xf900 && c <= 0xfaff) || (c >= 0xfe30 && c <= 0xfe4f) ||
           (c >= 0xff65 && c <= 0xffdc);
}

static m2_status no_memory(void)
{
    return m2_fail(M2_ERR_MEMORY, "tokenizer: no memory for this text");
}

static m2_status push_char(void *context, uint32_t code_point, uint32_t origin)
{
    encoder *e = context;
    if (e->n_chars == e->room_chars) {
        const size_t room = e->room_chars ? e->room_chars + e->room_chars / 2 : 256;
        uint8_t *classes = realloc(e->classes, room * sizeof *classes);
        if (classes) e->classes = classes;
        uint32_t *origins = classes ? realloc(e->origins, room * sizeof *origins) : NULL;
        if (!origins) return no_memory();
        e->origins = origins;
        e->room_chars = room;
    }
    m2_buffer_put_code_point(&e->text, code_point);
    e->classes[e->n_chars] = e->options.has_cjk_split && is_isolated(code_point)
                                 ? CLASS_ISOLATED
                                 : m2_char_map_get(&e->tokenizer->char_map, code_point);
    e->origins[e->n_chars++] = origin;
    return M2_OK;
}

/* Normalise text[0, bytes) into the section's arrays. */
static m2_status load_section(encoder *e, const char *text, size_t bytes)
{
    m2_buffer_clear(&e->text);
    e->n_chars = 0;
    m2_status status = M2_OK;
    if (e->tokenizer->has_nfc) {
        status = m2_nfc(text, bytes, push_char, e);
    } else {
        uint32_t n = 0;
        for (size_t at = 0; at < bytes && status == M2_OK; n++)
            status = push_char(e, m2_utf8_next(text, &at), n);
    }
    return status == M2_OK && e->text.has_failed ? no_memory() : status;
}

static m2_status push_token(encoder *e, uint32_t id, int64_t begin, int64_t end)
{
    m2_tokens *out = &e->out;
    out->n_total++;
    if (e->options.max_tokens > 0 && out->n >= e->options.max_tokens) return M2_OK;
    if (out->n == e->room_out) {
        const int64_t room = e->room_out ? e->room_out + e->room_out / 2 : 256;
        int32_t *ids = realloc(out->id, (size_t)room * sizeof *ids);
        if (ids) out->id = ids;
        int64_t *begins = realloc(out->begin, (size_t)room * sizeof *begins);
        if (begins) out->begin = begins;
        int64_t *ends = realloc(out->end, (size_t)room * sizeof *ends);
        if (ends) out->end = ends;
        if (!ids || !begins || !ends) return no_memory();
        e->room_out = room;
    }
    out->id[out->n] = (int32_t)id;
    out->begin[out->n] = begin;
    out->end[out->n++] = end;
    return M2_OK;
}

static m2_status push_piece(encoder *e, size_t begin, size_t end)
{
    m2_pieces *pieces = e->pieces;
    if (pieces->n == e->room_pieces) {
        const int64_t room = e->room_pieces ? e->room_pieces * 2 : 64;
        int64_t *begins = realloc(pieces->begin, (size_t)room * sizeof *begins);
        if (begins) pieces->begin = begins;
        int64_t *ends = realloc(pieces->end, (size_t)room * sizeof *ends);
        if (ends) pieces->end = ends;
        if (!begins || !ends) return no_memory();
        e->room_pieces = room;
    }
    pieces->begin[pieces->n] = (int64_t)begin;
    pieces->end[pieces->n++] = (int64_t)end;
    return M2_OK;
}

/* Place in the section: a character and its first byte. */
typedef struct cursor {
    size_t at_char, at_byte;
} cursor;

static void step(const encoder *e, cursor *place)
{
    place->at_byte += m2_utf8_width((unsigned char)e->text.data[place->at_byte]);
    place->at_char++;
}

/* Tokens of one piece: from `place`, which moves to its end at character `end`. */
static m2_status encode_piece(encoder *e, cursor *place, size_t end)
{
    const cursor begin = *place;
    while (place->at_char < end) step(e, place);
    if (e->pieces) return push_piece(e, begin.at_byte, place->at_byte);
    const m2_bpe *bpe = &e->tokenizer->bpe;
    const unsigned char *text = (const unsigned char *)e->text.data;
    cursor at = begin; /* the character that holds the token's first byte, then its last */
    size_t first_byte = begin.at_byte;
    while (first_byte < place->at_byte) {
        const size_t run_begin = first_byte;
        const size_t n = m2_bpe_run(bpe, text + run_begin, place->at_byte - run_begin);
        M2_TRY(m2_bpe_encode(bpe, text + run_begin, n, M2_BPE_SCAN_MAX, M2_BPE_WINDOW, &e->scratch,
                             &e->piece_tokens));
        for (size_t k = 0; k < e->piece_tokens.n; k++) {
            const size_t end_byte = run_begin + e->piece_tokens.ends[k];
            for (cursor next = at; step(e, &next), next.at_byte <= first_byte;) at = next;
            const uint32_t first = e->origins[at.at_char];
            for (cursor next = at; step(e, &next), next.at_byte < end_byte;) at = next;
            M2_TRY(push_token(e, e->piece_tokens.ids[k], e->section_begin + first,
                              e->section_begin + e->origins[at.at_char] + 1));
            first_byte = end_byte;
        }
    }
    return M2_OK;
}

/* Cut and encode up to character `end` of the section. */
static m2_status encode_run(encoder *e, cursor *place, size_t end)
{
    while (place->at_char < end) {
        const size_t from = place->at_char;
        if (e->classes[from] == CLASS_ISOLATED) {
            M2_TRY(encode_piece(e, place, from + 1));
            continue;
        }
        const uint8_t *stop = memchr(e->classes + from, CLASS_ISOLATED, end - from);
        const size_t n = stop ? (size_t)(stop - e->classes) - from : end - from;
        for (size_t at = 0; at < n;) {
            size_t match_begin, match_end;
            M2_TRY(m2_split_matcher_next(e->matcher, e->classes + from, n, at, &match_begin,
                                         &match_end));
            if (match_begin > at) M2_TRY(encode_piece(e, place, from + match_begin));
            if (match_end > match_begin) M2_TRY(encode_piece(e, place, from + match_end));
            at = match_end;
        }
    }
    return M2_OK;
}

/* text[0, bytes) between two added tokens that are looked for before NFC. */
static m2_status encode_section(encoder *e, const char *text, size_t bytes)
{
    M2_TRY(load_section(e, text, bytes));
    const m2_added_tokens *added = &e->tokenizer->added_normalised;
    cursor place = { 0, 0 };
    size_t from = 0;
    m2_added_match match;
    while (!e->pieces &&
           m2_added_tokens_next(added, e->text.data, e->text.bytes, from, place.at_byte, &match)) {
        cursor behind = place;
        while (behind.at_byte < match.begin) step(e, &behind);
        M2_TRY(encode_run(e, &place, behind.at_char));
        const uint32_t first = e->origins[behind.at_char];
        uint32_t last = first;
        for (; behind.at_byte < match.end; step(e, &behind)) last = e->origins[behind.at_char];
        M2_TRY(push_token(e, match.id, e->section_begin + first, e->section_begin + last + 1));
        place = behind;
        from = match.next;
    }
    return encode_run(e, &place, e->n_chars);
}

static int64_t count_chars(const char *text, size_t bytes)
{
    int64_t n = 0;
    for (size_t k = 0; k < bytes; k++) n += ((unsigned char)text[k] & 0xc0) != 0x80;
    return n;
}

static m2_status encode_text(encoder *e, const char *text, size_t bytes)
{
    size_t done = 0, from = 0;
    m2_added_match match;
    while (!e->pieces &&
           m2_added_tokens_next(&e->tokenizer->added, text, bytes, from, done, &match)) {
        if (match.begin > done) M2_TRY(encode_section(e, text + done, match.begin - done));
        e->section_begin += count_chars(text + done, match.begin - done);
        const int64_t n = count_chars(text + match.begin, match.end - match.begin);
        M2_TRY(push_token(e, match.id, e->section_begin, e->section_begin + n));
        e->section_begin += n;
        done = match.end;
        from = match.next;
    }
    return done < bytes ? encode_section(e, text + done, bytes - done) : M2_OK;
}

static m2_status check_text(const char *text, size_t bytes, const m2_encode_options *options)
{
    size_t bad, n_chars;
    if (bytes == 0 && !options->takes_empty)
        return m2_fail(M2_ERR_ARG, "the prompt is empty; describe the clip in at least a word");
    if (bytes > TEXT_BYTES_MAX)
        return m2_fail(M2_ERR_ARG, "the prompt has %zu bytes, at most %zu are taken", bytes,
                       TEXT_BYTES_MAX);
    if (!m2_utf8_check(text, bytes, 0, &bad, &n_chars))
        return m2_fail(
            M2_ERR_ARG,
            "the prompt is not UTF-8: byte %zu (0x%02x), behind %zu characters; save it as "
            "UTF-8",
            bad, (unsigned char)text[bad], n_chars);
    return M2_OK;
}

static void encoder_release(encoder *e)
{
    m2_buffer_free(&e->text);
    free(e->classes);
    free(e->origins);
    m2_split_matcher_destroy(e->matcher);
    m2_bpe_scratch_free(&e->scratch);
    m2_bpe_tokens_free(&e->piece_tokens);
}

m2_status m2_tokenizer_encode(const m2_tokenizer *tokenizer, const char *text, size_t bytes,
                              const m2_encode_options *options, m2_tokens *tokens_out)
{
    encoder e = { .tokenizer = tokenizer };
    m2_encode_options_init(&e.options);
    if (options) e.options = *options;
    M2_TRY(check_text(text, bytes, &e.options));
    m2_status status = m2_split_matcher_create(tokenizer->split, &e.matcher);
    if (status == M2_OK) status = encode_text(&e, text, bytes);
    encoder_release(&e);
    if (status != M2_OK) {
        m2_tokens_free(&e.out);
        return status;
    }
    if (e.out.n < e.out.n_total)
        m2_warn("tokenizer",
                "the prompt has %lld tokens, the text encoder takes the first %lld: what stands "
                "behind has no effect",
                (long long)e.out.n_total, (long long)e.out.n);
    *tokens_out = e.out;
    return M2_OK;
}

void m2_tokens_free(m2_tokens *tokens)
{
    free(tokens->id);
    free(tokens->begin);
    free(tokens->end);
    *tokens = (m2_tokens){ 0 };
}

m2_status m2_tokenizer_split(const m2_tokenizer *tokenizer, const char *text, size_t bytes,
                             const m2_encode_options *options, m2_pieces *pieces_out)
{
    m2_pieces pieces = { 0 };
    encoder e = { .tokenizer = tokenizer, .pieces = &pieces };
    m2_encode_options_init(&e.options);
    if (options) e.options = *options;
    M2_TRY(check_text(text, bytes, &e.options));
    m2_status status = m2_split_matcher_create(tokenizer->split, &e.matcher);
    if (status == M2_OK) status = encode_text(&e, text, bytes);
    m2_buffer_append(&e.text, "", 0); /* never NULL */
    if (status == M2_OK && e.text.has_failed) status = no_memory();
    if (status == M2_OK) {
        pieces.normalised = e.text.data;
        pieces.bytes = e.text.bytes;
        e.text = (m2_buffer){ 0 };
    }
    encoder_release(&e);
    if (status != M2_OK) {
        m2_pieces_free(&pieces);
        return status;
    }
    *pieces_out = pieces;
    return M2_OK;
}

void m2_pieces_free(m2_pieces *pieces)
{
    free(pieces->normalised);
    free(pieces->begin);
    free(pieces->end);
    *pieces = (m2_pieces){ 0 };
}

int64_t m2_tokenizer_n_ids(const m2_tokenizer *tokenizer)
{
    return tokenizer->vocab.n_ids;
}

int m2_tokenizer_append_token(const m2_tokenizer *tokenizer, int32_t id, m2_buffer *out)
{
    size_t bytes = 0;
    const char *text = id >= 0 ? m2_vocab_text(&tokenizer->vocab, (uint32_t)id, &bytes) : NULL;
    if (!text) return 0;
    /* A token of the model is spelt in byte characters; any other is itself. */
    int is_spelt = (uint32_t)id < tokenizer->n_model_ids;
    for (size_t at = 0; at < bytes && is_spelt;)
        is_spelt = m2_char_byte(m2_utf8_next(text, &at)) >= 0;
    if (!is_spelt) {
        m2_buffer_append(out, text, bytes);
        return 1;
    }
    for (size_t at = 0; at < bytes;) {
        const char byte = (char)m2_char_byte(m2_utf8_next(text, &at));
        m2_buffer_append(out, &byte, 1);
    }
    return 1;
}
