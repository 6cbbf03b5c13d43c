#include "model/text/prompt.h"

#include "core/log.h"
#include "model/text/prompt_internal.h"
#include "model/text/pyjson.h"
#include "model/text/utf8.h"

#include <stdlib.h>
#include <string.h>

/* The text as it grows.  A line is written to `line`, then joins `text` unless it is blank. */
typedef struct compact {
    m2_buffer text, line, word;
    int n_lines;
    int is_type_error;     /* Python would raise TypeError here, and the prompt stays as it is */
    int n_wrong;           /* parts that are left out because they are of another kind      */
    const char *wrong_key; /* the first of them                                             */
    const char *wrong_of;  /* "", or "an item of " where it stands in the list of that name */
    m2_py_kind wanted;     /* the kind that it should be of                                 */
} compact;

/* Parts joined by a separator, empty ones left out. */
typedef struct parts {
    compact *c;
    const char *separator;
    int n;
} parts;

static int is_blank(const m2_buffer *text)
{
    for (size_t at = 0; at < text->bytes;)
        if (!m2_py_is_space(m2_utf8_next(text->data, &at))) return 0;
    return 1;
}

static void put(compact *c, const char *text)
{
    m2_buffer_puts(&c->line, text);
}

static void end_line(compact *c)
{
    if (!is_blank(&c->line)) {
        if (c->n_lines++) m2_buffer_puts(&c->text, "\n");
        m2_buffer_append(&c->text, c->line.data, c->line.bytes);
    }
    m2_buffer_clear(&c->line);
}

/* str(value) with each run of white space made one space and none at the ends; None is empty. */
static void append_one(compact *c, m2_buffer *out, const m2_py_value *value)
{
    m2_buffer *word = &c->word;
    if (!value || value->kind == M2_PY_NONE) return;
    m2_buffer_clear(word);
    m2_py_append_str(word, value);
    const size_t begin = out->bytes;
    int is_apart = 0; /* white space since the last character */
    for (size_t at = 0; at < word->bytes;) {
        const size_t from = at;
        if (m2_py_is_space(m2_utf8_next(word->data, &at))) {
            is_apart = 1;
            continue;
        }
        if (is_apart && out->bytes > begin) m2_buffer_puts(out, " ");
        is_apart = 0;
        m2_buffer_append(out, word->data + from, at - from);
    }
    if (word->has_failed) out->has_failed = 1;
}

/* Appends to the line; returns whether there was anything. */
static int put_one(compact *c, const m2_py_value *value)
{
    const size_t begin = c->line.bytes;
    append_one(c, &c->line, value);
    return c->line.bytes > begin;
}

/* separator, then label, then the value, where the value is not empty. */
static void join(parts *p, const char *label, const m2_py_value *value)
{
    m2_buffer *line = &p->c->line;
    const size_t begin = line->bytes;
    if (p->n) put(p->c, p->separator);
    put(p->c, label);
    if (put_one(p->c, value)) {
        p->n++;
    } else if (line->data) { /* nothing: take the separator and label back */
        line->bytes = begin;
        line->data[begin] = '\0';
    }
}

/* What Python takes for false, and no value at all. */
static int is_false(const m2_py_value *value)
{
    if (!value) return 1;
    switch (value->kind) {
    case M2_PY_NONE:
    case M2_PY_FALSE:
        return 1;
    case M2_PY_TRUE:
        return 0;
    case M2_PY_INT:
        return value->bytes == 1 && value->text[0] == '0';
    case M2_PY_FLOAT:
        return value->number == 0;
    case M2_PY_STRING:
        return value->bytes == 0;
    case M2_PY_LIST:
    case M2_PY_DICT:
        return !value->first;
    }
    return 0;
}

/* What is of another kind is left out, as the reference does; people should know, unless there was
 * nothing in it. */
static void note_kind(compact *c, const char *of, const char *key, const m2_py_value *value,
                      m2_py_kind wanted)
{
    if (is_false(value) || value->kind == wanted || c->n_wrong++) return;
    c->wrong_of = of;
    c->wrong_key = key;
    c->wanted = wanted;
}

/* A dict's member that should be a list or a dict itself. */
static const m2_py_value *part(compact *c, const m2_py_value *dict, const char *key,
                               m2_py_kind wanted)
{
    const m2_py_value *value = m2_py_get(dict, key);
    note_kind(c, "", key, value, wanted);
    return value;
}

static int is_list(const m2_py_value *value)
{
    return value && value->kind == M2_PY_LIST;
}

static int is_full_list(const m2_py_value *value)
{
    return is_list(value) && value->first;
}

/* ---- global layer ---- */

