/* Building blocks: the passes of one micro-batch, placed so that they can repeat every period.
 *
 * After "Pipeline Parallelism with Controllable Memory" (Qi et al., 2024). The reference is
 * `tests/helpers/reference_block.py`.
 */
#include "building_blocks.h"

#include <math.h>
#include <string.h>

#include "random_draws.h"
#include "../scratch.h"

/* Of a period. */
#define TOLERANCE 1e-9

/* The remainder that has the sign of the period. */
static double modulo(double time, double period)
{
    double rest = fmod(time, period);
    return rest != 0.0 && (rest < 0.0) != (period < 0.0) ? rest + period : rest;
}

/* How much later than `begin` a pass must start so as not to meet another of its rank; passes that
 * have no start yet are in nobody's way. */
static double pushed_by(
    const struct Problem *problem, double period, const double *start, int64_t code, double begin,
    int64_t other)
{
    double tolerance = TOLERANCE * period;
    if (start[other] < 0)
        return 0.0;
    double since = modulo(begin - start[other], period);
    if (since > period - tolerance)
        since = 0.0;
    double busy = problem->seconds[other] - since;
    if (busy > tolerance)
        return busy;
    return since + problem->seconds[code] > period + tolerance ? period + busy : 0.0;
}

/* When the rank of a pass has room for it in every period, from when it is ready; or never. Every
 * other pass pushes it back twice in a period, at most. */
static double free_from(
    const struct Problem *problem, double period, const double *start, int64_t code, double ready)
{
    int32_t rank = problem->rank[code];
    int64_t codes = codes_of(problem);
    double begin = ready;
    for (int64_t round = 0; round < 4 * codes + 4; round++) {
        bool moved = false;
        for (int32_t at = problem->first[rank]; at < problem->first[rank + 1]; at++)
            for (int64_t other = problem->stage[at]; other < codes; other += problem->stages) {
                double later = pushed_by(problem, period, start, code, begin, other);
                if (later != 0.0) {
                    begin += later;
                    moved = true;
                }
            }
        if (begin > ready + period)
            return INFINITY;
        if (!moved)
            return begin;
    }
    return INFINITY;
}

/* Place the passes of a micro-batch along the stages and back, then its weight halves. Each starts
 * as soon as its rank is free in every period, after its delay. Returns whether all have a place. */
static bool place(
    const struct Problem *problem, double period, const double *delay, double *start)
{
    int64_t stages = problem->stages, codes = codes_of(problem), code = 0;
    double ready = 0.0;
    for (int64_t each = 0; each < codes; each++)
        start[each] = -1.0;
    for (int64_t step = 0; step < codes; step++) {
        if (step >= 2 * stages) {
            code = step;
            ready = start[code - stages] + problem->seconds[code - stages];
        }
        start[code] = free_from(problem, period, start, code, ready + delay[code]);
        if (start[code] == INFINITY)
            return false;
        if (step < 2 * stages)
            ready = start[code] + problem->seconds[code] + problem->transfer[code];
        code = next_pass(problem, code);
    }
    return true;
}

/* What a rank keeps of a stage at a time, in micro-batches: those that have begun, less those whose
 * last backward pass has ended. */
static double kept_at(double time, double begin, double end, double period)
{
    double begun = floor((time - begin) / period + TOLERANCE);
    return begun - floor((time - end) / period + TOLERANCE);
}

/* What is wrong with a block, in stages of mean size: how much all ranks keep beyond their limits;
 * and how much they keep on average. */
struct Excess {
    double over, kept;
};

static struct Excess excess_of(const struct Problem *problem, double period, const double *start)
{
    const double *size = problem->size;
    int64_t last = codes_of(problem) - problem->stages;
    double total = 0.0;
    struct Excess excess = {0.0, 0.0};
    for (int64_t stage = 0; stage < problem->stages; stage++)
        total += size[stage];
    double mean = larger(total / (double)problem->stages, 1e-300);
    for (int64_t rank = 0; rank < problem->ranks; rank++) {
        int32_t from = problem->first[rank], to = problem->first[rank + 1];
        double most = 0.0;
        for (int32_t at = from; at < to; at++) {
            double time = start[problem->stage[at]], now = 0.0;
            for (int32_t other = from; other < to; other++) {
                int32_t stage = problem->stage[other];
                double begin = start[stage], end = start[last + stage];
                end += problem->seconds[last + stage];
                now += size[stage] * kept_at(time, begin, end, period);
                if (other == at)
                    excess.kept += size[stage] * (end - begin) / period;
            }
            most = larger(most, now);
        }
        excess.over += larger(0.0, most - problem->limit[rank]);
    }
    return (struct Excess){excess.over / mean, excess.kept / mean};
}

/* Change a few delays: none, a little more or less, or any. */
static void vary(int64_t codes, double *delay, double scale, struct Draws *draws)
{
    for (int64_t left = 1 + draw_below(draws, 3); left > 0; left--) {
        double *one = delay + draw_below(draws, codes);
        double drawn = draw_uniform(draws);
        if (drawn < 0.4)
            *one = 0.0;
        else if (drawn < 0.8)
            *one = larger(0.0, *one + scale * draw_normal(draws));
        else
            *one = 2.0 * scale * draw_uniform(draws);
    }
}

/* Vary how long passes wait beyond what they must, until the block keeps to the limits; `scale` is
 * a typical time of a pass.
 *
 * Leaves the block's starts and delays there; returns whether it keeps to the limits.
 */
int64_t bfpp_place_block(
    PROBLEM_PARAMETERS, double period, int64_t tries, double scale, int64_t seed, double *delay,
    double *start)
{
    const struct Problem problem = PROBLEM_GIVEN;
    if (!is_valid(&problem))
        return MALFORMED;
    int64_t codes = codes_of(&problem), result = OUT_OF_MEMORY;
    size_t bytes = (size_t)codes * sizeof(double);
    struct Scratch scratch = {0};
    struct Draws draws;
    double *trial = scratch_take(&scratch, codes, sizeof *trial);
    double *varied = scratch_take(&scratch, codes, sizeof *varied);
    if (scratch.failed)
        goto done;
    draws_begin(&draws, (uint32_t)seed);
    double known = INFINITY;
    result = 0;
    for (int64_t nth = 0; nth < tries && !result; nth++) {
        memcpy(varied, delay, bytes);
        if (nth)
            vary(codes, varied, scale, &draws);
        if (!place(&problem, period, varied, trial))
            continue;
        struct Excess excess = excess_of(&problem, period, trial);
        /* Of blocks that keep too much, those whose activations live shorter are nearer. */
        double cost = excess.over + 1e-3 * excess.kept;
        double heat = 0.02 * (1.0 - (double)nth / (double)tries);
        if (cost <= known || draw_uniform(&draws) < exp((known - cost) / heat)) {
            known = cost;
            memcpy(delay, varied, bytes);
            memcpy(start, trial, bytes);
            result = excess.over == 0.0;
        }
    }
done:
    scratch_give_back(&scratch);
    return result;
}
