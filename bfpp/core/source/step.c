/* A step's time, without its timeline: priced, replayed within the power limit, and summed; if it
 * stands for one of more micro-batches, extended by the periods that are left out.
 *
 * References in Python: `bfpp/sim/costs/step_costs.py` and `power.py`, which also give costs and
 * timelines; for steps that are extended, tests/core/test_step.py.
 */
#include "step.h"

#include <stdlib.h>
#include <string.h>

#include "period.h"
#include "prices.h"
#include "rank_times.h"
#include "replay.h"

/* The least tolerance of the power limit: with less, a step may be replayed without end. */
#define SMALLEST_TOLERANCE 1e-6

/* A graph with its costs, when its tasks start and end, and the step that it stands for: of that,
 * `left_out` periods are missing, and `begin` lists the first passes of micro-batches, of which
 * `between` are in `periods` periods.
 */
struct step {
    int64_t tasks, lanes, dependencies, followers, kinds, width, n_ports;
    const int32_t *kind, *lane, *peer_lane, *dependency, *follower, *ports, *begin;
    const int64_t *dependency_start, *follower_start;
    const bool *is_pass;
    const double *seconds, *size, *bandwidth;
    double *start, *end;
    int64_t begins, periods, between, left_out;
    double rounding;
};

/* Seconds of a step, and of all its passes. */
struct sums {
    double seconds, passes;
};

/* Start and end of each task. */
static int64_t replay(const struct step *s)
{
    int64_t meets = bfpp_sweep(
        s->tasks, s->lanes, s->dependencies, s->width, s->n_ports, s->lane, s->peer_lane,
        s->dependency_start, s->dependency, s->seconds, s->size, s->ports, s->bandwidth, s->start,
        s->end);
    if (meets <= 0)
        return meets;
    return bfpp_replay(
        s->tasks, s->followers, s->width, s->n_ports, 0, s->follower_start, s->follower,
        s->seconds, s->size, s->ports, s->bandwidth, NULL, NULL, NULL, s->start, s->end, NULL);
}

/* Sums of the whole step, of which periods are left out that take as long as the last one here. */
static int64_t extend(const struct step *s, double last_end, struct sums *sums)
{
    int64_t first = s->begins - 1 - s->between;
    if (first < 0 || s->periods < 1)
        return NOT_PERIODIC;
    double begun = s->start[s->begin[s->begins - 1]];
    double period = (begun - s->start[s->begin[first]]) / (double)s->periods;
    /* By rounding, tasks of the last micro-batch may start a little before its first pass. */
    double tolerance = s->rounding * last_end, until = begun - 2 * tolerance;
    int64_t repeats = bfpp_repeats(
        s->tasks, s->kinds, s->dependencies, s->kind, s->dependency_start, s->dependency, s->start,
        s->end, until - (double)s->periods * period, until, period, tolerance);
    if (repeats <= 0)
        return repeats ? repeats : NOT_PERIODIC;
    double passes = 0.0;
    for (int64_t task = 0; task < s->tasks; task++)
        if (s->is_pass[task] && s->start[task] >= until - period && s->start[task] < until)
            passes += s->end[task] - s->start[task];
    sums->seconds = last_end + (double)s->left_out * period;
    sums->passes += (double)s->left_out * passes;
    return TIMED;
}

/* Sums of a step whose tasks have their times. */
static int64_t sum_up(const struct step *s, struct sums *sums)
{
    double totals[3];
    bfpp_step_sums(s->tasks, s->start, s->end, s->is_pass, totals);
    *sums = (struct sums){totals[1], totals[2]};
    return s->left_out ? extend(s, totals[0] + totals[1], sums) : TIMED;
}

/* Replay a step, its compute so much slower that it takes `least` seconds, if it takes fewer.
 *
 * `fastest` are seconds at full clocks, and `seconds` gets those of the replay. The busiest rank
 * computes for `longest`; what is missing of the least by no more than a `tolerance` is made up
 * without another look.
 */
static int64_t keep_power(
    const struct step *s, const bool *is_compute, double longest, double least, double tolerance,
    const double *fastest, double *seconds, struct sums *sums)
{
    double factor = 1.0, missing = least;
    while (longest > 0.0 && longest * factor < least && missing > tolerance * least) {
        int64_t result = replay(s);
        if (result == 0)
            result = sum_up(s, sums);
        if (result)
            return result;
        missing = least - sums->seconds;
        if (missing <= 0)
            return TIMED;
        if (!(sums->seconds > 0.0))
            return MALFORMED;
        /* From below: communication is not slowed, so that the step grows by less than this. */
        factor *= least / sums->seconds;
        for (int64_t task = 0; task < s->tasks; task++)
            seconds[task] = is_compute[task] ? fastest[task] * factor : fastest[task];
    }
    int64_t result = replay(s);
    return result ? result : sum_up(s, sums);
}

/* The seconds of a step and of its passes, in `sums`; returns TIMED or NOT_PERIODIC.
 *
 * Kinds of tasks cost what `bfpp_price` says. The step takes `least` seconds, or less by a
 * `tolerance`. Unless `left_out` is 0, it stands for one of that many periods more, whose times may
 * differ by a share for `rounding`.
 */
int64_t bfpp_step_time(
    int64_t tasks, int64_t lanes, int64_t ranks, int64_t dependencies, int64_t followers,
    int64_t cells, int64_t others, int64_t width, int64_t n_ports, const int32_t *kind,
    const int32_t *rank, const int32_t *lane, const int32_t *peer_lane, const bool *is_compute,
    const bool *is_pass, const int64_t *dependency_start, const int32_t *dependency,
    const int64_t *follower_start, const int32_t *follower, KINDS_PARAMETERS,
    const double *bandwidth, const double *own, double least, double tolerance,
    int64_t begins, int64_t periods, int64_t between, int64_t left_out, double rounding,
    const int32_t *begin, double sums[2])
{
    for (int64_t at = 0; at < begins; at++)
        if (begin[at] < 0 || begin[at] >= tasks)
            return MALFORMED;
    if (!(tolerance > SMALLEST_TOLERANCE))
        return MALFORMED;
    double *fastest = malloc((size_t)(5 * tasks + 1) * sizeof *fastest), longest;
    int32_t *ports = malloc((size_t)(tasks * width + 1) * sizeof *ports);
    int64_t result = OUT_OF_MEMORY;
    if (!fastest || !ports)
        goto done;
    double *size = fastest + tasks, *seconds = size + tasks, *start = seconds + tasks;
    struct step step = {
        tasks, lanes, dependencies, followers, cells + others, width, n_ports, kind, lane,
        peer_lane, dependency, follower, ports, begin, dependency_start, follower_start, is_pass,
        seconds, size, bandwidth, start, start + tasks, begins, periods, between, left_out,
        rounding,
    };
    result = bfpp_price(
        tasks, dependencies, cells, others, width, kind, dependency_start, dependency,
        cell_seconds, cell_size, cell_ports, cell_received, cell_sent, other_seconds, other_size,
        other_ports, other_received, other_sent, own, fastest, size, ports);
    if (result == 0)
        result = bfpp_busiest(tasks, ranks, rank, is_compute, fastest, &longest);
    if (result)
        goto done;
    memcpy(seconds, fastest, (size_t)tasks * sizeof *seconds);
    struct sums totals;
    result =
        keep_power(&step, is_compute, longest, least, tolerance, fastest, seconds, &totals);
    if (result == TIMED) {
        sums[0] = totals.seconds;
        sums[1] = totals.passes;
    }
done:
    free(fastest);
    free(ports);
    return result;
}
