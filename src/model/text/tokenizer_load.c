#include "model/text/tokenizer_internal.h"

#include "io/json_file.h"
#include "model/text/json_pull.h"
#include "model/text/nfc.h"
#include "model/text/utf8.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define FILE_BYTES_MAX  ((size_t)256 << 20) /* the release's file has about 13 MB */
#define ADDED_BYTES_MAX 1024
#define DEPTH_MAX       32

/* A part of the file, found and not yet read. */
typedef struct section {
    const char *name;
    const char *text; /* NULL where the file does not have it */
    size_t bytes;
} section;

typedef struct loader {
    const char *path;
    const char *text;
    m2_tokenizer *tokenizer;
    m2_buffer first, second; /* for strings being read */
} loader;

uint32_t m2_byte_char(unsigned byte)
{
    if ((byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae)
        return byte;
    /* Counted in order: 0x00-0x20, 0x7f-0xa0, 0xad. */
    return 0x100 + (byte <= 0x20 ? byte : byte <= 0xa0 ? byte - 0x7f + 0x21 : 0x43);
}

int m2_char_byte(uint32_t code_point)
{
    if (code_point < 0x100) return m2_byte_char(code_point) == code_point ? (int)code_point : -1;
    if (code_point > 0x143) return -1;
    const int k = (int)code_point - 0x100;
    return k <= 0x20 ? k : k <= 0x42 ? k - 0x21 + 0x7f : 0xad;
}

static m2_status not_json(const loader *l, const m2_json_pull *pull)
{
    if (strcmp(pull->error, "no memory") == 0)
        return m2_fail(M2_ERR_MEMORY, "%s: no memory to read it", l->path);
    return m2_fail(M2_ERR_FORMAT, "%s: byte %zu: %s", l->path,
                   (size_t)(pull->text - l->text) + pull->at, pull->error);
}

/* Find the members of an object by name; a member that is not in the table is refused. */
static m2_status find_sections(loader *l, m2_json_pull *pull, const char *of, section *table,
                               size_t n)
{
    for (int is_first = m2_pull_open(pull, '{'); m2_pull_more(pull, '}', &is_first);) {
        if (!m2_pull_key(pull, &l->first)) break;
        size_t k = 0;
        while (k < n && strcmp(table[k].name, l->first.data) != 0) k++;
        if (k == n || strlen(table[k].name) != l->first.bytes)
            return m2_fail(M2_ERR_UNSUPPORTED, "%s: %s has a field '%.60s' that is not understood",
                           l->path, of, l->first.data);
        if (table[k].text)
            return m2_fail(M2_ERR_FORMAT, "%s: %s has '%s' twice", l->path, of, table[k].name);
        m2_pull_peek(pull);
        table[k].text = pull->text + pull->at;
        m2_pull_skip(pull, DEPTH_MAX);
        table[k].bytes = (size_t)(pull->text + pull->at - table[k].text);
    }
    return pull->error ? not_json(l, pull) : M2_OK;
}

static int is_word(const section *s, const char *word)
{
    return s->text && s->bytes == strlen(word) && memcmp(s->text, word, s->bytes) == 0;
}

/* Absent, null or one of two spellings that mean the same. */
static m2_status expect_off(const loader *l, const section *s, const char *off, const char *also)
{
    if (!s->text || is_word(s, "null") || is_word(s, off) || is_word(s, also)) return M2_OK;
    return m2_fail(M2_ERR_UNSUPPORTED, "%s: '%s' is %.40s, only %s is understood", l->path, s->name,
                   s->text, off);
}

static m2_status read_vocab(loader *l, const section *s)
{
    m2_vocab *vocab = &l->tokenizer->vocab;
    m2_json_pull pull;
    m2_pull_init(&pull, s->text, s->bytes);
    for (int is_first = m2_pull_open(&pull, '{'); m2_pull_more(&pull, '}', &is_first);) {
        const char *number;
        size_t bytes;
        int is_integer;
        if (!m2_pull_key(&pull, &l->first)) break;
        if (!m2_pull_number(&pull, &number, &bytes, &is_integer)) break;
        char digits[12] = "";
        if (bytes < sizeof digits) memcpy(digits, number, bytes);
        char *end;
        const long id = strtol(digits, &end, 10);
        if (!is_integer || end == digits || id < 0 || id >= (long)M2_VOCAB_ID_MAX)
            return m2_fail(M2_ERR_FORMAT, "%s: token '%.60s' has no id from 0 to %u", l->path,
                           l->first.data, M2_VOCAB_ID_MAX - 1);
        if (!m2_vocab_add(vocab, l->first.data, l->first.bytes, (uint32_t)id)) {
            if (vocab->pool.has_failed)
                return m2_fail(M2_ERR_MEMORY, "%s: no memory for the vocabulary", l->path);
            return m2_fail(M2_ERR_FORMAT, "%s: token '%.60s' or its id %ld is there twice", l->path,
                           l->first.data, id);
        }
    }
    if (pull.error) return not_json(l, &pull);
    l->tokenizer->n_model_ids = vocab->n_ids;
    return M2_OK;
}

/* The two halves of a merge, as ["a", "b"] or as "a b". */
static int read_merge(loader *l, m2_json_pull *pull, const char **left, size_t *left_bytes,
                      const char **right, size_t *right_bytes)
{
    if (m2_pull_peek(pull) == '[') {
        int is_first = m2_pull_open(pull, '[');
        if (!m2_pull_more(pull, ']', &is_first) || !m2_pull_string(pull, &l->first) ||
            !m2_pull_more(pull, ']', &is_first) || !m2_pull_string(pull, &l->second) ||
            m2_pull_more(pull, ']', &is_first))
            return m2_pull_fail(pull, "a merge that is not a pair of strings");
        *left = l->first.data;
        *left_bytes = l->first.bytes;
        *right = l->second.data;
        *right_bytes = l->second.bytes;
    } else {
        if (!m2_pull_string(pull, &l->first)) return 0;
        const char *space = memchr(l->first.data, ' ', l->first.bytes);
        if (!space) return m2_pull_fail(pull, "a merge without a space between its halves");
        *left = l->first.data;
        *left_bytes = (size_t)(space - l->first.data);
        *right = space + 1;
        *right_bytes = l->first.bytes - *left_bytes - 1;
    }
    if (*left_bytes == 0 || *right_bytes == 0) return m2_pull_fail(pull, "a merge of nothing");
    return 1;
}

/* The bytes at a token's ends; any byte for a character that stands for none, as no text has it. */
static unsigned char first_byte(const char *text, size_t bytes)
{
    (void)bytes;
    size_t at = 0;
    const int byte = m2_char_byte(m2_utf8_next(text, &at));
    return (unsigned char)(byte < 0 ? 0 : byte);
}

static unsigned char last_byte(const char *text, size_t bytes)
{
    size_t at = bytes - 1;
    while (((unsigned char)text[at] & 0xc0) == 0x80) at--;
    return first_byte(text + at, bytes - at);
}

static m2_status read_merges(loader *l, const section *s)
{
    const m2_vocab *vocab = &l->tokenizer->vocab;
    m2_json_pull pull;
    /* Every merge needs four bytes or more, so this bounds their number before they are read. */
    uint32_t n = 0;
    m2_pull_init(&pull, s->text, s->bytes);
    for (int is_first = m2_pull_open(&pull, '['); m2_pull_more(&pull, ']', &is_first); n++)
        m2_pull_skip(&pull, DEPTH_MAX);
    if (pull.error) return not_json(l, &pull);
    if (n > M2_BPE_MERGES_MAX)
        return m2_fail(M2_ERR_FORMAT, "%s: %u merges, at most %u are taken", l->path, n,
                       M2_BPE_MERGES_MAX);
    M2_TRY(m2_bpe_create(&l->tokenizer->bpe, n));
    m2_buffer whole = { 0 };
    m2_status status = M2_OK;
    m2_pull_init(&pull, s->text, s->bytes);
    for (int is_first = m2_pull_open(&pull, '['); m2_pull_more(&pull, ']', &is_first);) {
        const char *left = NULL, *right = NULL;
        size_t left_bytes = 0, right_bytes = 0;
        if (!read_merge(l, &pull, &left, &left_bytes, &right, &right_bytes)) break;
        m2_buffer_clear(&whole);
        m2_buffer_append(&whole, left, left_bytes);
        m2_buffer_append(&whole, right, right_bytes);
        if (whole.has_failed) {
            m2_pull_fail(&pull, "no memory");
            break;
        }
        const uint32_t a = m2_vocab_find(vocab, left, left_bytes);
        const uint32_t b = m2_vocab_find(vocab, right, right_bytes);
        const uint32_t merged = m2_vocab_find(vocab, whole.data, whole.bytes);
        if (a == M2_VOCAB_NONE || b == M2_VOCAB_NONE || merged == M2_VOCAB_NONE) {
            status = m2_fail(M2_ERR_FORMAT,
                             "%s: merge %u, '%.40s' + '%.40s': %s is not in the vocabulary",
                             l->path, l->tokenizer->bpe.n_merges, left, right,
                             a == M2_VOCAB_NONE   ? "the left half"
                             : b == M2_VOCAB_NONE ? "the right half"
                                                  : "the whole");
            break;
        }
        m2_bpe_add(&l->tokenizer->bpe, a, b, merged, last_byte(left, left_bytes),
                   first_byte(right, right_bytes));
    }
    m2_buffer_free(&whole);
    return pull.error ? not_json(l, &pull) : status;
}

static m2_status read_model(loader *l, const section *s)
{
    enum { TYPE, DROPOUT, UNK, PREFIX, SUFFIX, FUSE, FALLBACK, IGNORE, VOCAB, MERGES, N };
    section table[N] = { { .name = "type" },
                         { .name = "dropout" },
                         { .name = "unk_token" },
                         { .name = "continuing_subword_prefix" },
                         { .name = "end_of_word_suffix" },
                         { .name = "fuse_unk" },
                         { .name = "byte_fallback" },
                         { .name = "ignore_merges" },
                         { .name = "vocab" },
                         { .name = "merges" } };
    m2_json_pull pull;
    m2_pull_init(&pull, s->text, s->bytes);
    M2_TRY(find_sections(l, &pull, "'model'", table, N));
    if (!is_word(&table[TYPE], "\"BPE\""))
        return m2_fail(M2_ERR_UNSUPPORTED,
                       "%s: the model's type is %.40s, only \"BPE\" is understood", l->path,
                       table[TYPE].text ? table[TYPE].text : "not given");
    if (!table[VOCAB].text || !table[MERGES].text)
        return m2_fail(M2_ERR_FORMAT, "%s: the model has no '%s'", l->path,
                       table[VOCAB].text ? "merges" : "vocab");
    M2_TRY(expect_off(l, &table[DROPOUT], "0.0", "0"));
    M2_TRY(expect_off(l, &table[PREFIX], "\"\"", "\"\""));
    M2_TRY(expect_off(l, &table[SUFFIX], "\"\"", "\"\""));
    M2_TRY(expect_off(l, &table[FALLBACK], "false", "false"));
    M2_TRY(expect_off(l, &table[IGNORE], "false", "false"));
    /* unk_token and fuse_unk: every byte has a token (checked below), so nothing is unknown. */
    M2_TRY(read_vocab(l, &table[VOCAB]));
    M2_TRY(read_merges(l, &table[MERGES]));
    uint32_t byte_id[256];
    for (unsigned byte = 0; byte < 256; byte++) {
        char text[4];
        const size_t bytes = m2_utf8_put(m2_byte_char(byte), text);
        const uint32_t id = m2_vocab_find(&l->tokenizer->vocab, text, bytes);
        if (id == M2_VOCAB_NONE)
            return m2_fail(M2_ERR_FORMAT, "%s: the vocabulary has no token for byte 0x%02x",
                           l->path, byte);
        byte_id[byte] = id;
    }
    m2_bpe_set_bytes(&l->tokenizer->bpe, byte_id);
    return M2_OK;
}

/* ---- the small parts, through jansson ---- */

static m2_status parse_small(const loader *l, const section *s, json_t **value_out)
{
    *value_out = NULL;
    if (!s->text) return M2_OK;
    json_error_t error;
    *value_out = json_loadb(s->text, s->bytes, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &error);
    if (*value_out) return M2_OK;
    return m2_fail(M2_ERR_FORMAT, "%s: '%s', line %d: %s", l->path, s->name, error.line,
                   error.text);
}

static int is_type(const json_t *value, const char *type)
{
    const char *text = json_string_value(json_object_get(value, "type"));
    return text && strcmp(text, type) == 0;
}

static m2_status unsupported(const loader *l, const char *what, const json_t *value,
                             const char *understood)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    const m2_status status = m2_fail(M2_ERR_UNSUPPORTED, "%s: %s is %.200s; understood is %s",
                                     l->path, what, text ? text : "?", understood);
    free(text);
    return status;
}

