/* A program of someone else's, built against the installed library alone: the model's directory in,
 * the ids of a prompt out. */
#include <magi2.h>

#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    char *text = NULL;
    magi2_params params;
    magi2_params_init(&params);
    params.model_dir = argc > 1 ? argv[1] : "demo";
    magi2_engine *engine = NULL;
    if (magi2_open(&params, &engine) != MAGI2_OK) {
        fprintf(stderr, "%s\n", magi2_last_error());
        return 1;
    }
    magi2_close(engine);
    if (magi2_tokenize(params.model_dir, "a red ball", 1, &text) != MAGI2_OK) {
        fprintf(stderr, "%s\n", magi2_last_error());
        return 1;
    }
    fputs(text, stdout);
    magi2_free(text);
    /* A wrong call must come back as an error of the library's, through its own header's values. */
    if (magi2_inspect("/nonexistent", 0, &text) != MAGI2_ERR_IO) return 1;
    return strstr(magi2_last_error(), "/nonexistent") ? 0 : 1;
}
