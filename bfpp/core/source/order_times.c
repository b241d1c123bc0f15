/* When orders end, if nothing but compute takes time; tests/core/test_orders.py has the reference.
 */
#include "orders.h"

#include <stdlib.h>

/* The steps in the order of their rounds: each after those that it waits for. */
static bool sort_by_round(int64_t steps, const int32_t *round_of, int32_t *place, int32_t *sorted)
{
    for (int64_t round = 0; round <= steps; round++)
        place[round] = 0;
    for (int64_t step = 0; step < steps; step++) {
        if (round_of[step] < 0 || round_of[step] >= steps)
            return false;
        place[round_of[step] + 1]++;
    }
    for (int64_t round = 0; round < steps; round++)
        place[round + 1] += place[round];
    for (int64_t step = 0; step < steps; step++)
        sorted[place[round_of[step]]++] = (int32_t)step;
    return true;
}

static bool are_in_range(
    int64_t ranks, int64_t units, int64_t steps, const int32_t *operation, const int32_t *rank,
    const int32_t *unit, const int32_t *before_step)
{
    for (int64_t step = 0; step < steps; step++)
        if (operation[step] < 0 || operation[step] >= PASSES || rank[step] < 0 ||
            rank[step] >= ranks || unit[step] < 0 || unit[step] >= units ||
            before_step[step] < -1 || before_step[step] >= steps)
            return false;
    return true;
}

/* Fill when all steps of a table have ended, for each of some costs: of passes, of units. */
int64_t bfpp_time_orders(
    int64_t ranks, int64_t units, int64_t steps, int64_t costs, const int32_t *operation,
    const int32_t *rank, const int32_t *unit, const int32_t *before_step, const int32_t *round_of,
    const double *seconds, double *last_end)
{
    if (!are_in_range(ranks, units, steps, operation, rank, unit, before_step))
        return MALFORMED;
    int64_t result = OUT_OF_MEMORY;
    double *end = malloc((size_t)(steps + ranks + 1) * sizeof *end), *free_at = end + steps;
    int32_t *sorted = malloc((size_t)(2 * steps + 1) * sizeof *sorted);
    if (!end || !sorted)
        goto done;
    result = MALFORMED;
    if (!sort_by_round(steps, round_of, sorted + steps, sorted))
        goto done;
    for (int64_t cost = 0; cost < costs; cost++) {
        const double *own = seconds + cost * PASSES * units;
        last_end[cost] = 0.0;
        for (int64_t each = 0; each < ranks; each++)
            free_at[each] = 0.0;
        for (int64_t step = 0; step < steps; step++)
            end[step] = 0.0;
        for (int64_t at = 0; at < steps; at++) {
            int32_t step = sorted[at], before = before_step[step];
            double time = free_at[rank[step]];
            if (before >= 0 && end[before] > time)
                time = end[before];
            time += own[operation[step] * units + unit[step]];
            free_at[rank[step]] = end[step] = time;
            last_end[cost] = time > last_end[cost] ? time : last_end[cost];
        }
    }
    result = 0;
done:
    free(end);
    free(sorted);
    return result;
}
