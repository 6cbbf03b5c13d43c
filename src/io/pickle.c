#include "io/pickle_machine.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_BYTES ((size_t)16 << 10)

/* ---- store ------------------------------------------------------------------------------------ */

void m2_pickle_fail(m2_pickle *pickle, m2_status status, const char *what)
{
    if (pickle->status != M2_OK) return;
    pickle->status = m2_fail(status, "%s: its pickle is not valid: byte %zu: %s", pickle->file,
                             (size_t)(pickle->at - pickle->start), what);
}

void *m2_pickle_alloc(m2_pickle *pickle, size_t bytes)
{
    m2_pickle_block *block = pickle->blocks;
    bytes = (bytes + 15) & ~(size_t)15;
    if (bytes > pickle->store_max) {
        m2_pickle_fail(pickle, M2_ERR_FORMAT, "it holds far more values than its tensors need");
        return NULL;
    }
    if (!block || bytes > block->room - block->used) {
        const size_t room = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;
        if (room > pickle->store_max - pickle->store_bytes) {
            m2_pickle_fail(pickle, M2_ERR_FORMAT, "it holds far more values than its tensors need");
            return NULL;
        }
        block = malloc(sizeof *block + room);
        if (!block) {
            m2_pickle_fail(pickle, M2_ERR_MEMORY, "no memory for its values");
            return NULL;
        }
        pickle->store_bytes += room;
        block->used = 0;
        block->room = room;
        block->next = pickle->blocks;
        pickle->blocks = block;
    }
    void *memory = block->bytes + block->used;
    block->used += bytes;
    return memory;
}

int m2_pickle_append(m2_pickle *pickle, m2_pickle_items *items, const m2_pickle_value *values,
                     int64_t n)
{
    if (n > items->room - items->n) {
        int64_t room = items->n ? items->n * 2 : 4;
        if (room < items->n + n) room = items->n + n;
        m2_pickle_value *larger = m2_pickle_alloc(pickle, (size_t)room * sizeof *larger);
        if (!larger) return 0;
        if (items->n) memcpy(larger, items->items, (size_t)items->n * sizeof *larger);
        items->items = larger;
        items->room = room;
    }
    if (n) memcpy(items->items + items->n, values, (size_t)n * sizeof *values);
    items->n += n;
    return 1;
}

/* ---- input and stack ---------------------------------------------------------------------------- */

const unsigned char *m2_pickle_take(m2_pickle *p, uint64_t bytes)
{
    if (bytes > (uint64_t)(p->end - p->at)) {
        m2_pickle_fail(p, M2_ERR_FORMAT, "it ends within a value");
        return NULL;
    }
    const unsigned char *at = p->at;
    p->at += bytes;
    return at;
}

static uint64_t take_number(m2_pickle *p, int bytes)
{
    const unsigned char *at = m2_pickle_take(p, (uint64_t)bytes);
    uint64_t value = 0;
    for (int i = bytes - 1; at && i >= 0; i--) value = value << 8 | at[i];
    return value;
}

void m2_pickle_push(m2_pickle *p, m2_pickle_value value)
{
    m2_pickle_append(p, &p->stack, &value, 1);
}

static void push_type(m2_pickle *p, m2_pickle_type type)
{
    m2_pickle_push(p, (m2_pickle_value){ .type = (uint8_t)type });
}

static void push_int(m2_pickle *p, int64_t number)
{
    m2_pickle_push(p, (m2_pickle_value){ .type = M2_PICKLE_INT, .u.number = number });
}

/* Values above the last mark; the height below which an opcode must not reach. */
static int64_t floor_height(const m2_pickle *p)
{
    return p->marks.n ? p->marks.items[p->marks.n - 1].u.number : 0;
}

m2_pickle_value m2_pickle_pop(m2_pickle *p)
{
    if (p->stack.n <= floor_height(p)) {
        m2_pickle_fail(p, M2_ERR_FORMAT, "an operation finds no value to work on");
        return (m2_pickle_value){ .type = M2_PICKLE_OPAQUE };
    }
    return p->stack.items[--p->stack.n];
}

/* The value that stays on top of the stack; NULL after a failure. */
const m2_pickle_value *m2_pickle_peek(m2_pickle *p)
{
    if (p->stack.n > floor_height(p)) return &p->stack.items[p->stack.n - 1];
    m2_pickle_fail(p, M2_ERR_FORMAT, "an operation finds no value to work on");
    return NULL;
}

/* Take all values above the last mark, and the mark; they stay valid until the next push. */
const m2_pickle_value *m2_pickle_pop_to_mark(m2_pickle *p, int64_t *n_out)
{
    *n_out = 0;
    if (p->marks.n == 0) {
        m2_pickle_fail(p, M2_ERR_FORMAT, "an operation finds no mark");
        return NULL;
    }
    const int64_t height = p->marks.items[--p->marks.n].u.number;
    *n_out = p->stack.n - height;
    p->stack.n = height;
    return p->stack.items + height;
}

