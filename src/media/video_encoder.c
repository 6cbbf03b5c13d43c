#include "media/video_encoder.h"

#include "core/log.h"
#include "media/ffmpeg.h"
#include "media/mp4.h"

#include <assert.h>
#include <libavutil/hwcontext.h>
#include <libavutil/opt.h>
#include <libswscale/swscale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Not the machine's count: libx264 divides its work, and so its bits, by the number of threads. */
#define X264_THREADS 4
#define HW_FRAMES    32

struct m2_video_encoder {
    AVCodecContext *context;
    struct SwsContext *scaler;
    AVFrame *rgb;      /* the picture in FFmpeg's aligned memory       */
    AVFrame *yuv;      /* converted                                    */
    AVFrame *uploaded; /* on the device, for encoders that need it     */
    AVBufferRef *hw_frames;
    AVPacket *packet;
    int64_t n_frames;
};

typedef struct encoder_kind {
    const char *name;
    enum AVPixelFormat pixels;     /* what the conversion gives            */
    enum AVHWDeviceType hw_device; /* AV_HWDEVICE_TYPE_NONE: takes memory */
    const char *options;           /* "key=value:key=value"                */
} encoder_kind;

/* In the order of preference.  Each is asked for about the quality of libx264's crf 18. */
static const encoder_kind kinds[] = {
    { "libx264", AV_PIX_FMT_YUV420P, AV_HWDEVICE_TYPE_NONE, "crf=18:preset=medium" },
    { "h264_nvenc", AV_PIX_FMT_YUV420P, AV_HWDEVICE_TYPE_NONE,
      "preset=p5:rc=constqp:qp=18:profile=high" },
    { "libopenh264", AV_PIX_FMT_YUV420P, AV_HWDEVICE_TYPE_NONE, "rc_mode=quality" },
    { "h264_vaapi", AV_PIX_FMT_NV12, AV_HWDEVICE_TYPE_VAAPI, "rc_mode=CQP:qp=18" },
};
#define N_KINDS ((int)(sizeof kinds / sizeof kinds[0]))

static void set_format(AVCodecContext *context, const encoder_kind *kind,
                       const m2_video_format *format)
{
    const int frames_per_2s = (2 * format->fps_num + format->fps_den - 1) / format->fps_den;
    context->width = format->width;
    context->height = format->height;
    context->time_base = (AVRational){ format->fps_den, format->fps_num };
    context->framerate = (AVRational){ format->fps_num, format->fps_den };
    context->sample_aspect_ratio = (AVRational){ 1, 1 };
    context->pix_fmt = kind->pixels;
    context->color_range = AVCOL_RANGE_MPEG;
    context->colorspace = AVCOL_SPC_BT709;
    context->color_primaries = AVCOL_PRI_BT709;
    context->color_trc = AVCOL_TRC_BT709;
    context->chroma_sample_location = AVCHROMA_LOC_LEFT;
    context->gop_size = frames_per_2s;
    context->thread_count = X264_THREADS;
    context->flags |= AV_CODEC_FLAG_GLOBAL_HEADER | AV_CODEC_FLAG_BITEXACT;
    if (strcmp(kind->name, "libopenh264") == 0) {
        /* It steers by bitrate alone; the quantiser's bounds turn that into constant quality. */
        context->bit_rate = 20000000;
        context->qmin = context->qmax = 18;
    }
}

/* Frames on the device for an encoder that reads nothing else. */
static int open_device(m2_video_encoder *encoder, const encoder_kind *kind)
{
    AVBufferRef *device = NULL;
    int error = av_hwdevice_ctx_create(&device, kind->hw_device, NULL, NULL, 0);
    if (error < 0) return error;
    encoder->hw_frames = av_hwframe_ctx_alloc(device);
    av_buffer_unref(&device);
    if (!encoder->hw_frames) return AVERROR(ENOMEM);
    AVHWFramesContext *frames = (AVHWFramesContext *)encoder->hw_frames->data;
    frames->format = AV_PIX_FMT_VAAPI;
    frames->sw_format = kind->pixels;
    frames->width = encoder->context->width;
    frames->height = encoder->context->height;
    frames->initial_pool_size = HW_FRAMES;
    error = av_hwframe_ctx_init(encoder->hw_frames);
    if (error < 0) return error;
    encoder->context->pix_fmt = frames->format;
    encoder->context->hw_frames_ctx = av_buffer_ref(encoder->hw_frames);
    encoder->uploaded = av_frame_alloc();
    return encoder->context->hw_frames_ctx && encoder->uploaded ? 0 : AVERROR(ENOMEM);
}

/* RGB of full range to BT.709 of limited range, left chroma.  swscale's own default is BT.601, and
 * without full chroma input it averages pixel pairs, which moves colours half a pixel.  Lanczos keeps
 * 2 dB more of fine coloured detail than bilinear (37.0 against 35.1 dB on the demo clip). */
