#include "clip_run.h"

#include "io/checkpoint.h"
#include "support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char *read_text(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file) fail_msg("%s cannot be opened", path);
    char *text = calloc(1, 1 << 20);
    assert_non_null(text);
    const size_t n = fread(text, 1, (1 << 20) - 1, file);
    assert_true(n > 0);
    fclose(file);
    return text;
}

void clip_make_tiny_model(const char *dir, char model_dir[4096])
{
    static const char *const parts[] = { "preview", "text_encoder", "turbo_vae",
                                         "stable-audio-open-1.0" };
    snprintf(model_dir, 4096, "%s/model", dir);
    assert_int_equal(mkdir(model_dir, 0777), 0);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        char from[5000], to[5000];
        snprintf(from, sizeof from, "%s/%s", M2_DEMO_DIR, parts[i]);
        snprintf(to, sizeof to, "%s/%s", model_dir, parts[i]);
        assert_int_equal(symlink(from, to), 0);
    }
    char path[5000];
    char *config = read_text(M2_DEMO_DIR "/magi2.json");
    char *tiers = strstr(config, "\"tiers\": {");
    assert_non_null(tiers);
    snprintf(path, sizeof path, "%s/magi2.json", model_dir);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    const size_t head = (size_t)(tiers - config) + strlen("\"tiers\": {");
    fwrite(config, 1, head, file);
    fputs("\"tiny\": {\"width\": 32, \"height\": 32},", file);
    char *default_tier = strstr(config + head, "\"default_tier\": \"demo\"");
    assert_non_null(default_tier);
    memcpy(default_tier + strlen("\"default_tier\": \""), "tiny", 4);
    fputs(config + head, file);
    fclose(file);
    free(config);
}

m2_tensor clip_read_array(const char *dir, const char *name)
{
    char path[4096];
    m2_checkpoint *file = NULL;
    snprintf(path, sizeof path, "%s/%s.safetensors", dir, name);
    check_ok(m2_checkpoint_open(path, &file));
    const m2_ckpt_tensor *found = m2_checkpoint_find(file, name);
    assert_non_null(found);
    m2_tensor tensor = m2_tensor_wrap(NULL, found->dtype, found->n_dims, found->shape);
    tensor.data = malloc(m2_tensor_bytes(&tensor));
    assert_non_null(tensor.data);
    m2_checkpoint_read(found, found->dtype, tensor.data);
    m2_checkpoint_close(file);
    return tensor;
}

char *clip_read_manifest(const char *dir)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/manifest.json", dir);
    return read_text(path);
}
