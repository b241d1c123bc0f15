/* What passes keep in memory, by the order of each rank's compute. */
#ifndef BFPP_MEMORY_H
#define BFPP_MEMORY_H

#include "core.h"

CORE int64_t bfpp_find_peaks(
    int64_t tasks, int64_t ranks, int64_t units, int64_t costs, int64_t operations, int64_t slices,
    int64_t ahead, const int8_t operation[tasks], const int32_t rank[tasks],
    const int32_t unit[tasks], const int32_t microbatch[tasks], const int32_t block[tasks],
    const bool of_operation[7 * operations],
    const double saved[units * costs], const double halved[units * costs],
    const double restored_layer[units * costs], const double transient[units * costs],
    const double gradients[units * costs], const double offloaded[units * costs],
    double most_saved[ranks * costs], double most_transient[ranks * costs]);

#endif