/* Bytes to characters and nothing else: no space in front, no second split.  The library takes an
 * option that is not given as true. */
static int is_plain_byte_level(const json_t *value)
{
    return is_type(value, "ByteLevel") && json_is_false(json_object_get(value, "use_regex")) &&
           json_is_false(json_object_get(value, "add_prefix_space"));
}

static m2_status read_normaliser(loader *l, const json_t *value)
{
    if (!value || json_is_null(value)) return M2_OK;
    const json_t *list = json_object_get(value, "normalizers");
    if (is_type(value, "Sequence") && json_array_size(list) == 1) value = json_array_get(list, 0);
    if (!is_type(value, "NFC") || json_object_size(value) != 1)
        return unsupported(l, "'normalizer'", value, "NFC");
    l->tokenizer->has_nfc = 1;
    return M2_OK;
}

static m2_status read_pre_tokenizer(loader *l, const json_t *value)
{
    static const char *const understood =
        "a Sequence of one isolating Split by a regex and a ByteLevel without options";
    const json_t *list = json_object_get(value, "pretokenizers");
    const json_t *split = json_array_get(list, 0);
    const char *pattern =
        json_string_value(json_object_get(json_object_get(split, "pattern"), "Regex"));
    const char *behaviour = json_string_value(json_object_get(split, "behavior"));
    if (!is_type(value, "Sequence") || json_array_size(list) != 2 || !is_type(split, "Split") ||
        !pattern || !behaviour || strcmp(behaviour, "Isolated") != 0 ||
        !json_is_false(json_object_get(split, "invert")) ||
        !is_plain_byte_level(json_array_get(list, 1)))
        return unsupported(l, "'pre_tokenizer'", value, understood);
    return m2_split_regex_create(pattern, l->path, &l->tokenizer->split);
}

