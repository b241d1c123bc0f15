/* Orders by a rule in numbers, which is varied. */
#ifndef BFPP_DISPATCHING_H
#define BFPP_DISPATCHING_H

#include "../core.h"

CORE int64_t bfpp_dispatch(
    int64_t stages, int64_t ranks, int64_t kinds, int64_t microbatches, bool spans,
    const int32_t rank[kinds * stages], const double seconds[kinds * stages],
    const double transfer[2 * stages], const int32_t channel[2 * stages],
    const double size[stages], const double limit[ranks], const double rest[ranks],
    const int32_t stage[stages], const int32_t first[ranks + 1], int64_t tries, double scale,
    int64_t seed, int64_t width, double rule[kinds * stages + ranks + stages + 2],
    int32_t words[ranks * width], double taken[1]);

#endif
