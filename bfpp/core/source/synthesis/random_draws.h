/* Random numbers: the Mersenne Twister (Matsumoto and Nishimura, 1998), MT19937.
 *
 * The reference is `numpy.random.RandomState`: a seed gives the same numbers.
 */
#ifndef BFPP_RANDOM_DRAWS_H
#define BFPP_RANDOM_DRAWS_H

#include <stdbool.h>
#include <stdint.h>

#define TWISTER_WORDS 624

struct Draws {
    uint32_t words[TWISTER_WORDS];
    int next;
    bool has_spare; /* normal numbers are drawn in pairs */
    double spare;
};

void draws_begin(struct Draws *draws, uint32_t seed);

/* Uniform in [0, 1). */
double draw_uniform(struct Draws *draws);

/* One of 0 .. count - 1; `count` is at least 1, and at most 2^32. */
int64_t draw_below(struct Draws *draws, int64_t count);

/* Normal, of mean 0 and deviation 1. */
double draw_normal(struct Draws *draws);

double draw_exponential(struct Draws *draws, double mean);

#endif
