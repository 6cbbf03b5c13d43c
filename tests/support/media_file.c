#include "support/media_file.h"

#include "support/check.h"

#include <libavformat/avformat.h>
#include <math.h>
#include <png.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void need(int error, const char *path, const char *what)
{
    char text[AV_ERROR_MAX_STRING_SIZE] = "";
    if (error >= 0) return;
    av_strerror(error, text, sizeof text);
    fail_msg("%s: %s: %s", path, what, text);
}

static void matrix_of(const AVFrame *frame, double *kr, double *kb)
{
    const int is_709 = frame->colorspace == AVCOL_SPC_BT709;
    *kr = is_709 ? 0.2126 : 0.299;
    *kb = is_709 ? 0.0722 : 0.114;
}

static int at(int i, int n)
{
    return i < 0 ? 0 : i >= n ? n - 1 : i;
}

/* Chroma at luma position (x, y): left-sited across, half-way between rows down. */
static double chroma(const AVFrame *frame, int plane, int x, int y)
{
    const int width = (frame->width + 1) / 2, height = (frame->height + 1) / 2;
    const int y0 = at(y / 2, height), y1 = at(y % 2 ? y / 2 + 1 : y / 2 - 1, height);
    const int x0 = at(x / 2, width), x1 = at(x / 2 + x % 2, width);
    const uint8_t *near = frame->data[plane] + (ptrdiff_t)y0 * frame->linesize[plane];
    const uint8_t *far = frame->data[plane] + (ptrdiff_t)y1 * frame->linesize[plane];
    return 0.75 * 0.5 * (near[x0] + near[x1]) + 0.25 * 0.5 * (far[x0] + far[x1]);
}

static uint8_t level(double value)
{
    const double rounded = floor(255.0 * value + 0.5);
    return (uint8_t)(rounded < 0 ? 0 : rounded > 255 ? 255 : rounded);
}

static void to_rgb(const AVFrame *frame, uint8_t *rgb)
{
    const int is_full = frame->color_range == AVCOL_RANGE_JPEG;
    const double y_low = is_full ? 0 : 16, y_range = is_full ? 255 : 219;
    const double c_range = is_full ? 255 : 224;
    double kr, kb;
    matrix_of(frame, &kr, &kb);
    for (int y = 0; y < frame->height; y++)
        for (int x = 0; x < frame->width; x++, rgb += 3) {
            const double luma =
                (frame->data[0][(ptrdiff_t)y * frame->linesize[0] + x] - y_low) / y_range;
            const double pb = (chroma(frame, 1, x, y) - 128) / c_range;
            const double pr = (chroma(frame, 2, x, y) - 128) / c_range;
            const double r = luma + 2 * (1 - kr) * pr, b = luma + 2 * (1 - kb) * pb;
            rgb[0] = level(r);
            rgb[1] = level((luma - kr * r - kb * b) / (1 - kr - kb));
            rgb[2] = level(b);
        }
}

/* The planes of 4:2:0 one behind the other. */
static void add_planes(m2_test_clip *clip, const AVFrame *frame)
{
    const int widths[3] = { frame->width, (frame->width + 1) / 2, (frame->width + 1) / 2 };
    const int heights[3] = { frame->height, (frame->height + 1) / 2, (frame->height + 1) / 2 };
    clip->yuv_bytes = 0;
    for (int p = 0; p < 3; p++) clip->yuv_bytes += widths[p] * heights[p];
    clip->yuv = realloc(clip->yuv, (size_t)((clip->n_frames + 1) * clip->yuv_bytes));
    assert_non_null(clip->yuv);
    uint8_t *to = clip->yuv + clip->n_frames * clip->yuv_bytes;
    for (int p = 0; p < 3; p++)
        for (int y = 0; y < heights[p]; y++, to += widths[p])
            memcpy(to, frame->data[p] + (ptrdiff_t)y * frame->linesize[p], (size_t)widths[p]);
}

static void add_picture(m2_test_clip *clip, const AVFrame *frame, int64_t pts)
{
    const size_t bytes = (size_t)frame->width * (size_t)frame->height * 3;
    if (frame->format != AV_PIX_FMT_YUV420P) fail_msg("pixel format %d", frame->format);
    if (clip->n_frames == 0) clip->first_frame = pts;
    if (pts != clip->first_frame + clip->n_frames) clip->has_even_steps = 0;
    clip->rgb = realloc(clip->rgb, (size_t)(clip->n_frames + 1) * bytes);
    assert_non_null(clip->rgb);
    to_rgb(frame, clip->rgb + (size_t)clip->n_frames * bytes);
    add_planes(clip, frame);
    clip->n_frames++;
}

static void add_sound(m2_test_clip *clip, const AVFrame *frame, int64_t pts)
{
    if (frame->format != AV_SAMPLE_FMT_FLTP || frame->ch_layout.nb_channels != 2)
        fail_msg("sample format %d, %d channels", frame->format, frame->ch_layout.nb_channels);
    if (clip->n_samples == 0) clip->first_sample = pts;
    clip->samples = realloc(clip->samples, (size_t)(clip->n_samples + frame->nb_samples) * 8);
    assert_non_null(clip->samples);
    for (int i = 0; i < frame->nb_samples; i++)
        for (int c = 0; c < 2; c++)
            clip->samples[2 * (clip->n_samples + i) + c] = ((const float *)frame->data[c])[i];
    clip->n_samples += frame->nb_samples;
}

