/* encode.c - prompts to token ids, ids to text features. */
#include "pipeline/clip.h"

#include "core/log.h"
#include "model/text/prompt.h"
#include "pipeline/negative_prompt.h"

#include <stdlib.h>
#include <string.h>

static m2_status tokenize_branch(m2_clip *clip, int branch, const char *text)
{
    m2_tokens tokens;
    size_t bytes;
    M2_TRY(m2_prompt_normalise(text, strlen(text), &clip->rendered[branch], &bytes));
    M2_TRY(
        m2_tokenizer_encode(clip->engine->tokenizer, clip->rendered[branch], bytes, NULL, &tokens));
    clip->ids[branch] = malloc((size_t)(tokens.n ? tokens.n : 1) * sizeof *clip->ids[branch]);
    if (!clip->ids[branch]) {
        m2_tokens_free(&tokens);
        return m2_fail(M2_ERR_MEMORY, "no memory for %lld tokens", (long long)tokens.n);
    }
    memcpy(clip->ids[branch], tokens.id, (size_t)tokens.n * sizeof *tokens.id);
    clip->n_ids[branch] = tokens.n;
    if (branch == 0) clip->n_cut = tokens.n_total - tokens.n;
    m2_tokens_free(&tokens);
    return M2_OK;
}

/* Which of two prompts a warning is of, the text's own part cannot know. */
static void log_of_negative(void *user, m2_log_level level, const char *component, const char *text)
{
    const m2_log *to = user;
    if (strcmp(component, "prompt") == 0 || strcmp(component, "tokenizer") == 0)
        component = "negative prompt";
    to->write(to->user, level, component, text);
}

static m2_status tokenize_negative(m2_clip *clip, const char *text)
{
    m2_log before = { 0 };
    if (m2_log_bound()) before = *m2_log_bound();
    const m2_log log = { .write = before.write ? log_of_negative : NULL,
                         .user = &before,
                         .level = before.level };
    const m2_log *bound = m2_log_bind(&log);
    const m2_status status = tokenize_branch(clip, 1, text);
    m2_log_bind(bound);
    return status == M2_ERR_ARG ? m2_fail(status, "the negative prompt: %s", m2_last_error())
                                : status;
}

m2_status m2_clip_tokenize(m2_clip *clip)
{
    M2_TRY(tokenize_branch(clip, 0, clip->prompt));
    if (!clip->settings.use_negative) return M2_OK;
    const char *negative = clip->negative;
    if (!negative) negative = clip->engine->config.eval.negative_prompt;
    if (!negative) negative = m2_released_negative_prompt;
    return tokenize_negative(clip, negative);
}

static m2_status go_on(void *user, int idx, const m2_tensor *hidden)
{
    m2_clip *clip = user;
    (void)idx;
    (void)hidden;
    return m2_clip_is_cancelled(clip) ? m2_clip_interrupted(clip) : M2_OK;
}

m2_status m2_clip_encode(m2_clip *clip)
{
    const m2_ops *ops = &clip->engine->ops;
    m2_clip_report(clip, MAGI2_STAGE_ENCODE, 0, 2);
    for (int i = 0; i < 2; i++) {
        m2_arena_reset(&clip->step_arena);
        if (clip->n_ids[i] > 0)
            M2_TRY(m2_text_encoder_run(clip->engine->text, ops, &clip->step_arena, clip->ids[i],
                                       clip->n_ids[i], &clip->features[i], go_on, clip));
        if (m2_clip_is_cancelled(clip)) return m2_clip_interrupted(clip);
        m2_clip_report(clip, MAGI2_STAGE_ENCODE, i + 1, 2);
    }
    return M2_OK;
}
