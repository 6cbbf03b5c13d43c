#include "media/audio_encoder.h"

#include "media/ffmpeg.h"
#include "media/mp4.h"

#include <string.h>

/* Half-clipped noise, the worst there is, keeps a correlation of 0.99 (256,000: 0.97). */
#define BIT_RATE 320000

m2_status m2_audio_encoder_open(AVCodecContext **context_out)
{
    m2_ffmpeg_init();
    const AVCodec *codec = avcodec_find_encoder_by_name("aac");
    if (!codec)
        return m2_fail(M2_ERR_UNSUPPORTED, "this FFmpeg has no AAC encoder (\"aac\"), which an mp4 "
                                           "with sound needs");
    AVCodecContext *context = avcodec_alloc_context3(codec);
    if (!context) return m2_fail(M2_ERR_MEMORY, "no memory for the AAC encoder");
    context->sample_rate = M2_MP4_SAMPLE_RATE;
    context->sample_fmt = AV_SAMPLE_FMT_FLTP;
    context->ch_layout = (AVChannelLayout)AV_CHANNEL_LAYOUT_STEREO;
    context->time_base = (AVRational){ 1, M2_MP4_SAMPLE_RATE };
    context->bit_rate = BIT_RATE;
    context->profile = FF_PROFILE_AAC_LOW;
    context->thread_count = 1;
    context->flags |= AV_CODEC_FLAG_GLOBAL_HEADER | AV_CODEC_FLAG_BITEXACT;
    /* Both tools keep loudness and throw the waveform away: noise in place of noise, one channel's
     * phase for two.  At this rate there is no need. */
    AVDictionary *options = NULL;
    int error = av_dict_parse_string(&options, "aac_pns=0:aac_is=0", "=", ":", 0);
    if (error >= 0) error = avcodec_open2(context, codec, &options);
    av_dict_free(&options);
    if (error < 0) {
        avcodec_free_context(&context);
        return m2_ffmpeg_fail(M2_ERR_INTERNAL, error, "aac", "cannot open the encoder");
    }
    *context_out = context;
    return M2_OK;
}

m2_status m2_audio_encoder_write_all(AVCodecContext *context, const float *left, const float *right,
                                     int64_t n_samples, m2_packet_sink *sink, void *user)
{
    m2_status status = M2_OK;
    AVPacket *packet = av_packet_alloc();
    AVFrame *frame = av_frame_alloc();
    if (!packet || !frame) {
        status = m2_fail(M2_ERR_MEMORY, "no memory for the AAC encoder");
        goto end;
    }
    for (int64_t begin = 0; begin < n_samples; begin += context->frame_size) {
        const int64_t left_over = n_samples - begin;
        av_frame_unref(frame);
        frame->nb_samples = left_over < context->frame_size ? (int)left_over : context->frame_size;
        frame->format = context->sample_fmt;
        frame->sample_rate = context->sample_rate;
        frame->ch_layout = context->ch_layout;
        frame->pts = begin;
        const int error = av_frame_get_buffer(frame, 0);
        if (error < 0) {
            status = m2_ffmpeg_fail(M2_ERR_INTERNAL, error, "aac", "no frame");
            goto end;
        }
        const size_t bytes = (size_t)frame->nb_samples * sizeof(float);
        memcpy(frame->data[0], left + begin, bytes);
        memcpy(frame->data[1], right + begin, bytes);
        status = m2_encode(context, frame, packet, sink, user);
        if (status != M2_OK) goto end;
    }
    status = m2_encode(context, NULL, packet, sink, user);
end:
    av_frame_free(&frame);
    av_packet_free(&packet);
    return status;
}