static void write_head(compact *c, const m2_py_value *global)
{
    const m2_py_value *description = m2_py_get(global, "description");
    m2_buffer rest = { 0 };
    put(c, "context: ");
    const int has_context = put_one(c, m2_py_get(global, "context"));
    append_one(c, &rest, description);
    if (!has_context) {
        m2_buffer_clear(&c->line);
        if (rest.bytes) put(c, "context");
    }
    end_line(c);
    if (rest.bytes) m2_buffer_append(&c->line, rest.data, rest.bytes);
    if (rest.has_failed) c->line.has_failed = 1;
    end_line(c);
    m2_buffer_free(&rest);
}

static void write_aesthetics(compact *c, const m2_py_value *global)
{
    const m2_py_value *aesthetics = part(c, global, "aesthetics", M2_PY_DICT);
    put(c, "aesthetics: ");
    parts p = { c, "; ", 0 };
    join(&p, "style=", m2_py_get(aesthetics, "style"));
    join(&p, "mood=", m2_py_get(aesthetics, "mood_atmosphere"));
    join(&p, "color=", m2_py_get(aesthetics, "color_scheme"));
    if (!p.n) m2_buffer_clear(&c->line);
    end_line(c);
}

static void write_audio(compact *c, const m2_py_value *global)
{
    const m2_py_value *audio = part(c, global, "audio_baseline", M2_PY_DICT);
    const m2_py_value *dialogue = part(c, audio, "dialogue", M2_PY_DICT);
    const m2_py_value *speakers = m2_py_get(dialogue, "speaker_tags");
    put(c, "audio: ");
    parts p = { c, "; ", 0 };
    join(&p, "language=", m2_py_get(dialogue, "language"));
    if (speakers && speakers->kind != M2_PY_NONE && (!is_list(speakers) || speakers->first)) {
        if (p.n++) put(c, p.separator);
        put(c, "speakers=");
        const m2_py_value *speaker = is_list(speakers) ? speakers->first : speakers;
        for (; speaker; speaker = is_list(speakers) ? speaker->next : NULL) {
            put_one(c, speaker);
            if (is_list(speakers) && speaker->next) put(c, ",");
        }
    }
    join(&p, "ambience=", m2_py_get(audio, "ambience"));
    if (!p.n) m2_buffer_clear(&c->line);
    end_line(c);
}

static void write_subject(compact *c, const m2_py_value *subject)
{
    static const char *const attributes[] = { "gender", "age_group", "ethnicity", "clothing",
                                              "appearance_details" };
    static const char *const labels[] = { " :: gender=", " :: age_group=", " :: ethnicity=",
                                          " :: clothing=", " :: appearance_details=" };
    const m2_py_value *visual = part(c, subject, "visual_attributes", M2_PY_DICT);
    put(c, " - ");
    parts names = { c, " | ", 0 };
    join(&names, "", m2_py_get(subject, "subject_id"));
    join(&names, "", m2_py_get(subject, "description"));
    /* The opening bracket goes in front of the first part there is. */
    parts places = { c, "; ", 0 };
    join(&places, " (", m2_py_get(subject, "position"));
    join(&places, places.n ? "" : " (", m2_py_get(subject, "orientation"));
    if (places.n) put(c, ")");
    parts looks = { c, "; ", 0 };
    for (size_t k = 0; k < sizeof attributes / sizeof *attributes; k++) /* colons once, in front */
        join(&looks, labels[k] + (looks.n ? strlen(" :: ") : 0), m2_py_get(visual, attributes[k]));
    end_line(c);
}

static void write_object(compact *c, const m2_py_value *object)
{
    put(c, " - ");
    parts names = { c, " | ", 0 };
    join(&names, "", m2_py_get(object, "object_id"));
    join(&names, "", m2_py_get(object, "description"));
    parts looks = { c, "; ", 0 };
    join(&looks, " :: ", m2_py_get(object, "shape_and_color"));
    join(&looks, looks.n ? "" : " :: ", m2_py_get(object, "position"));
    end_line(c);
}

/* Items that are no dicts are left out. */
static void write_item(compact *c, const char *key, const m2_py_value *item,
                       void (*write)(compact *, const m2_py_value *))
{
    note_kind(c, "an item of ", key, item, M2_PY_DICT);
    if (item->kind == M2_PY_DICT) write(c, item);
}

static void write_list(compact *c, const char *title, const m2_py_value *dict, const char *key,
                       void (*write)(compact *, const m2_py_value *))
{
    const m2_py_value *list = part(c, dict, key, M2_PY_LIST);
    if (!is_full_list(list)) return;
    put(c, title);
    end_line(c);
    for (const m2_py_value *item = list->first; item; item = item->next)
        write_item(c, key, item, write);
}

/* ---- timeline ---- */

