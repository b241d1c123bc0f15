/* What is asked of every task graph: followers, kinds of tasks, flags. */
#ifndef BFPP_GRAPH_H
#define BFPP_GRAPH_H

#include "core.h"

CORE int64_t bfpp_followers(
    int64_t tasks, int64_t lanes, int64_t dependencies, const int32_t lane[tasks],
    const int32_t peer_lane[tasks], const int64_t dependency_start[tasks + 1],
    const int32_t dependency[dependencies], int64_t first[tasks + 1],
    int32_t follower[dependencies + 2 * tasks]);

CORE int64_t bfpp_kinds(
    int64_t tasks, int64_t operations, int64_t units, int64_t ranks,
    const int8_t operation[tasks], const int32_t unit[tasks], const int32_t rank[tasks],
    const int32_t peer[tasks], const int32_t place[operations], int64_t code[tasks],
    int32_t first[tasks], int32_t kind_of_task[tasks]);

CORE int64_t bfpp_flags(
    int64_t tasks, int64_t operations, const int8_t operation[tasks], const int32_t piece[tasks],
    const bool computes[operations], const bool backward[operations], bool is_compute[tasks],
    bool is_pass[tasks]);

#endif
