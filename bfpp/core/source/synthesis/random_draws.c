/* Random numbers: the Mersenne Twister, MT19937, with the parameters of its paper. */
#include "random_draws.h"

#include <math.h>

enum { SIZE = TWISTER_WORDS, SHIFT = 397 };

void draws_begin(struct Draws *draws, uint32_t seed)
{
    uint32_t *words = draws->words;
    words[0] = seed;
    for (uint32_t nth = 1; nth < SIZE; nth++)
        words[nth] = 1812433253u * (words[nth - 1] ^ (words[nth - 1] >> 30)) + nth;
    draws->next = SIZE;
    draws->has_spare = false;
    draws->spare = 0.0;
}

/* Replace all words: the recurrence of the paper, with its matrix A. */
static void twist(uint32_t *words)
{
    for (int nth = 0; nth < SIZE; nth++) {
        uint32_t mixed = (words[nth] & 0x80000000u) | (words[(nth + 1) % SIZE] & 0x7fffffffu);
        uint32_t odd = mixed & 1u ? 0x9908b0dfu : 0u;
        words[nth] = words[(nth + SHIFT) % SIZE] ^ (mixed >> 1) ^ odd;
    }
}

/* 32 random bits: the next word, tempered. */
static uint32_t draw_bits(struct Draws *draws)
{
    if (draws->next == SIZE) {
        twist(draws->words);
        draws->next = 0;
    }
    uint32_t bits = draws->words[draws->next++];
    bits ^= bits >> 11;
    bits ^= (bits << 7) & 0x9d2c5680u;
    bits ^= (bits << 15) & 0xefc60000u;
    return bits ^ (bits >> 18);
}

double draw_uniform(struct Draws *draws)
{
    double high = draw_bits(draws) >> 5, low = draw_bits(draws) >> 6; /* 27 and 26 bits */
    return (high * 0x1p26 + low) / 0x1p53;
}

int64_t draw_below(struct Draws *draws, int64_t count)
{
    uint32_t most = (uint32_t)(count - 1), mask = most;
    for (int shift = 1; shift < 32; shift *= 2)
        mask |= mask >> shift;
    if (!most)
        return 0;
    uint32_t drawn;
    do {
        drawn = draw_bits(draws) & mask;
    } while (drawn > most);
    return drawn;
}

/* By the polar method: a point in the unit circle gives two. */
double draw_normal(struct Draws *draws)
{
    if (draws->has_spare) {
        draws->has_spare = false;
        return draws->spare;
    }
    double x, y, square;
    do {
        x = 2.0 * draw_uniform(draws) - 1.0;
        y = 2.0 * draw_uniform(draws) - 1.0;
        square = x * x + y * y;
    } while (square >= 1.0 || square == 0.0);
    double factor = sqrt(-2.0 * log(square) / square);
    draws->spare = factor * x;
    draws->has_spare = true;
    return factor * y;
}

double draw_exponential(struct Draws *draws, double mean)
{
    return mean * -log(1.0 - draw_uniform(draws));
}