/* `for item in value or []`: what is false is empty, a string's characters and a dict's keys are no
 * dicts, and what cannot be walked is Python's TypeError. */
static const m2_py_value *walk(compact *c, const m2_py_value *value)
{
    if (is_false(value) || value->kind == M2_PY_STRING || value->kind == M2_PY_DICT) return NULL;
    if (value->kind == M2_PY_LIST) return value->first;
    c->is_type_error = 1;
    return NULL;
}

static void write_dialogue(compact *c, const m2_py_value *line)
{
    m2_buffer text = { 0 };
    append_one(c, &text, m2_py_get(line, "text"));
    if (text.bytes) {
        put(c, "   - dialogue");
        parts speaker = { c, "", 0 };
        join(&speaker, " ", m2_py_get(line, "speaker"));
        put(c, ": ");
        m2_buffer_append(&c->line, text.data, text.bytes);
        parts time = { c, "", 0 };
        join(&time, " (", m2_py_get(line, "timestamp"));
        if (time.n) put(c, ")");
        end_line(c);
    }
    if (text.has_failed) c->line.has_failed = 1;
    m2_buffer_free(&text);
}

/* `   - HEAD ID: a; b; c`, or nothing without a part. */
static void write_change(compact *c, const char *head, const m2_py_value *id,
                         const m2_py_value *change, const char *const *keys, int n_keys)
{
    put(c, head);
    put_one(c, id);
    put(c, ": ");
    parts p = { c, "; ", 0 };
    for (int k = 0; k < n_keys; k++) join(&p, "", m2_py_get(change, keys[k]));
    if (!p.n) m2_buffer_clear(&c->line);
    end_line(c);
}

static void write_action(compact *c, const m2_py_value *item)
{
    static const char *const keys[] = { "primary_action", "interaction", "facial_expression" };
    write_change(c, "   - action ", m2_py_get(item, "subject_id"),
                 part(c, item, "action", M2_PY_DICT), keys, 3);
}

static void write_object_state(compact *c, const m2_py_value *item)
{
    static const char *const keys[] = { "state_change", "motion_detail" };
    write_change(c, "   - objects ", m2_py_get(item, "object_id"),
                 part(c, item, "dynamic_state", M2_PY_DICT), keys, 2);
}

/* A list of dicts of a segment, by Python's `for`. */
static void write_changes(compact *c, const m2_py_value *dict, const char *key,
                          void (*write)(compact *, const m2_py_value *))
{
    const int was_type_error = c->is_type_error;
    const m2_py_value *item = walk(c, part(c, dict, key, M2_PY_LIST));
    if (c->is_type_error && !was_type_error) {
        c->wrong_of = "";
        c->wrong_key = key;
        c->wanted = M2_PY_LIST;
    }
    for (; item; item = item->next) write_item(c, key, item, write);
}

static void right_strip(m2_buffer *line)
{
    size_t end = 0;
    for (size_t at = 0; at < line->bytes;)
        if (!m2_py_is_space(m2_utf8_next(line->data, &at))) end = at;
    if (line->data) line->data[line->bytes = end] = '\0';
}

static void write_segment(compact *c, const m2_py_value *segment)
{
    const m2_py_value *basic = part(c, segment, "segment_basic_info", M2_PY_DICT);
    put(c, " -");
    parts p = { c, "", 0 };
    join(&p, " ", m2_py_get(basic, "timestamp_range"));
    put(c, " ");
    put_one(c, m2_py_get(basic, "segment_description"));
    right_strip(&c->line);
    end_line(c);

    write_changes(c, part(c, segment, "audio", M2_PY_DICT), "dialogue_lines", write_dialogue);
    write_changes(c, segment, "alive_subjects", write_action);
    write_changes(c, segment, "objects", write_object_state);
}

/* ---- the whole ---- */

/* Take out of dicts what is None, [] or {}, and out of lists what is None, from the leaves up. */
static void clean(m2_py_value *value)
{
    if (value->kind != M2_PY_LIST && value->kind != M2_PY_DICT) return;
    m2_py_value **link = &value->first;
    for (m2_py_value *item = value->first; item; item = item->next) {
        clean(item);
        const int is_empty = (item->kind == M2_PY_LIST || item->kind == M2_PY_DICT) && !item->first;
        if (item->kind == M2_PY_NONE || (value->kind == M2_PY_DICT && is_empty)) continue;
        *link = item;
        link = &item->next;
    }
    *link = NULL;
}

