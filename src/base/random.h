/* Counter-based random numbers: a draw is a pure function of (seed, counter), so position p of a
 * sequence can be drawn without drawing those before it (the charter's sampling clause).
 */
#ifndef RG_BASE_RANDOM_H
#define RG_BASE_RANDOM_H

#include <stdint.h>

/* SplitMix64 finaliser over both words (Steele, Lea, Flood 2014). */
uint64_t rg_random_u64(uint64_t seed, uint64_t counter);

/* Uniform in [0, 1) with 53 bits. */
double rg_random_unit(uint64_t seed, uint64_t counter);

#endif
