#include "pipeline/tokenize.h"

#include "model/text/tokenize_report.h"
#include "pipeline/engine.h"

#include <string.h>

m2_status m2_tokenize_for_model(const char *model_dir, const char *prompt, int as_json,
                                char **text_out)
{
    m2_model_paths paths;
    m2_tokenizer *tokenizer = NULL;
    size_t bytes;
    M2_TRY(m2_model_paths_find(model_dir, &paths));
    M2_TRY(m2_tokenizer_open(paths.tokenizer, &tokenizer));
    const m2_tokenize_options options = { .is_json = as_json };
    const m2_status status =
        m2_tokenize_report(tokenizer, prompt, strlen(prompt), &options, text_out, &bytes);
    m2_tokenizer_close(tokenizer);
    return status;
}
