/* How long words of passes take, and shorter ones by simulated annealing. */
#ifndef BFPP_ANNEALING_H
#define BFPP_ANNEALING_H

#include "ordering_problem.h"

CORE int64_t bfpp_replay_words(
    PROBLEM_PARAMETERS, int64_t width, const int32_t words[ranks * width],
    const int64_t lengths[ranks], double start[ranks * width], double taken[1]);

CORE int64_t bfpp_anneal(
    PROBLEM_PARAMETERS, int64_t width, int32_t words[ranks * width],
    const int64_t lengths[ranks], int64_t steps, double hot, double cold, int64_t seed,
    double taken[1]);

#endif