static int open_scaler(m2_video_encoder *encoder, enum AVPixelFormat pixels)
{
    const int *bt709 = sws_getCoefficients(SWS_CS_ITU709);
    struct SwsContext *scaler = encoder->scaler = sws_alloc_context();
    if (!scaler) return AVERROR(ENOMEM);
    const int width = encoder->context->width, height = encoder->context->height;
    const struct {
        const char *name;
        int64_t value;
    } options[] = {
        { "srcw", width },
        { "srch", height },
        { "src_format", AV_PIX_FMT_RGB24 },
        { "dstw", width },
        { "dsth", height },
        { "dst_format", pixels },
        { "src_range", 1 },
        { "dst_range", 0 },
        { "dst_h_chr_pos", 0 },
        { "dst_v_chr_pos", 128 },
        { "sws_flags", SWS_LANCZOS | SWS_ACCURATE_RND | SWS_FULL_CHR_H_INP | SWS_BITEXACT },
    };
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        const int error = av_opt_set_int(scaler, options[i].name, options[i].value, 0);
        if (error < 0) return error;
    }
    int error = sws_setColorspaceDetails(scaler, bt709, 1, bt709, 0, 0, 1 << 16, 1 << 16);
    if (error < 0) return error;
    return sws_init_context(scaler, NULL, NULL);
}

static AVFrame *make_frame(int width, int height, enum AVPixelFormat pixels)
{
    AVFrame *frame = av_frame_alloc();
    if (!frame) return NULL;
    frame->width = width;
    frame->height = height;
    frame->format = pixels;
    if (av_frame_get_buffer(frame, 0) < 0) av_frame_free(&frame);
    return frame;
}

/* FFmpeg's error code, so that "auto" may go on to the next kind without a failure. */
static int open_kind(const encoder_kind *kind, const m2_video_format *format,
                     m2_video_encoder **encoder_out)
{
    const AVCodec *codec = avcodec_find_encoder_by_name(kind->name);
    if (!codec) return AVERROR_ENCODER_NOT_FOUND;
    int error = AVERROR(ENOMEM);
    AVDictionary *options = NULL;
    m2_video_encoder *encoder = calloc(1, sizeof *encoder);
    if (!encoder) return error;
    encoder->context = avcodec_alloc_context3(codec);
    if (!encoder->context) goto fail;
    set_format(encoder->context, kind, format);
    if (kind->hw_device != AV_HWDEVICE_TYPE_NONE) {
        error = open_device(encoder, kind);
        if (error < 0) goto fail;
    }
    error = av_dict_parse_string(&options, kind->options, "=", ":", 0);
    if (error < 0) goto fail;
    error = avcodec_open2(encoder->context, codec, &options);
    if (error < 0) goto fail;
    error = open_scaler(encoder, kind->pixels);
    if (error < 0) goto fail;
    error = AVERROR(ENOMEM);
    encoder->rgb = make_frame(format->width, format->height, AV_PIX_FMT_RGB24);
    encoder->yuv = make_frame(format->width, format->height, kind->pixels);
    encoder->packet = av_packet_alloc();
    if (!encoder->rgb || !encoder->yuv || !encoder->packet) goto fail;
    av_dict_free(&options);
    *encoder_out = encoder;
    return 0;
fail:
    av_dict_free(&options);
    m2_video_encoder_destroy(encoder);
    return error;
}

int m2_mp4_encoder_probe(int idx, const char **name_out)
{
    if (idx < 0 || idx >= N_KINDS) return -1;
    m2_ffmpeg_init();
    *name_out = kinds[idx].name;
    const m2_video_format format = { .width = 640, .height = 352, .fps_num = 25, .fps_den = 1 };
    m2_video_encoder *encoder = NULL;
    const int error = open_kind(&kinds[idx], &format, &encoder);
    m2_video_encoder_destroy(encoder);
    return error == 0;
}

/* "libx264, h264_nvenc" or "none" */
static void list_encoders(char *text, size_t bytes, int only_those_that_open)
{
    size_t used = 0;
    snprintf(text, bytes, "none");
    for (int i = 0; i < N_KINDS; i++) {
        const char *name = kinds[i].name;
        if (only_those_that_open && m2_mp4_encoder_probe(i, &name) != 1) continue;
        const int n = snprintf(text + used, bytes - used, "%s%s", used ? ", " : "", name);
        if (n > 0 && (size_t)n < bytes - used) used += (size_t)n;
    }
}

