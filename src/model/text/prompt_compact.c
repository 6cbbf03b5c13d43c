#include "model/text/prompt.h"

#include "model/text/prompt_internal.h"
#include "model/text/pyjson.h"
#include "model/text/utf8.h"

#include <stdlib.h>
#include <string.h>

/* The text as it grows.  A line is written to `line`, then joins `text` unless it is blank. */
typedef struct compact {
    m2_buffer text, line, word;
    int n_lines;
    int is_type_error; /* Python would raise TypeError here, and the prompt stays as it is */
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
    const m2_py_value *aesthetics = m2_py_get(global, "aesthetics");
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
    const m2_py_value *audio = m2_py_get(global, "audio_baseline");
    const m2_py_value *dialogue = m2_py_get(audio, "dialogue");
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
    const m2_py_value *visual = m2_py_get(subject, "visual_attributes");
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

static void write_list(compact *c, const char *title, const m2_py_value *list,
                       void (*write)(compact *, const m2_py_value *))
{
    if (!is_full_list(list)) return;
    put(c, title);
    end_line(c);
    for (const m2_py_value *item = list->first; item; item = item->next)
        if (item->kind == M2_PY_DICT) write(c, item);
}

/* ---- timeline ---- */

/* `for item in value or []`: what is false is empty, a string's characters and a dict's keys are no
 * dicts, and what cannot be walked is Python's TypeError. */
static const m2_py_value *walk(compact *c, const m2_py_value *value)
{
    if (!value) return NULL;
    switch (value->kind) {
    case M2_PY_LIST:
        return value->first;
    case M2_PY_NONE:
    case M2_PY_FALSE:
    case M2_PY_STRING:
    case M2_PY_DICT:
        return NULL;
    case M2_PY_INT:
        if (value->bytes == 1 && value->text[0] == '0') return NULL;
        break;
    case M2_PY_FLOAT:
        if (value->number == 0) return NULL;
        break;
    case M2_PY_TRUE:
        break;
    }
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

static void right_strip(m2_buffer *line)
{
    size_t end = 0;
    for (size_t at = 0; at < line->bytes;)
        if (!m2_py_is_space(m2_utf8_next(line->data, &at))) end = at;
    if (line->data) line->data[line->bytes = end] = '\0';
}

static void write_segment(compact *c, const m2_py_value *segment)
{
    static const char *const action_keys[] = { "primary_action", "interaction",
                                               "facial_expression" };
    static const char *const state_keys[] = { "state_change", "motion_detail" };
    const m2_py_value *basic = m2_py_get(segment, "segment_basic_info");
    put(c, " -");
    parts p = { c, "", 0 };
    join(&p, " ", m2_py_get(basic, "timestamp_range"));
    put(c, " ");
    put_one(c, m2_py_get(basic, "segment_description"));
    right_strip(&c->line);
    end_line(c);

    const m2_py_value *audio = m2_py_get(segment, "audio");
    const m2_py_value *item = walk(c, m2_py_get(audio, "dialogue_lines"));
    for (; item; item = item->next)
        if (item->kind == M2_PY_DICT) write_dialogue(c, item);
    for (item = walk(c, m2_py_get(segment, "alive_subjects")); item; item = item->next)
        if (item->kind == M2_PY_DICT)
            write_change(c, "   - action ", m2_py_get(item, "subject_id"),
                         m2_py_get(item, "action"), action_keys, 3);
    for (item = walk(c, m2_py_get(segment, "objects")); item; item = item->next)
        if (item->kind == M2_PY_DICT)
            write_change(c, "   - objects ", m2_py_get(item, "object_id"),
                         m2_py_get(item, "dynamic_state"), state_keys, 2);
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
    const m2_py_value *global = m2_py_get(root, "global_layer");
    const m2_py_value *dynamic = m2_py_get(root, "dynamic_layer");
    const m2_py_value *reference = m2_py_get(root, "reference_layer");
    write_head(c, global);
    write_aesthetics(c, global);
    write_audio(c, global);
    write_list(c, "subjects:", m2_py_get(global, "alive_subjects_static"), write_subject);
    write_list(c, "objects:", m2_py_get(global, "objects_static"), write_object);
    write_list(c, "timeline:", m2_py_get(dynamic, "timeline_segments"), write_segment);
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

m2_status m2_prompt_parse_object(const char *text, size_t bytes, m2_py_document **document_out)
{
    /* Whatever does not begin as an object stays as it is, be it JSON or not. */
    size_t at = 0;
    while (at < bytes && strchr(" \t\n\r", text[at]) && text[at]) at++;
    *document_out = NULL;
    return at < bytes && text[at] == '{' ? m2_py_parse(text, bytes, document_out) : M2_OK;
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

m2_status m2_prompt_normalise(const char *text, size_t bytes, char **text_out, size_t *bytes_out)
{
    m2_py_document *document;
    M2_TRY(m2_prompt_check(text, bytes));
    M2_TRY(m2_prompt_parse_object(text, bytes, &document));
    compact c = { .is_type_error = 1 };
    if (document) {
        clean(m2_py_root(document));
        if (m2_py_get(m2_py_root(document), "global_layer")) {
            c.is_type_error = 0;
            write_prompt(&c, m2_py_root(document));
        }
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
