#include "media/wav.h"
#include "support/check.h"

#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static char *dir;
static char path[256];

static int set_up(void **state)
{
    (void)state;
    dir = m2_test_make_dir();
    snprintf(path, sizeof path, "%s/sound.wav", dir);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    m2_test_remove_tree(dir);
    return 0;
}

static size_t read_file(uint8_t *bytes, size_t bytes_max)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    const size_t n = fread(bytes, 1, bytes_max, file);
    fclose(file);
    return n;
}

static int n_files(void)
{
    int n = 0;
    DIR *handle = opendir(dir);
    while (readdir(handle)) n++;
    closedir(handle);
    return n - 2;
}

static unsigned get16(const uint8_t *from)
{
    return from[0] | (unsigned)from[1] << 8;
}

static uint32_t get32(const uint8_t *from)
{
    return get16(from) | (uint32_t)get16(from + 2) << 16;
}

/* Catches a factor of 32,768, truncation, wrap-around beyond full scale, swapped bytes. */
static void pcm_levels_are_nearest_and_clipped(void **state)
{
    (void)state;
    static const struct {
        float x;
        int level;
    } cases[] = { { 0, 0 },           { 1, 32767 },         { -1, -32767 },    { 0.5f, 16384 },
                  { -0.5f, -16384 },  { 1.5f, 32767 },      { -1.5f, -32768 }, { 1e30f, 32767 },
                  { -1e30f, -32768 }, { 1e-5f, 0 },         { 1.6e-5f, 1 },    { -4.6e-5f, -2 },
                  { 0.9999f, 32764 }, { -1.00002f, -32768 } };
    enum { N = sizeof cases / sizeof cases[0] };
    float samples[N];
    uint8_t bytes[1024];
    for (int i = 0; i < N; i++) samples[i] = cases[i].x;
    check_ok(m2_wav_write(path, M2_WAV_PCM_16, samples, N / 2, 2, 44100));
    assert_int_equal(read_file(bytes, sizeof bytes), 44 + 2 * N);
    for (int i = 0; i < N; i++)
        if ((int16_t)get16(bytes + 44 + 2 * i) != cases[i].level)
            fail_msg("%g gives %d, not %d", (double)cases[i].x, (int16_t)get16(bytes + 44 + 2 * i),
                     cases[i].level);
    static const uint8_t header[] = { 'R', 'I', 'F', 'F', 36 + 2 * N, 0,   0, 0, 'W', 'A', 'V', 'E',
                                      'f', 'm', 't', ' ', 16,         0,   0, 0, 1,   0,   2,   0,
                                      68,  172, 0,   0,   16,         177, 2, 0, 4,   0,   16,  0,
                                      'd', 'a', 't', 'a', 2 * N,      0,   0, 0 };
    assert_memory_equal(bytes, header, sizeof header);
}

/* Floats are kept to the bit, NaN too: what one looks at after a fault. */
static void floats_are_kept(void **state)
{
    (void)state;
    const float samples[6] = { 0.1f, -2.5f, 1e-42f, INFINITY, -0.0f, NAN };
    uint8_t bytes[256];
    check_ok(m2_wav_write(path, M2_WAV_F32, samples, 3, 2, 44100));
    assert_int_equal(read_file(bytes, sizeof bytes), 58 + 24);
    assert_int_equal(get32(bytes + 4), 58 + 24 - 8);
    assert_int_equal(get32(bytes + 16), 18);
    assert_int_equal(get16(bytes + 20), 3);
    assert_int_equal(get32(bytes + 28), 44100 * 8);
    assert_int_equal(get16(bytes + 34), 32);
    assert_memory_equal(bytes + 38, "fact", 4);
    assert_int_equal(get32(bytes + 46), 3);
    assert_memory_equal(bytes + 50, "data", 4);
    assert_int_equal(get32(bytes + 54), 24);
    assert_memory_equal(bytes + 58, samples, sizeof samples);
}

/* Longer than the block that is converted at a time. */
static void long_sound_is_whole(void **state)
{
    (void)state;
    enum { N = 10001 };
    float *samples = malloc(N * 2 * sizeof *samples);
    uint8_t *bytes = malloc(N * 4 + 100);
    for (int i = 0; i < 2 * N; i++) samples[i] = (float)(i % 20000 - 10000) / 32767.0f;
    check_ok(m2_wav_write(path, M2_WAV_PCM_16, samples, N, 2, 44100));
    assert_int_equal(read_file(bytes, N * 4 + 100), 44 + 4 * N);
    for (int i = 0; i < 2 * N; i++)
        assert_int_equal((int16_t)get16(bytes + 44 + 2 * i), i % 20000 - 10000);
    check_ok(m2_wav_write(path, M2_WAV_PCM_16, samples, 0, 2, 44100));
    assert_int_equal(read_file(bytes, N * 4 + 100), 44);
    free(bytes);
    free(samples);
}

static void faults_leave_no_file(void **state)
{
    (void)state;
    enum { N = 5000 };
    static float samples[2 * N];
    samples[7] = NAN;
    check_fails(m2_wav_write(path, M2_WAV_PCM_16, samples, N, 2, 44100), M2_ERR_NUMERIC,
                "sample 3 of channel 1");
    samples[7] = 0;
    check_fails(m2_wav_write(path, M2_WAV_PCM_16, samples, -1, 2, 44100), M2_ERR_ARG, "-1 samples");
    check_fails(m2_wav_write(path, M2_WAV_F32, samples, (int64_t)1 << 40, 2, 44100), M2_ERR_ARG,
                "4 GiB");
    struct rlimit before, limit;
    getrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, SIG_IGN);
    limit = before;
    limit.rlim_cur = 1000; /* as a full disk */
    setrlimit(RLIMIT_FSIZE, &limit);
    const m2_status status = m2_wav_write(path, M2_WAV_PCM_16, samples, N, 2, 44100);
    setrlimit(RLIMIT_FSIZE, &before);
    check_fails(status, M2_ERR_IO, "File too large");
    assert_int_equal(n_files(), 0);
    snprintf(path, sizeof path, "%s/none/sound.wav", dir);
    check_fails(m2_wav_write(path, M2_WAV_PCM_16, samples, N, 2, 44100), M2_ERR_IO, "sound.wav");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(pcm_levels_are_nearest_and_clipped, set_up, tear_down),
        cmocka_unit_test_setup_teardown(floats_are_kept, set_up, tear_down),
        cmocka_unit_test_setup_teardown(long_sound_is_whole, set_up, tear_down),
        cmocka_unit_test_setup_teardown(faults_leave_no_file, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("wav", tests, NULL, NULL);
}
