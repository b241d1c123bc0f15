/* Building blocks: the passes of one micro-batch, placed so that they can repeat every period. */
#ifndef BFPP_BUILDING_BLOCKS_H
#define BFPP_BUILDING_BLOCKS_H

#include "../core.h"

CORE int64_t bfpp_place_block(
    int64_t stages, int64_t ranks, int64_t kinds, int64_t microbatches, bool spans,
    const int32_t rank[kinds * stages], const double seconds[kinds * stages],
    const double transfer[2 * stages], const int32_t channel[2 * stages],
    const double size[stages], const double limit[ranks], const double rest[ranks],
    const int32_t stage[stages], const int32_t first[ranks + 1], double period, int64_t tries,
    double scale, int64_t seed, double delay[kinds * stages], double start[kinds * stages]);

#endif
