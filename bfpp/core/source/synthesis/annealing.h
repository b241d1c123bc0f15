/* How long words of passes take, and shorter ones by simulated annealing. */
#ifndef BFPP_ANNEALING_H
#define BFPP_ANNEALING_H

#include "../core.h"

CORE int64_t bfpp_replay_words(
    int64_t stages, int64_t ranks, int64_t kinds, int64_t microbatches, bool spans,
    const int32_t rank[kinds * stages], const double seconds[kinds * stages],
    const double transfer[2 * stages], const int32_t channel[2 * stages],
    const double size[stages], const double limit[ranks], const double rest[ranks],
    const int32_t stage[stages], const int32_t first[ranks + 1], int64_t width,
    const int32_t words[ranks * width], const int64_t lengths[ranks],
    double start[ranks * width], double taken[1]);

CORE int64_t bfpp_anneal(
    int64_t stages, int64_t ranks, int64_t kinds, int64_t microbatches, bool spans,
    const int32_t rank[kinds * stages], const double seconds[kinds * stages],
    const double transfer[2 * stages], const int32_t channel[2 * stages],
    const double size[stages], const double limit[ranks], const double rest[ranks],
    const int32_t stage[stages], const int32_t first[ranks + 1], int64_t width,
    int32_t words[ranks * width], const int64_t lengths[ranks], int64_t steps, double hot,
    double cold, int64_t seed, double taken[1]);

#endif
