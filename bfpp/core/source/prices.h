/* What tasks cost: their own load, and what communication adds to the tasks around it. */
#ifndef BFPP_PRICES_H
#define BFPP_PRICES_H

#include "core.h"

/* Costs of the kinds of tasks: of those of micro-batches, and of all others. */
#define KINDS_PARAMETERS \
    const double cell_seconds[cells], const double cell_size[cells], \
    const int32_t cell_ports[cells * width], \
    const double cell_received[cells], const double cell_sent[cells], \
    const double other_seconds[others], const double other_size[others], \
    const int32_t other_ports[others * width], \
    const double other_received[others], const double other_sent[others]

CORE int64_t bfpp_price(
    int64_t tasks, int64_t dependencies, int64_t cells, int64_t others, int64_t width,
    const int32_t kind[tasks], const int64_t dependency_start[tasks + 1],
    const int32_t dependency[dependencies],
    KINDS_PARAMETERS,
    const double OPTIONAL own[tasks],
    double seconds[tasks], double size[tasks], int32_t ports[tasks * width]);

CORE int64_t bfpp_hand_over(
    int64_t kinds, int64_t width, int64_t n_ports, bool blocks, double collecting,
    const bool is_transfer[kinds], double seconds[kinds], double size[kinds],
    const int32_t ports[kinds * width], const double bandwidth[n_ports],
    double received[kinds], double sent[kinds]);

CORE int64_t bfpp_busiest(
    int64_t tasks, int64_t ranks, const int32_t rank[tasks], const bool chosen[tasks],
    const double seconds[tasks], double most[1]);

CORE int64_t bfpp_find_loads(
    int64_t tasks, int64_t collectives, int64_t places, int64_t options, int64_t levels,
    int64_t ranks, int64_t width,
    const double sizes[collectives * tasks], const int32_t place[collectives * tasks],
    const int32_t begin[places + 1], const double option_latency[options],
    const double per_byte[options], const int32_t level[options], const double rates[levels],
    const int32_t rank[tasks], const int32_t peer[tasks],
    const int32_t out[(levels + 1) * ranks * width],
    const int32_t into[(levels + 1) * ranks * width],
    double latency[tasks], double size[tasks], int32_t ports[tasks * 2 * width]);

#endif
