/* Names and calls: the few of torch that tensors are made of are read, none is ever run. */
#include "io/pickle_machine.h"

#include <string.h>

static const struct {
    const char *module, *name;
    int global;
} known[] = {
    { "collections", "OrderedDict", M2_GLOBAL_DICT },
    { "collections", "defaultdict", M2_GLOBAL_DEFAULT_DICT },
    { "torch._utils", "_rebuild_tensor", M2_GLOBAL_TENSOR },
    { "torch._utils", "_rebuild_tensor_v2", M2_GLOBAL_TENSOR },
    { "torch._utils", "_rebuild_parameter", M2_GLOBAL_PARAMETER },
    { "torch._utils", "_rebuild_parameter_with_state", M2_GLOBAL_PARAMETER },
    { "torch._tensor", "_rebuild_from_type_v2", M2_GLOBAL_FROM_TYPE },
    { "torch", "FloatStorage", M2_GLOBAL_STORAGE + M2_F32 },
    { "torch", "DoubleStorage", M2_GLOBAL_STORAGE + M2_F64 },
    { "torch", "HalfStorage", M2_GLOBAL_STORAGE + M2_F16 },
    { "torch", "BFloat16Storage", M2_GLOBAL_STORAGE + M2_BF16 },
    { "torch", "LongStorage", M2_GLOBAL_STORAGE + M2_I64 },
    { "torch", "IntStorage", M2_GLOBAL_STORAGE + M2_I32 },
    { "torch", "ShortStorage", M2_GLOBAL_STORAGE + M2_I16 },
    { "torch", "CharStorage", M2_GLOBAL_STORAGE + M2_I8 },
    { "torch", "ByteStorage", M2_GLOBAL_STORAGE + M2_U8 },
    { "torch", "BoolStorage", M2_GLOBAL_STORAGE + M2_BOOL },
};

static int is_text(const char *text, size_t bytes, const char *wanted)
{
    return strlen(wanted) == bytes && memcmp(text, wanted, bytes) == 0;
}

static int classify(const char *module, size_t module_bytes, const char *name, size_t name_bytes)
{
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (is_text(module, module_bytes, known[i].module) &&
            is_text(name, name_bytes, known[i].name))
            return known[i].global;
    return M2_GLOBAL_UNKNOWN;
}

static m2_pickle_value make_opaque(m2_pickle *pickle, const m2_pickle_value *maker)
{
    m2_pickle_value value = { .type = M2_PICKLE_OPAQUE };
    if (maker->type == M2_PICKLE_GLOBAL || maker->type == M2_PICKLE_OPAQUE) {
        value = *maker;
        value.type = M2_PICKLE_OPAQUE;
        value.global = M2_GLOBAL_UNKNOWN;
    }
    if (pickle->n_opaque++ == 0) pickle->first_opaque = value;
    return value;
}

static m2_pickle_value persistent(m2_pickle *pickle, const m2_pickle_value *id)
{
    const m2_pickle_value nothing = { .type = M2_PICKLE_OPAQUE };
    const m2_pickle_value *const parts = id->type == M2_PICKLE_TUPLE ? id->u.items->items : NULL;
    if (!parts || id->u.items->n < 5 || parts[0].type != M2_PICKLE_TEXT ||
        !is_text(parts[0].u.text, parts[0].n_text, "storage") ||
        parts[1].type != M2_PICKLE_GLOBAL || parts[2].type != M2_PICKLE_TEXT ||
        parts[4].type != M2_PICKLE_INT || parts[4].u.number < 0) {
        m2_pickle_fail(pickle, M2_ERR_FORMAT, "a persistent id that is no storage");
        return nothing;
    }
    m2_pickle_storage *storage = m2_pickle_alloc(pickle, sizeof *storage);
    if (!storage) return nothing;
    const int dtype = parts[1].global - M2_GLOBAL_STORAGE;
    *storage = (m2_pickle_storage){ .key = parts[2].u.text,
                                    .key_bytes = parts[2].n_text,
                                    .is_known = dtype >= 0,
                                    .dtype = dtype >= 0 ? (m2_dtype)dtype : M2_U8,
                                    .n_elems = parts[4].u.number };
    return (m2_pickle_value){ .type = M2_PICKLE_STORAGE, .u.storage = storage };
}

/* A tuple of at most M2_MAX_DIMS integers; -1 if it is none, M2_MAX_DIMS + 1 if it is longer. */
static int take_sizes(const m2_pickle_value *tuple, int64_t *sizes)
{
    if (tuple->type != M2_PICKLE_TUPLE) return -1;
    const m2_pickle_items *const items = tuple->u.items;
    for (int64_t i = 0; i < items->n; i++) {
        if (items->items[i].type != M2_PICKLE_INT) return -1;
        if (i < M2_MAX_DIMS) sizes[i] = items->items[i].u.number;
    }
    return items->n <= M2_MAX_DIMS ? (int)items->n : M2_MAX_DIMS + 1;
}

