/* pyjson.h - JSON as Python's json module reads and prints it.
 *
 * Prompts may be JSON, and the model was conditioned on what Python makes of them: NaN and Infinity
 * are numbers, integers have any length, floats print with the fewest digits that read back, of
 * equal keys the last value counts at the first one's place, and values that are no strings print
 * as Python's str() does.
 *
 * Threads  a document, one thread at a time.
 */
#ifndef M2_MODEL_TEXT_PYJSON_H
#define M2_MODEL_TEXT_PYJSON_H

#include "core/status.h"
#include "model/text/buffer.h"

#include <stddef.h>

#define M2_PY_DEPTH_MAX 200

typedef enum m2_py_kind {
    M2_PY_NONE,
    M2_PY_FALSE,
    M2_PY_TRUE,
    M2_PY_INT,
    M2_PY_FLOAT,
    M2_PY_STRING,
    M2_PY_LIST,
    M2_PY_DICT
} m2_py_kind;

typedef struct m2_py_value m2_py_value;
struct m2_py_value {
    m2_py_kind kind;
    const char *text; /* a string, or an integer's digits with its sign; not NUL-terminated */
    size_t bytes;
    double number;      /* a float                        */
    m2_py_value *first; /* of a list or dict              */
    m2_py_value *next;  /* sibling in a list or dict      */
    const char *key;    /* of a dict's member             */
    size_t key_bytes;
};

typedef struct m2_py_document m2_py_document;

/* Where text stops being JSON. */
typedef struct m2_py_fault {
    const char *what; /* "a comma is missing" ...; a static string, NULL: it is JSON */
    size_t at;        /* the byte                                                   */
} m2_py_fault;

/* *document_out is NULL, with M2_OK, where the text is not JSON; fault_out (which may be NULL) says
 * why.  text[0, bytes) is checked UTF-8
 * (surrogates may be in it) and must stay while the document lives.
 * Errors  M2_ERR_ARG (nested deeper than 200), M2_ERR_MEMORY */
m2_status m2_py_parse(const char *text, size_t bytes, m2_py_document **document_out,
                      m2_py_fault *fault_out);
void m2_py_destroy(m2_py_document *document);
m2_py_value *m2_py_root(m2_py_document *document);
/* A value that lives as long as the document, all zero (None); NULL without memory. */
m2_py_value *m2_py_new(m2_py_document *document);

/* A dict's member, or NULL; NULL also for NULL and what is no dict. */
m2_py_value *m2_py_get(const m2_py_value *dict, const char *key);

void m2_py_append_str(m2_buffer *out, const m2_py_value *value); /* str(value)                   */
void m2_py_append_dumps(m2_buffer *out,
                        const m2_py_value *value); /* json.dumps, ensure_ascii off */
void m2_py_append_float(m2_buffer *out, double x); /* repr(x)                      */

/* str.isspace of Python: White_Space and U+001C-001F. */
int m2_py_is_space(uint32_t code_point);

#endif
