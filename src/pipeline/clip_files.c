/* clip_files.c - the files that a clip reads and writes: looked at before anything is loaded, and the
 * state file's life. */
#include "pipeline/clip.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What to write, as an option with its name: for commands in messages. */
static const char *output_option(const magi2_request *request)
{
    return request->output ? "-o" : "--save";
}

static const char *output_name(const magi2_request *request)
{
    return request->output ? request->output : request->save_dir ? request->save_dir : "DIR";
}

/* ---- the state file ---- */

static m2_status write_state(m2_clip *clip, const char *path, int n_done,
                             const m2_tensor *video_history, const m2_tensor *audio_history,
                             m2_file_id *id_out)
{
    const m2_ops *ops = &clip->engine->ops;
    m2_clip_state state = { .settings = clip->settings,
                            .prompt = (char *)clip->prompt,
                            .negative = (char *)clip->negative,
                            .n_done = n_done,
                            .video = clip->video,
                            .audio = clip->audio };
    const int n_history = video_history ? M2_SAMPLER_N_HISTORY : 0;
    const size_t video_bytes = m2_tensor_bytes(&clip->video);
    const size_t audio_bytes = m2_tensor_bytes(&clip->audio);
    char *memory = malloc((size_t)(1 + n_history) * (video_bytes + audio_bytes));
    if (!memory) return m2_fail(M2_ERR_MEMORY, "%s: no memory to write it", path);
    char *at = memory;
    for (int i = -1; i < n_history; i++) {
        m2_tensor *video = i < 0 ? &state.video : &state.video_history[i];
        m2_tensor *audio = i < 0 ? &state.audio : &state.audio_history[i];
        /* Histories are flat in the sampler; in the file they have the latents' shapes. */
        *video = clip->video;
        *audio = clip->audio;
        ops->download(ops, at, i < 0 ? &clip->video : &video_history[i]);
        video->data = at;
        at += video_bytes;
        ops->download(ops, at, i < 0 ? &clip->audio : &audio_history[i]);
        audio->data = at;
        at += audio_bytes;
    }
    const m2_status status = m2_state_write(path, &state, id_out);
    free(memory);
    return status;
}

m2_status m2_clip_save_latent(m2_clip *clip)
{
    if (!clip->request->save_latent) return M2_OK;
    return write_state(clip, clip->request->save_latent, clip->settings.n_steps, NULL, NULL, NULL);
}

m2_status m2_clip_keep_state(m2_clip *clip, int n_done, const m2_tensor *video_history,
                             const m2_tensor *audio_history)
{
    m2_file_id before;
    if (m2_file_id_of(clip->state_path, &before) && !m2_file_is(clip->state_path, &clip->state_id))
        m2_warn("pipeline",
                "%s: has changed since this run %s, and is replaced: give each run an output of "
                "its own",
                clip->state_path, clip->has_state_file ? "wrote it" : "began");
    M2_TRY(
        write_state(clip, clip->state_path, n_done, video_history, audio_history, &clip->state_id));
    clip->has_state_file = 1;
    clip->n_kept = n_done;
    return M2_OK;
}

/* Another run may have put its own under the name, or taken this one away. */
static int state_is_there(const m2_clip *clip)
{
    return clip->has_state_file && m2_file_is(clip->state_path, &clip->state_id);
}

void m2_clip_drop_state(const m2_clip *clip)
{
    static const m2_file_id none;
    m2_file_id there;
    if (memcmp(&clip->state_id, &none, sizeof none) == 0 ||
        !m2_file_id_of(clip->state_path, &there))
        return;
    if (!m2_file_is(clip->state_path, &clip->state_id))
        m2_warn("pipeline",
                "%s: has changed since this run %s, and is left: the clip needs it no more",
                clip->state_path, clip->has_state_file ? "wrote it" : "began");
    else if (unlink(clip->state_path) != 0)
        m2_warn("pipeline", "%s: cannot be removed: %s; the clip needs it no more",
                clip->state_path, strerror(errno));
}

m2_status m2_clip_interrupted(m2_clip *clip)
{
    const magi2_request *request = clip->request;
    if (state_is_there(clip))
        return m2_fail(M2_ERR_INTERRUPTED,
                       "interrupted; its state is kept: go on with --resume %s %s %s",
                       clip->state_path, output_option(request), output_name(request));
    if (clip->has_state_file)
        return m2_fail(
            M2_ERR_INTERRUPTED,
            "interrupted; its state is not kept: %s has changed or is gone since this run "
            "wrote it",
            clip->state_path);
    if (request->resume && m2_file_is(request->resume, &clip->resumed_id))
        return m2_fail(M2_ERR_INTERRUPTED, "interrupted; %s is unchanged: give the command again",
                       request->resume);
    if (request->resume)
        return m2_fail(M2_ERR_INTERRUPTED,
                       "interrupted; %s is no longer the file that this run was to go on from",
                       request->resume);
    return m2_fail(M2_ERR_INTERRUPTED,
                   "interrupted before a step was done; there was nothing to keep");
}

