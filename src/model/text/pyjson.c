#include "model/text/pyjson.h"

#include "model/text/json_pull.h"

#include <locale.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_BYTES ((size_t)64 << 10)

typedef struct block {
    struct block *next;
    size_t used, room;
    _Alignas(16) char bytes[];
} block;

struct m2_py_document {
    block *blocks;
    m2_py_value *root;
};

/* State of one parse. */
typedef struct parser {
    m2_py_document *document;
    m2_json_pull pull;
    m2_buffer scratch;
    locale_t c_locale; /* numbers have a point whatever the caller's locale says */
    int is_too_deep;
} parser;

static void *take(m2_py_document *document, size_t bytes)
{
    bytes = (bytes + 15) & ~(size_t)15;
    block *b = document->blocks;
    if (!b || b->room - b->used < bytes) {
        const size_t room = bytes > BLOCK_BYTES / 4 ? bytes : BLOCK_BYTES;
        b = malloc(sizeof *b + room);
        if (!b) return NULL;
        b->used = 0;
        b->room = room;
        /* A large value has a block of its own, behind the one that small ones still go to. */
        if (document->blocks && room != BLOCK_BYTES) {
            b->next = document->blocks->next;
            document->blocks->next = b;
        } else {
            b->next = document->blocks;
            document->blocks = b;
        }
    }
    b->used += bytes;
    return b->bytes + b->used - bytes;
}

static const char *copy(parser *p, const char *text, size_t bytes)
{
    char *to = take(p->document, bytes + 1);
    if (!to) {
        m2_pull_fail(&p->pull, "no memory");
        return NULL;
    }
    if (bytes) memcpy(to, text, bytes);
    to[bytes] = '\0';
    return to;
}

m2_py_value *m2_py_new(m2_py_document *document)
{
    m2_py_value *value = take(document, sizeof *value);
    if (value) *value = (m2_py_value){ .kind = M2_PY_NONE };
    return value;
}

static int keys_equal(const m2_py_value *a, const m2_py_value *b)
{
    return a->key_bytes == b->key_bytes && memcmp(a->key, b->key, a->key_bytes) == 0;
}

/* Order of members by key, then by place; `number` holds the place while they are sorted. */
typedef struct member_place {
    m2_py_value *member;
    size_t place;
} member_place;

static int by_key(const void *a, const void *b)
{
    const member_place *x = a, *y = b;
    const size_t bytes =
        x->member->key_bytes < y->member->key_bytes ? x->member->key_bytes : y->member->key_bytes;
    const int order = memcmp(x->member->key, y->member->key, bytes);
    if (order) return order;
    if (x->member->key_bytes != y->member->key_bytes)
        return x->member->key_bytes < y->member->key_bytes ? -1 : 1;
    return (x->place > y->place) - (x->place < y->place);
}

/* The first of equal keys keeps its place and takes the last one's value; the others go. */
static int join_equal_keys(parser *p, m2_py_value *dict, size_t n)
{
    member_place *places = malloc(n * sizeof *places);
    char *is_gone = calloc(n, 1);
    if (!places || !is_gone) {
        free(places);
        free(is_gone);
        return m2_pull_fail(&p->pull, "no memory");
    }
    size_t k = 0;
    for (m2_py_value *member = dict->first; member; member = member->next, k++)
        places[k] = (member_place){ member, k };
    qsort(places, n, sizeof *places, by_key);
    for (size_t begin = 0, end; begin < n; begin = end) {
        for (end = begin + 1; end < n && keys_equal(places[begin].member, places[end].member);)
            is_gone[places[end++].place] = 1;
        if (end == begin + 1) continue;
        m2_py_value *first = places[begin].member;
        const m2_py_value last = *places[end - 1].member;
        m2_py_value *next = first->next;
        *first = last;
        first->next = next;
    }
    m2_py_value **link = &dict->first;
    k = 0;
    for (m2_py_value *member = dict->first; member; member = member->next, k++) {
        if (is_gone[k]) continue;
        *link = member;
        link = &member->next;
    }
    *link = NULL;
    free(places);
    free(is_gone);
    return 1;
}

static int read_value(parser *p, m2_py_value *value, int depth);

static int read_members(parser *p, m2_py_value *value, int depth)
{
    const int is_dict = value->kind == M2_PY_DICT;
    if (depth == M2_PY_DEPTH_MAX) {
        p->is_too_deep = 1;
        return m2_pull_fail(&p->pull, "nested too deep");
    }
    m2_py_value **link = &value->first;
    size_t n = 0;
    for (int is_first = m2_pull_open(&p->pull, is_dict ? '{' : '[');
         m2_pull_more(&p->pull, is_dict ? '}' : ']', &is_first); n++) {
        m2_py_value *member = m2_py_new(p->document);
        if (!member) return m2_pull_fail(&p->pull, "no memory");
        if (is_dict) {
            if (!m2_pull_key(&p->pull, &p->scratch)) return 0;
            member->key = copy(p, p->scratch.data, p->scratch.bytes);
            member->key_bytes = p->scratch.bytes;
        }
        if (!read_value(p, member, depth + 1)) return 0;
        *link = member;
        link = &member->next;
    }
    if (p->pull.error) return 0;
    return is_dict && n > 1 ? join_equal_keys(p, value, n) : 1;
}

