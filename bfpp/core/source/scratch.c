/* Scratch memory of one call. */
#include "scratch.h"

#include <stdlib.h>

void *scratch_take(struct Scratch *scratch, int64_t count, size_t size)
{
    void *piece = NULL;
    if (scratch->taken < SCRATCH_PIECES && count >= 0)
        piece = calloc(count ? (size_t)count : 1, size);
    if (piece)
        scratch->pieces[scratch->taken++] = piece;
    else
        scratch->failed = true;
    return piece;
}

void scratch_give_back(struct Scratch *scratch)
{
    while (scratch->taken)
        free(scratch->pieces[--scratch->taken]);
}