m2_status m2_clip_tell_state(const m2_clip *clip, m2_status status)
{
    if (status == M2_OK || status == M2_ERR_INTERRUPTED || !state_is_there(clip)) return status;
    const int is_denoised = clip->n_kept == clip->settings.n_steps;
    /* Steps that gave no finite values give none again; latents that are whole wait for a decoder. */
    if (status == M2_ERR_NUMERIC && !is_denoised)
        return m2_fail(
            status,
            "%s; its state of %d of %d steps is left in %s, and with these weights gets no "
            "further: it may be removed",
            m2_last_error(), clip->n_kept, clip->settings.n_steps, clip->state_path);
    return m2_fail(
        status,
        "%s; its state is kept, %d of %d steps are done: once that is mended, go on with "
        "`magi2 %s %s %s %s`",
        m2_last_error(), clip->n_kept, clip->settings.n_steps,
        is_denoised ? "decode" : "generate --resume", clip->state_path,
        output_option(clip->request), output_name(clip->request));
}

/* ---- before anything is loaded ---- */

int m2_clip_is_denoised(const m2_clip *clip)
{
    return clip->resumed.memory && clip->resumed.n_done == clip->resumed.settings.n_steps;
}

/* Beside the file, or in the directory of a run that only saves. */
static m2_status pick_state_path(m2_clip *clip)
{
    const magi2_request *request = clip->request;
    const int n = request->output ? snprintf(clip->state_path, sizeof clip->state_path, "%s.state",
                                             request->output)
                                  : snprintf(clip->state_path, sizeof clip->state_path,
                                             "%s/clip.state", request->save_dir);
    if (n >= (int)sizeof clip->state_path)
        return m2_fail(M2_ERR_ARG, "the name of the output is too long");
    return M2_OK;
}

static m2_status read_resumed(m2_clip *clip)
{
    const magi2_request *request = clip->request;
    /* Before it is read: what is put in its place meanwhile is then another file. */
    m2_file_id_of(request->resume, &clip->resumed_id);
    M2_TRY(m2_state_read(request->resume, &clip->resumed));
    M2_TRY(m2_state_check_request(&clip->resumed, request));
    clip->settings = clip->resumed.settings;
    clip->prompt = clip->resumed.prompt;
    clip->negative = clip->resumed.negative;
    return M2_OK;
}

static m2_status read_request(m2_clip *clip)
{
    const magi2_request *request = clip->request;
    if ((request->output && !*request->output) || (request->save_dir && !*request->save_dir) ||
        (request->save_latent && !*request->save_latent))
        return m2_fail(M2_ERR_ARG, "an output has an empty name; give it one, or leave it out");
    if (!request->output && !request->save_dir)
        return m2_fail(M2_ERR_ARG,
                       "nowhere to write; name an output file or a directory to save to");
    if (request->checkpoint_every < 0 || request->checkpoint_every > 1000)
        return m2_fail(M2_ERR_ARG, "a state file every %d steps: must be from 0 (none) to 1000",
                       request->checkpoint_every);
    if (request->resume) return read_resumed(clip);
    if (!request->prompt || !request->prompt[strspn(request->prompt, " \t\r\n\v\f")])
        return m2_fail(M2_ERR_ARG, "the prompt is empty; say what to show");
    clip->prompt = request->prompt;
    clip->negative = request->negative;
    return M2_OK;
}

m2_status m2_clip_check_is_no_input(const magi2_request *request, const char *output,
                                    const char *path)
{
    const char *const inputs[] = { request->resume, request->noise };
    static const char *const names[] = { "the file to go on from or to decode", "the noise" };
    for (int i = 0; i < 2; i++)
        if (path && inputs[i] && m2_is_same_file(path, inputs[i]))
            return m2_fail(M2_ERR_ARG, "%s: %s would replace %s (%s); give the output another name",
                           path, output, names[i], inputs[i]);
    return M2_OK;
}