/* A container with copies of `n` values. */
static m2_pickle_value make_items(m2_pickle *p, m2_pickle_type type, const m2_pickle_value *values,
                                  int64_t n)
{
    m2_pickle_items *items = m2_pickle_alloc(p, sizeof *items);
    if (!items) return (m2_pickle_value){ .type = M2_PICKLE_OPAQUE };
    *items = (m2_pickle_items){ 0 };
    if (n > 0) {
        items->items = m2_pickle_alloc(p, (size_t)n * sizeof *values);
        if (!items->items) return (m2_pickle_value){ .type = M2_PICKLE_OPAQUE };
        memcpy(items->items, values, (size_t)n * sizeof *values);
        items->n = items->room = n;
    }
    return (m2_pickle_value){ .type = (uint8_t)type, .u.items = items };
}

/* ---- opcodes: constants ------------------------------------------------------------------------- */

static void push_text(m2_pickle *p, uint64_t bytes, m2_pickle_type type)
{
    const unsigned char *at = m2_pickle_take(p, bytes);
    if (at && bytes > UINT32_MAX) m2_pickle_fail(p, M2_ERR_FORMAT, "a text of 4 GiB or more");
    if (p->status != M2_OK) return;
    m2_pickle_push(p, (m2_pickle_value){ .type = (uint8_t)type,
                                         .n_text = type == M2_PICKLE_TEXT ? (uint32_t)bytes : 0,
                                         .u.text = (const char *)at });
}

/* A two's complement number of any length; those over 64 bits are values we do not need. */
static void push_long(m2_pickle *p, uint64_t bytes)
{
    const unsigned char *at = m2_pickle_take(p, bytes);
    if (!at) return;
    if (bytes > 8) {
        push_type(p, M2_PICKLE_OPAQUE);
        return;
    }
    uint64_t value = bytes && (at[bytes - 1] & 0x80) ? UINT64_MAX : 0;
    for (uint64_t i = bytes; i-- > 0;) value = value << 8 | at[i];
    int64_t number;
    memcpy(&number, &value, sizeof number);
    push_int(p, number);
}

static void push_bool(m2_pickle *p, int is_true)
{
    m2_pickle_push(p, (m2_pickle_value){ .type = M2_PICKLE_BOOL, .u.number = is_true });
}

/* Opcodes that push one constant; 0 if `op` is none of them. */
static int run_constant(m2_pickle *p, int op)
{
    switch (op) {
    case OP_NONE:
        push_type(p, M2_PICKLE_NONE);
        break;
    case OP_NEWTRUE:
        push_bool(p, 1);
        break;
    case OP_NEWFALSE:
        push_bool(p, 0);
        break;
    case OP_BININT:
        push_int(p, (int32_t)(uint32_t)take_number(p, 4));
        break;
    case OP_BININT1:
        push_int(p, (int64_t)take_number(p, 1));
        break;
    case OP_BININT2:
        push_int(p, (int64_t)take_number(p, 2));
        break;
    case OP_LONG1:
        push_long(p, take_number(p, 1));
        break;
    case OP_LONG4:
        push_long(p, take_number(p, 4));
        break;
    case OP_BINFLOAT:
        m2_pickle_take(p, 8);
        push_type(p, M2_PICKLE_FLOAT);
        break;
    case OP_BINUNICODE:
    case OP_BINSTRING:
        push_text(p, take_number(p, 4), M2_PICKLE_TEXT);
        break;
    case OP_SHORT_BINUNICODE:
    case OP_SHORT_BINSTRING:
        push_text(p, take_number(p, 1), M2_PICKLE_TEXT);
        break;
    case OP_BINUNICODE8:
        push_text(p, take_number(p, 8), M2_PICKLE_TEXT);
        break;
    case OP_BINBYTES:
        push_text(p, take_number(p, 4), M2_PICKLE_OPAQUE);
        break;
    case OP_SHORT_BINBYTES:
        push_text(p, take_number(p, 1), M2_PICKLE_OPAQUE);
        break;
    case OP_BINBYTES8:
    case OP_BYTEARRAY8:
        push_text(p, take_number(p, 8), M2_PICKLE_OPAQUE);
        break;
    default:
        return 0;
    }
    return 1;
}

/* ---- opcodes: containers ------------------------------------------------------------------------ */

static void push_tuple(m2_pickle *p, int64_t n)
{
    if (p->stack.n - floor_height(p) < n) {
        m2_pickle_fail(p, M2_ERR_FORMAT, "an operation finds no value to work on");
        return;
    }
    p->stack.n -= n;
    m2_pickle_push(p, make_items(p, M2_PICKLE_TUPLE, p->stack.items + p->stack.n, n));
}