static m2_status open_named(const char *name, const m2_video_format *format,
                            m2_video_encoder **encoder_out)
{
    char known[256], available[256];
    for (int i = 0; i < N_KINDS; i++) {
        if (strcmp(kinds[i].name, name) != 0) continue;
        const int error = open_kind(&kinds[i], format, encoder_out);
        if (error == 0) return M2_OK;
        char text[AV_ERROR_MAX_STRING_SIZE] = "";
        av_strerror(error, text, sizeof text);
        list_encoders(available, sizeof available, 1);
        return m2_fail(M2_ERR_UNSUPPORTED,
                       "video encoder %s does not open at %dx%d: %s; available here: %s", name,
                       format->width, format->height, text, available);
    }
    list_encoders(known, sizeof known, 0);
    list_encoders(available, sizeof available, 1);
    return m2_fail(M2_ERR_ARG, "no video encoder is called '%s'; known: %s; available here: %s",
                   name, known, available);
}

m2_status m2_video_encoder_open(const char *name, const m2_video_format *format,
                                m2_video_encoder **encoder_out)
{
    m2_ffmpeg_init();
    if (name && strcmp(name, "auto") != 0) return open_named(name, format, encoder_out);
    for (int i = 0; i < N_KINDS; i++) {
        const int error = open_kind(&kinds[i], format, encoder_out);
        char text[AV_ERROR_MAX_STRING_SIZE] = "opened";
        if (error < 0) av_strerror(error, text, sizeof text);
        m2_debug("media", "video encoder %s: %s", kinds[i].name, text);
        if (error == 0) return M2_OK;
    }
    char known[256];
    list_encoders(known, sizeof known, 0);
    return m2_fail(M2_ERR_UNSUPPORTED,
                   "none of the video encoders %s opens at %dx%d; install an FFmpeg with libx264",
                   known, format->width, format->height);
}

void m2_video_encoder_destroy(m2_video_encoder *encoder)
{
    if (!encoder) return;
    avcodec_free_context(&encoder->context);
    sws_freeContext(encoder->scaler);
    av_frame_free(&encoder->rgb);
    av_frame_free(&encoder->yuv);
    av_frame_free(&encoder->uploaded);
    av_buffer_unref(&encoder->hw_frames);
    av_packet_free(&encoder->packet);
    free(encoder);
}

const AVCodecContext *m2_video_encoder_context(const m2_video_encoder *encoder)
{
    return encoder->context;
}

m2_status m2_encode(AVCodecContext *context, const AVFrame *frame, AVPacket *packet,
                    m2_packet_sink *sink, void *user)
{
    int error = avcodec_send_frame(context, frame);
    if (error < 0)
        return m2_ffmpeg_fail(M2_ERR_INTERNAL, error, context->codec->name, "cannot encode");
    for (;;) {
        error = avcodec_receive_packet(context, packet);
        if (error == AVERROR(EAGAIN) || error == AVERROR_EOF) return M2_OK;
        if (error < 0)
            return m2_ffmpeg_fail(M2_ERR_INTERNAL, error, context->codec->name, "cannot encode");
        const m2_status status = sink(user, packet);
        av_packet_unref(packet);
        M2_TRY(status);
    }
}

/* The picture as the encoder wants it: encoder->yuv, or encoder->uploaded on a device. */
static int convert(m2_video_encoder *encoder, const uint8_t *rgb, AVFrame **frame_out)
{
    const int width = encoder->context->width, height = encoder->context->height;
    /* The encoder may still hold the last frame's memory; this takes other memory if so. */
    int error = av_frame_make_writable(encoder->yuv);
    if (error < 0) return error;
    for (int y = 0; y < height; y++)
        memcpy(encoder->rgb->data[0] + (ptrdiff_t)y * encoder->rgb->linesize[0],
               rgb + (size_t)y * (size_t)width * 3, (size_t)width * 3);
    error =
        sws_scale(encoder->scaler, (const uint8_t *const *)encoder->rgb->data,
                  encoder->rgb->linesize, 0, height, encoder->yuv->data, encoder->yuv->linesize);
    if (error < 0) return error;
    *frame_out = encoder->yuv;
    if (!encoder->hw_frames) return 0;
    av_frame_unref(encoder->uploaded);
    error = av_hwframe_get_buffer(encoder->hw_frames, encoder->uploaded, 0);
    if (error < 0) return error;
    *frame_out = encoder->uploaded;
    return av_hwframe_transfer_data(encoder->uploaded, encoder->yuv, 0);
}

m2_status m2_video_encoder_write(m2_video_encoder *encoder, const uint8_t *rgb,
                                 m2_packet_sink *sink, void *user)
{
    AVFrame *frame = NULL;
    if (rgb) {
        const int error = convert(encoder, rgb, &frame);
        if (error < 0)
            return m2_ffmpeg_fail(M2_ERR_INTERNAL, error, encoder->context->codec->name,
                                  "cannot convert a picture");
        frame->pts = encoder->n_frames++;
        frame->color_range = encoder->context->color_range;
        frame->colorspace = encoder->context->colorspace;
        frame->color_primaries = encoder->context->color_primaries;
        frame->color_trc = encoder->context->color_trc;
        frame->chroma_location = encoder->context->chroma_sample_location;
    }
    return m2_encode(encoder->context, frame, encoder->packet, sink, user);
}
