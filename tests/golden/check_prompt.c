/* check_prompt.c - golden/prompt: what becomes of a prompt's text before it is tokenised.
 *
 * Files of lines; what a line holds is known by its keys: `input` -> `expected` (no picture),
 * `input` -> `with_figure` -> `normalized` (with one), or all of them.  Lines of the prompt
 * enhancer's renderer are known by their `flags` and `options`.
 */
#include "golden.h"

#include "model/text/prompt.h"

#include <stdlib.h>
#include <string.h>

typedef m2_status rewrite(const char *text, size_t bytes, char **text_out, size_t *bytes_out);

static const char *differs(golden_run *run, rewrite *apply, const json_t *input,
                           const json_t *expected, const char *what)
{
    char *text = NULL;
    size_t bytes = 0;
    if (apply(json_string_value(input), json_string_length(input), &text, &bytes) != M2_OK)
        return m2_last_error();
    const char *wanted = json_string_value(expected);
    size_t at = 0;
    while (at < bytes && at < json_string_length(expected) && text[at] == wanted[at]) at++;
    const char *fault = NULL;
    if (at != bytes || at != json_string_length(expected))
        fault = golden_format(run, "%s differs from byte %zu on: \"%.40s\", expected \"%.40s\"",
                              what, at, text + at, wanted + at);
    free(text);
    return fault;
}

static const char *check_line(golden_run *run, const json_t *line)
{
    const json_t *input = json_object_get(line, "input"),
                 *expected = json_object_get(line, "expected"),
                 *with_figure = json_object_get(line, "with_figure"),
                 *normalised = json_object_get(line, "normalized");
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)line, key, value)
    {
        const int is_text = value == input || value == expected || value == with_figure ||
                            value == normalised || strcmp(key, "name") == 0;
        /* `exotic` only marks cases that hinge on how Python prints. */
        if (is_text ? !json_is_string(value) : strcmp(key, "exotic") || !json_is_boolean(value))
            return golden_format(run, "'%s' is not understood", key);
    }
    if (!input || (!expected && !with_figure) || !with_figure != !normalised)
        return "not understood: a text to compare is missing";
    const char *fault = NULL;
    if (expected) fault = differs(run, m2_prompt_normalise, input, expected, "expected");
    if (!fault && with_figure)
        fault = differs(run, m2_prompt_add_figure, input, with_figure, "with_figure");
    if (!fault && normalised)
        fault = differs(run, m2_prompt_normalise, with_figure, normalised, "normalized");
    return fault;
}

static void check_lines(golden_run *run, const char *dir, const char *file)
{
    json_t *lines = golden_json_lines(run, golden_format(run, "%s/%s", dir, file));
    if (!lines) return;
    size_t k, n_passed = 0, n_enhancer = 0;
    json_t *line;
    json_array_foreach(lines, k, line)
    {
        if (json_object_get(line, "flags") && json_object_get(line, "options")) {
            n_enhancer++;
            continue;
        }
        const char *name = json_string_value(json_object_get(line, "name"));
        const char *fault = name ? check_line(run, line) : "not understood: no name";
        if (fault)
            golden_result(run, 0, golden_format(run, "%s:%zu %s", file, k + 1, name ? name : ""),
                          "%s", fault);
        else
            n_passed++;
    }
    const size_t n = json_array_size(lines) - n_enhancer;
    if (n_enhancer)
        golden_skip(run, golden_format(run, "%s (%zu lines)", file, n_enhancer),
                    "prompt enhancement is not built");
    if (n || !n_enhancer)
        golden_result(run, n > 0 && n_passed == n, file, "%zu of %zu prompts as expected", n_passed,
                      n);
    json_decref(lines);
}

void golden_check_prompt(golden_run *run, const char *dir)
{
    int n_files = 0;
    for (char **file = golden_list(run, dir, 0); *file; file++, n_files++) {
        const size_t bytes = strlen(*file);
        if (bytes > 6 && strcmp(*file + bytes - 6, ".jsonl") == 0)
            check_lines(run, dir, *file);
        else if (strcmp(*file, "report.json") != 0) /* counts and versions, nothing to compare */
            golden_result(run, 0, *file, "not understood");
    }
    if (n_files == 0) golden_result(run, 0, dir, "no case in this folder");
    for (char **name = golden_list(run, dir, 1); *name; name++)
        golden_check_prompt(run, golden_format(run, "%s/%s", dir, *name));
}