static void push_marked(m2_pickle *p, m2_pickle_type type)
{
    int64_t n;
    const m2_pickle_value *values = m2_pickle_pop_to_mark(p, &n);
    if (type == M2_PICKLE_DICT && n % 2 != 0) {
        m2_pickle_fail(p, M2_ERR_FORMAT, "a dict with a key without value");
        return;
    }
    if (p->status == M2_OK) m2_pickle_push(p, make_items(p, type, values, n));
}

/* Add `n` values to the container on top; opaque containers swallow them. */
static void add_to_top(m2_pickle *p, m2_pickle_type type, const m2_pickle_value *values, int64_t n)
{
    const m2_pickle_value *target = m2_pickle_peek(p);
    if (p->status != M2_OK || target->type == M2_PICKLE_OPAQUE) return;
    if (target->type != type || (type == M2_PICKLE_DICT && n % 2 != 0)) {
        m2_pickle_fail(p, M2_ERR_FORMAT, "values are added to something that takes none");
        return;
    }
    m2_pickle_append(p, target->u.items, values, n);
}

static void add_single(m2_pickle *p, m2_pickle_type type)
{
    m2_pickle_value values[2];
    const int n = type == M2_PICKLE_DICT ? 2 : 1;
    for (int i = n; i-- > 0;) values[i] = m2_pickle_pop(p);
    if (p->status == M2_OK) add_to_top(p, type, values, n);
}

static void add_marked(m2_pickle *p, m2_pickle_type type)
{
    int64_t n;
    const m2_pickle_value *values = m2_pickle_pop_to_mark(p, &n);
    if (p->status == M2_OK) add_to_top(p, type, values, n);
}

static int run_container(m2_pickle *p, int op)
{
    int64_t n;
    switch (op) {
    case OP_EMPTY_TUPLE:
        push_tuple(p, 0);
        break;
    case OP_TUPLE1:
        push_tuple(p, 1);
        break;
    case OP_TUPLE2:
        push_tuple(p, 2);
        break;
    case OP_TUPLE3:
        push_tuple(p, 3);
        break;
    case OP_TUPLE:
        push_marked(p, M2_PICKLE_TUPLE);
        break;
    case OP_EMPTY_LIST:
        m2_pickle_push(p, make_items(p, M2_PICKLE_LIST, NULL, 0));
        break;
    case OP_LIST:
        push_marked(p, M2_PICKLE_LIST);
        break;
    case OP_APPEND:
        add_single(p, M2_PICKLE_LIST);
        break;
    case OP_APPENDS:
        add_marked(p, M2_PICKLE_LIST);
        break;
    case OP_EMPTY_DICT:
        m2_pickle_push(p, make_items(p, M2_PICKLE_DICT, NULL, 0));
        break;
    case OP_DICT:
        push_marked(p, M2_PICKLE_DICT);
        break;
    case OP_SETITEM:
        add_single(p, M2_PICKLE_DICT);
        break;
    case OP_SETITEMS:
        add_marked(p, M2_PICKLE_DICT);
        break;
    /* A set has no order and no names, so its members are nothing we could find again. */
    case OP_EMPTY_SET:
        push_type(p, M2_PICKLE_OPAQUE);
        break;
    case OP_ADDITEMS:
        add_marked(p, M2_PICKLE_OPAQUE);
        break;
    case OP_FROZENSET:
        m2_pickle_pop_to_mark(p, &n);
        push_type(p, M2_PICKLE_OPAQUE);
        break;
    default:
        return 0;
    }
    return 1;
}

/* ---- opcodes: stack and memo -------------------------------------------------------------------- */

/* Writers number from 0 without gaps, so an index past the bytes of the file is a bomb. */
static void put_memo(m2_pickle *p, uint64_t idx)
{
    static const m2_pickle_value nothing = { .type = M2_PICKLE_OPAQUE, .global = UINT8_MAX };
    const m2_pickle_value *top = m2_pickle_peek(p);
    if (p->status != M2_OK) return;
    if (idx >= (uint64_t)p->n_memo_max) {
        m2_pickle_fail(p, M2_ERR_FORMAT, "a memo index without end");
        return;
    }
    const m2_pickle_value kept = *top;
    while ((uint64_t)p->memo.n <= idx)
        if (!m2_pickle_append(p, &p->memo, &nothing, 1)) return;
    p->memo.items[idx] = kept;
}

static void get_memo(m2_pickle *p, uint64_t idx)
{
    if (p->status != M2_OK) return;
    if (idx >= (uint64_t)p->memo.n || p->memo.items[idx].global == UINT8_MAX) {
        m2_pickle_fail(p, M2_ERR_FORMAT, "a memo index that was not filled");
        return;
    }
    m2_pickle_push(p, p->memo.items[idx]);
}

