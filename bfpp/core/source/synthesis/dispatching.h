/* Orders by a rule in numbers, which is varied. */
#ifndef BFPP_DISPATCHING_H
#define BFPP_DISPATCHING_H

#include "ordering_problem.h"

CORE int64_t bfpp_dispatch(
    PROBLEM_PARAMETERS, int64_t tries, double scale, int64_t seed, int64_t width,
    double rule[kinds * stages + ranks + stages + 2], int32_t words[ranks * width],
    double taken[1]);

#endif
