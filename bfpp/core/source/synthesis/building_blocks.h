/* Building blocks: the passes of one micro-batch, placed so that they can repeat every period. */
#ifndef BFPP_BUILDING_BLOCKS_H
#define BFPP_BUILDING_BLOCKS_H

#include "ordering_problem.h"

CORE int64_t bfpp_place_block(
    PROBLEM_PARAMETERS, double period, int64_t tries, double scale, int64_t seed,
    double delay[kinds * stages], double start[kinds * stages]);

#endif
