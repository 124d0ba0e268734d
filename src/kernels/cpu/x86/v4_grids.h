/* Compact grids (v4_grids.c): entry i holds the level numbers of its elements, element 0 lowest.
 * IQ2: 8 elements of 2 bits, levels 8, 25, 43. IQ3: 4 elements of 3 bits; levels of IQ3_XXS are 4 +
 * 8 * level but for the last, 62; of IQ3_S 1 + 2 * level.
 */
#ifndef RG_KERNELS_V4_GRIDS_H
#define RG_KERNELS_V4_GRIDS_H

#include <stdint.h>

extern const uint16_t rg_v4_grid_iq2xxs[256];
extern const uint16_t rg_v4_grid_iq2xs[512];
extern const uint16_t rg_v4_grid_iq2s[1024];
extern const uint16_t rg_v4_grid_iq3xxs[256];
extern const uint16_t rg_v4_grid_iq3s[512];

#endif
