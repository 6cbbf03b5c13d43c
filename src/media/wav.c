#include "media/wav.h"

#include "core/temp_file.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define HEADER_BYTES_MAX 58
#define BLOCK            4096

static uint8_t *put16(uint8_t *to, unsigned value)
{
    to[0] = (uint8_t)value;
    to[1] = (uint8_t)(value >> 8);
    return to + 2;
}

static uint8_t *put32(uint8_t *to, uint32_t value)
{
    return put16(put16(to, value & 0xffffu), value >> 16);
}

static uint8_t *put_text(uint8_t *to, const char *text)
{
    memcpy(to, text, 4);
    return to + 4;
}

/* Formats other than PCM need the extended "fmt " chunk and a "fact" chunk. */
static size_t make_header(uint8_t *header, m2_wav_format format, int64_t n_samples, int n_channels,
                          int sample_rate)
{
    const int is_float = format == M2_WAV_F32;
    const unsigned sample_bytes = is_float ? 4 : 2,
                   frame_bytes = sample_bytes * (unsigned)n_channels;
    const uint32_t data_bytes = (uint32_t)n_samples * frame_bytes;
    uint8_t *to = put_text(header, "RIFF");
    to = put32(to, (is_float ? 50u : 36u) + data_bytes);
    to = put_text(to, "WAVE");
    to = put_text(to, "fmt ");
    to = put32(to, is_float ? 18 : 16);
    to = put16(to, is_float ? 3 : 1);
    to = put16(to, (unsigned)n_channels);
    to = put32(to, (uint32_t)sample_rate);
    to = put32(to, (uint32_t)sample_rate * frame_bytes);
    to = put16(to, frame_bytes);
    to = put16(to, 8 * sample_bytes);
    if (is_float) {
        to = put16(to, 0);
        to = put_text(to, "fact");
        to = put32(to, 4);
        to = put32(to, (uint32_t)n_samples);
    }
    to = put_text(to, "data");
    to = put32(to, data_bytes);
    return (size_t)(to - header);
}

static size_t encode(uint8_t *to, m2_wav_format format, const float *samples, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if (format == M2_WAV_F32) {
            uint32_t bits;
            memcpy(&bits, &samples[i], sizeof bits);
            to = put32(to, bits);
        } else {
            /* In double the product is exact, so "nearest" is decided once. */
            const double level = nearbyint(32767.0 * (double)samples[i]);
            const double clipped = level > 32767 ? 32767 : level < -32768 ? -32768 : level;
            to = put16(to, (unsigned)(int)clipped & 0xffffu);
        }
    }
    return (size_t)n * (format == M2_WAV_F32 ? 4 : 2);
}

static int write_all(FILE *file, m2_wav_format format, const float *samples, int64_t n_samples,
                     int n_channels, int sample_rate)
{
    uint8_t bytes[BLOCK * 4];
    size_t n = make_header(bytes, format, n_samples, n_channels, sample_rate);
    if (fwrite(bytes, 1, n, file) != n) return errno;
    const int64_t n_values = n_samples * n_channels;
    for (int64_t i = 0; i < n_values; i += BLOCK) {
        n = encode(bytes, format, samples + i, n_values - i < BLOCK ? n_values - i : BLOCK);
        if (fwrite(bytes, 1, n, file) != n) return errno;
    }
    return 0;
}

m2_status m2_wav_write(const char *path, m2_wav_format format, const float *samples,
                       int64_t n_samples, int n_channels, int sample_rate)
{
    if (n_samples < 0 || n_channels < 1 || n_channels > 64 || sample_rate < 1 ||
        sample_rate > 768000)
        return m2_fail(M2_ERR_ARG, "%s: %lld samples of %d channels at %d Hz cannot be written",
                       path, (long long)n_samples, n_channels, sample_rate);
    const int64_t frame_bytes = (int64_t)n_channels * (format == M2_WAV_F32 ? 4 : 2);
    if (n_samples > (INT64_C(0xffffffff) - HEADER_BYTES_MAX) / frame_bytes)
        return m2_fail(M2_ERR_ARG, "%s: %lld samples are more than the 4 GiB a WAVE file holds",
                       path, (long long)n_samples);
    if (format == M2_WAV_PCM_16)
        for (int64_t i = 0; i < n_samples * n_channels; i++)
            if (!isfinite(samples[i]))
                return m2_fail(M2_ERR_NUMERIC, "%s: sample %lld of channel %d is %g", path,
                               (long long)(i / n_channels), (int)(i % n_channels),
                               (double)samples[i]);
    m2_temp_file temp;
    M2_TRY(m2_temp_create(&temp, path));
    FILE *file = fopen(temp.path, "wb");
    int error = file ? write_all(file, format, samples, n_samples, n_channels, sample_rate) : errno;
    if (file && fclose(file) != 0 && !error) error = errno;
    if (error) {
        m2_temp_discard(&temp);
        return m2_fail(M2_ERR_IO, "%s: cannot write: %s", path, strerror(error));
    }
    return m2_temp_commit(&temp);
}
