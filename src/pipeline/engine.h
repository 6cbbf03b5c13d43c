/* engine.h - an opened model: config, weights, operators, and the networks bound to them.
 *
 * Owns    the thread pool, the weights arena, every open checkpoint and network.
 * Threads one engine, one clip at a time; engines are independent.
 */
#ifndef M2_PIPELINE_ENGINE_H
#define M2_PIPELINE_ENGINE_H

#include "backend/cpu/cpu.h"
#include "backend/gpu/gpu.h"
#include "core/log.h"
#include "io/checkpoint.h"
#include "io/config.h"
#include "magi2.h"
#include "model/audio/oobleck.h"
#include "model/dit/preview.h"
#include "model/text/encoder.h"
#include "model/text/tokenizer.h"
#include "model/vae/turbo.h"
#include "parallel/group.h"

enum { M2_NETWORK_TEXT = 0, M2_NETWORK_PREVIEW, M2_NETWORK_VIDEO, M2_NETWORK_AUDIO, M2_NETWORKS };

typedef struct m2_engine {
    char *model_dir;
    m2_model_config config;
    m2_log log; /* forwards to the caller's */
    void (*user_log)(void *user, magi2_log_level level, const char *component, const char *text);
    void *user_log_user;
    m2_pool *pool;
    m2_gpu *gpu; /* NULL: the CPU computes */
    m2_ops ops;
    m2_group world;
    size_t ram_limit; /* bytes; 0: none */

    m2_arena weights;
    size_t copied_bytes[M2_NETWORKS]; /* of the weights arena, by network */
    size_t mapped_bytes;              /* of tensors that are used where the files are mapped */
    m2_checkpoint *text_ckpt, *preview_ckpt, *video_ckpt, *audio_ckpt;
    m2_tokenizer *tokenizer;
    m2_text_encoder *text;
    m2_preview *preview;
    m2_turbo_config video_config;
    m2_turbo *video;
    m2_oobleck_config audio_config;
    m2_oobleck *audio;
} m2_engine;

/* The paths of a model directory's parts, and what is wrong when it is not one (model_dir.c). */
typedef struct m2_model_paths {
    char config[4096]; /* "" if there is none */
    char text[4096], text_config[4096], tokenizer[4096];
    char preview[4096];
    char video[4096], video_config[4096];
    char audio[4096], audio_config[4096];
} m2_model_paths;

/* Errors  M2_ERR_IO: not a model directory; a part of one or a shard gets told what to pass */
m2_status m2_model_paths_find(const char *model_dir, m2_model_paths *paths_out);

/* Errors  M2_ERR_ARG, M2_ERR_IO, M2_ERR_FORMAT, M2_ERR_MODEL, M2_ERR_MEMORY, M2_ERR_UNSUPPORTED */
m2_status m2_engine_open(const magi2_params *params, m2_engine **engine_out);
void m2_engine_close(m2_engine *engine);

/* A backend and the released config without any network: those stay NULL until the caller puts one in
 * (closed with the engine).  params->model_dir is not read. */
m2_status m2_engine_open_bare(const magi2_params *params, m2_engine **engine_out);

/* Bytes of a network's tensors that are used where the files are mapped; 0 on a device. */
size_t m2_engine_mapped_bytes(const m2_engine *engine, int network);

/* Nothing is loaded: networks have shapes alone, the operators measure, `weights` says what would be
 * taken.  With params->model_dir NULL, the released transformer and no other network. */
m2_status m2_engine_open_plan(const magi2_params *params, int is_for_device,
                              m2_engine **engine_out);

/* m2_engine_open for parts that lie elsewhere (golden data); params->model_dir is for messages alone. */
m2_status m2_engine_open_paths(const magi2_params *params, const m2_model_paths *paths,
                               m2_engine **engine_out);

#endif
