#include "media/mp4.h"

#include "core/temp_file.h"
#include "media/audio_encoder.h"
#include "media/ffmpeg.h"
#include "media/video_encoder.h"

#include <libavformat/avformat.h>
#include <libavutil/avstring.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define END_GAP_S_MAX 0.1
/* Ten minutes: what is beyond is no clip of this model, and the sound is held in memory. */
#define N_SAMPLES_MAX ((int64_t)600 * M2_MP4_SAMPLE_RATE)
#define N_FRAMES_MAX  ((int64_t)600 * 240)

typedef struct packet_list {
    AVPacket **packets;
    int64_t n, room;
} packet_list;

struct m2_mp4 {
    m2_temp_file file;
    m2_video_encoder *video;
    AVCodecContext *audio;
    packet_list video_packets, audio_packets; /* in decoding order                  */
    float *samples[2];                        /* [n_samples_max] each               */
    int64_t n_frames, n_frames_max;           /* so far, in all                     */
    int64_t n_samples, n_samples_max;
    AVDictionary *tags;
    int (*is_cancelled)(void *user);
    void *user;
    int has_failed; /* one call did, so finish() must not write */
};

static const char *const tag_keys[] = { "title",  "comment",   "description",
                                        "artist", "copyright", "encoder" };

static int is_tag_key(const char *key)
{
    for (size_t i = 0; i < sizeof tag_keys / sizeof tag_keys[0]; i++)
        if (strcmp(tag_keys[i], key) == 0) return 1;
    return 0;
}

static m2_status check_params(const char *path, const m2_mp4_params *params)
{
    if (params->width < 2 || params->height < 2 || params->width > M2_MP4_SIZE_MAX ||
        params->height > M2_MP4_SIZE_MAX)
        return m2_fail(M2_ERR_ARG, "%s: pictures of %dx%d; sides of 2 to %d pixels can be written",
                       path, params->width, params->height, M2_MP4_SIZE_MAX);
    if (params->width % 2 || params->height % 2)
        return m2_fail(M2_ERR_ARG,
                       "%s: pictures of %dx%d; many players refuse odd sizes, take %dx%d", path,
                       params->width, params->height, params->width & ~1, params->height & ~1);
    if (params->fps_num < 1 || params->fps_den < 1 || params->fps_num > 240000 ||
        params->fps_den > 240000 || params->fps_num > 240 * (int64_t)params->fps_den)
        return m2_fail(M2_ERR_ARG,
                       "%s: %d/%d pictures a second; above 0 and up to 240 are possible", path,
                       params->fps_num, params->fps_den);
    if (params->n_frames < 1 || params->n_frames > N_FRAMES_MAX || params->n_samples < 1 ||
        params->n_samples > N_SAMPLES_MAX)
        return m2_fail(M2_ERR_ARG,
                       "%s: %lld pictures and %lld samples; 1 to %lld and 1 to %lld can be written",
                       path, (long long)params->n_frames, (long long)params->n_samples,
                       (long long)N_FRAMES_MAX, (long long)N_SAMPLES_MAX);
    const double video_s = (double)params->n_frames * params->fps_den / params->fps_num;
    const double audio_s = (double)params->n_samples / M2_MP4_SAMPLE_RATE;
    if (!params->may_end_apart && fabs(video_s - audio_s) > END_GAP_S_MAX)
        return m2_fail(
            M2_ERR_ARG,
            "%s: %lld pictures at %d/%d a second last %.3f s, %lld samples at %d Hz last "
            "%.3f s; they may end %.1f s apart at most",
            path, (long long)params->n_frames, params->fps_num, params->fps_den, video_s,
            (long long)params->n_samples, M2_MP4_SAMPLE_RATE, audio_s, END_GAP_S_MAX);
    for (int i = 0; i < params->n_tags; i++)
        if (!is_tag_key(params->tags[i].key))
            return m2_fail(M2_ERR_ARG, "%s: mp4 files have no tag '%s'", path, params->tags[i].key);
    return M2_OK;
}