static int read_number(parser *p, m2_py_value *value)
{
    const char *begin;
    size_t bytes;
    int is_integer;
    if (!m2_pull_number(&p->pull, &begin, &bytes, &is_integer)) return 0;
    if (is_integer) {
        if (bytes == 2 && memcmp(begin, "-0", 2) == 0) begin++, bytes--;
        value->kind = M2_PY_INT;
        value->text = copy(p, begin, bytes);
        value->bytes = bytes;
        return value->text != NULL;
    }
    m2_buffer_clear(&p->scratch);
    m2_buffer_append(&p->scratch, begin, bytes);
    if (p->scratch.has_failed) return m2_pull_fail(&p->pull, "no memory");
    value->kind = M2_PY_FLOAT;
    value->number = strtod_l(p->scratch.data, NULL, p->c_locale);
    return 1;
}

static int read_value(parser *p, m2_py_value *value, int depth)
{
    switch (m2_pull_peek(&p->pull)) {
    case '{':
        value->kind = M2_PY_DICT;
        return read_members(p, value, depth);
    case '[':
        value->kind = M2_PY_LIST;
        return read_members(p, value, depth);
    case '"':
        if (!m2_pull_string(&p->pull, &p->scratch)) return 0;
        value->kind = M2_PY_STRING;
        value->text = copy(p, p->scratch.data ? p->scratch.data : "", p->scratch.bytes);
        value->bytes = p->scratch.bytes;
        return value->text != NULL;
    case '0':
        return read_number(p, value);
    case 't':
        value->kind = M2_PY_TRUE;
        return m2_pull_word(&p->pull, "true");
    case 'f':
        value->kind = M2_PY_FALSE;
        return m2_pull_word(&p->pull, "false");
    case 'n':
        return m2_pull_word(&p->pull, "null");
    case 'N':
        value->kind = M2_PY_FLOAT;
        value->number = (double)__builtin_nanf("");
        return m2_pull_word(&p->pull, "NaN");
    case 'I':
        value->kind = M2_PY_FLOAT;
        value->number = __builtin_inf();
        return m2_pull_word(&p->pull, "Infinity");
    case '-':
        value->kind = M2_PY_FLOAT;
        value->number = -__builtin_inf();
        return m2_pull_word(&p->pull, "-Infinity");
    default:
        return m2_pull_fail(&p->pull, "a value is missing");
    }
}

m2_status m2_py_parse(const char *text, size_t bytes, m2_py_document **document_out,
                      m2_py_fault *fault_out)
{
    parser p = { .document = calloc(1, sizeof *p.document),
                 .c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0) };
    m2_pull_init(&p.pull, text, bytes);
    if (!p.document || !p.c_locale || !(p.document->root = m2_py_new(p.document)))
        m2_pull_fail(&p.pull, "no memory");
    const int is_json =
        !p.pull.error && read_value(&p, p.document->root, 0) && m2_pull_end(&p.pull);
    m2_buffer_free(&p.scratch);
    if (p.c_locale) freelocale(p.c_locale);
    m2_status status = M2_OK;
    if (p.is_too_deep)
        status = m2_fail(M2_ERR_ARG,
                         "the prompt is JSON nested deeper than %d levels (byte %zu); flatten it",
                         M2_PY_DEPTH_MAX, p.pull.at);
    else if (!is_json && strcmp(p.pull.error, "no memory") == 0)
        status = m2_fail(M2_ERR_MEMORY, "no memory to read a JSON prompt of %zu bytes", bytes);
    if (!is_json) {
        m2_py_destroy(p.document);
        p.document = NULL;
    }
    if (status != M2_OK) return status;
    *document_out = p.document;
    if (fault_out) *fault_out = (m2_py_fault){ .what = p.pull.error, .at = p.pull.at };
    return M2_OK;
}

void m2_py_destroy(m2_py_document *document)
{
    if (!document) return;
    for (block *b = document->blocks, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    free(document);
}

m2_py_value *m2_py_root(m2_py_document *document)
{
    return document->root;
}

m2_py_value *m2_py_get(const m2_py_value *dict, const char *key)
{
    if (!dict || dict->kind != M2_PY_DICT) return NULL;
    const size_t bytes = strlen(key);
    for (m2_py_value *member = dict->first; member; member = member->next)
        if (member->key_bytes == bytes && memcmp(member->key, key, bytes) == 0) return member;
    return NULL;
}