static AVCodecContext *open_decoder(const AVStream *stream, const char *path)
{
    const AVCodec *codec = avcodec_find_decoder(stream->codecpar->codec_id);
    if (!codec) fail_msg("%s: no decoder", path);
    AVCodecContext *context = avcodec_alloc_context3(codec);
    assert_non_null(context);
    need(avcodec_parameters_to_context(context, stream->codecpar), path, "parameters");
    context->pkt_timebase = stream->time_base;
    context->err_recognition = AV_EF_EXPLODE;
    need(avcodec_open2(context, codec, NULL), path, "decoder");
    return context;
}

static void take_frames(m2_test_clip *clip, AVCodecContext *context, const AVStream *stream,
                        AVFrame *frame, const char *path)
{
    for (;;) {
        const int error = avcodec_receive_frame(context, frame);
        if (error == AVERROR(EAGAIN) || error == AVERROR_EOF) return;
        need(error, path, "decode");
        if (context->codec_type == AVMEDIA_TYPE_VIDEO)
            add_picture(
                clip, frame,
                av_rescale_q(frame->pts, stream->time_base, av_inv_q(stream->avg_frame_rate)));
        else
            add_sound(clip, frame,
                      av_rescale_q(frame->pts, stream->time_base,
                                   (AVRational){ 1, context->sample_rate }));
        av_frame_unref(frame);
    }
}

static void read_facts(m2_test_clip *clip, AVFormatContext *in, const char *path)
{
    clip->n_streams = (int)in->nb_streams;
    clip->clip_s = (double)in->duration / AV_TIME_BASE;
    av_dict_copy(&clip->tags, in->metadata, 0);
    for (unsigned i = 0; i < in->nb_streams; i++) {
        const AVStream *stream = in->streams[i];
        const int is_video = stream->codecpar->codec_type == AVMEDIA_TYPE_VIDEO;
        AVCodecParameters **to = is_video ? &clip->video : &clip->audio;
        if (*to) fail_msg("%s: two streams of one kind", path);
        *to = avcodec_parameters_alloc();
        avcodec_parameters_copy(*to, stream->codecpar);
        *(is_video ? &clip->video_s : &clip->audio_s) =
            (double)stream->duration * av_q2d(stream->time_base);
        /* Tags of a stream count as tags of the file: nothing may say a date there either. */
        av_dict_copy(&clip->tags, stream->metadata, AV_DICT_DONT_OVERWRITE);
        if (!is_video) continue;
        clip->frame_rate = stream->avg_frame_rate;
        clip->n_frames_said = stream->nb_frames;
    }
}

m2_test_clip m2_test_clip_read(const char *path)
{
    m2_test_clip clip = { .has_even_steps = 1 };
    AVFormatContext *in = NULL;
    need(avformat_open_input(&in, path, NULL, NULL), path, "open");
    need(avformat_find_stream_info(in, NULL), path, "streams");
    read_facts(&clip, in, path);
    AVCodecContext *decoders[2] = { NULL, NULL };
    if (in->nb_streams > 2) fail_msg("%s: %u streams", path, in->nb_streams);
    for (unsigned i = 0; i < in->nb_streams; i++) decoders[i] = open_decoder(in->streams[i], path);
    AVPacket *packet = av_packet_alloc();
    AVFrame *frame = av_frame_alloc();
    int error;
    while ((error = av_read_frame(in, packet)) >= 0) {
        const int i = packet->stream_index;
        need(avcodec_send_packet(decoders[i], packet), path, "packet");
        take_frames(&clip, decoders[i], in->streams[i], frame, path);
        av_packet_unref(packet);
    }
    if (error != AVERROR_EOF) need(error, path, "read");
    for (unsigned i = 0; i < in->nb_streams; i++) {
        need(avcodec_send_packet(decoders[i], NULL), path, "end");
        take_frames(&clip, decoders[i], in->streams[i], frame, path);
        avcodec_free_context(&decoders[i]);
    }
    av_frame_free(&frame);
    av_packet_free(&packet);
    avformat_close_input(&in);
    return clip;
}

void m2_test_clip_free(m2_test_clip *clip)
{
    avcodec_parameters_free(&clip->video);
    avcodec_parameters_free(&clip->audio);
    av_dict_free(&clip->tags);
    free(clip->rgb);
    free(clip->yuv);
    free(clip->samples);
    *clip = (m2_test_clip){ 0 };
}

uint8_t *m2_test_png_read(const char *path, int64_t *width_out, int64_t *height_out)
{
    png_image image = { .version = PNG_IMAGE_VERSION };
    if (!png_image_begin_read_from_file(&image, path)) fail_msg("%s: %s", path, image.message);
    image.format = PNG_FORMAT_RGB;
    uint8_t *rgb = malloc(PNG_IMAGE_SIZE(image));
    if (!rgb || !png_image_finish_read(&image, NULL, rgb, 0, NULL))
        fail_msg("%s: %s", path, image.message);
    *width_out = image.width;
    *height_out = image.height;
    return rgb;
}

double m2_test_psnr(const uint8_t *a, const uint8_t *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)(a[i] - b[i]) * (a[i] - b[i]);
    return sum == 0 ? 999 : 10 * log10(255.0 * 255.0 * (double)n / sum);
}

uint8_t *m2_test_bytes_read(const char *path, int64_t *n_out)
{
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END) != 0) fail_msg("%s: cannot be read", path);
    const long n = ftell(file);
    rewind(file);
    uint8_t *bytes = malloc((size_t)n + 1);
    if (!bytes || fread(bytes, 1, (size_t)n, file) != (size_t)n)
        fail_msg("%s: cannot be read whole", path);
    fclose(file);
    *n_out = n;
    return bytes;
}
