/* A build without FFmpeg and libpng: every call says what is lacking and how to get it. */
#include "media/mp4.h"
#include "media/png.h"
#include "support/check.h"

#include <unistd.h>

static void every_call_says_what_the_build_lacks(void **state)
{
    (void)state;
    const m2_mp4_params params = {
        .width = 32, .height = 32, .fps_num = 25, .fps_den = 2, .n_frames = 1, .n_samples = 3528
    };
    const uint8_t pixel[3] = { 0 };
    const float sample[2] = { 0 };
    const char *name = NULL;
    m2_mp4 *mp4 = NULL;
    check_fails(m2_mp4_open("/tmp/magi2-none.mp4", &params, &mp4), M2_ERR_UNSUPPORTED,
                "-DMAGI2_WITH_MEDIA=ON");
    assert_null(mp4);
    check_fails(m2_mp4_write_frame(mp4, pixel), M2_ERR_UNSUPPORTED, "built without mp4");
    check_fails(m2_mp4_write_audio(mp4, sample, 1), M2_ERR_UNSUPPORTED, "built without mp4");
    check_fails(m2_mp4_finish(mp4), M2_ERR_UNSUPPORTED, "built without mp4");
    m2_mp4_destroy(mp4);
    assert_int_equal(m2_mp4_encoder_probe(0, &name), -1);
    check_fails(m2_png_write("/tmp/magi2-none.png", pixel, 1, 1), M2_ERR_UNSUPPORTED,
                "built without PNG");
    check_fails(m2_png_write_folder("/tmp/magi2-none", pixel, 1, 1, 1), M2_ERR_UNSUPPORTED,
                "built without PNG");
    check_fails(m2_png_write_sheet("/tmp/magi2-none.png", pixel, 1, 1, 1, 1), M2_ERR_UNSUPPORTED,
                "built without PNG");
    assert_int_not_equal(access("/tmp/magi2-none", F_OK), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_call_says_what_the_build_lacks),
    };
    return cmocka_run_group_tests_name("media_none", tests, NULL, NULL);
}
