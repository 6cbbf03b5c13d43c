/* config_fields.h - reading a JSON object by a table: strict types, ranges, no unknown field. */
#ifndef M2_IO_CONFIG_FIELDS_H
#define M2_IO_CONFIG_FIELDS_H

#include "core/status.h"

#include <jansson.h>
#include <stddef.h>

typedef enum m2_field_kind {
    M2_FIELD_INT,    /* a JSON integer into an int, from low to high                      */
    M2_FIELD_INT64,  /* into an int64_t                                                   */
    M2_FIELD_NUMBER, /* integer or real into a double                                     */
    M2_FIELD_BOOL,   /* into an int                                                       */
    M2_FIELD_SIZES3, /* an array of three integers into int[3]                            */
    M2_FIELD_LAYERS, /* an array of distinct indices below M2_LAYERS_MAX, as flags        */
    M2_FIELD_TEXT,   /* a string, handed to `take`                                        */
    M2_FIELD_OBJECT, /* an object, by the table `fields`                                  */
    M2_FIELD_ONLY,   /* any value but `only` (as JSON) names maths that is not here       */
    M2_FIELD_NO_USE  /* read by the reference without effect: any value                   */
} m2_field_kind;

typedef struct m2_field m2_field;
struct m2_field {
    const char *name; /* NULL ends a table */
    m2_field_kind kind;
    size_t offset;    /* in the struct; for LAYERS of an unsigned char [M2_LAYERS_MAX] */
    double low, high; /* both allowed */
    const char *only; /* ONLY: the one value, in JSON */
    const m2_field *fields;
    m2_status (*take)(void *into, const char *where, const char *text);
};

/* Read `object` into `into`; `where` is "file: " or "file: path.to.object." for messages.
 * Errors  M2_ERR_FORMAT (unknown field, wrong type, out of range), M2_ERR_UNSUPPORTED (ONLY) */
m2_status m2_fields_read(const m2_field *fields, json_t *object, const char *where, void *into);

#endif