m2_status m2_mp4_open(const char *path, const m2_mp4_params *params, m2_mp4 **mp4_out)
{
    M2_TRY(check_params(path, params));
    m2_mp4 *mp4 = calloc(1, sizeof *mp4);
    if (!mp4) return m2_fail(M2_ERR_MEMORY, "%s: no memory for the mp4 writer", path);
    mp4->file.slot = -1;
    mp4->n_frames_max = params->n_frames;
    mp4->n_samples_max = params->n_samples;
    mp4->is_cancelled = params->is_cancelled;
    mp4->user = params->user;

    m2_status status = m2_temp_create(&mp4->file, path);
    if (status != M2_OK) goto fail;
    const m2_video_format format = { .width = params->width,
                                     .height = params->height,
                                     .fps_num = params->fps_num,
                                     .fps_den = params->fps_den };
    status = m2_video_encoder_open(params->encoder, &format, &mp4->video);
    if (status != M2_OK) goto fail;
    status = m2_audio_encoder_open(&mp4->audio);
    if (status != M2_OK) goto fail;
    for (int i = 0; i < 2; i++) {
        mp4->samples[i] = malloc((size_t)params->n_samples * sizeof(float));
        if (!mp4->samples[i]) {
            status = m2_fail(M2_ERR_MEMORY, "%s: no memory for %lld samples", path,
                             (long long)params->n_samples);
            goto fail;
        }
    }
    for (int i = 0; i < params->n_tags; i++) {
        const int error = av_dict_set(&mp4->tags, params->tags[i].key, params->tags[i].value, 0);
        if (error < 0) {
            status = m2_ffmpeg_fail(M2_ERR_INTERNAL, error, path, params->tags[i].key);
            goto fail;
        }
    }
    *mp4_out = mp4;
    return M2_OK;
fail:
    m2_mp4_destroy(mp4);
    return status;
}

/* A packet sink over a packet_list. */
static m2_status keep_packet(void *user, AVPacket *packet)
{
    packet_list *list = user;
    if (list->n == list->room) {
        const int64_t room = list->room ? 2 * list->room : 256;
        AVPacket **larger = realloc(list->packets, (size_t)room * sizeof *larger);
        if (!larger) return m2_fail(M2_ERR_MEMORY, "no memory for the list of packets");
        list->packets = larger;
        list->room = room;
    }
    AVPacket *kept = av_packet_alloc();
    if (!kept) return m2_fail(M2_ERR_MEMORY, "no memory for a packet");
    av_packet_move_ref(kept, packet);
    list->packets[list->n++] = kept;
    return M2_OK;
}

static m2_status check_cancelled(const m2_mp4 *mp4)
{
    if (mp4->is_cancelled && mp4->is_cancelled(mp4->user))
        return m2_fail(M2_ERR_INTERRUPTED, "%s: stopped on request before it was written",
                       mp4->file.target);
    return M2_OK;
}

m2_status m2_mp4_write_frame(m2_mp4 *mp4, const uint8_t *rgb)
{
    m2_status status = check_cancelled(mp4);
    if (status == M2_OK && mp4->n_frames == mp4->n_frames_max)
        status = m2_fail(M2_ERR_ARG, "%s: a picture more than the %lld announced", mp4->file.target,
                         (long long)mp4->n_frames_max);
    if (status == M2_OK)
        status = m2_video_encoder_write(mp4->video, rgb, keep_packet, &mp4->video_packets);
    if (status != M2_OK) {
        mp4->has_failed = 1;
        return status;
    }
    mp4->n_frames++;
    return M2_OK;
}

