#include "tokenizer_file.h"

#include "support/check.h"

#include "model/text/tokenizer_internal.h"
#include "model/text/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SPLIT                                                                                      \
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":"        \
    "\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?[\\\\p{L}\\\\p{M}]+|\\\\p{N}|"   \
    " ?[^\\\\s\\\\p{L}\\\\p{M}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"  \
    "\"},"                                                                                         \
    "\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\","                         \
    "\"add_prefix_space\":false,\"trim_offsets\":false,\"use_regex\":false}]}"

static void write_vocabulary(FILE *file, const char *const *merges)
{
    for (unsigned byte = 0; byte < 256; byte++) {
        char text[5] = "";
        m2_utf8_put(m2_byte_char(byte), text);
        const int is_special = text[0] == '"' || text[0] == '\\';
        fprintf(file, "%s\"%s%s\":%u", byte ? "," : "", is_special ? "\\" : "", text, byte);
    }
    for (int k = 0; merges && merges[k]; k++) {
        const char *space = strchr(merges[k], ' ');
        fprintf(file, ",\"%.*s%s\":%d", (int)(space - merges[k]), merges[k], space + 1, 256 + k);
    }
}

static char *write_file(const char *dir, const char *const *merges, int as_pairs, const char *added,
                        const char *what, const char *text)
{
    char *path = malloc(strlen(dir) + 32);
    assert_non_null(path);
    sprintf(path, "%s/tokenizer.json", dir);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
#define PART(name, otherwise) (what && strcmp(what, name) == 0 ? text : otherwise)
    fprintf(file, "{\"version\":\"1.0\",\"added_tokens\":%s,\"normalizer\":%s,", added,
            PART("normalizer", "{\"type\":\"NFC\"}"));
    fprintf(file, "\"pre_tokenizer\":%s,\"post_processor\":%s,\"model\":{%s\"vocab\":{",
            PART("pre_tokenizer", SPLIT), PART("post_processor", "null"),
            PART("model_head", "\"type\":\"BPE\","));
#undef PART
    write_vocabulary(file, merges);
    fprintf(file, "},\"merges\":[");
    for (int k = 0; merges && merges[k]; k++) {
        const char *space = strchr(merges[k], ' ');
        if (as_pairs)
            fprintf(file, "%s[\"%.*s\",\"%s\"]", k ? "," : "", (int)(space - merges[k]), merges[k],
                    space + 1);
        else
            fprintf(file, "%s\"%s\"", k ? "," : "", merges[k]);
    }
    fprintf(file, "]}}");
    assert_int_equal(fclose(file), 0);
    return path;
}

char *test_write_tokenizer(const char *dir, const char *const *merges, int as_pairs,
                           const char *added)
{
    return write_file(dir, merges, as_pairs, added, NULL, NULL);
}

char *test_write_tokenizer_with(const char *dir, const char *what, const char *text)
{
    return write_file(dir, NULL, 0, "[]", what, text);
}