static int run_stack(m2_pickle *p, int op)
{
    int64_t n;
    switch (op) {
    case OP_MARK: {
        const m2_pickle_value mark = { .type = M2_PICKLE_INT, .u.number = p->stack.n };
        m2_pickle_append(p, &p->marks, &mark, 1);
        break;
    }
    case OP_POP:
        /* Python pops a mark too if one is on top. */
        if (p->marks.n && p->stack.n == floor_height(p))
            p->marks.n--;
        else
            m2_pickle_pop(p);
        break;
    case OP_POP_MARK:
        m2_pickle_pop_to_mark(p, &n);
        break;
    case OP_DUP: {
        const m2_pickle_value *top = m2_pickle_peek(p);
        if (top) m2_pickle_push(p, *top);
        break;
    }
    case OP_BINPUT:
        put_memo(p, take_number(p, 1));
        break;
    case OP_LONG_BINPUT:
        put_memo(p, take_number(p, 4));
        break;
    case OP_MEMOIZE:
        put_memo(p, (uint64_t)p->memo.n);
        break;
    case OP_BINGET:
        get_memo(p, take_number(p, 1));
        break;
    case OP_LONG_BINGET:
        get_memo(p, take_number(p, 4));
        break;
    case OP_FRAME:
        if (take_number(p, 8) > (uint64_t)(p->end - p->at))
            m2_pickle_fail(p, M2_ERR_FORMAT, "it ends within a frame");
        break;
    default:
        return 0;
    }
    return 1;
}

/* ---- the machine -------------------------------------------------------------------------------- */

static void run(m2_pickle *p)
{
    if (p->end - p->at < 2 || p->at[0] != OP_PROTO || p->at[1] < 2 || p->at[1] > 5) {
        m2_pickle_fail(p, M2_ERR_UNSUPPORTED, "it is no pickle of protocol 2 to 5");
        return;
    }
    p->at += 2;
    while (p->status == M2_OK) {
        const unsigned char *op = m2_pickle_take(p, 1);
        if (!op) return;
        if (*op == OP_STOP) {
            p->top = m2_pickle_pop(p);
            if (p->stack.n != 0 || p->marks.n != 0)
                m2_pickle_fail(p, M2_ERR_FORMAT, "it stops with values left over");
            return;
        }
        if (run_constant(p, *op) || run_container(p, *op) || run_stack(p, *op) ||
            m2_pickle_run_call(p, *op))
            continue;
        char what[60];
        snprintf(what, sizeof what, "opcode 0x%02x, which torch.save does not write", *op);
        m2_pickle_fail(p, M2_ERR_UNSUPPORTED, what);
    }
}

m2_status m2_pickle_load(const char *file, const unsigned char *data, size_t bytes,
                         size_t bytes_max, m2_pickle **pickle_out)
{
    m2_pickle *pickle = calloc(1, sizeof *pickle);
    if (!pickle) return m2_fail(M2_ERR_MEMORY, "%s: no memory for its values", file);
    pickle->file = file;
    pickle->start = pickle->at = data;
    pickle->end = data + bytes;
    pickle->store_max = bytes_max;
    pickle->n_memo_max = bytes < INT64_MAX ? (int64_t)bytes : INT64_MAX;
    /* The stack has memory from the start, so that "no values above the mark" is still a place. */
    const m2_pickle_value first = { .type = M2_PICKLE_NONE };
    if (m2_pickle_append(pickle, &pickle->stack, &first, 1)) {
        pickle->stack.n = 0;
        run(pickle);
    }
    const m2_status status = pickle->status;
    if (status != M2_OK) {
        m2_pickle_free(pickle);
        return status;
    }
    *pickle_out = pickle;
    return M2_OK;
}

void m2_pickle_free(m2_pickle *pickle)
{
    if (!pickle) return;
    for (m2_pickle_block *block = pickle->blocks, *next; block; block = next) {
        next = block->next;
        free(block);
    }
    free(pickle);
}

const m2_pickle_value *m2_pickle_top(const m2_pickle *pickle)
{
    return &pickle->top;
}

int64_t m2_pickle_n_opaque(const m2_pickle *pickle, char *text, size_t bytes)
{
    const m2_pickle_value *const first = &pickle->first_opaque;
    text[0] = '\0';
    if (pickle->n_opaque && first->n_text)
        snprintf(text, bytes, "%.*s.%.*s", (int)first->module_len, first->u.text,
                 (int)(first->n_text - first->module_len - 1u),
                 first->u.text + first->module_len + 1);
    /* Names of a hostile file go to a terminal. */
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    return pickle->n_opaque;
}