m2_status m2_mp4_write_audio(m2_mp4 *mp4, const float *samples, int64_t n_samples)
{
    if (n_samples < 0 || n_samples > mp4->n_samples_max - mp4->n_samples) {
        mp4->has_failed = 1;
        return m2_fail(M2_ERR_ARG, "%s: %lld samples after %lld, %lld announced", mp4->file.target,
                       (long long)n_samples, (long long)mp4->n_samples,
                       (long long)mp4->n_samples_max);
    }
    for (int64_t i = 0; i < n_samples; i++)
        for (int c = 0; c < 2; c++) {
            const float x = samples[2 * i + c];
            if (!isfinite(x)) {
                mp4->has_failed = 1;
                return m2_fail(M2_ERR_NUMERIC, "%s: sample %lld of channel %d is %g",
                               mp4->file.target, (long long)(mp4->n_samples + i), c, (double)x);
            }
            mp4->samples[c][mp4->n_samples + i] = x > 1.0f ? 1.0f : x < -1.0f ? -1.0f : x;
        }
    mp4->n_samples += n_samples;
    return M2_OK;
}

typedef struct polled_sink {
    const m2_mp4 *mp4;
    packet_list *list;
} polled_sink;

static m2_status keep_packet_polled(void *user, AVPacket *packet)
{
    const polled_sink *sink = user;
    M2_TRY(check_cancelled(sink->mp4));
    return keep_packet(sink->list, packet);
}

static m2_status finish_encoding(m2_mp4 *mp4)
{
    if (mp4->has_failed)
        return m2_fail(M2_ERR_ARG, "%s: not written, because a picture or sound was refused",
                       mp4->file.target);
    if (mp4->n_frames != mp4->n_frames_max || mp4->n_samples != mp4->n_samples_max)
        return m2_fail(M2_ERR_ARG, "%s: got %lld of %lld pictures and %lld of %lld samples",
                       mp4->file.target, (long long)mp4->n_frames, (long long)mp4->n_frames_max,
                       (long long)mp4->n_samples, (long long)mp4->n_samples_max);
    polled_sink sink = { mp4, &mp4->video_packets };
    M2_TRY(m2_video_encoder_write(mp4->video, NULL, keep_packet_polled, &sink));
    if (mp4->video_packets.n != mp4->n_frames_max)
        return m2_fail(M2_ERR_INTERNAL, "%s: the video encoder made %lld packets of %lld pictures",
                       mp4->file.target, (long long)mp4->video_packets.n,
                       (long long)mp4->n_frames_max);
    sink.list = &mp4->audio_packets;
    return m2_audio_encoder_write_all(mp4->audio, mp4->samples[0], mp4->samples[1],
                                      mp4->n_samples_max, keep_packet_polled, &sink);
}

static int add_stream(AVFormatContext *out, const AVCodecContext *context)
{
    AVStream *stream = avformat_new_stream(out, NULL);
    if (!stream) return AVERROR(ENOMEM);
    stream->time_base = context->time_base;
    stream->avg_frame_rate = context->framerate;
    stream->sample_aspect_ratio = context->sample_aspect_ratio;
    return avcodec_parameters_from_context(stream->codecpar, context);
}

static int open_container(m2_mp4 *mp4, AVFormatContext **out_out)
{
    AVFormatContext *out = NULL;
    AVDictionary *options = NULL;
    int error = avformat_alloc_output_context2(&out, NULL, "mp4", NULL);
    if (error < 0) return error;
    *out_out = out;
    /* "file:" keeps a colon in a path from being read as a protocol. */
    out->url = av_asprintf("file:%s", mp4->file.path);
    if (!out->url) return AVERROR(ENOMEM);
    out->flags |= AVFMT_FLAG_BITEXACT;
    out->flush_packets = 0;
    error = av_dict_copy(&out->metadata, mp4->tags, 0);
    if (error < 0) return error;
    error = add_stream(out, m2_video_encoder_context(mp4->video));
    if (error < 0) return error;
    error = add_stream(out, mp4->audio);
    if (error < 0) return error;
    error = avio_open(&out->pb, out->url, AVIO_FLAG_WRITE);
    if (error < 0) return error;
    error = av_dict_set(&options, "movflags", "+faststart", 0);
    /* Edit lists count in movie ticks: with the default of 1,000 a second they would cut up to a
     * millisecond of sound; a sample's length also divides a frame's at 25/2 and 25 a second. */
    if (error >= 0) error = av_dict_set_int(&options, "movie_timescale", M2_MP4_SAMPLE_RATE, 0);
    if (error >= 0) error = avformat_write_header(out, &options);
    av_dict_free(&options);
    return error;
}

