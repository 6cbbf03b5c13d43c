/* pickle_machine.h - the inside of the pickle reader: its store of values, and what torch's names
 * mean to it. */
#ifndef M2_IO_PICKLE_MACHINE_H
#define M2_IO_PICKLE_MACHINE_H

#include "io/pickle.h"

enum {
    OP_MARK = '(',
    OP_STOP = '.',
    OP_POP = '0',
    OP_POP_MARK = '1',
    OP_DUP = '2',
    OP_BINFLOAT = 'G',
    OP_BININT = 'J',
    OP_BININT1 = 'K',
    OP_BININT2 = 'M',
    OP_NONE = 'N',
    OP_REDUCE = 'R',
    OP_BINSTRING = 'T',
    OP_SHORT_BINSTRING = 'U',
    OP_BINUNICODE = 'X',
    OP_BINBYTES = 'B',
    OP_SHORT_BINBYTES = 'C',
    OP_APPEND = 'a',
    OP_BUILD = 'b',
    OP_GLOBAL = 'c',
    OP_DICT = 'd',
    OP_APPENDS = 'e',
    OP_BINGET = 'h',
    OP_LONG_BINGET = 'j',
    OP_LIST = 'l',
    OP_OBJ = 'o',
    OP_BINPUT = 'q',
    OP_LONG_BINPUT = 'r',
    OP_SETITEM = 's',
    OP_TUPLE = 't',
    OP_SETITEMS = 'u',
    OP_EMPTY_DICT = '}',
    OP_EMPTY_LIST = ']',
    OP_EMPTY_TUPLE = ')',
    OP_BINPERSID = 'Q',
    OP_PROTO = 0x80,
    OP_NEWOBJ,
    OP_EXT1,
    OP_EXT2,
    OP_EXT4,
    OP_TUPLE1,
    OP_TUPLE2,
    OP_TUPLE3,
    OP_NEWTRUE,
    OP_NEWFALSE,
    OP_LONG1,
    OP_LONG4,
    OP_SHORT_BINUNICODE,
    OP_BINUNICODE8,
    OP_BINBYTES8,
    OP_EMPTY_SET,
    OP_ADDITEMS,
    OP_FROZENSET,
    OP_NEWOBJ_EX,
    OP_STACK_GLOBAL,
    OP_MEMOIZE,
    OP_FRAME,
    OP_BYTEARRAY8
};

/* Names that a tensor can depend on; every other one is unknown. */
enum m2_pickle_global {
    M2_GLOBAL_UNKNOWN = 0,
    M2_GLOBAL_DICT, /* OrderedDict                                   */
    M2_GLOBAL_DEFAULT_DICT,
    M2_GLOBAL_TENSOR,    /* _rebuild_tensor, _rebuild_tensor_v2           */
    M2_GLOBAL_PARAMETER, /* _rebuild_parameter, ..._with_state            */
    M2_GLOBAL_FROM_TYPE, /* _rebuild_from_type_v2                         */
    M2_GLOBAL_STORAGE    /* + m2_dtype; M2_DTYPE_COUNT: a type we have not */
};

typedef struct m2_pickle_block {
    struct m2_pickle_block *next;
    size_t used, room;
    _Alignas(16) unsigned char bytes[];
} m2_pickle_block;

struct m2_pickle {
    const char *file;
    const unsigned char *start, *at, *end;
    m2_status status; /* of the first failure */
    m2_pickle_block *blocks;
    size_t store_bytes, store_max;
    m2_pickle_items stack, memo, marks; /* marks: heights of the stack, as INT */
    int64_t n_memo_max;
    int64_t n_opaque;
    m2_pickle_value first_opaque;
    m2_pickle_value top;
};

/* Memory that lives as long as the pickle; NULL after m2_pickle_fail. */
void *m2_pickle_alloc(m2_pickle *pickle, size_t bytes);
/* Append `n` values; 0 after m2_pickle_fail. */
int m2_pickle_append(m2_pickle *pickle, m2_pickle_items *items, const m2_pickle_value *values,
                     int64_t n);
/* Record a failure at the present byte. */
void m2_pickle_fail(m2_pickle *pickle, m2_status status, const char *what);

/* The next `bytes` of the pickle; NULL after a failure. */
const unsigned char *m2_pickle_take(m2_pickle *pickle, uint64_t bytes);
void m2_pickle_push(m2_pickle *pickle, m2_pickle_value value);
/* Values below the last mark are out of reach: that is a failure. */
m2_pickle_value m2_pickle_pop(m2_pickle *pickle);
/* The value that stays on top of the stack; NULL after a failure. */
const m2_pickle_value *m2_pickle_peek(m2_pickle *pickle);
/* Take all values above the last mark, and the mark; they stay valid until the next push. */
const m2_pickle_value *m2_pickle_pop_to_mark(m2_pickle *pickle, int64_t *n_out);

/* Opcodes that name, call and build; 0 if `op` is none of them. */
int m2_pickle_run_call(m2_pickle *pickle, int op);

#endif