static m2_status check_names(const m2_clip *clip)
{
    const magi2_request *request = clip->request;
    M2_TRY(m2_clip_check_is_no_input(request, "the clip", request->output));
    M2_TRY(m2_clip_check_is_no_input(request, "the kept latent", request->save_latent));
    /* It may be the file to go on from: that is what it is for. */
    if (request->noise && m2_is_same_file(request->noise, clip->state_path))
        return m2_fail(M2_ERR_ARG,
                       "%s: the run's state file would replace the noise (%s); give the output "
                       "another name",
                       clip->state_path, request->noise);
    if (request->save_latent &&
        (m2_is_same_file(request->save_latent, clip->state_path) ||
         (request->output && m2_is_same_file(request->save_latent, request->output))))
        return m2_fail(M2_ERR_ARG,
                       "%s: the latents cannot be kept under the name of the clip or "
                       "of its state file; use another",
                       request->save_latent);
    return M2_OK;
}

/* The run writes its state there and, once the clip is whole, removes it: nothing may be lost by it. */
static m2_status check_state_path(m2_clip *clip)
{
    const magi2_request *request = clip->request;
    const char *path = clip->state_path;
    int n_done, n_steps;
    char progress[64] = "";
    if (request->resume && m2_is_same_file(request->resume, path)) {
        clip->state_id = clip->resumed_id;
        return M2_OK;
    }
    if (m2_clip_is_denoised(clip)) return M2_OK; /* it writes none */
    switch (m2_state_look(path, &n_done, &n_steps)) {
    case M2_STATE_NONE:
        m2_file_id_of(path, &clip->state_id); /* an empty file may be replaced */
        return M2_OK;
    case M2_STATE_KEPT:
        if (n_steps) snprintf(progress, sizeof progress, ", %d of %d steps done", n_done, n_steps);
        return m2_fail(
            M2_ERR_ARG,
            "%s: is the state of an interrupted run%s: go on with --resume %s, or remove "
            "it to begin anew",
            path, progress, path);
    case M2_STATE_CLOSED:
        return m2_fail(M2_ERR_IO,
                       "%s: cannot be read: %s; the run would replace it; move it away or give the "
                       "output another name",
                       path, strerror(errno));
    case M2_STATE_OTHER:
        break;
    }
    return m2_fail(M2_ERR_ARG,
                   "%s: is no state file of magi2, and the run would replace it; move it away or "
                   "give the output another name",
                   path);
}

/* ---- can they be written? ---- */

static m2_status probe_file(const char *path)
{
    m2_temp_file probe;
    M2_TRY(m2_temp_create(&probe, path));
    m2_temp_discard(&probe);
    return M2_OK;
}

static m2_status probe_arrays(const m2_clip *clip)
{
    static const char *const names[] = { "video_latent.safetensors",
                                         "audio_latent.safetensors",
                                         "text.safetensors",
                                         "negative_text.safetensors",
                                         "frames.safetensors",
                                         "wave.safetensors",
                                         "manifest.json" };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[4096];
        if (snprintf(path, sizeof path, "%s/%s", clip->request->save_dir, names[i]) >=
            (int)sizeof path)
            return m2_fail(M2_ERR_ARG, "the name of the directory to save to is too long");
        M2_TRY(m2_clip_check_is_no_input(clip->request, "an array to save", path));
        M2_TRY(probe_file(path));
    }
    return M2_OK;
}

/* A directory that is not there yet is made when the clip begins: here it only has to be possible. */
static m2_status probe_files(const m2_clip *clip)
{
    const magi2_request *request = clip->request;
    if (request->noise) {
        m2_checkpoint *noise = NULL;
        M2_TRY(m2_checkpoint_open(request->noise, &noise));
        m2_checkpoint_close(noise);
    }
    if (request->output) M2_TRY(probe_file(request->output));
    if (request->save_latent) M2_TRY(probe_file(request->save_latent));
    int is_new_dir = 0;
    if (request->save_dir) {
        M2_TRY(m2_save_probe(request->save_dir, &is_new_dir));
        if (!is_new_dir) M2_TRY(probe_arrays(clip));
    }
    const int is_state_in_it = !request->output;
    if (m2_clip_is_denoised(clip) || (is_new_dir && is_state_in_it)) return M2_OK;
    return probe_file(clip->state_path);
}

m2_status m2_clip_look_at_files(m2_clip *clip)
{
    M2_TRY(read_request(clip));
    M2_TRY(pick_state_path(clip));
    M2_TRY(check_names(clip));
    M2_TRY(check_state_path(clip));
    return probe_files(clip);
}

m2_status m2_clip_check_outputs(m2_clip *clip)
{
    if (clip->request->output) M2_TRY(m2_clip_check_output(clip));
    if (clip->request->save_dir) {
        M2_TRY(m2_save_open(clip->request->save_dir, &clip->save));
        M2_TRY(probe_arrays(clip));
    }
    return m2_clip_is_denoised(clip) ? M2_OK : probe_file(clip->state_path);
}
