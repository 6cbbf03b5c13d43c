#include "sample/schedule.h"

#include <assert.h>

static double shifted_sigma(int n_steps, double shift, int step)
{
    /* The grouping is that of numpy's linspace: it decides the last bit. */
    const double sigma_max = 0.999f;
    const double stride = (0.0 - sigma_max) / n_steps;
    const double s = step * stride + sigma_max;
    return shift * s / (1.0 + (shift - 1.0) * s);
}

m2_status m2_schedule_check(int n_steps, double shift)
{
    if (n_steps < 1)
        return m2_fail(M2_ERR_ARG, "%d steps asked for; at least 1 is needed", n_steps);
    if (!(shift > 0) || shift - shift != 0)
        return m2_fail(M2_ERR_ARG, "sigma shift is %g; it must be a number above 0, such as 7",
                       shift);
    float before = 1.0f;
    for (int step = 0; step < n_steps; step++) {
        const float sigma = m2_schedule_sigma(n_steps, shift, step);
        if (!(sigma < before && sigma > 0))
            return m2_fail(
                M2_ERR_ARG,
                "%d steps with shift %g: sigma of step %d is %.9g after %.9g, it must fall "
                "from below 1 to above 0 in f32; take fewer steps or a shift nearer to 1",
                n_steps, shift, step, (double)sigma, (double)before);
        before = sigma;
    }
    return M2_OK;
}

float m2_schedule_sigma(int n_steps, double shift, int step)
{
    assert(n_steps >= 1 && step >= 0 && step <= n_steps);
    return step == n_steps ? 0.0f : (float)shifted_sigma(n_steps, shift, step);
}

int m2_schedule_timestep(int n_steps, double shift, int step)
{
    assert(n_steps >= 1 && step >= 0 && step < n_steps);
    return (int)(shifted_sigma(n_steps, shift, step) * 1000.0);
}

void m2_schedule_timesteps(int n_steps, double shift, int *timesteps_out)
{
    for (int step = 0; step < n_steps; step++)
        timesteps_out[step] = m2_schedule_timestep(n_steps, shift, step);
}
