/* The problem of ordering passes. */
#include "ordering_problem.h"

static bool are_below(int64_t count, const int32_t *numbers, int64_t least, int64_t bound)
{
    for (int64_t at = 0; at < count; at++)
        if (numbers[at] < least || numbers[at] >= bound)
            return false;
    return true;
}

bool is_valid(const struct Problem *problem)
{
    int64_t stages = problem->stages, ranks = problem->ranks;
    if (stages < 1 || stages > INT32_MAX / 4 || ranks < 1 || ranks > INT32_MAX)
        return false;
    if (problem->kinds < 2 || problem->kinds > 3)
        return false;
    if (problem->microbatches < 1 || problem->microbatches > INT32_MAX)
        return false;
    for (int64_t rank = 0; rank < ranks; rank++)
        if (problem->first[rank] > problem->first[rank + 1])
            return false;
    return are_below(codes_of(problem), problem->rank, 0, ranks)
        && are_below(channels_of(problem), problem->channel, -1, channels_of(problem))
        && are_below(stages, problem->stage, 0, stages)
        && are_below(ranks + 1, problem->first, 0, stages + 1);
}
