/* check_tokenizer.c - golden/tokenizer: ids, offsets and pieces, folder by folder.
 *
 * A folder holds one tokenizer.json and files of lines, each line a text with what it must give.
 * What a line holds is known by its keys; the file's name says which settings it was made with:
 * "without_cjk_split" without the extra split, "as_qwen2_class" with the older split pattern, which
 * differs in that it does not know marks.  All that is about other libraries' settings
 * (tokenizer_config.json, report.json) has nothing to compare.
 */
#include "golden.h"

#include "model/text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OLDER_PATTERN                                                                              \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+"      \
    "[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

typedef struct folder {
    golden_run *run;
    const char *dir;
    const char *label;               /* how verdicts name the folder: "", "qwen2_regex/" */
    m2_tokenizer *tokenizer, *older; /* older: with the pattern above, opened when asked for */
    int n_shown;                     /* failures printed of the file at hand */
} folder;

/* Says the first few failures of a file, and counts on. */
static void complain(folder *f, const char *file, int line, const char *format, const char *detail)
{
    if (f->n_shown++ < 5)
        golden_result(f->run, 0, golden_format(f->run, "%s%s:%d", f->label, file, line), format,
                      detail);
}

/* The same tokenizer with another pattern. */
static m2_tokenizer *open_older(folder *f)
{
    if (f->older) return f->older;
    json_t *root = golden_json(f->run, golden_format(f->run, "%s/tokenizer.json", f->dir));
    json_t *list = json_object_get(json_object_get(root, "pre_tokenizer"), "pretokenizers");
    json_t *pattern = json_object_get(json_array_get(list, 0), "pattern");
    char path[] = "/tmp/magi2-golden-XXXXXX";
    const int file = mkstemp(path);
    if (!pattern || file < 0 || json_object_set_new(pattern, "Regex", json_string(OLDER_PATTERN)) ||
        json_dumpfd(root, file, 0) || m2_tokenizer_open(path, &f->older) != M2_OK)
        golden_result(f->run, 0, f->dir, "no tokenizer with the older pattern: %s",
                      m2_last_error());
    if (file >= 0) {
        close(file);
        unlink(path);
    }
    json_decref(root);
    return f->older;
}

static int keys_are(const json_t *line, const char *const *keys, size_t n)
{
    for (size_t k = 0; k < n; k++)
        if (!json_object_get(line, keys[k])) return 0;
    return json_object_size(line) == n;
}

static int is_range(const json_t *value, int64_t begin, int64_t end)
{
    return json_array_size(value) == 2 && json_is_integer(json_array_get(value, 0)) &&
           json_is_integer(json_array_get(value, 1)) &&
           json_integer_value(json_array_get(value, 0)) == begin &&
           json_integer_value(json_array_get(value, 1)) == end;
}

static const char *check_ids(folder *f, const m2_tokenizer *tokenizer,
                             const m2_encode_options *options, const json_t *line)
{
    const json_t *text = json_object_get(line, "text"), *ids = json_object_get(line, "ids"),
                 *offsets = json_object_get(line, "offsets");
    m2_tokens tokens;
    if (m2_tokenizer_encode(tokenizer, json_string_value(text), json_string_length(text), options,
                            &tokens) != M2_OK)
        return m2_last_error();
    const char *fault = NULL;
    if (!json_is_array(ids) || !json_is_array(offsets) ||
        json_array_size(ids) != (size_t)tokens.n || json_array_size(offsets) != (size_t)tokens.n)
        fault = golden_format(f->run, "%lld tokens, expected %zu", (long long)tokens.n,
                              json_array_size(ids));
    for (int64_t k = 0; k < tokens.n && !fault; k++) {
        const json_t *id = json_array_get(ids, (size_t)k);
        if (!json_is_integer(id) || json_integer_value(id) != tokens.id[k])
            fault = golden_format(f->run, "token %lld is %d, expected %lld", (long long)k,
                                  tokens.id[k], (long long)json_integer_value(id));
        else if (!is_range(json_array_get(offsets, (size_t)k), tokens.begin[k], tokens.end[k]))
            fault =
                golden_format(f->run, "token %lld stands on other characters than [%lld, %lld)",
                              (long long)k, (long long)tokens.begin[k], (long long)tokens.end[k]);
    }
    m2_tokens_free(&tokens);
    return fault;
}

/* The bytes of a piece as the file spells them. */
static void spell(const char *bytes, int64_t n, char *out)
{
    for (int64_t k = 0; k < n; k++) {
        const unsigned byte = (unsigned char)bytes[k];
        const unsigned c = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte != 0xad)
                               ? byte
                               : 0x100 + (byte <= 0x20   ? byte
                                          : byte == 0xad ? 0x43
                                                         : byte - 0x5e);
        if (c < 0x80) {
            *out++ = (char)c;
        } else {
            *out++ = (char)(0xc0 | c >> 6);
            *out++ = (char)(0x80 | (c & 0x3f));
        }
    }
    *out = '\0';
}