static void write_prompt(compact *c, const m2_py_value *root)
{
    const m2_py_value *global = part(c, root, "global_layer", M2_PY_DICT);
    const m2_py_value *dynamic = part(c, root, "dynamic_layer", M2_PY_DICT);
    const m2_py_value *reference = part(c, root, "reference_layer", M2_PY_LIST);
    write_head(c, global);
    write_aesthetics(c, global);
    write_audio(c, global);
    write_list(c, "subjects:", global, "alive_subjects_static", write_subject);
    write_list(c, "objects:", global, "objects_static", write_object);
    write_list(c, "timeline:", dynamic, "timeline_segments", write_segment);
    if (!is_list(reference)) return;
    for (const m2_py_value *item = reference->first; item; item = item->next) {
        m2_py_append_str(&c->line, item); /* as it is, white space too */
        end_line(c);
    }
}

m2_status m2_prompt_check(const char *text, size_t bytes)
{
    size_t bad, n_chars;
    if (m2_utf8_check(text, bytes, 1, &bad, &n_chars)) return M2_OK;
    return m2_fail(M2_ERR_ARG,
                   "the prompt is not UTF-8: byte %zu (0x%02x), behind %zu characters; save it as "
                   "UTF-8",
                   bad, (unsigned char)text[bad], n_chars);
}

m2_status m2_prompt_parse_object(const char *text, size_t bytes, m2_py_document **document_out,
                                 m2_py_fault *fault_out)
{
    /* Whatever does not begin as an object stays as it is, be it JSON or not. */
    size_t at = 0;
    while (at < bytes && strchr(" \t\n\r", text[at]) && text[at]) at++;
    *document_out = NULL;
    if (fault_out) *fault_out = (m2_py_fault){ 0 };
    if (at == bytes || text[at] != '{') return M2_OK;
    return m2_py_parse(text, bytes, document_out, fault_out);
}

m2_status m2_prompt_give(m2_buffer *buffer, char **text_out, size_t *bytes_out)
{
    m2_buffer_append(buffer, "", 0); /* never NULL */
    if (buffer->has_failed) {
        m2_buffer_free(buffer);
        return m2_fail(M2_ERR_MEMORY, "no memory for the prompt's text");
    }
    *text_out = buffer->data;
    *bytes_out = buffer->bytes;
    return M2_OK;
}

/* The reference takes these without a word, but a typing error must not go unseen. */
static void warn_of_plain_text(const char *text, const m2_py_fault *fault)
{
    int line = 1, column = 1;
    for (size_t at = 0; at < fault->at;) {
        column++;
        if (m2_utf8_next(text, &at) == '\n') line++, column = 1;
    }
    m2_warn("prompt",
            "it begins with { and is no JSON: %s at line %d, column %d; it is taken as plain text",
            fault->what, line, column);
}

static void warn_of_wrong_kinds(const compact *c, int has_empty_layer)
{
    const char *wanted = c->wanted == M2_PY_LIST ? "a list" : "an object";
    if (c->is_type_error && !c->n_wrong)
        m2_warn("prompt", "it is JSON with%s \"global_layer\"; it is taken as plain text",
                has_empty_layer ? " nothing in its" : "out a");
    else if (c->is_type_error)
        m2_warn("prompt", "in its JSON \"%s\" is not %s; it is taken as plain text", c->wrong_key,
                wanted);
    else if (c->n_wrong == 1)
        m2_warn("prompt", "in its JSON %s\"%s\" is not %s; that is left out", c->wrong_of,
                c->wrong_key, wanted);
    else if (c->n_wrong)
        m2_warn("prompt", "in its JSON %s\"%s\" is not %s; that is left out, and %d more like it",
                c->wrong_of, c->wrong_key, wanted, c->n_wrong - 1);
}

m2_status m2_prompt_normalise(const char *text, size_t bytes, char **text_out, size_t *bytes_out)
{
    m2_py_document *document;
    m2_py_fault fault;
    M2_TRY(m2_prompt_check(text, bytes));
    M2_TRY(m2_prompt_parse_object(text, bytes, &document, &fault));
    compact c = { .is_type_error = 1 };
    if (document) {
        const int has_layer = m2_py_get(m2_py_root(document), "global_layer") != NULL;
        clean(m2_py_root(document));
        if (m2_py_get(m2_py_root(document), "global_layer")) {
            c.is_type_error = 0;
            write_prompt(&c, m2_py_root(document));
        }
        warn_of_wrong_kinds(&c, has_layer);
    } else if (fault.what) {
        warn_of_plain_text(text, &fault);
    }
    if (c.is_type_error) {
        m2_buffer_clear(&c.text);
        m2_buffer_append(&c.text, text, bytes);
    }
    if (c.line.has_failed || c.word.has_failed) c.text.has_failed = 1;
    m2_py_destroy(document);
    m2_buffer_free(&c.line);
    m2_buffer_free(&c.word);
    return m2_prompt_give(&c.text, text_out, bytes_out);
}
