/* model_dir.c - where the parts of a released model lie. */
#include "pipeline/engine.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int exists(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0;
}

static int is_dir(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static void join(char to[4096], const char *dir, const char *name)
{
    if (snprintf(to, 4096, "%s/%s", dir, name) >= 4096) to[0] = '\0';
}

/* The directory above `path` that holds preview/ and text_encoder/, looked for two levels up; "" if
 * there is none. */
static void find_root_above(const char *path, char root[4096])
{
    char *real = realpath(path, NULL);
    snprintf(root, 4096, "%s", real ? real : "");
    free(real);
    for (int i = 0; i < 2; i++) {
        char preview[4096], text[4096];
        char *slash = strrchr(root, '/');
        if (!slash) break;
        *slash = '\0';
        join(preview, root, "preview");
        join(text, root, "text_encoder");
        if (is_dir(preview) && is_dir(text)) return;
    }
    root[0] = '\0';
}

static m2_status fail_not_a_model(const char *model_dir, const char *missing)
{
    char root[4096];
    if (!exists(model_dir))
        return m2_fail(M2_ERR_IO,
                       "%s: no such model directory: %s; give the root of the "
                       "checkpoint, the folder that holds preview/ and text_encoder/",
                       model_dir, strerror(errno));
    find_root_above(model_dir, root);
    if (root[0])
        return m2_fail(M2_ERR_IO, "%s: is a part of a model; pass its root instead: %s", model_dir,
                       root);
    return m2_fail(M2_ERR_IO,
                   "%s: not a model directory: %s is missing; give the root of "
                   "the checkpoint, the folder that holds preview/, text_encoder/, "
                   "turbo_vae/ and stable-audio-open-1.0/",
                   model_dir, missing);
}

/* The decoder's JSON: the released name, else the only .json of the folder. */
static m2_status find_video_config(const char *dir, char to[4096])
{
    join(to, dir, "TurboV3-Wan22-TinyShallow_7_7.json");
    if (exists(to)) return M2_OK;
    int n = 0;
    DIR *handle = opendir(dir);
    for (struct dirent *entry; handle && (entry = readdir(handle));) {
        const size_t length = strlen(entry->d_name);
        if (length < 6 || strcmp(entry->d_name + length - 5, ".json") != 0) continue;
        join(to, dir, entry->d_name);
        n++;
    }
    if (handle) closedir(handle);
    if (n == 1) return M2_OK;
    return m2_fail(M2_ERR_IO,
                   "%s: %s .json file with the decoder's configuration; the release has "
                   "TurboV3-Wan22-TinyShallow_7_7.json",
                   dir, n ? "holds more than one" : "holds no");
}

m2_status m2_model_paths_find(const char *model_dir, m2_model_paths *paths_out)
{
    m2_model_paths paths;
    char dir[4096];
    if (snprintf(dir, sizeof dir, "%s", model_dir) >= 3800)
        return m2_fail(M2_ERR_ARG, "the path of the model is too long");
    for (size_t n = strlen(dir); n > 1 && dir[n - 1] == '/'; n--) dir[n - 1] = '\0';
    join(paths.config, dir, "magi2.json");
    if (!exists(paths.config)) paths.config[0] = '\0';
    join(paths.text, dir, "text_encoder");
    join(paths.text_config, paths.text, "config.json");
    join(paths.tokenizer, paths.text, "tokenizer.json");
    join(paths.preview, dir, "preview");
    char turbo[4096], audio[4096];
    join(turbo, dir, "turbo_vae");
    join(paths.video, turbo, "checkpoint.ckpt");
    join(audio, dir, "stable-audio-open-1.0");
    join(paths.audio, audio, "model.safetensors");
    join(paths.audio_config, audio, "model_config.json");
    if (!is_dir(paths.preview)) return fail_not_a_model(model_dir, "preview/");
    if (!is_dir(paths.text)) return fail_not_a_model(model_dir, "text_encoder/");
    if (!is_dir(turbo)) return fail_not_a_model(model_dir, "turbo_vae/");
    if (!is_dir(audio)) return fail_not_a_model(model_dir, "stable-audio-open-1.0/");
    M2_TRY(find_video_config(turbo, paths.video_config));
    *paths_out = paths;
    return M2_OK;
}