static m2_status append_code_point(void *context, uint32_t code_point, uint32_t origin)
{
    (void)origin;
    m2_buffer_put_code_point(context, code_point);
    return M2_OK;
}

static m2_status read_flag(const loader *l, const json_t *token, const char *name, int otherwise,
                           int *flag_out)
{
    const json_t *flag = json_object_get(token, name);
    if (flag && !json_is_boolean(flag))
        return m2_fail(M2_ERR_FORMAT, "%s: added token '%.60s': '%s' is neither true nor false",
                       l->path, json_string_value(json_object_get(token, "content")), name);
    *flag_out = flag ? json_is_true(flag) : otherwise;
    return M2_OK;
}

static m2_status read_added_token(loader *l, const json_t *token)
{
    m2_vocab *vocab = &l->tokenizer->vocab;
    const json_t *content = json_object_get(token, "content"),
                 *number = json_object_get(token, "id");
    const char *text = json_string_value(content);
    const size_t bytes = json_string_length(content);
    const json_int_t id = json_is_integer(number) ? json_integer_value(number) : -1;
    if (bytes == 0 || bytes > ADDED_BYTES_MAX || id < 0 || id >= (json_int_t)M2_VOCAB_ID_MAX)
        return unsupported(l, "an added token", token,
                           "one with a 'content' of 1 to 1024 bytes and an 'id' below 2^24");
    int special, normalised, single_word, lstrip, rstrip;
    M2_TRY(read_flag(l, token, "special", 0, &special));
    M2_TRY(read_flag(l, token, "normalized", !special, &normalised));
    M2_TRY(read_flag(l, token, "single_word", 0, &single_word));
    M2_TRY(read_flag(l, token, "lstrip", 0, &lstrip));
    M2_TRY(read_flag(l, token, "rstrip", 0, &rstrip));
    if (m2_vocab_find(vocab, text, bytes) != (uint32_t)id &&
        !m2_vocab_add(vocab, text, bytes, (uint32_t)id)) {
        if (vocab->pool.has_failed)
            return m2_fail(M2_ERR_MEMORY, "%s: no memory for the added tokens", l->path);
        return m2_fail(
            M2_ERR_FORMAT,
            "%s: added token '%.60s': its id %lld is another token's, or it has another id",
            l->path, text, (long long)id);
    }
    m2_buffer copy = { 0 };
    m2_status status = M2_OK;
    if (normalised && l->tokenizer->has_nfc)
        status = m2_nfc(text, bytes, append_code_point, &copy);
    else
        m2_buffer_append(&copy, text, bytes);
    if (status == M2_OK && copy.has_failed)
        status = m2_fail(M2_ERR_MEMORY, "%s: no memory for the added tokens", l->path);
    if (status != M2_OK) {
        m2_buffer_free(&copy);
        return status;
    }
    return m2_added_tokens_add(normalised && l->tokenizer->has_nfc ? &l->tokenizer->added_normalised
                                                                   : &l->tokenizer->added,
                               (m2_added_token){ .text = copy.data,
                                                 .bytes = copy.bytes,
                                                 .id = (uint32_t)id,
                                                 .single_word = (uint8_t)single_word,
                                                 .lstrip = (uint8_t)lstrip,
                                                 .rstrip = (uint8_t)rstrip });
}