/* All packets, the earlier first, so that a player reads the file front to back. */
static m2_status write_packets(m2_mp4 *mp4, AVFormatContext *out)
{
    const packet_list *lists[2] = { &mp4->video_packets, &mp4->audio_packets };
    const AVRational bases[2] = { m2_video_encoder_context(mp4->video)->time_base,
                                  mp4->audio->time_base };
    int64_t next[2] = { 0, 0 };
    while (next[0] < lists[0]->n || next[1] < lists[1]->n) {
        M2_TRY(check_cancelled(mp4));
        int which = next[0] < lists[0]->n ? 0 : 1;
        if (which == 0 && next[1] < lists[1]->n &&
            av_compare_ts(lists[0]->packets[next[0]]->dts, bases[0],
                          lists[1]->packets[next[1]]->dts, bases[1]) > 0)
            which = 1;
        AVPacket *packet = lists[which]->packets[next[which]++];
        packet->stream_index = which;
        if (which == 0) packet->duration = 1; /* not every encoder says so */
        av_packet_rescale_ts(packet, bases[which], out->streams[which]->time_base);
        const int error = av_write_frame(out, packet);
        if (error < 0) return m2_ffmpeg_fail(M2_ERR_IO, error, mp4->file.target, "cannot write");
    }
    return M2_OK;
}

static m2_status mux(m2_mp4 *mp4)
{
    AVFormatContext *out = NULL;
    m2_status status = M2_OK;
    int error = open_container(mp4, &out);
    if (error < 0) {
        status = m2_ffmpeg_fail(M2_ERR_IO, error, mp4->file.target, "cannot start the file");
        goto end;
    }
    status = write_packets(mp4, out);
    if (status != M2_OK) goto end;
    /* Moves moov to the front: the file is read and written once more. */
    error = av_write_trailer(out);
    if (error >= 0 && out->pb->error < 0) error = out->pb->error;
    if (error < 0) status = m2_ffmpeg_fail(M2_ERR_IO, error, mp4->file.target, "cannot write");
end:
    if (out && out->pb) {
        error = avio_closep(&out->pb);
        if (error < 0 && status == M2_OK)
            status = m2_ffmpeg_fail(M2_ERR_IO, error, mp4->file.target, "cannot write");
    }
    avformat_free_context(out);
    return status;
}

m2_status m2_mp4_finish(m2_mp4 *mp4)
{
    m2_status status = finish_encoding(mp4);
    if (status == M2_OK) status = mux(mp4);
    if (status == M2_OK) status = check_cancelled(mp4);
    if (status == M2_OK) return m2_temp_commit(&mp4->file);
    m2_temp_discard(&mp4->file);
    return status;
}

static void free_packets(packet_list *list)
{
    for (int64_t i = 0; i < list->n; i++) av_packet_free(&list->packets[i]);
    free(list->packets);
}

void m2_mp4_destroy(m2_mp4 *mp4)
{
    if (!mp4) return;
    m2_temp_discard(&mp4->file);
    m2_video_encoder_destroy(mp4->video);
    avcodec_free_context(&mp4->audio);
    free_packets(&mp4->video_packets);
    free_packets(&mp4->audio_packets);
    free(mp4->samples[0]);
    free(mp4->samples[1]);
    av_dict_free(&mp4->tags);
    free(mp4);
}
