#include "io/config_fields.h"

#include "io/config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WHERE_BYTES 5000

static const char *json_type_name(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "text";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a number with a fraction";
    case JSON_TRUE:
    case JSON_FALSE:
        return "true or false";
    default:
        return "null";
    }
}

static m2_status fail_type(const m2_field *field, const char *where, const char *wanted,
                           const json_t *value)
{
    return m2_fail(M2_ERR_FORMAT, "%s%s must be %s, it is %s", where, field->name, wanted,
                   json_type_name(value));
}

static m2_status read_integer(const m2_field *field, json_t *value, const char *where,
                              long long *number_out)
{
    if (!json_is_integer(value)) return fail_type(field, where, "an integer", value);
    const long long number = json_integer_value(value);
    if ((double)number < field->low || (double)number > field->high)
        return m2_fail(M2_ERR_FORMAT, "%s%s is %lld, it must be from %.15g to %.15g", where,
                       field->name, number, field->low, field->high);
    *number_out = number;
    return M2_OK;
}

static m2_status read_number(const m2_field *field, json_t *value, const char *where,
                             double *number_out)
{
    if (!json_is_number(value)) return fail_type(field, where, "a number", value);
    const double number = json_number_value(value);
    if (!isfinite(number) || number < field->low || number > field->high)
        return m2_fail(M2_ERR_FORMAT, "%s%s is %.15g, it must be from %.15g to %.15g", where,
                       field->name, number, field->low, field->high);
    *number_out = number;
    return M2_OK;
}

static m2_status read_sizes3(const m2_field *field, json_t *value, const char *where, int *sizes)
{
    if (!json_is_array(value) || json_array_size(value) != 3)
        return fail_type(field, where, "an array of three integers", value);
    for (int i = 0; i < 3; i++) {
        long long size;
        M2_TRY(read_integer(field, json_array_get(value, (size_t)i), where, &size));
        sizes[i] = (int)size;
    }
    return M2_OK;
}

static m2_status read_layers(const m2_field *field, json_t *value, const char *where,
                             unsigned char *flags)
{
    if (!json_is_array(value)) return fail_type(field, where, "an array of layer numbers", value);
    memset(flags, 0, M2_LAYERS_MAX);
    for (size_t i = 0; i < json_array_size(value); i++) {
        long long layer;
        M2_TRY(read_integer(field, json_array_get(value, i), where, &layer));
        if (flags[layer])
            return m2_fail(M2_ERR_FORMAT, "%s%s names layer %lld twice", where, field->name, layer);
        flags[layer] = 1;
    }
    return M2_OK;
}

/* Numbers are equal by value (-1 and -1.0), everything else by type and value. */
static int is_only(const m2_field *field, json_t *value)
{
    json_t *only = json_loads(field->only, JSON_DECODE_ANY, NULL);
    const int is_same = json_is_number(only) && json_is_number(value)
                            ? json_number_value(only) == json_number_value(value)
                            : json_equal(only, value);
    json_decref(only);
    return is_same;
}

static m2_status fail_only(const m2_field *field, json_t *value, const char *where)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    const m2_status status =
        m2_fail(M2_ERR_UNSUPPORTED, "%s%s is %.100s, only %s is implemented", where, field->name,
                text ? text : "something else", field->only);
    free(text);
    return status;
}

static m2_status read_field(const m2_field *field, json_t *value, const char *where, void *into)
{
    void *const target = (char *)into + field->offset;
    long long number = 0;
    switch (field->kind) {
    case M2_FIELD_INT:
        M2_TRY(read_integer(field, value, where, &number));
        *(int *)target = (int)number;
        return M2_OK;
    case M2_FIELD_INT64:
        M2_TRY(read_integer(field, value, where, &number));
        *(int64_t *)target = number;
        return M2_OK;
    case M2_FIELD_NUMBER:
        return read_number(field, value, where, target);
    case M2_FIELD_BOOL:
        if (!json_is_boolean(value)) return fail_type(field, where, "true or false", value);
        *(int *)target = json_is_true(value);
        return M2_OK;
    case M2_FIELD_SIZES3:
        return read_sizes3(field, value, where, target);
    case M2_FIELD_LAYERS:
        return read_layers(field, value, where, target);
    case M2_FIELD_TEXT:
        if (!json_is_string(value)) return fail_type(field, where, "text", value);
        return field->take(into, where, json_string_value(value));
    case M2_FIELD_OBJECT: {
        char deeper[WHERE_BYTES];
        if (!json_is_object(value)) return fail_type(field, where, "an object", value);
        snprintf(deeper, sizeof deeper, "%s%s.", where, field->name);
        return m2_fields_read(field->fields, value, deeper, into);
    }
    case M2_FIELD_ONLY:
        return is_only(field, value) ? M2_OK : fail_only(field, value, where);
    case M2_FIELD_NO_USE:
        return M2_OK;
    }
    return M2_OK;
}

static m2_status fail_unknown(const m2_field *fields, const char *name, const char *where)
{
    char known[1500];
    size_t used = 0;
    for (const m2_field *field = fields; field->name && used < sizeof known; field++)
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "",
                                 field->name);
    return m2_fail(M2_ERR_FORMAT, "%s%.100s is no field that is known here; known are %s", where,
                   name, known);
}

m2_status m2_fields_read(const m2_field *fields, json_t *object, const char *where, void *into)
{
    const char *name;
    json_t *value;
    json_object_foreach(object, name, value)
    {
        const m2_field *field = fields;
        while (field->name && strcmp(field->name, name) != 0) field++;
        if (!field->name) return fail_unknown(fields, name, where);
        M2_TRY(read_field(field, value, where, into));
    }
    return M2_OK;
}