/* (storage, offset, size, stride, ...) */
static m2_pickle_value make_tensor(m2_pickle *pickle, const m2_pickle_value *function,
                                   const m2_pickle_items *args)
{
    const m2_pickle_value nothing = { .type = M2_PICKLE_OPAQUE };
    if (args->n >= 4 && args->items[0].type == M2_PICKLE_OPAQUE)
        return make_opaque(pickle, function);
    m2_pickle_tensor tensor = { 0 };
    int n_strides = -1;
    if (args->n >= 4 && args->items[0].type == M2_PICKLE_STORAGE &&
        args->items[1].type == M2_PICKLE_INT) {
        tensor.storage = args->items[0].u.storage;
        tensor.offset = args->items[1].u.number;
        tensor.n_dims = take_sizes(&args->items[2], tensor.shape);
        n_strides = take_sizes(&args->items[3], tensor.stride);
    }
    if (n_strides < 0 || tensor.n_dims != n_strides) {
        m2_pickle_fail(pickle, M2_ERR_FORMAT, "a tensor without storage, offset, size and stride");
        return nothing;
    }
    /* More dimensions, or elements of a type that no network here uses: nothing to bind it to. */
    if (tensor.n_dims > M2_MAX_DIMS || !tensor.storage->is_known)
        return make_opaque(pickle, function);
    m2_pickle_tensor *kept = m2_pickle_alloc(pickle, sizeof *kept);
    if (!kept) return nothing;
    *kept = tensor;
    return (m2_pickle_value){ .type = M2_PICKLE_TENSOR, .u.tensor = kept };
}

/* An empty dict, or one from a list of pairs as older Pythons wrote OrderedDict. */
static m2_pickle_value make_dict(m2_pickle *pickle, const m2_pickle_items *args)
{
    const m2_pickle_value nothing = { .type = M2_PICKLE_OPAQUE };
    m2_pickle_items *items = m2_pickle_alloc(pickle, sizeof *items);
    if (!items) return nothing;
    *items = (m2_pickle_items){ 0 };
    if (args && args->n > 0) {
        const m2_pickle_value *const pairs = &args->items[0];
        if (args->n != 1 || pairs->type != M2_PICKLE_LIST) {
            m2_pickle_fail(pickle, M2_ERR_FORMAT, "a dict that is not made from pairs");
            return nothing;
        }
        for (int64_t i = 0; i < pairs->u.items->n; i++) {
            const m2_pickle_value *const pair = &pairs->u.items->items[i];
            if ((pair->type != M2_PICKLE_LIST && pair->type != M2_PICKLE_TUPLE) ||
                pair->u.items->n != 2) {
                m2_pickle_fail(pickle, M2_ERR_FORMAT, "a dict that is not made from pairs");
                return nothing;
            }
            if (!m2_pickle_append(pickle, items, pair->u.items->items, 2)) return nothing;
        }
    }
    return (m2_pickle_value){ .type = M2_PICKLE_DICT, .u.items = items };
}

static m2_pickle_value call(m2_pickle *pickle, const m2_pickle_value *function,
                            const m2_pickle_value *args)
{
    const int global = function->type == M2_PICKLE_GLOBAL ? function->global : M2_GLOBAL_UNKNOWN;
    if (args->type != M2_PICKLE_TUPLE) {
        /* Arguments that an opaque value stands for make an opaque value. */
        if (args->type != M2_PICKLE_OPAQUE)
            m2_pickle_fail(pickle, M2_ERR_FORMAT, "a call whose arguments are no tuple");
        return make_opaque(pickle, function);
    }
    const m2_pickle_items *const items = args->u.items;
    switch (global) {
    case M2_GLOBAL_DICT:
        return make_dict(pickle, items);
    case M2_GLOBAL_DEFAULT_DICT:
        return make_dict(pickle, NULL);
    case M2_GLOBAL_TENSOR:
        return make_tensor(pickle, function, items);
    case M2_GLOBAL_PARAMETER:
        if (items->n >= 1 && items->items[0].type == M2_PICKLE_TENSOR) return items->items[0];
        break;
    case M2_GLOBAL_FROM_TYPE:
        /* (function, class, its arguments, state): a tensor with attributes of its own. */
        if (items->n >= 3 && items->items[0].type == M2_PICKLE_GLOBAL &&
            items->items[0].global != M2_GLOBAL_FROM_TYPE)
            return call(pickle, &items->items[0], &items->items[2]);
        break;
    default:
        break;
    }
    return make_opaque(pickle, function);
}