static int64_t n_chars(const char *text, int64_t bytes)
{
    int64_t n = 0;
    for (int64_t k = 0; k < bytes; k++) n += ((unsigned char)text[k] & 0xc0) != 0x80;
    return n;
}

static const char *check_pieces(folder *f, const m2_tokenizer *tokenizer,
                                const m2_encode_options *options, const json_t *line)
{
    const json_t *text = json_object_get(line, "text"), *wanted = json_object_get(line, "pieces"),
                 *normalised = json_object_get(line, "normalized");
    m2_pieces pieces;
    if (m2_tokenizer_split(tokenizer, json_string_value(text), json_string_length(text), options,
                           &pieces) != M2_OK)
        return m2_last_error();
    const char *fault = NULL;
    if (json_string_length(normalised) != pieces.bytes ||
        memcmp(json_string_value(normalised), pieces.normalised, pieces.bytes) != 0)
        fault = "the normalised text differs";
    else if (json_array_size(wanted) != (size_t)pieces.n)
        fault = golden_format(f->run, "%lld pieces, expected %zu", (long long)pieces.n,
                              json_array_size(wanted));
    char *spelt = malloc(2 * pieces.bytes + 1);
    for (int64_t k = 0; k < pieces.n && !fault && spelt; k++) {
        const json_t *piece = json_array_get(wanted, (size_t)k);
        const char *expected = json_string_value(json_array_get(piece, 0));
        spell(pieces.normalised + pieces.begin[k], pieces.end[k] - pieces.begin[k], spelt);
        if (json_array_size(piece) != 2 || !expected || strcmp(expected, spelt) != 0 ||
            !is_range(json_array_get(piece, 1), n_chars(pieces.normalised, pieces.begin[k]),
                      n_chars(pieces.normalised, pieces.end[k])))
            fault = golden_format(f->run, "piece %lld is \"%s\"", (long long)k, spelt);
    }
    free(spelt);
    m2_pieces_free(&pieces);
    return fault;
}

static void check_lines(folder *f, const char *file)
{
    static const char *const id_keys[] = { "text", "ids", "offsets" }, *const piece_keys[] = {
        "text", "normalized", "pieces"
    };
    json_t *lines = golden_json_lines(f->run, golden_format(f->run, "%s/%s", f->dir, file));
    if (!lines) return;
    m2_encode_options options;
    m2_encode_options_init(&options);
    options.max_tokens = 0;
    options.takes_empty = 1;
    options.has_cjk_split = strstr(file, "without_cjk_split") == NULL;
    const m2_tokenizer *tokenizer = strstr(file, "as_qwen2_class") ? open_older(f) : f->tokenizer;
    size_t k, n_passed = 0;
    json_t *line;
    f->n_shown = 0;
    json_array_foreach(lines, k, line)
    {
        if (!tokenizer) break;
        const char *fault = !json_is_string(json_object_get(line, "text")) ? "not understood"
                            : keys_are(line, id_keys, 3) ? check_ids(f, tokenizer, &options, line)
                            : keys_are(line, piece_keys, 3)
                                ? check_pieces(f, tokenizer, &options, line)
                                : "not understood: other keys than expected";
        if (fault)
            complain(f, file, (int)k + 1, "%s", fault);
        else
            n_passed++;
    }
    const size_t n = json_array_size(lines);
    golden_result(f->run, n > 0 && n_passed == n, golden_format(f->run, "%s%s", f->label, file),
                  "%zu of %zu texts as expected", n_passed, n);
    json_decref(lines);
}

/* Whether the extra split takes c out of x c newline: 1 or 0, or -1 where that cannot be seen, as c
 * is cut out anyway (a number) or NFC makes it another character. */
static int is_isolated(const m2_tokenizer *tokenizer, uint32_t c)
{
    int64_t n_pieces[2] = { -1, -1 };
    char text[8] = "x";
    size_t bytes = 1;
    if (c < 0x80) {
        text[bytes++] = (char)c;
    } else {
        if (c < 0x800) {
            text[bytes++] = (char)(0xc0 | c >> 6);
        } else {
            if (c < 0x10000) {
                text[bytes++] = (char)(0xe0 | c >> 12);
            } else {
                text[bytes++] = (char)(0xf0 | c >> 18);
                text[bytes++] = (char)(0x80 | (c >> 12 & 0x3f));
            }
            text[bytes++] = (char)(0x80 | (c >> 6 & 0x3f));
        }
        text[bytes++] = (char)(0x80 | (c & 0x3f));
    }
    text[bytes++] = '\n';
    for (int has_split = 0; has_split < 2; has_split++) {
        m2_encode_options options;
        m2_encode_options_init(&options);
        options.has_cjk_split = has_split;
        m2_pieces pieces;
        if (m2_tokenizer_split(tokenizer, text, bytes, &options, &pieces) != M2_OK) return -1;
        if (pieces.bytes == bytes && memcmp(pieces.normalised, text, bytes) == 0)
            n_pieces[has_split] = pieces.n;
        m2_pieces_free(&pieces);
    }
    return n_pieces[0] == 3 || n_pieces[0] < 0 ? -1 : n_pieces[1] == 3;
}