static m2_status read_added_tokens(loader *l, const json_t *list)
{
    if (list && !json_is_null(list) && !json_is_array(list))
        return unsupported(l, "'added_tokens'", list, "a list");
    size_t k;
    json_t *token;
    json_array_foreach(list, k, token) M2_TRY(read_added_token(l, token));
    m2_added_tokens_sort(&l->tokenizer->added);
    m2_added_tokens_sort(&l->tokenizer->added_normalised);
    return M2_OK;
}

static m2_status read_post_processor(loader *l, const json_t *value)
{
    /* A ByteLevel here can only narrow offsets where spaces lie at a token's ends. */
    if (!value || json_is_null(value) ||
        (is_type(value, "ByteLevel") && json_is_false(json_object_get(value, "trim_offsets"))))
        return M2_OK;
    return unsupported(l, "'post_processor'", value, "null or a ByteLevel that trims no offsets");
}

static m2_status read_small(loader *l, const section *s,
                            m2_status (*read)(loader *, const json_t *))
{
    json_t *value;
    M2_TRY(parse_small(l, s, &value));
    const m2_status status = read(l, value);
    json_decref(value);
    return status;
}

static m2_status read_file(loader *l, size_t bytes)
{
    enum { VERSION, TRUNCATION, PADDING, ADDED, NORMALISER, PRE, POST, DECODER, MODEL, N };
    section table[N] = { { .name = "version" },        { .name = "truncation" },
                         { .name = "padding" },        { .name = "added_tokens" },
                         { .name = "normalizer" },     { .name = "pre_tokenizer" },
                         { .name = "post_processor" }, { .name = "decoder" },
                         { .name = "model" } };
    size_t bad, n_chars;
    if (!m2_utf8_check(l->text, bytes, 0, &bad, &n_chars))
        return m2_fail(M2_ERR_FORMAT, "%s: byte %zu is not UTF-8", l->path, bad);
    m2_json_pull pull;
    m2_pull_init(&pull, l->text, bytes);
    M2_TRY(find_sections(l, &pull, "the file", table, N));
    if (!m2_pull_end(&pull)) return not_json(l, &pull);
    /* truncation and padding: the reference sets its own at every call.  decoder: only for text
     * from ids.  version: the layout is checked field by field. */
    if (!table[MODEL].text || !table[PRE].text)
        return m2_fail(M2_ERR_FORMAT, "%s: has no '%s'", l->path,
                       table[MODEL].text ? "pre_tokenizer" : "model");
    M2_TRY(read_small(l, &table[NORMALISER], read_normaliser));
    M2_TRY(read_small(l, &table[PRE], read_pre_tokenizer));
    M2_TRY(read_small(l, &table[POST], read_post_processor));
    M2_TRY(read_model(l, &table[MODEL]));
    return read_small(l, &table[ADDED], read_added_tokens);
}