/* ---- opcodes: names and calls ------------------------------------------------------------------- */

/* Text up to a newline, which is taken too. */
static const char *take_line(m2_pickle *p, size_t *bytes_out)
{
    const size_t left = (size_t)(p->end - p->at);
    const unsigned char *newline = left ? memchr(p->at, '\n', left) : NULL;
    if (!newline || newline - p->at > 1000) {
        m2_pickle_fail(p, M2_ERR_FORMAT,
                       newline ? "a name of more than 1,000 bytes" : "it ends within a name");
        return NULL;
    }
    const char *line = (const char *)p->at;
    *bytes_out = (size_t)(newline - p->at);
    p->at = newline + 1;
    return line;
}

static void push_global(m2_pickle *p)
{
    size_t module_bytes = 0, name_bytes = 0;
    const char *module = take_line(p, &module_bytes);
    const char *name = module ? take_line(p, &name_bytes) : NULL;
    if (!name) return;
    m2_pickle_push(
        p, (m2_pickle_value){ .type = M2_PICKLE_GLOBAL,
                              .global = (uint8_t)classify(module, module_bytes, name, name_bytes),
                              .module_len = (uint16_t)module_bytes,
                              .n_text = (uint32_t)(module_bytes + 1 + name_bytes),
                              .u.text = module });
}

static void push_stack_global(m2_pickle *p)
{
    const m2_pickle_value name = m2_pickle_pop(p), module = m2_pickle_pop(p);
    if (p->status != M2_OK) return;
    if (name.type != M2_PICKLE_TEXT || module.type != M2_PICKLE_TEXT || name.n_text > 1000 ||
        module.n_text > 1000) {
        m2_pickle_fail(p, M2_ERR_FORMAT, "a class whose name is no text");
        return;
    }
    char *text = m2_pickle_alloc(p, (size_t)module.n_text + 1 + name.n_text);
    if (!text) return;
    memcpy(text, module.u.text, module.n_text);
    text[module.n_text] = '.';
    memcpy(text + module.n_text + 1, name.u.text, name.n_text);
    m2_pickle_push(p, (m2_pickle_value){ .type = M2_PICKLE_GLOBAL,
                                         .global = (uint8_t)classify(module.u.text, module.n_text,
                                                                     name.u.text, name.n_text),
                                         .module_len = (uint16_t)module.n_text,
                                         .n_text = module.n_text + 1 + name.n_text,
                                         .u.text = text });
}

static void push_call(m2_pickle *p)
{
    const m2_pickle_value args = m2_pickle_pop(p), function = m2_pickle_pop(p);
    if (p->status == M2_OK) m2_pickle_push(p, call(p, &function, &args));
}

/* A class, its arguments and keywords: the same as a call, but for keywords, which we never know. */
static void push_object(m2_pickle *p, int has_keywords)
{
    if (has_keywords) m2_pickle_pop(p);
    const m2_pickle_value args = m2_pickle_pop(p), class = m2_pickle_pop(p);
    if (p->status != M2_OK) return;
    m2_pickle_push(p, has_keywords ? make_opaque(p, &class) : call(p, &class, &args));
}

static void push_marked_object(m2_pickle *p)
{
    int64_t n;
    const m2_pickle_value *values = m2_pickle_pop_to_mark(p, &n);
    if (p->status == M2_OK && n < 1) m2_pickle_fail(p, M2_ERR_FORMAT, "an object without class");
    if (p->status != M2_OK) return;
    const m2_pickle_value class = values[0];
    m2_pickle_push(p, make_opaque(p, &class));
}

int m2_pickle_run_call(m2_pickle *p, int op)
{
    switch (op) {
    case OP_GLOBAL:
        push_global(p);
        break;
    case OP_STACK_GLOBAL:
        push_stack_global(p);
        break;
    case OP_REDUCE:
        push_call(p);
        break;
    case OP_NEWOBJ:
        push_object(p, 0);
        break;
    case OP_NEWOBJ_EX:
        push_object(p, 1);
        break;
    case OP_OBJ:
        push_marked_object(p);
        break;
    case OP_BUILD:
        /* State that is put on a value: attributes, such as the _metadata of a state_dict(). */
        m2_pickle_pop(p);
        m2_pickle_peek(p);
        break;
    case OP_BINPERSID: {
        const m2_pickle_value id = m2_pickle_pop(p);
        if (p->status == M2_OK) m2_pickle_push(p, persistent(p, &id));
        break;
    }
    default:
        return 0;
    }
    return 1;
}
