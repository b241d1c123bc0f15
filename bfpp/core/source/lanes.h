/* The lanes of tasks: in-order queues of a rank, one for each stream, or for each peer on it. */
#ifndef BFPP_LANES_H
#define BFPP_LANES_H

#include "core.h"

CORE int64_t bfpp_find_lanes(
    int64_t tasks, int64_t ranks, int64_t streams, int64_t operations, int64_t most,
    const int8_t operation[tasks], const int32_t rank[tasks], const int32_t peer[tasks],
    const int32_t stream_of[operations], const int32_t arrives_on[operations],
    const bool by_peer[streams], int32_t lane[tasks], int32_t peer_lane[tasks],
    int32_t lanes[most * 3]);

#endif