m2_status m2_tokenizer_open(const char *path, m2_tokenizer **tokenizer_out)
{
    char *text = NULL;
    size_t bytes = 0;
    M2_TRY(m2_file_read(path, FILE_BYTES_MAX, &text, &bytes));
    loader l = { .path = path, .text = text, .tokenizer = calloc(1, sizeof *l.tokenizer) };
    m2_status status = l.tokenizer ? m2_char_map_create(&l.tokenizer->char_map)
                                   : m2_fail(M2_ERR_MEMORY, "%s: no memory for a tokenizer", path);
    if (status == M2_OK) status = read_file(&l, bytes);
    m2_buffer_free(&l.first);
    m2_buffer_free(&l.second);
    free(text);
    if (status != M2_OK) {
        m2_tokenizer_close(l.tokenizer);
        return status;
    }
    *tokenizer_out = l.tokenizer;
    return M2_OK;
}

void m2_tokenizer_close(m2_tokenizer *tokenizer)
{
    if (!tokenizer) return;
    m2_vocab_free(&tokenizer->vocab);
    m2_bpe_destroy(&tokenizer->bpe);
    m2_added_tokens_free(&tokenizer->added);
    m2_added_tokens_free(&tokenizer->added_normalised);
    m2_split_regex_destroy(tokenizer->split);
    m2_char_map_destroy(&tokenizer->char_map);
    free(tokenizer);
}
