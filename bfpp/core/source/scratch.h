/* Scratch memory of one call: taken piece by piece, given back at once. */
#ifndef BFPP_SCRATCH_H
#define BFPP_SCRATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SCRATCH_PIECES 32

struct Scratch {
    void *pieces[SCRATCH_PIECES];
    int taken;
    bool failed; /* a piece could not be had: the caller gives back all, and says OUT_OF_MEMORY */
};

/* A piece of zeros, NULL where there is no memory. */
void *scratch_take(struct Scratch *scratch, int64_t count, size_t size);

void scratch_give_back(struct Scratch *scratch);

#endif