static void check_ranges(folder *f, const char *file)
{
    const uint32_t n = 0x32000;
    json_t *root = golden_json(f->run, golden_format(f->run, "%s/%s", f->dir, file));
    const json_t *ranges = json_object_get(root, "ranges");
    char *is_in = calloc(n, 1);
    size_t k;
    json_t *range;
    int is_understood = is_in && json_array_size(ranges) > 0 && json_object_size(root) == 2 &&
                        json_object_get(root, "note");
    json_array_foreach(ranges, k, range)
    {
        unsigned first = 1, last = 0;
        const char *a = json_string_value(json_array_get(range, 0)),
                   *b = json_string_value(json_array_get(range, 1));
        if (!a || !b || sscanf(a, "%x", &first) != 1 || sscanf(b, "%x", &last) != 1 ||
            first > last || last >= n)
            is_understood = 0;
        else if (is_in)
            memset(is_in + first, 1, last - first + 1);
    }
    uint32_t wrong = 0, n_wrong = 0, n_seen = 0;
    for (uint32_t c = 1; c < n && is_understood; c++) {
        const int ours = c >= 0xd800 && c < 0xe000 ? -1 : is_isolated(f->tokenizer, c);
        n_seen += ours >= 0;
        if (ours >= 0 && ours != is_in[c]) {
            n_wrong++;
            wrong = c;
        }
    }
    golden_result(f->run, is_understood && n_wrong == 0 && n_seen > 100000,
                  golden_format(f->run, "%s%s", f->label, file),
                  is_understood ? "%u of %u characters differ, the last U+%04X" : "not understood",
                  n_wrong, n_seen, wrong);
    free(is_in);
    json_decref(root);
}

/* Strings that another library's class cuts otherwise: the older pattern must cut them otherwise. */
static void check_examples(folder *f, const char *file)
{
    json_t *root = golden_json(f->run, golden_format(f->run, "%s/%s", f->dir, file));
    const char *key;
    json_t *entry;
    size_t n = 0, n_differ = 0;
    int is_understood = json_object_size(root) > 0;
    json_object_foreach(root, key, entry)
    {
        const json_t *examples = json_object_get(entry, "examples");
        const json_int_t count = json_integer_value(json_object_get(entry, "differences"));
        if (!json_is_array(examples) || count < (json_int_t)json_array_size(examples) ||
            (count > 0) != (json_array_size(examples) > 0))
            is_understood = 0;
        size_t k;
        json_t *text;
        json_array_foreach(examples, k, text)
        {
            m2_tokens a = { 0 }, b = { 0 };
            m2_tokenizer *older = open_older(f);
            if (older && json_is_string(text) &&
                m2_tokenizer_encode(f->tokenizer, json_string_value(text), json_string_length(text),
                                    NULL, &a) == M2_OK &&
                m2_tokenizer_encode(older, json_string_value(text), json_string_length(text), NULL,
                                    &b) == M2_OK)
                n_differ += a.n != b.n || memcmp(a.id, b.id, (size_t)a.n * sizeof *a.id) != 0;
            m2_tokens_free(&a);
            m2_tokens_free(&b);
            n++;
        }
    }
    golden_result(f->run, is_understood && n == n_differ,
                  golden_format(f->run, "%s%s", f->label, file),
                  is_understood ? "%zu of %zu examples are cut otherwise by the older pattern"
                                : "not understood",
                  n_differ, n);
    json_decref(root);
}

static void check_folder(golden_run *run, const char *dir, const char *label)
{
    folder f = { .run = run, .dir = dir, .label = label };
    const char *path = golden_format(run, "%s/tokenizer.json", dir);
    if (m2_tokenizer_open(path, &f.tokenizer) != M2_OK) {
        golden_result(run, 0, path, "%s", m2_last_error());
        return;
    }
    for (char **file = golden_list(run, dir, 0); *file; file++) {
        const size_t bytes = strlen(*file);
        if (bytes > 6 && strcmp(*file + bytes - 6, ".jsonl") == 0)
            check_lines(&f, *file);
        else if (strcmp(*file, "cjk_split_ranges.json") == 0)
            check_ranges(&f, *file);
        else if (strcmp(*file, "transformers_check.json") == 0)
            check_examples(&f, *file);
        else if (strcmp(*file, "tokenizer.json") != 0 && strcmp(*file, "report.json") != 0 &&
                 strcmp(*file, "tokenizer_config.json") != 0)
            golden_result(run, 0, golden_format(run, "%s%s", label, *file), "not understood");
    }
    m2_tokenizer_close(f.tokenizer);
    m2_tokenizer_close(f.older);
    for (char **name = golden_list(run, dir, 1); *name; name++)
        check_folder(run, golden_format(run, "%s/%s", dir, *name),
                     golden_format(run, "%s%s/", label, *name));
}

void golden_check_tokenizer(golden_run *run, const char *dir)
{
    check_folder(run, dir, "");
}
