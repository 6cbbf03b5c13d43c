/* pickle.h - the values in a torch checkpoint's pickle, and nothing that runs.
 *
 * A pickle is a program for a stack machine that can call any function of Python.  This machine
 * knows containers, numbers, text, storages and tensors; every other class or function, and whatever
 * is made with it, becomes an opaque value.  Nothing is ever called.
 *
 * Memory is bounded: values live in one store of at most `bytes_max` bytes, text stays in the file.
 */
#ifndef M2_IO_PICKLE_H
#define M2_IO_PICKLE_H

#include "core/dtype.h"
#include "core/status.h"
#include "core/tensor.h"

#include <stddef.h>
#include <stdint.h>

typedef enum m2_pickle_type {
    M2_PICKLE_OPAQUE = 0, /* `text` names the class, if one is known              */
    M2_PICKLE_NONE,
    M2_PICKLE_BOOL,
    M2_PICKLE_INT,
    M2_PICKLE_FLOAT, /* read over: no tensor depends on one                  */
    M2_PICKLE_TEXT,  /* str, UTF-8                                           */
    M2_PICKLE_TUPLE,
    M2_PICKLE_LIST,
    M2_PICKLE_DICT,   /* items: key, value, key, value ...                    */
    M2_PICKLE_GLOBAL, /* a class or function, by name                         */
    M2_PICKLE_STORAGE,
    M2_PICKLE_TENSOR
} m2_pickle_type;

typedef struct m2_pickle_value m2_pickle_value;

typedef struct m2_pickle_items {
    m2_pickle_value *items;
    int64_t n, room;
} m2_pickle_items;

typedef struct m2_pickle_storage {
    const char *key; /* [key_bytes]: its entry is ROOT/data/KEY */
    uint32_t key_bytes;
    int is_known; /* its element type is one of ours         */
    m2_dtype dtype;
    int64_t n_elems;
} m2_pickle_storage;

typedef struct m2_pickle_tensor {
    const m2_pickle_storage *storage;
    int64_t offset; /* in elements, as all of these; unchecked */
    int n_dims;
    int64_t shape[M2_MAX_DIMS], stride[M2_MAX_DIMS];
} m2_pickle_tensor;

struct m2_pickle_value {
    uint8_t type;        /* m2_pickle_type                                             */
    uint8_t global;      /* private: which known global, or storage type               */
    uint16_t module_len; /* GLOBAL and OPAQUE: `text` is module, one byte, name        */
    uint32_t n_text;     /* bytes of `text`                                            */
    union {
        const char *text;
        int64_t number;
        m2_pickle_items *items;
        const m2_pickle_storage *storage;
        const m2_pickle_tensor *tensor;
    } u;
};

typedef struct m2_pickle m2_pickle;

/* Run the pickle `data` (borrowed while the values are used); `file` is named in errors.
 * Errors  M2_ERR_FORMAT (damaged, or larger than `bytes_max` allows), M2_ERR_UNSUPPORTED (a protocol
 *         or opcode that torch.save does not write), M2_ERR_MEMORY */
m2_status m2_pickle_load(const char *file, const unsigned char *data, size_t bytes,
                         size_t bytes_max, m2_pickle **pickle_out);
void m2_pickle_free(m2_pickle *pickle);
const m2_pickle_value *m2_pickle_top(const m2_pickle *pickle);

/* Number of opaque values met, and the first's "module.name", "" if it has none; in `text`. */
int64_t m2_pickle_n_opaque(const m2_pickle *pickle, char *text, size_t bytes);

#endif
